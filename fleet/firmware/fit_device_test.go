package firmware_test

import (
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

var fitNow = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// fitting returns a device and an image that fit.
func fitting() (fleet.Device, firmware.Image) {
	d := fleet.Device{ID: "a085e3112233", Board: "bread-compact-wifi", Chip: "esp32s3", Version: "2.4.2", ELFSHA256: "aa",
		Enrolment: fleet.EnrolmentEnrolled,
		Layout: &fleet.FlashLayout{SlotSize: 4128768, Labels: []string{"nvs", "otadata", "ota_0", "ota_1", "assets"},
			ChipRev: 2}}
	img := firmware.Image{SHA256: strings.Repeat("1", 64), Size: 2_600_000, Chip: "esp32s3", Version: "2.4.3",
		Project:   "xiaozhi",
		ELFSHA256: "bb", MaxChipRev: 65535}
	return d, img
}

type fitCase struct {
	name   string
	change func(d *fleet.Device, img *firmware.Image, o *firmware.FitOptions)
	want   firmware.SkipReason
	words  string // in the detail
}

var past, future = fitNow.Add(-time.Hour), fitNow.Add(time.Hour)

// A change to a device or image that fits, and the expected result.
var fitCases = []fitCase{
	{"fits", func(*fleet.Device, *firmware.Image, *firmware.FitOptions) {}, firmware.SkipNone, ""},
	{"retired", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) { d.RetiredAt = &past },
		firmware.SkipRetired, ""},
	{"waits to be enrolled", func(d *fleet.Device, _ *firmware.Image,
		_ *firmware.FitOptions) {
		d.Enrolment = fleet.EnrolmentWaiting
	}, firmware.SkipNotEnrolled, ""},
	{"a plug-in", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) { d.ID, d.Chip = "plugin.weather", "" },
		firmware.SkipProgram, ""},
	{"an endpoint", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) { d.ID = "endpoint.desk" },
		firmware.SkipProgram, ""},
	{"a device of MCP over MQTT", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) { d.Kind = fleet.DeviceMQTT5 },
		firmware.SkipProgram, ""},
	{"chip unknown", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) { d.Chip = "" },
		firmware.SkipUnknown, "boot poll"},
	{"flash unknown", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) { d.Layout = nil },
		firmware.SkipUnknown, "boot poll"},
	{"silicon too old", func(_ *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) { img.MinChipRev = 100 },
		firmware.SkipChipRevision, "v0.2"},
	{"silicon too new", func(d *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) {
		d.Layout.ChipRev, img.MaxChipRev = 301, 199
	},
		firmware.SkipChipRevision, "up to v1.99"},
	{"silicon at the limits", func(d *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) {
		d.Layout.ChipRev, img.MinChipRev, img.MaxChipRev = 199, 199, 199
	}, firmware.SkipNone, ""},
	{"silicon unknown", func(d *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) {
		d.Layout.ChipRev, img.MinChipRev = 0, 100
	}, firmware.SkipNone, ""},
	{"no OTA slot", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) { d.Layout.SlotSize = 0 },
		firmware.SkipNoSlot, "OTA"},
	{"as large as the slot", func(d *fleet.Device, img *firmware.Image,
		_ *firmware.FitOptions) {
		d.Layout.SlotSize = img.Size
	}, firmware.SkipNone, ""},
	{"a byte too large", func(d *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) {
		d.Layout.SlotSize, img.Size = 1536<<10, 1536<<10+1
	},
		firmware.SkipTooLarge, "the slot has 1,536 KiB, the image 1,537 KiB"},
	{"2.x on a 1.x layout", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) {
		d.Version, d.Layout.Labels = "1.9.4", []string{"nvs", "model", "ota_0", "ota_1"}
	}, firmware.SkipPartitions, "nvs, model, ota_0"},
	{"2.x on a 2.x layout, from 1.x", func(d *fleet.Device, _ *firmware.Image,
		_ *firmware.FitOptions) {
		d.Version = "1.9.4"
	}, firmware.SkipNone, ""},
	{"2.x that never had assets", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) {
		d.Layout.Labels = []string{"nvs", "ota_0"}
	}, firmware.SkipNone, ""},
	{"1.x on a 1.x layout", func(d *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) {
		d.Version, img.Version, d.Layout.Labels = "1.9.4", "1.9.5", []string{"nvs", "ota_0"}
	}, firmware.SkipNone, ""},
	{"another project has its own rules", func(d *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) {
		d.Version, img.Project, d.Layout.Labels = "1.9.4", "lamp", []string{"nvs", "ota_0"}
	}, firmware.SkipNone, ""},
	{"installed", func(d *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) { d.ELFSHA256 = img.ELFSHA256 },
		firmware.SkipInstalled, "2.4.2"},
	{"installed, and a downgrade would do", func(d *fleet.Device, img *firmware.Image, o *firmware.FitOptions) {
		d.ELFSHA256, o.AllowDowngrade = img.ELFSHA256, true
	}, firmware.SkipInstalled, ""},
	{"builds unknown", func(d *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) {
		d.ELFSHA256, img.ELFSHA256 = "", ""
	}, firmware.SkipNone, ""},
	{"newer installed", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) { d.Version = "2.10.0" },
		firmware.SkipNewer, "newer than 2.4.3"},
	{"more parts are newer", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) { d.Version = "2.4.3.0" },
		firmware.SkipNewer, "2.4.3.0"},
	{"another build of the version", func(d *fleet.Device, _ *firmware.Image,
		_ *firmware.FitOptions) {
		d.Version = "2.4.3"
	}, firmware.SkipNewer, "another build"},
	{"downgrade allowed", func(d *fleet.Device, _ *firmware.Image, o *firmware.FitOptions) {
		d.Version, o.AllowDowngrade = "2.10.0", true
	}, firmware.SkipNone, ""},
	{"pull with a version of words", func(d *fleet.Device, _ *firmware.Image, o *firmware.FitOptions) {
		d.Version, o.Mode = "latest", firmware.ModePull
	},
		firmware.SkipVersion, `"latest"`},
	{"pull of an image that cannot be offered", func(_ *fleet.Device, img *firmware.Image, o *firmware.FitOptions) {
		img.Version, o.Mode, o.AllowDowngrade = "v2.4.3", firmware.ModePull, true
	}, firmware.SkipVersion, `"v2.4.3"`},
	{"push compares nothing", func(d *fleet.Device, img *firmware.Image, o *firmware.FitOptions) {
		d.Version, img.Version, o.Mode = "latest", "v2.4.3", firmware.ModePush
	}, firmware.SkipNone, ""},
	{"revoked", func(_ *fleet.Device, img *firmware.Image, _ *firmware.FitOptions) {
		img.RevokedAt, img.RevokeReason = &past, "leaks"
	}, firmware.SkipRevoked, "leaks"},
	{"held", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) {
		d.Hold = &fleet.Hold{Reason: "on loan", By: fleet.Principal{Name: "ada"}, Until: &future}
	}, firmware.SkipHeld, "ada: on loan"},
	{"hold is over", func(d *fleet.Device, _ *firmware.Image,
		_ *firmware.FitOptions) {
		d.Hold = &fleet.Hold{Until: &past}
	}, firmware.SkipNone, ""},
	{"held for ever, and too small for ever", func(d *fleet.Device, _ *firmware.Image, _ *firmware.FitOptions) {
		d.Hold, d.Layout.SlotSize = &fleet.Hold{}, 4096
	}, firmware.SkipTooLarge, ""},
}

// said returns a reason as people read it.
func said(r fleet.Reason) string { return i18n.Because(i18n.English, time.UTC, "reason.", r) }

func TestFitDevice(t *testing.T) {
	for _, tt := range fitCases {
		t.Run(tt.name, func(t *testing.T) {
			d, img := fitting()
			var o firmware.FitOptions
			tt.change(&d, &img, &o)
			r := firmware.Release{Version: img.Version, Images: []firmware.Image{img}}
			got, reason, detail := firmware.FitDevice(d, r, o, fitNow)
			if reason != tt.want || !strings.Contains(said(detail), tt.words) {
				t.Errorf("release: %q, %q; want %q with %q", reason, detail, tt.want, tt.words)
			}
			if reason == firmware.SkipNone && got.SHA256 != img.SHA256 {
				t.Errorf("got image %q", got.SHA256)
			}
			if reason, detail := firmware.FitImage(d, img, o, fitNow); reason != tt.want || !strings.Contains(said(detail),
				tt.words) {
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
		images []firmware.Image
		want   string
		reason firmware.SkipReason
	}{
		{"its very board", []firmware.Image{other, general, c3, own}, "own", firmware.SkipNone},
		{"any board with its chip", []firmware.Image{other, c3, general}, "general", firmware.SkipNone},
		{"none for its board", []firmware.Image{other, c3}, "", firmware.SkipNoImage},
		{"none at all", nil, "", firmware.SkipNoImage},
	} {
		img, reason, _ := firmware.FitDevice(d, firmware.Release{Images: tt.images}, firmware.FitOptions{}, fitNow)
		if img.SHA256 != tt.want || reason != tt.reason {
			t.Errorf("%s: image %q, reason %q", tt.name, img.SHA256, reason)
		}
	}
	for want, img := range map[firmware.SkipReason]firmware.Image{firmware.SkipNoImage: other, firmware.SkipChip: c3,
		firmware.SkipNone: own} {
		if reason, _ := firmware.FitImage(d, img, firmware.FitOptions{}, fitNow); reason != want {
			t.Errorf("image %q by hand: %q, want %q", img.SHA256, reason, want)
		}
	}
}
