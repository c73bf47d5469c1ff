package campaign_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestWindows(t *testing.T) {
	nightly := campaign.Window{Cron: "0 2 * * *", Duration: 3 * time.Hour, TimeZone: "UTC"}
	berlin := campaign.Window{Cron: "30 2 * * *", Duration: time.Hour, TimeZone: "Europe/Berlin"}
	device := campaign.Window{Cron: "0 2 * * *", Duration: time.Hour, TimeZone: campaign.DeviceZone}
	weekend := campaign.Window{Cron: "0 0 * * 6", Duration: 48 * time.Hour, TimeZone: "UTC"}
	tests := []struct {
		name    string
		windows []campaign.Window
		zone    string
		now     string
		need    time.Duration
		open    bool
		next    string // "" without one
	}{
		{"none: always", nil, "UTC", "2026-03-01T12:00:00Z", time.Hour, true, "2026-03-01T12:00:00Z"},
		{"before", []campaign.Window{nightly}, "UTC", "2026-03-01T01:59:59Z", 0, false, "2026-03-01T02:00:00Z"},
		{"at the opening", []campaign.Window{nightly}, "UTC", "2026-03-01T02:00:00Z", 0, true, "2026-03-01T02:00:00Z"},
		{"inside", []campaign.Window{nightly}, "UTC", "2026-03-01T03:30:00.5Z", time.Hour, true, "2026-03-01T03:30:00.5Z"},
		{"just fits", []campaign.Window{nightly}, "UTC", "2026-03-01T04:00:00Z", time.Hour, true, "2026-03-01T04:00:00Z"},
		{"does not fit any more", []campaign.Window{nightly}, "UTC", "2026-03-01T04:00:01Z", time.Hour, false,
			"2026-03-02T02:00:00Z"},
		{"over", []campaign.Window{nightly}, "UTC", "2026-03-01T05:00:01Z", 0, false, "2026-03-02T02:00:00Z"},
		{"never long enough", []campaign.Window{nightly}, "UTC", "2026-03-01T02:00:00Z", 4 * time.Hour, false, ""},
		{"never", []campaign.Window{{Cron: "0 0 30 2 *", Duration: time.Hour, TimeZone: "UTC"}}, "UTC",
			"2026-03-01T02:00:00Z", 0, false, ""},
		{"once a year", []campaign.Window{{Cron: "0 0 28 2 *", Duration: time.Hour, TimeZone: "UTC"}}, "UTC",
			"2026-03-01T02:00:00Z", 0, false, "2027-02-28T00:00:00Z"},
		{"once in four years", []campaign.Window{{Cron: "0 0 29 2 *", Duration: time.Hour, TimeZone: "UTC"}}, "UTC",
			"2026-03-01T02:00:00Z", 0, false, ""},
		{"two windows, the second is open", []campaign.Window{nightly, weekend}, "UTC", "2026-03-01T12:00:00Z", 0, true,
			"2026-03-01T12:00:00Z"},
		{"two windows, the nearer is next", []campaign.Window{weekend, nightly}, "UTC", "2026-03-02T12:00:00Z", 0, false,
			"2026-03-03T02:00:00Z"},
		{"over days", []campaign.Window{weekend}, "UTC", "2026-03-01T23:00:00Z", time.Hour, true, "2026-03-01T23:00:00Z"},

		{"device in Shanghai", []campaign.Window{device}, "Asia/Shanghai", "2026-03-01T18:30:00Z", 0, true,
			"2026-03-01T18:30:00Z"},
		{"device in New York", []campaign.Window{device}, "America/New_York", "2026-03-01T18:30:00Z", 0, false,
			"2026-03-02T07:00:00Z"},
		{"device in Kathmandu", []campaign.Window{device}, "Asia/Kathmandu", "2026-03-01T12:00:00Z", 0, false,
			"2026-03-01T20:15:00Z"},
		{"the device's zone does not move a named one", []campaign.Window{nightly}, "Asia/Shanghai", "2026-03-01T02:30:00Z",
			0, true, "2026-03-01T02:30:00Z"},

		{"winter", []campaign.Window{berlin}, "UTC", "2026-01-15T00:00:00Z", 0, false, "2026-01-15T01:30:00Z"},
		{"summer", []campaign.Window{berlin}, "UTC", "2026-07-15T00:00:00Z", 0, false, "2026-07-15T00:30:00Z"},
		// 29 March 2026: 02:00 becomes 03:00 at 01:00 UTC; 02:30 never comes.
		{"skipped hour opens at the jump", []campaign.Window{berlin}, "UTC", "2026-03-29T00:00:00Z", 0, false,
			"2026-03-29T01:00:00Z"},
		{"open after the jump", []campaign.Window{berlin}, "UTC", "2026-03-29T01:30:00Z", 30 * time.Minute, true,
			"2026-03-29T01:30:00Z"},
		{"an hour from the jump on", []campaign.Window{berlin}, "UTC", "2026-03-29T02:00:01Z", 0, false,
			"2026-03-30T00:30:00Z"},
		// 25 October 2026: 03:00 becomes 02:00 at 01:00 UTC; 02:30 comes twice, at 00:30 and 01:30.
		{"the first of two", []campaign.Window{berlin}, "UTC", "2026-10-25T00:00:00Z", 0, false, "2026-10-25T00:30:00Z"},
		{"open from the first on", []campaign.Window{berlin}, "UTC", "2026-10-25T01:29:00Z", 0, true, "2026-10-25T01:29:00Z"},
		{"not open again", []campaign.Window{berlin}, "UTC", "2026-10-25T01:31:00Z", 0, false, "2026-10-26T01:30:00Z"},
		// Lord Howe changes its clocks by half an hour.
		{"half an hour", []campaign.Window{{Cron: "15 2 * * *", Duration: time.Hour, TimeZone: "Australia/Lord_Howe"}}, "UTC",
			"2026-10-03T12:00:00Z", 0, false, "2026-10-03T15:30:00Z"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now, z := at(t, tt.now), zone(t, tt.zone)
			if open := campaign.WindowOpen(tt.windows, z, now, tt.need); open != tt.open {
				t.Errorf("open: %v, want %v", open, tt.open)
			}
			next, ok := campaign.NextWindow(tt.windows, z, now, tt.need)
			switch {
			case ok != (tt.next != ""):
				t.Errorf("next: %v, %v, want %q", next, ok, tt.next)
			case ok && !next.Equal(at(t, tt.next)):
				t.Errorf("next: %v, want %s", next.UTC(), tt.next)
			}
		})
	}
}

// TestNextWindowIsOpen: WindowOpen agrees with NextWindow, and no window opens earlier.
func TestNextWindowIsOpen(t *testing.T) {
	zones := []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe",
		"Antarctica/Troll", "Pacific/Apia"}
	crons := []string{"0 2 * * *", "*/20 1-3 * * *", "30 2 * * 0", "0 0 1 * *", "59 23 31 12 *", "15 2 25-31 3,10 *"}
	rapid.Check(t, func(t *rapid.T) {
		z, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		w := []campaign.Window{{Cron: rapid.SampledFrom(crons).Draw(t, "cron"), TimeZone: campaign.DeviceZone,
			Duration: time.Duration(rapid.IntRange(5, 300).Draw(t, "minutes")) * time.Minute}}
		now := noon.Add(time.Duration(rapid.IntRange(0, 365*24*3600).Draw(t, "second")) * time.Second)
		need := time.Duration(rapid.IntRange(0, 5).Draw(t, "need")) * time.Minute
		next, ok := campaign.NextWindow(w, z, now, need)
		if !ok || next.Before(now) || !campaign.WindowOpen(w, z, next, need) {
			t.Fatalf("next %v, %v is not open", next, ok)
		}
		if next.After(now) && campaign.WindowOpen(w, z, next.Add(-time.Second), need) {
			t.Fatalf("open before %v", next)
		}
	})
}

func TestJitterFor(t *testing.T) {
	campaignID := uuid.Max
	if d := campaign.JitterFor(campaignID, "a085e3112233", 0); d != 0 {
		t.Errorf("no jitter asked for, %v given", d)
	}
	low, high := time.Hour, time.Duration(0)
	for i := range 1000 {
		id := fleet.DeviceID(uuid.NewSHA1(campaignID, []byte{byte(i), byte(i >> 8)}).String())
		d := campaign.JitterFor(campaignID, id, time.Hour)
		if d != campaign.JitterFor(campaignID, id, time.Hour) {
			t.Fatal("a device's jitter changes")
		}
		low, high = min(low, d), max(high, d)
	}
	if low < 0 || low > time.Minute || high < 59*time.Minute || high >= time.Hour {
		t.Errorf("a thousand devices spread from %v to %v of an hour", low, high)
	}
}

func BenchmarkWindowOpen(b *testing.B) {
	w := []campaign.Window{{Cron: "0 2 * * *", Duration: 3 * time.Hour, TimeZone: campaign.DeviceZone}}
	z, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		campaign.WindowOpen(w, z, noon, time.Minute)
	}
}
