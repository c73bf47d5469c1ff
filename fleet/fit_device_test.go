package fleet_test

import (
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
)

var fitNow = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// fitting returns a device and an image that fit.
func fitting() (fleet.Device, fleet.Image) {
	d := fleet.Device{ID: "a085e3112233", Board: "bread-compact-wifi", Chip: "esp32s3", Version: "2.4.2", ELFSHA256: "aa",
		Enrolment: fleet.EnrolmentEnrolled,
		Layout:    &fleet.FlashLayout{SlotSize: 4128768, Labels: []string{"nvs", "otadata", "ota_0", "ota_1", "assets"}, ChipRev: 2}}
	img := fleet.Image{SHA256: strings.Repeat("1", 64), Size: 2_600_000, Chip: "esp32s3", Version: "2.4.3", Project: "xiaozhi",
		ELFSHA256: "bb", MaxChipRev: 65535}
	return d, img
}

type fitCase struct {
	name   string
	change func(d *fleet.Device, img *fleet.Image, o *fleet.FitOptions)
	want   fleet.SkipReason
	words  string // in the detail
}

var past, future = fitNow.Add(-time.Hour), fitNow.Add(time.Hour)

// A change to what fits, and what comes of it.
var fitCases = []fitCase{
	{"fits", func(*fleet.Device, *fleet.Image, *fleet.FitOptions) {}, fleet.SkipNone, ""},
	{"retired", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.RetiredAt = &past }, fleet.SkipRetired, ""},
	{"waits to be enrolled", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Enrolment = fleet.EnrolmentWaiting }, fleet.SkipNotEnrolled, ""},
	{"chip unknown", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Chip = "" }, fleet.SkipUnknown, "boot poll"},
	{"flash unknown", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Layout = nil }, fleet.SkipUnknown, "boot poll"},
	{"silicon too old", func(_ *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) { img.MinChipRev = 100 }, fleet.SkipChipRevision, "v0.2"},
	{"silicon too new", func(d *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) {
		d.Layout.ChipRev, img.MaxChipRev = 301, 199
	},
		fleet.SkipChipRevision, "up to v1.99"},
	{"silicon at the limits", func(d *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) {
		d.Layout.ChipRev, img.MinChipRev, img.MaxChipRev = 199, 199, 199
	}, fleet.SkipNone, ""},
	{"silicon unknown", func(d *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) {
		d.Layout.ChipRev, img.MinChipRev = 0, 100
	}, fleet.SkipNone, ""},
	{"no OTA slot", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Layout.SlotSize = 0 }, fleet.SkipNoSlot, "OTA"},
	{"as large as the slot", func(d *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) { d.Layout.SlotSize = img.Size }, fleet.SkipNone, ""},
	{"a byte too large", func(d *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) {
		d.Layout.SlotSize, img.Size = 1536<<10, 1536<<10+1
	},
		fleet.SkipTooLarge, "slot of 1,536 KiB, image of 1,537 KiB"},
	{"2.x on a 1.x layout", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) {
		d.Version, d.Layout.Labels = "1.9.4", []string{"nvs", "model", "ota_0", "ota_1"}
	}, fleet.SkipPartitions, "nvs, model, ota_0"},
	{"2.x on a 2.x layout, from 1.x", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Version = "1.9.4" }, fleet.SkipNone, ""},
	{"2.x that never had assets", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Layout.Labels = []string{"nvs", "ota_0"} }, fleet.SkipNone, ""},
	{"1.x on a 1.x layout", func(d *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) {
		d.Version, img.Version, d.Layout.Labels = "1.9.4", "1.9.5", []string{"nvs", "ota_0"}
	}, fleet.SkipNone, ""},
	{"another project has its own rules", func(d *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) {
		d.Version, img.Project, d.Layout.Labels = "1.9.4", "lamp", []string{"nvs", "ota_0"}
	}, fleet.SkipNone, ""},
	{"installed", func(d *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) { d.ELFSHA256 = img.ELFSHA256 }, fleet.SkipInstalled, "2.4.2"},
	{"installed, and a downgrade would do", func(d *fleet.Device, img *fleet.Image, o *fleet.FitOptions) {
		d.ELFSHA256, o.AllowDowngrade = img.ELFSHA256, true
	}, fleet.SkipInstalled, ""},
	{"builds unknown", func(d *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) { d.ELFSHA256, img.ELFSHA256 = "", "" }, fleet.SkipNone, ""},
	{"newer installed", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Version = "2.10.0" }, fleet.SkipNewer, "newer than 2.4.3"},
	{"more parts are newer", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Version = "2.4.3.0" }, fleet.SkipNewer, "2.4.3.0"},
	{"another build of the version", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Version = "2.4.3" }, fleet.SkipNewer, "another build"},
	{"downgrade allowed", func(d *fleet.Device, _ *fleet.Image, o *fleet.FitOptions) {
		d.Version, o.AllowDowngrade = "2.10.0", true
	}, fleet.SkipNone, ""},
	{"pull with a version of words", func(d *fleet.Device, _ *fleet.Image, o *fleet.FitOptions) {
		d.Version, o.Mode = "latest", fleet.ModePull
	},
		fleet.SkipVersion, `"latest"`},
	{"pull of an image that cannot be offered", func(_ *fleet.Device, img *fleet.Image, o *fleet.FitOptions) {
		img.Version, o.Mode, o.AllowDowngrade = "v2.4.3", fleet.ModePull, true
	}, fleet.SkipVersion, `"v2.4.3"`},
	{"push compares nothing", func(d *fleet.Device, img *fleet.Image, o *fleet.FitOptions) {
		d.Version, img.Version, o.Mode = "latest", "v2.4.3", fleet.ModePush
	}, fleet.SkipNone, ""},
	{"revoked", func(_ *fleet.Device, img *fleet.Image, _ *fleet.FitOptions) {
		img.RevokedAt, img.RevokeReason = &past, "leaks"
	}, fleet.SkipRevoked, "leaks"},
	{"held", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) {
		d.Hold = &fleet.Hold{Reason: "on loan", By: fleet.Actor{Name: "ada"}, Until: &future}
	}, fleet.SkipHeld, "ada: on loan"},
	{"hold is over", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) { d.Hold = &fleet.Hold{Until: &past} }, fleet.SkipNone, ""},
	{"held for ever, and too small for ever", func(d *fleet.Device, _ *fleet.Image, _ *fleet.FitOptions) {
		d.Hold, d.Layout.SlotSize = &fleet.Hold{}, 4096
	}, fleet.SkipTooLarge, ""},
}

func TestFitDevice(t *testing.T) {
	for _, tt := range fitCases {
		t.Run(tt.name, func(t *testing.T) {
			d, img := fitting()
			var o fleet.FitOptions
			tt.change(&d, &img, &o)
			r := fleet.Release{Version: img.Version, Images: []fleet.Image{img}}
			got, reason, detail := fleet.FitDevice(d, r, o, fitNow)
			if reason != tt.want || !strings.Contains(detail, tt.words) {
				t.Errorf("release: %q, %q; want %q with %q", reason, detail, tt.want, tt.words)
			}
			if reason == fleet.SkipNone && got.SHA256 != img.SHA256 {
				t.Errorf("got image %q", got.SHA256)
			}
			if reason, detail := fleet.FitImage(d, img, o, fitNow); reason != tt.want || !strings.Contains(detail, tt.words) {
				t.Errorf("image: %q, %q; want %q with %q", reason, detail, tt.want, tt.words)
			}
		})
	}
}

func TestFitChoosesTheImage(t *testing.T) {
	d, general := fitting()
	own, other, c3 := general, general, general
	own.SHA256, own.Board = "own", d.Board
	other.SHA256, other.Board = "other", "esp-box-3"
	c3.SHA256, c3.Chip = "c3", "esp32c3"
	general.SHA256 = "general"
	for _, tt := range []struct {
		name   string
		images []fleet.Image
		want   string
		reason fleet.SkipReason
	}{
		{"its very board", []fleet.Image{other, general, c3, own}, "own", fleet.SkipNone},
		{"any board with its chip", []fleet.Image{other, c3, general}, "general", fleet.SkipNone},
		{"none for its board", []fleet.Image{other, c3}, "", fleet.SkipNoImage},
		{"none at all", nil, "", fleet.SkipNoImage},
	} {
		img, reason, _ := fleet.FitDevice(d, fleet.Release{Images: tt.images}, fleet.FitOptions{}, fitNow)
		if img.SHA256 != tt.want || reason != tt.reason {
			t.Errorf("%s: image %q, reason %q", tt.name, img.SHA256, reason)
		}
	}
	for want, img := range map[fleet.SkipReason]fleet.Image{fleet.SkipNoImage: other, fleet.SkipChip: c3, fleet.SkipNone: own} {
		if reason, _ := fleet.FitImage(d, img, fleet.FitOptions{}, fitNow); reason != want {
			t.Errorf("image %q by hand: %q, want %q", img.SHA256, reason, want)
		}
	}
}
