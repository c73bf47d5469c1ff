package ui_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-h/templ"
	"golang.org/x/net/html"

	"fleetd/fleet/telemetry"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

func rendered(t *testing.T, c templ.Component) (string, *html.Node) {
	t.Helper()
	var b bytes.Buffer
	if err := c.Render(pageContext(i18n.English, sample{path: "/devices/a/health"}), &b); err != nil {
		t.Fatal(err)
	}
	doc, err := html.Parse(strings.NewReader(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), doc
}

// withClass finds the elements of a class.
func withClass(doc *html.Node, class string) (found []*html.Node) {
	for n := range doc.Descendants() {
		if strings.Contains(" "+attr(n, "class")+" ", " "+class+" ") {
			found = append(found, n)
		}
	}
	return found
}

func trendsOf(points []telemetry.VitalsPoint, r string) ui.HealthTrends {
	return ui.HealthTrends{Device: "a085e3112233", Shown: true, Range: ui.ParseHealthRange(r, 24*time.Hour), To: now,
		Heartbeat: time.Minute, Points: points}
}

func TestTrendBreaksWhereNothingWasReported(t *testing.T) {
	at := func(minutes int) telemetry.VitalsPoint {
		return telemetry.VitalsPoint{At: now.Add(-time.Duration(minutes) * time.Minute), HeapFree: 1000 << 10,
			HeapMin: 900 << 10, HeapLargest: 500 << 10}
	}
	_, doc := rendered(t, trendsOf([]telemetry.VitalsPoint{at(55), at(50), at(45), at(20), at(10), at(5)}, "1h").View())
	lines := withClass(doc, "trend-line")
	if len(lines) != 3 {
		t.Fatalf("%d lines, want those of memory alone: nothing else was reported", len(lines))
	}
	// 55 to 45 are joined, 20 stands alone, 10 and 5 are joined.
	for _, line := range lines {
		d := attr(line, "d")
		if runs, joints := strings.Count(d, "M"), strings.Count(d, "L"); runs != 3 || joints != 3 {
			t.Errorf("the line has %d runs and %d joints, want 3 and 3: %s", runs, joints, d)
		}
	}
	if got := len(withClass(doc, "trend-strip")); got != 12 { // memory and lost connections
		t.Errorf("%d strips to point at, want 6 on each of two charts", got)
	}
}

func TestTrendStaysWithinItsBox(t *testing.T) {
	number := regexp.MustCompile(`-?\d+(\.\d+)?`)
	for _, r := range ui.HealthRanges {
		_, doc := rendered(t, trendsOf(vitalsPoints(r), r.Name).View())
		for _, line := range withClass(doc, "trend-line") {
			for i, s := range number.FindAllString(strings.ReplaceAll(attr(line, "d"), "h0", ""), -1) {
				limit := []float64{1000, 100}[i%2]
				var v float64
				if err := json.Unmarshal([]byte(s), &v); err != nil || v < 0 || v > limit {
					t.Fatalf("%s: coordinate %s is outside of 0 to %v", r.Name, s, limit)
				}
			}
		}
		for _, n := range withClass(doc, "trend-strip") {
			if strings.HasPrefix(attr(n, "x"), "-") || attr(n, "width") == "0" {
				t.Errorf("%s: a strip at %s, %s wide", r.Name, attr(n, "x"), attr(n, "width"))
			}
		}
	}
}

func TestTrendMarksRestartsAndCountsLostConnections(t *testing.T) {
	point := func(minutes int, reconnects int64, restarted bool) telemetry.VitalsPoint {
		return telemetry.VitalsPoint{At: now.Add(-time.Duration(minutes) * time.Minute), HeapFree: 1, Reconnects: reconnects,
			Restarted: restarted}
	}
	text, doc := rendered(t, trendsOf([]telemetry.VitalsPoint{point(40, 7, false), point(35, 9, false), point(30, 1, true),
		point(25, 1, false), point(20, 0, false)}, "1h").View())
	if got := len(withClass(doc, "trend-mark")); got != 2 {
		t.Errorf("%d marks, want one on each of two charts", got)
	}
	// 2 more, then 1 since the restart, none, and a counter that decreased without a restart.
	for _, want := range []string{"2 lost connections", "1 lost connection\nrestarted", "0 lost connections",
		"<strong class=\"num\">3</strong>"} {
		if !strings.Contains(text, want) {
			t.Errorf("the charts do not say %q", want)
		}
	}
}

func TestTrendHasATableOfTheSameFigures(t *testing.T) {
	points := vitalsPoints(ui.ParseHealthRange("24h", 0))
	_, doc := rendered(t, trendsOf(points, "24h").View())
	rows := 0
	for n := range doc.Descendants() {
		if n.Data == "tr" && n.Type == html.ElementNode {
			rows++
		}
	}
	if rows != len(points)+1 {
		t.Errorf("%d rows, want a heading and %d points", rows, len(points))
	}
}

func TestUnfriendlyHealthStaysText(t *testing.T) {
	health, _ := rendered(t, healthSample(unfriendly))
	text, doc := rendered(t, configSample(unfriendlyConfig))
	text += health
	for _, bad := range []string{"<script>alert", "<img src=x", "<i>"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q as markup", bad)
		}
	}
	if strings.Contains(text, strings.Repeat("k", 65)+"<") {
		t.Error("a key of 200 letters is shown whole")
	}
	for n := range doc.Descendants() {
		if n.Data == "input" && attr(n, "name") == "v.big" {
			t.Error("a number that does not fit is offered for change")
		}
	}
}

func TestHealthNamesTheTaskWithTheLeastStack(t *testing.T) {
	v := vitals()
	page, doc := rendered(t, ui.DeviceVitals{Device: "a085e3112233", Online: true, Reports: true, Vitals: &v,
		Heartbeat: time.Minute}.View())
	lists := withClass(doc, "stacks")
	if len(lists) != 1 {
		t.Fatalf("%d lists of stacks in %s", len(lists), page)
	}
	var order []string
	for n := range lists[0].Descendants() {
		if n.Data == "code" {
			order = append(order, n.FirstChild.Data)
		}
	}
	if want := []string{"fleet_work", "IDLE0", "fleet"}; !slices.Equal(order, want) {
		t.Errorf("tasks %v, want %v", order, want)
	}
	if chips := withClass(doc, "chip-warn"); len(chips) != 1 || !strings.Contains(page, "480 B") {
		t.Errorf("480 bytes are not marked: %d marks in %s", len(chips), page)
	}
	v.Stacks = nil
	if _, doc := rendered(t, ui.DeviceVitals{Device: "a085e3112233", Reports: true, Vitals: &v}.View()); len(withClass(doc,
		"stacks")) != 0 {
		t.Error("a device that reports no stacks has a list of them")
	}
}
