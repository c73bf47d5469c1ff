package firmware_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetd/fleet"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
)

func sameImage(t *testing.T, got, want firmware.Image) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestUpdateImage(t *testing.T) {
	ctx, b := t.Context(), newFirmware(t)
	img := b.image(esptest.App{}, "")
	board, notes, bad := "lamp", "for the lab\n", "LAMP 1"
	got, err := b.Update(ctx, anOperator, img.SHA256, &board, &notes)
	if err != nil || got.Board != "lamp" || got.Notes != "for the lab" {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = b.Update(ctx, anOperator, img.SHA256, nil, nil)
	if err != nil || got.Board != "lamp" || got.Notes != "for the lab" {
		t.Errorf("nothing changed: %+v, %v", got, err)
	}
	_, err = b.Update(ctx, anOperator, img.SHA256, &bad, nil)
	wantCode(t, err, fleet.ErrInvalid, "invalid_board")
	_, err = b.Update(ctx, aViewer, img.SHA256, nil, &notes)
	wantCode(t, err, fleet.ErrForbidden, "forbidden")
	if _, err := b.Create(ctx, anOperator, firmware.ReleaseRequest{Images: []string{img.SHA256}}); err != nil {
		t.Fatal(err)
	}
	other := ""
	_, err = b.Update(ctx, anOperator, img.SHA256, &other, nil)
	wantCode(t, err, fleet.ErrConflict, "image_released")
	if _, err = b.Update(ctx, anOperator, img.SHA256, &board, &other); err != nil {
		t.Errorf("the same board and other notes: %v", err)
	}
}

func TestRevokeImage(t *testing.T) {
	ctx, b := t.Context(), newFirmware(t)
	app := esptest.App{Size: 4000}
	img := b.image(app, "")
	_, err := b.Revoke(ctx, anOperator, img.SHA256, "leaks")
	wantCode(t, err, fleet.ErrForbidden, "forbidden")
	_, err = b.Revoke(ctx, anAdmin, img.SHA256, " ")
	wantCode(t, err, fleet.ErrInvalid, "invalid_reason")
	if len(b.revoked) > 0 {
		t.Fatalf("cut off already: %v", b.revoked)
	}
	got, err := b.Revoke(ctx, anAdmin, img.SHA256, "leaks")
	if err != nil || got.RevokedAt == nil || got.RevokedBy != "ada" || got.RevokeReason != "leaks" ||
		!slices.Equal(b.revoked, []string{img.SHA256}) {
		t.Errorf("%+v, %v, told %v", got, err, b.revoked)
	}
	again, err := b.Revoke(ctx, anAdmin, img.SHA256, "another reason")
	if err != nil || again.RevokeReason != "leaks" {
		t.Errorf("revoked again: %+v, %v", again, err)
	}
	_, _, err = b.upload(app.Bytes(), "")
	wantCode(t, err, fleet.ErrConflict, "image_revoked")
	_, err = b.Create(ctx, anOperator, firmware.ReleaseRequest{Images: []string{img.SHA256}})
	wantCode(t, err, fleet.ErrInvalid, "image_revoked")
}

func TestDeleteImage(t *testing.T) {
	ctx, b := t.Context(), newFirmware(t)
	used, spare := b.image(esptest.App{}, ""), b.image(esptest.App{Chip: "esp32c3"}, "")
	if _, err := b.Create(ctx, anOperator, firmware.ReleaseRequest{Images: []string{used.SHA256}}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, b.Delete(ctx, anOperator, used.SHA256), fleet.ErrConflict, "image_in_use")
	wantCode(t, b.Delete(ctx, aViewer, spare.SHA256), fleet.ErrForbidden, "forbidden")
	if err := b.Delete(ctx, anOperator, spare.SHA256); err != nil {
		t.Fatal(err)
	}
	if r, err := b.blobs.OpenRange(ctx, spare.SHA256, 0, -1); err == nil {
		r.Close()
		t.Error("the bytes of a deleted image are still there")
	}
	b.read(used.SHA256)
}

// TestUploadAndDeleteTogether: a recorded image always has its bytes.
func TestUploadAndDeleteTogether(t *testing.T) {
	b := newFirmware(t)
	data := esptest.App{}.Bytes()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				img, _, err := b.upload(data, "")
				if err != nil {
					continue // deleted between going on record and being read back
				}
				_ = b.Delete(t.Context(), anOperator, img.SHA256)
			}
		})
	}
	wg.Wait()
	img, _, err := b.upload(data, "")
	if err != nil {
		t.Fatal(err)
	}
	b.read(img.SHA256)
}

func TestFirmwareEvents(t *testing.T) {
	events := new(fleet.Events)
	b := newFirmware(t, func(o *firmware.Options) { o.Events = events })
	sub := events.Subscribe(10, nil)
	defer sub.Close()
	img := b.image(esptest.App{}, "")
	r, err := b.Create(t.Context(), anOperator, firmware.ReleaseRequest{Images: []string{img.SHA256}})
	if err != nil {
		t.Fatal(err)
	}
	for i, subject := range []string{img.SHA256, r.ID.String()} {
		if e := <-sub.C; e.Kind != fleet.EventRelease || e.Subject != subject || e.At.IsZero() {
			t.Errorf("event %d: %s", i, fmt.Sprintf("%+v", e))
		}
	}
}
