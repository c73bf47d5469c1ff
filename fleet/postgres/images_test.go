package postgres_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/postgres"
)

func shaOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// newImage returns an image with every field set.
func newImage(name string) firmware.Image {
	return firmware.Image{SHA256: shaOf(name), Size: 2_600_000, FileName: name + ".bin", Board: "", Notes: "for " + name,
		Chip: "esp32s3", Version: "2.5.0", Project: "xiaozhi", IDFVersion: "v5.5", ELFSHA256: shaOf("elf " + name),
		CompiledAt:    "Aug  8 2026 08:33:45",
		SecureVersion: 4_000_000_000, MinChipRev: 1, MaxChipRev: 65535, FlashSize: 16 << 20, MergedBinary: true,
		NotOfferable: "v1.2 would crash devices",
		Signatures:   []firmware.ImageSignature{{KeyDigest: "ab", Scheme: "rsa3072", Valid: true, Trusted: true}},
		UploadedBy:   admin, CreatedAt: now()}
}

func addImage(t testing.TB, s *postgres.Store, name string, change ...func(*firmware.Image)) firmware.Image {
	t.Helper()
	img := newImage(name)
	for _, f := range change {
		f(&img)
	}
	_, created, err := s.CreateImage(t.Context(), admin, img)
	check(t, err)
	if !created {
		t.Fatalf("image %s was there already", name)
	}
	return img
}

func newRelease(images ...firmware.Image) firmware.Release {
	at := now()
	return firmware.Release{ID: uuid.Must(uuid.NewV7()), Version: "2.5.0", Notes: "better",
		State: firmware.ReleaseReleased, Images: images,
		CreatedBy: admin, CreatedAt: at, ChangedAt: at}
}

func addRelease(t testing.TB, s *postgres.Store, images ...firmware.Image) firmware.Release {
	t.Helper()
	r := newRelease(images...)
	check(t, s.CreateRelease(t.Context(), admin, r))
	return r
}

func wantAudit(t testing.TB, s *postgres.Store, subject string, actions ...string) {
	t.Helper()
	p, err := s.AuditEntries(t.Context(), audit.Filter{Subject: subject})
	check(t, err)
	var got []string
	for i := range p.Items {
		got = append(got, p.Items[len(p.Items)-1-i].Action)
	}
	same(t, got, actions)
}

func TestImageManifest(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	img := addImage(t, s, "a")
	img.Manifest, img.ManifestSignature, img.ManifestKey, img.ManifestChecked = `{"chip":9}`, "c2ln", "aa", true
	check(t, s.SetImageManifest(ctx, admin, img))
	got, err := s.Image(ctx, img.SHA256)
	check(t, err)
	same(t, got, img)
	wantAudit(t, s, img.SHA256, "image.upload", "image.sign")
	img.SHA256 = shaOf("nobody")
	wantKind(t, s.SetImageManifest(ctx, admin, img), fleet.ErrNotFound)

	signed := newImage("b")
	signed.Manifest, signed.ManifestSignature = `{"chip":9}`, "c2ln"
	stored, created, err := s.CreateImage(ctx, admin, signed)
	check(t, err)
	if !created || stored.Manifest != signed.Manifest || stored.ManifestChecked {
		t.Errorf("created %v: %+v", created, stored)
	}
}

func TestImages(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	img := addImage(t, s, "a")
	wantAllSet(t, img, "Board", "RevokedAt", "RevokedBy", "RevokeReason", "Manifest", "ManifestSignature", "ManifestKey",
		"ManifestChecked")
	got, err := s.Image(ctx, img.SHA256)
	check(t, err)
	same(t, got, img)

	again := img
	again.FileName = "other.bin"
	stored, created, err := s.CreateImage(ctx, admin, again)
	if err != nil || created {
		t.Errorf("the same bytes again: created %t, %v", created, err)
	}
	same(t, stored, img)

	b := addImage(t, s, "b", func(img *firmware.Image) {
		img.Chip, img.FileName, img.Signatures = "esp32c3",
			"b\x00\xff.bin", nil
	})
	got, err = s.Image(ctx, b.SHA256)
	check(t, err)
	if got.FileName != "b\uFFFD.bin" {
		t.Errorf("foreign text came back as %q", got.FileName)
	}
	first, err := s.Images(ctx, firmware.ImageFilter{Limit: 1})
	check(t, err)
	second, err := s.Images(ctx, firmware.ImageFilter{Limit: 1, Cursor: first.Next})
	check(t, err)
	if first.Items[0].SHA256 != b.SHA256 || len(second.Items) != 1 || second.Items[0].SHA256 != img.SHA256 ||
		second.Next != "" {
		t.Errorf("pages %+v and %+v", first, second)
	}
	only, err := s.Images(ctx, firmware.ImageFilter{Chip: "esp32s3", Version: "2.5.0"})
	check(t, err)
	if len(only.Items) != 1 {
		t.Errorf("%d images for the chip", len(only.Items))
	}

	check(t, s.UpdateImage(ctx, admin, img.SHA256, ptr("bread-compact-wifi"), nil))
	check(t, s.RevokeImages(ctx, admin, []string{img.SHA256}, "crashes", now()))
	check(t, s.RevokeImages(ctx, admin, []string{img.SHA256}, "again", now()))
	got, err = s.Image(ctx, img.SHA256)
	check(t, err)
	if got.Board != "bread-compact-wifi" || got.Notes != img.Notes || got.RevokedAt == nil ||
		got.RevokedBy != admin.Name || got.RevokeReason != "crashes" {
		t.Errorf("revoked image %+v", got)
	}
	by, err := s.ImagesByELF(ctx, []string{img.ELFSHA256, b.ELFSHA256, ""})
	check(t, err)
	if len(by) != 1 || by[0].SHA256 != b.SHA256 {
		t.Errorf("images by build %+v", by)
	}
	wantAudit(t, s, img.SHA256, "image.upload", "image.update", "image.revoke")
	check(t, s.DeleteImage(ctx, admin, b.SHA256))
	wantKind(t, s.DeleteImage(ctx, admin, b.SHA256), fleet.ErrNotFound)
	wantKind(t, s.UpdateImage(ctx, admin, b.SHA256, nil, ptr("x")), fleet.ErrNotFound)
}

func TestReleases(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	a := addImage(t, s, "a")
	b := addImage(t, s, "b", func(img *firmware.Image) { img.Board = "lichuang-dev" })
	r := addRelease(t, s, a, b)
	wantAllSet(t, r, "Reason")
	got, err := s.Release(ctx, r.ID)
	check(t, err)
	same(t, got, r)

	clash := addImage(t, s, "c")
	wantCode(t, s.CreateRelease(ctx, admin, newRelease(a, clash)), "board_taken")
	wantCode(t, s.CreateRelease(ctx, admin, newRelease(newImage("nowhere"))), "image_not_there")
	wantCode(t, s.UpdateImage(ctx, admin, b.SHA256, ptr(""), nil), "board_taken")
	check(t, s.UpdateImage(ctx, admin, b.SHA256, ptr("esp-box"), nil))
	got, err = s.Release(ctx, r.ID)
	check(t, err)
	if got.Images[1].Board != "esp-box" {
		t.Errorf("the release did not follow: %+v", got.Images)
	}
	wantCode(t, s.DeleteImage(ctx, admin, a.SHA256), "image_in_use")

	r.Notes = "worse"
	wantCode(t, s.UpdateRelease(ctx, admin, r), "release_changed")
	wantCode(t, s.SetReleaseState(ctx, admin, r.ID, firmware.ReleaseDraft, firmware.ReleaseReleased, "", now()),
		"release_changed")
	at := now()
	check(t, s.SetReleaseState(ctx, admin, r.ID, firmware.ReleaseReleased, firmware.ReleaseRevoked, "burns", at))
	got, err = s.Release(ctx, r.ID)
	check(t, err)
	if got.State != firmware.ReleaseRevoked || got.Reason != "burns" || !got.ChangedAt.Equal(at) ||
		got.Images[0].RevokedAt == nil || got.Images[1].RevokeReason != "burns" {
		t.Errorf("revoked release %+v", got)
	}
	wantAudit(t, s, r.ID.String(), "release.create", "release.revoked")
	wantAudit(t, s, a.SHA256, "image.upload", "image.revoke")
	wantKind(t, s.SetReleaseState(ctx, admin, uuid.New(), "draft", "released", "", at), fleet.ErrNotFound)
}

func TestDraftRelease(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	a := addImage(t, s, "a")
	b := addImage(t, s, "b")
	r := newRelease(a)
	r.State = firmware.ReleaseDraft
	check(t, s.CreateRelease(ctx, admin, r))
	r.Images, r.Notes, r.Version = []firmware.Image{b}, "other", "2.6"
	check(t, s.UpdateRelease(ctx, admin, r))
	addRelease(t, s, a)
	p, err := s.Releases(ctx, firmware.ReleaseFilter{State: firmware.ReleaseDraft})
	check(t, err)
	same(t, p.Items, []firmware.Release{r})
	p, err = s.Releases(ctx, firmware.ReleaseFilter{Limit: 1})
	check(t, err)
	p, err = s.Releases(ctx, firmware.ReleaseFilter{Limit: 1, Cursor: p.Next})
	check(t, err)
	same(t, p.Items, []firmware.Release{r})
}

func TestRunningByELF(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, "d1", "d2", "d3")
	check(t, s.RetireDevice(ctx, admin, "d3", now()))
	got, err := s.RunningByELF(ctx, []string{"9f2c", "none"})
	check(t, err)
	same(t, got, map[string]int{"9f2c": 2})
}

// The flash layout of a poll is kept until another poll reports one.
func TestLayout(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, "d")
	d, err := s.Device(ctx, "d")
	check(t, err)
	if d.Layout != nil {
		t.Errorf("layout %+v before any poll", d.Layout)
	}
	p := poll("d", now().Add(time.Second))
	p.Poll.Layout = &fleet.FlashLayout{SlotSize: 0, Labels: []string{"nvs", "ota_0", "assets\x00\xff"}, ChipRev: 101,
		FreeHeap: 90_000, FlashBytes: 16 << 20}
	check(t, s.SavePolls(ctx, []enrolment.PollRecord{p, poll("e", now())}))
	check(t, s.SavePolls(ctx, []enrolment.PollRecord{poll("d", now().Add(2*time.Second))}))
	check(t, s.UpdateDevice(ctx, admin, "d", fleet.DevicePatch{TimeZone: ptr("Asia/Shanghai")}))
	d, err = s.Device(ctx, "d")
	check(t, err)
	same(t, d.Layout, &fleet.FlashLayout{Labels: []string{"nvs", "ota_0", "assets\uFFFD"}, ChipRev: 101, FreeHeap: 90_000,
		FlashBytes: 16 << 20})
	if d.TimeZone != "Asia/Shanghai" {
		t.Errorf("time zone %q", d.TimeZone)
	}
	check(t, s.ReplaceDevice(ctx, admin, "d", "e", now()))
	e, err := s.Device(ctx, "e")
	check(t, err)
	if e.TimeZone != "Asia/Shanghai" || e.Layout != nil {
		t.Errorf("the successor has %q, %+v", e.TimeZone, e.Layout)
	}
}
