package ui

import (
	"strings"
	"testing"
	"time"

	"fleetd/web/i18n"
)

// A chart of any span has labels at round times, no more than fit side by side.
func TestTimeLabels(t *testing.T) {
	ctx := WithPage(t.Context(), Page{Lang: i18n.English, Zone: time.FixedZone("", 8*3600)})
	to := time.Date(2026, 11, 29, 10, 31, 40, 0, time.UTC)
	for span, want := range map[time.Duration]string{
		50 * time.Second:     "18:31:30 18:31:15 18:31:00",
		2 * time.Minute:      "18:31 18:30",
		30 * time.Minute:     "18:30 18:20 18:10",
		time.Hour:            "18:30 18:15 18:00 17:45",
		24 * time.Hour:       "18:00 12:00 06:00 00:00",
		7 * 24 * time.Hour:   "29 Nov 27 Nov 25 Nov 23 Nov",
		365 * 24 * time.Hour: "29 Nov 30 Oct 30 Sep 31 Aug",
	} {
		var got []string
		for _, tick := range (timeSpan{to.Add(-span), to}).ticks(ctx) {
			got = append(got, tick.label)
		}
		if !strings.HasPrefix(strings.Join(got, " "), want) {
			t.Errorf("%v: %v, want %s", span, got, want)
		}
	}
	for span := time.Minute; span < 150*24*time.Hour; span += span/7 + time.Second {
		if n := len((timeSpan{to.Add(-span), to}).ticks(ctx)); n == 0 || n > 5 {
			t.Errorf("%v: %d labels", span, n)
		}
	}
}
