package forms_test

import (
	"testing"
	"time"

	"fleetd/web/forms"
)

func TestMoment(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                          "0001-01-01T00:00:00Z",
		"2026-07-01 14:05":          "2026-07-01T12:05:00Z",
		"2026-07-01T14:05":          "2026-07-01T12:05:00Z",
		"2026-7-1 9:05":             "2026-07-01T07:05:00Z",
		"2026-07-01T14:05:30":       "2026-07-01T12:05:30Z",
		"2026-07-01":                "2026-06-30T22:00:00Z",
		"2026-07-01T14:05:00Z":      "2026-07-01T14:05:00Z",
		"2026-07-01T14:05:00+02:00": "2026-07-01T12:05:00Z",
		"2026-07-01 14:05:00Z":      "2026-07-01T14:05:00Z", // as the field shows it
	} {
		got, err := forms.Moment(text, berlin)
		if err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%q is %s, %v; want %s", text, got.Format(time.RFC3339), err, want)
		}
	}
	for _, text := range []string{"soon", "2026-13-01", "2026-02-30 10:00", "14:05", "2026-07-01 25:00", "2026-07-01 14:05 x", " ",
		"2026-07-01\x0014:05"} {
		if at, err := forms.Moment(text, berlin); err == nil {
			t.Errorf("%q is read as %s", text, at)
		}
	}
}
