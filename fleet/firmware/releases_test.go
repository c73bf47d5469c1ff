package firmware_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
)

func TestCreateRelease(t *testing.T) {
	ctx, b := t.Context(), newFirmware(t)
	s3, c3 := b.image(esptest.App{}, "").SHA256, b.image(esptest.App{Chip: "esp32c3"}, "").SHA256
	lamp := b.image(esptest.App{ELFOf: "lamp"}, "lamp").SHA256
	twin := b.image(esptest.App{ELFOf: "twin"}, "").SHA256
	newer := b.image(esptest.App{Chip: "esp32p4", Version: "2.5.0"}, "").SHA256
	for _, tt := range []struct {
		name string
		req  firmware.ReleaseRequest
		code string // of the refusal
		want string // version
	}{
		{"one", firmware.ReleaseRequest{Images: []string{s3}}, "", "2.4.3"},
		{"three", firmware.ReleaseRequest{Images: []string{lamp, strings.ToUpper(c3), s3}}, "", "2.4.3"},
		{"versions that differ", firmware.ReleaseRequest{Images: []string{s3, newer}}, "versions_differ", ""},
		{"versions that differ, and one that is said", firmware.ReleaseRequest{Version: "spring",
			Images: []string{s3, newer}}, "", "spring"},
		{"two for a board", firmware.ReleaseRequest{Images: []string{s3, twin}}, "board_taken", ""},
		{"the same twice", firmware.ReleaseRequest{Images: []string{s3, s3}}, "board_taken", ""},
		{"none", firmware.ReleaseRequest{Version: "1"}, "no_images", ""},
		{"none, as a draft", firmware.ReleaseRequest{Version: "1", Draft: true}, "", "1"},
		{"none, as a draft without a version", firmware.ReleaseRequest{Draft: true}, "invalid_version", ""},
		{"unknown", firmware.ReleaseRequest{Images: []string{strings.Repeat("0", 64)}}, "unknown_image", ""},
		{"no hash", firmware.ReleaseRequest{Images: []string{"\x00"}}, "unknown_image", ""},
		{"too many", firmware.ReleaseRequest{Images: make([]string, 501)}, "too_many_images", ""},
		{"version of two lines", firmware.ReleaseRequest{Version: "1\n2", Images: []string{s3}}, "invalid_version", ""},
		{"endless notes", firmware.ReleaseRequest{Images: []string{s3}, Notes: strings.Repeat("x", 33<<10)}, "invalid_notes",
			""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := b.Create(ctx, anOperator, tt.req)
			if tt.code != "" {
				wantCode(t, err, fleet.ErrInvalid, tt.code)
				return
			}
			if err != nil || r.Version != tt.want || len(r.Images) != len(tt.req.Images) || r.CreatedBy != anOperator {
				t.Errorf("%+v, %v", r, err)
			}
			if draft := r.State == firmware.ReleaseDraft; draft != tt.req.Draft {
				t.Errorf("state %s", r.State)
			}
		})
	}
	_, err := b.Create(ctx, aViewer, firmware.ReleaseRequest{Images: []string{s3}})
	wantCode(t, err, fleet.ErrForbidden, "forbidden")
}

func TestEditRelease(t *testing.T) {
	ctx, b := t.Context(), newFirmware(t)
	s3, c3 := b.image(esptest.App{}, "").SHA256, b.image(esptest.App{Chip: "esp32c3"}, "").SHA256
	r, err := b.Create(ctx, anOperator, firmware.ReleaseRequest{Version: "soon", Draft: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.SetState(ctx, anOperator, r.ID, firmware.ReleaseReleased, "")
	wantCode(t, err, fleet.ErrConflict, "no_images")
	r, err = b.Edit(ctx, anOperator, r.ID, firmware.ReleaseRequest{Images: []string{s3, c3}, Notes: "fixes\nthings"})
	if err != nil || r.Version != "2.4.3" || len(r.Images) != 2 || r.Notes != "fixes\nthings" {
		t.Fatalf("%+v, %v", r, err)
	}
	if r, err = b.SetState(ctx, anOperator, r.ID, firmware.ReleaseReleased, ""); err != nil ||
		r.State != firmware.ReleaseReleased {
		t.Fatalf("%+v, %v", r, err)
	}
	_, err = b.Edit(ctx, anOperator, r.ID, firmware.ReleaseRequest{Images: []string{s3}})
	wantCode(t, err, fleet.ErrConflict, "not_a_draft")
}

func TestReleaseStates(t *testing.T) {
	ctx, b := t.Context(), newFirmware(t)
	img := b.image(esptest.App{}, "").SHA256
	const draft, released, deprecated, revoked = firmware.ReleaseDraft, firmware.ReleaseReleased,
		firmware.ReleaseDeprecated, firmware.ReleaseRevoked
	for _, path := range []struct {
		steps []firmware.ReleaseState // from a draft on
		kind  error                   // of the last one's refusal
		code  string
	}{
		{[]firmware.ReleaseState{released, deprecated, released, deprecated}, nil, ""},
		{[]firmware.ReleaseState{deprecated}, fleet.ErrConflict, "release_state"},
		{[]firmware.ReleaseState{released, released}, fleet.ErrConflict, "release_state"},
		{[]firmware.ReleaseState{released, draft}, fleet.ErrInvalid, "invalid_state"},
		{[]firmware.ReleaseState{"gone"}, fleet.ErrInvalid, "invalid_state"},
	} {
		r, err := b.Create(ctx, anOperator, firmware.ReleaseRequest{Images: []string{img}, Draft: true})
		if err != nil {
			t.Fatal(err)
		}
		for i, to := range path.steps {
			got, err := b.SetState(ctx, anOperator, r.ID, to, "why")
			if i == len(path.steps)-1 && path.code != "" {
				wantCode(t, err, path.kind, path.code)
			} else if err != nil || got.State != to || got.Reason != "why" {
				t.Errorf("%v, step %d: %+v, %v", path.steps, i, got, err)
			}
		}
	}
	_, err := b.SetState(ctx, anOperator, uuid.Must(uuid.NewV7()), released, "")
	if !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("an unknown release: %v", err)
	}
}

func TestRevokeRelease(t *testing.T) {
	ctx, b := t.Context(), newFirmware(t)
	s3, c3 := b.image(esptest.App{}, "").SHA256, b.image(esptest.App{Chip: "esp32c3"}, "").SHA256
	r, err := b.Create(ctx, anOperator, firmware.ReleaseRequest{Images: []string{s3, c3}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.Create(ctx, anOperator, firmware.ReleaseRequest{Images: []string{c3}, Draft: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.SetState(ctx, anOperator, r.ID, firmware.ReleaseRevoked, "bricks")
	wantCode(t, err, fleet.ErrForbidden, "forbidden")
	_, err = b.SetState(ctx, anAdmin, r.ID, firmware.ReleaseRevoked, "")
	wantCode(t, err, fleet.ErrInvalid, "invalid_reason")
	got, err := b.SetState(ctx, anAdmin, r.ID, firmware.ReleaseRevoked, "bricks")
	if err != nil || got.State != firmware.ReleaseRevoked || got.Reason != "bricks" {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, img := range got.Images {
		if img.RevokedAt == nil || !slices.Contains(b.revoked, img.SHA256) {
			t.Errorf("image %.12s goes on: %+v, told %v", img.SHA256, img, b.revoked)
		}
	}
	_, err = b.SetState(ctx, anAdmin, r.ID, firmware.ReleaseReleased, "")
	wantCode(t, err, fleet.ErrConflict, "release_state")
	_, err = b.SetState(ctx, anAdmin, other.ID, firmware.ReleaseReleased, "")
	wantCode(t, err, fleet.ErrConflict, "image_revoked")
}
