package ui_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/a-h/templ"
	"golang.org/x/net/html"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/place"
	"fleetd/fleet/schedule"
	"fleetd/fleet/trend"
	"fleetd/web/i18n"
	"fleetd/web/static"
	"fleetd/web/ui"
)

// gallery writes every sample page, in both languages, with the static files:
//
//	go test ./web/ui -run TestGallery -gallery /tmp/gallery
//
// Serve that directory at / to view them.
var gallery = flag.String("gallery", "", "directory to write the sample pages to")

type sample struct {
	name, path string
	page       templ.Component
	bare       bool // before sign-in
}

var samples = []sample{
	{"signin", "/sign-in", ui.SignInPage{Next: "/devices"}.Page(), true},
	{"signin-failed", "/sign-in", ui.SignInPage{Name: "anna", Failed: true}.Page(), true},
	{"devices-0", "/devices", devicesPage(0, ""), false},
	{"devices-3", "/devices", devicesPage(3, ""), false},
	{"devices-50", "/devices?q=presence:online", devicesPage(50, "presence:online"), false},
	{"device", "/devices/a085e3112233", devicePage(0), false},
	{"device-bare", "/devices/a085e3112233", bareHub(), false},
	{"device-hostile", "/devices/a085e3112233", devicePage(10), false},
	{"device-conflict", "/devices/a085e3112233", conflictPage(false), false},
	{"device-conflict-shared", "/devices/a085e3112233", conflictPage(true), false},
	{"device-hold", "/devices/a085e3112233", devicePage(3), false},
	{"bulk-tag", "/bulk", bulkPage(fleet.BulkTag, false), false},
	{"bulk-hold", "/bulk", bulkPage(fleet.BulkHold, false), false},
	{"bulk-untag", "/bulk", bulkPage(fleet.BulkUntag, true), false},
	{"bulk-release", "/bulk", bulkPage(fleet.BulkRelease, true), false},
	{"bulk-retire", "/bulk", bulkPage(fleet.BulkRetire, true), false},
	{"calls-0", "/calls", ui.CallsPage{List: list("/calls", "")}.Page(), false},
	{"calls", "/calls", ui.CallsPage{List: list("/calls", ""), Rows: callRows(30), Next: "n"}.Page(), false},
	{"alerts", "/alerts", alertsPage("open"), false},
	{"alerts-ended", "/alerts?state=ended", alertsPage("ended"), false},
	{"alerts-0", "/alerts", alertsPage("none"), false},
	{"alert", "/alerts/x", alertPage(), false},
	{"serials", "/settings/serials", serialsPage(), false},
	{"keys", "/settings/keys", keysPage(), false},
	{"help", "/help", ui.HelpPage{}.Page(), false},
	{"overview-0", "/", overview(0), false},
	{"overview", "/", overview(4312), false},
	{"tools", "/devices/a/tools", toolPage(-1, nil, true), false},
	{"tool-volume", "/devices/a/tools/x", toolPage(1, nil, true), false},
	{"tool-theme", "/devices/a/tools/x", toolPage(2, nil, true), false},
	{"tool-lamp", "/devices/a/tools/x", toolPage(3, nil, true), false},
	{"tool-hostile", "/devices/a/tools/x", toolPage(4, nil, true), false},
	{"tool-reboot", "/devices/a/tools/x", toolPage(5, nil, true), false},
	{"tool-upgrade", "/devices/a/tools/x", toolPage(6, nil, true), false},
	{"tool-snapshot", "/devices/a/tools/x", toolPage(7, withPicture(), true), false},
	{"tool-preview", "/devices/a/tools/x", toolPage(8, nil, true), false},
	{"tool-viewer", "/devices/a/tools/x", toolPage(1, nil, false), false},
	{"tool-result", "/devices/a/tools/x", toolPage(0, ptr(callView(0, status)), true), false},
	{"firmware", "/devices/a/firmware", firmwarePage(), false},
	{"screen", "/devices/a/screen", screenPage(false), false},
	{"screen-0", "/devices/a/screen", ui.ScreenPage{Head: head("screen")}.Page(), false},
	{"screen-filtered", "/devices/a/screen?kind=camera", screenPage(true), false},
	{"fanout-pictures", "/fanouts/x/pictures", ui.FanOutPicturesPage{ID: "x", Tool: fleet.ToolSnapshot,
		Gallery: ui.Gallery{List: list("/fanouts/x/pictures", ""), FanOut: "x", Pictures: pictures()}}.Page(), false},
	{"picture", "/pictures/s1", picturePage(), false},
	{"compare", "/pictures/compare?a=s1&b=s2", comparePage(false), false},
	{"compare-overlay", "/pictures/compare?a=s1&b=s2&view=overlay", comparePage(true), false},
	{"compare-0", "/pictures/compare", ui.ComparePage{Problem: "…"}.Page(), false},
	{"facts", "/devices/a/facts", ui.FactsPage{Head: head("facts"), PolledAt: now.Add(-time.Hour),
		Body: json.RawMessage(status)}.Page(), false},
	{"facts-broken", "/devices/a/facts", ui.FactsPage{Head: head("facts"), PolledAt: now,
		Problem: fleet.FactsUnreadable}.Page(), false},
	{"facts-salvaged", "/devices/a/facts", ui.FactsPage{Head: head("facts"), PolledAt: now, Problem: fleet.FactsSalvaged,
		Salvaged: []fleet.PollField{enrolment.PollChip, enrolment.PollBuild},
		Body:     []byte(`{"chip_model_name":"esp32s3"}`)}.Page(), false},
	{"call-json", "/calls/x", ui.CallPage{Call: callView(1, status)}.Page(), false},
	{"call-kept-not", "/calls/x", ui.CallPage{Call: keptNot()}.Page(), false},
	{"tool-leave", "/devices/a/tools/x", toolPage(9, nil, true), false},
	{"call-error", "/calls/x", ui.CallPage{Call: callView(2, "")}.Page(), false},
	{"call-reboot", "/calls/x", ui.CallPage{Call: rebootView()}.Page(), false},
	{"fanouts-0", "/fanouts", ui.FanOutsPage{List: list("/fanouts", ""), CanAct: true}.Page(), false},
	{"fanouts", "/fanouts", ui.FanOutsPage{List: list("/fanouts", ""), CanAct: true,
		Rows: []ui.FanOutRow{fanOutRow(call.FanOutRunning), fanOutRow(call.FanOutCompleted),
			fanOutRow(call.FanOutCanceled)}}.Page(), false},
	{"fanout", "/fanouts/x", fanOutPage(call.FanOutRunning), false},
	{"fanout-canceled", "/fanouts/x", fanOutPage(call.FanOutCanceled), false},
	{"log-streams", "/settings/log-streams", logStreamsPage(""), false},
	{"log-streams-0", "/settings/log-streams", ui.LogStreamsPage{Problem: "…"}.Page(), false},
	{"log-stream", "/settings/log-streams/x", logStreamPage(), false},
	{"redaction", "/settings/redaction", redactionPage(), false},
	{"redaction-0", "/settings/redaction", ui.RedactionPage{Problem: "…", DigestProblem: "…"}.Page(), false},
	{"dashboards", "/dashboards?range=90d", dashboardsPage("", dashboardFigures(), ""), false},
	{"dashboards-filter", "/dashboards?of=filter:lab", dashboardsPage("filter:lab", dashboardFigures(), ""), false},
	{"dashboards-0", "/dashboards?of=filter:lab", dashboardsPage("filter:lab", trend.Figures{}, ""), false},
	{"dashboards-bad", "/dashboards?of=x", dashboardsPage("x", trend.Figures{}, "…"), false},
	{"changes", "/changes", changesPage(true), false},
	{"changes-0", "/changes", changesPage(false), false},
	{"changes-bad", "/changes?since=x", ui.ChangesPage{Problem: "…"}.Page(), false},
	{"places", "/places", placesPage(samplePlaces()), false},
	{"places-0", "/places", placesPage(place.Tree{}), false},
	{"places-many", "/places", placesPage(manyPlaces()), false},
	{"places-flat", "/places", placesPage(place.Tree{Places: samplePlaces().Places[6:]}), false},
	{"place", "/places/berlin", placePage(false), false},
	{"place-bare", "/places/lab", placePage(true), false},
	{"history", "/history", historyPage(), false},
	{"history-none", "/history", ui.HistoryPage{List: list("/history", ""), Begin: now, Now: now, At: now}.Page(), false},
	{"history-bad", "/history", ui.HistoryPage{List: list("/history", ""), Begin: now, Now: now, At: now, Problem: "…"}.Page(), false},
	{"schedules-0", "/schedules", ui.SchedulesPage{List: list("/schedules", ""), CanAct: true}.Page(), false},
	{"schedules", "/schedules", ui.SchedulesPage{List: list("/schedules", ""), CanAct: true,
		Rows: []schedule.Schedule{sampleSchedule(false), sampleSchedule(true)}}.Page(), false},
	{"schedule", "/schedules/x", schedulePage(), false},
	{"schedule-new", "/schedules/new", scheduleForm(), false},
	{"fanout-new", "/fanouts/new", fanOutNew(0), false},
	{"fanout-form", "/fanouts/new", fanOutNew(1), false},
	{"fanout-preview", "/fanouts/new", fanOutNew(2), false},
	{"fanout-leave", "/fanouts/new", fanOutNew(3), false},
	{"find-acts", "/find?q=volume+30+kitchen", ui.FindPage{Query: "volume 30 kitchen", Acts: []ui.FoundAct{
		{Act: ui.ActVolume, Device: "a085e3112233", Title: hostile[0], Value: "30"},
		{Act: ui.ActReboot, Query: "kitchen", Matched: 12}, {Act: ui.ActTag, Device: "a085e3112233", Title: "门口", Value: "lab"},
		{Act: ui.ActHold, Device: "a085e3112233", Title: "x"}, {Act: ui.ActUpdate, Device: "a085e3112233", Title: "x"},
		{Act: ui.ActPicture, Device: "a085e3112233", Title: "x"}}}.Page(), false},
	{"api", "/api", apiPage(false), false},
	{"api-one", "/api?op=make-call", apiPage(true), false},
	{"first-board", "/devices", firstBoard(), false},
	{"name", "/devices/a/name", ui.NamePage{Head: head("")}.Page(), false},
	{"claim", "/claim", claimPage(), false},
	{"settings", "/settings", settingsPage(), false},
	{"not-found", "/nope", late(func(ctx context.Context) templ.Component { return ui.NotFound(ctx).Page() }), false},
	{"forbidden", "/settings", late(func(ctx context.Context) templ.Component {
		return ui.Forbidden(ctx,
			hostile[0]).Page()
	}), false},
	{"failure", "/calls", late(func(ctx context.Context) templ.Component {
		return ui.Failure(ctx, 503, "database_unavailable", i18n.Mark("The database does not answer.")).Page()
	}), false},
}

func ptr[T any](v T) *T { return &v }

func withPicture() *ui.CallView {
	v := callView(1, "true")
	v.Pictures = []ui.Snapshot{*picture}
	return &v
}

func devicesPage(n int, query string) templ.Component {
	v := ui.DevicesPage{
		Query: query, List: list("/devices", url.Values{"q": {query}}.Encode()), Rows: deviceRows(n),
		Total: n, Fleet: n, First: n == 0, Boards: boards, CanAct: true, Setup: setup("code"),
	}
	if n >= 50 {
		v.Total, v.Fleet, v.Next = 4312, 5000, "next"
	}
	return v.Page()
}

func devicePage(i int) templ.Component {
	return hub(device(i)).Page()
}

// conflictPage is a device whose id two units use; shared: with the same Client-Id.
func conflictPage(shared bool) templ.Component {
	d := device(0)
	at := now.Add(-time.Hour)
	d.ClientID = "A"
	c := &fleet.DeviceConflict{Code: fleet.ConflictDuplicateID, FirstSeen: at, LastSeen: now.Add(-time.Minute),
		Evidence: []fleet.ConflictEvidence{fleet.EvidenceClientIDsAlternate, fleet.EvidenceBothAlive},
		Sides: []fleet.ConflictSide{
			{Client: fleet.ClientTag("A"), RemoteAddr: "192.0.2.17", FirstSeen: at, LastSeen: now.Add(-2 * time.Minute)},
			{Client: fleet.ClientTag("B"), RemoteAddr: "2001:db8::a085:e3ff:fe11:2233", Board: `<b>xmini-c3`, Chip: "esp32c3",
				Version:   "2.4.2",
				ELFSHA256: strings.Repeat("9f2c", 16), FirstSeen: at, LastSeen: now.Add(-time.Minute)}}}
	if shared {
		c.Evidence = []fleet.ConflictEvidence{fleet.EvidenceTakeoversAlternate}
		c.Sides[1].Client = c.Sides[0].Client
	}
	c.Complete(d)
	d.Conflict = c
	return hub(d).Page()
}

func pageContext(l i18n.Lang, s sample) context.Context {
	u, err := url.Parse(s.path)
	if err != nil {
		panic(err)
	}
	p := ui.Page{Lang: l, Now: now, URL: u, Waiting: 3}
	if !s.bare {
		p.Operator = &ui.Operator{Name: "anna", Role: fleet.RoleAdmin}
	}
	return ui.WithPage(context.Background(), p)
}

func TestGallery(t *testing.T) {
	for _, l := range i18n.Langs {
		for _, s := range samples {
			t.Run(string(l)+"/"+s.name, func(t *testing.T) {
				var buf bytes.Buffer
				if err := s.page.Render(pageContext(l, s), &buf); err != nil {
					t.Fatal(err)
				}
				checkPage(t, buf.Bytes())
				save(t, string(l)+"/"+s.name+".html", buf.Bytes())
			})
		}
	}
	if *gallery != "" {
		saveStatic(t)
	}
}

// TestFirstPageIsLight counts the bytes that a browser fetches for its first pages, also for those
// with charts; fonts are not counted.
func TestFirstPageIsLight(t *testing.T) {
	const limit = 60_000
	for _, s := range samples {
		if s.name != "signin" && s.name != "overview" && s.name != "devices-50" {
			continue
		}
		var buf bytes.Buffer
		if err := s.page.Render(pageContext(i18n.Chinese, s), &buf); err != nil {
			t.Fatal(err)
		}
		total := zipped(buf.Bytes())
		for _, m := range regexp.MustCompile(`(?:src|href|data-script)="(/static/[^"]+)`).FindAllStringSubmatch(buf.String(), -1) {
			r := httptest.NewRequest("GET", m[1], nil)
			r.Header.Set("Accept-Encoding", "gzip")
			w := httptest.NewRecorder()
			static.Handler().ServeHTTP(w, r)
			total += w.Body.Len()
		}
		t.Logf("%s: %d bytes", s.name, total)
		if total > limit {
			t.Errorf("%s and its files weigh %d bytes gzipped, want at most %d", s.name, total, limit)
		}
	}
}

func zipped(b []byte) int {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = w.Write(b)
	_ = w.Close()
	return buf.Len()
}

// checkPage checks the rules for every page, whatever its content.
func checkPage(t *testing.T, page []byte) {
	t.Helper()
	if i := bytes.Index(page, []byte("⟦")); i >= 0 {
		t.Errorf("no message for %s", page[i:min(i+60, len(page))])
	}
	if i := regexp.MustCompile(`>[^<]*\{[a-z]+\}`).FindIndex(page); i != nil {
		t.Errorf("placeholder left unfilled: %s", page[i[0]:i[1]])
	}
	doc, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool)
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode {
			checkElement(t, n, ids)
		}
	}
}

// checkElement rejects elements that the policy would block or that foreign text must never create.
func checkElement(t *testing.T, n *html.Node, ids map[string]bool) {
	t.Helper()
	if n.Data == "script" && (n.FirstChild != nil || !strings.HasPrefix(attr(n, "src"), static.Prefix)) {
		t.Errorf("a script that is not one of our files: %v", n.Attr)
	}
	if n.Data == "style" {
		t.Error("an inline style sheet")
	}
	for _, a := range n.Attr {
		switch {
		case a.Key == "style", strings.HasPrefix(a.Key, "on"), strings.HasPrefix(a.Key, "hx-on"):
			t.Errorf("<%s %s=%q> is inline code", n.Data, a.Key, a.Val)
		case (a.Key == "href" || a.Key == "src" || a.Key == "action") && !local(a.Val):
			t.Errorf("<%s %s=%q> leads away", n.Data, a.Key, a.Val)
		case a.Key == "id" && ids[a.Val]:
			t.Errorf("two elements have the id %q", a.Val)
		case a.Key == "id":
			ids[a.Val] = true
		}
	}
	if n.Data == "svg" || n.Data == "path" {
		return
	}
	if (n.Data == "input" || n.Data == "select" || n.Data == "textarea") && attr(n, "type") != "hidden" && !labelled(n) {
		t.Errorf("<%s name=%q> has no label", n.Data, attr(n, "name"))
	}
}

func local(addr string) bool {
	return strings.HasPrefix(addr, "/") && !strings.HasPrefix(addr, "//") || strings.HasPrefix(addr, "#")
}

func labelled(n *html.Node) bool {
	if attr(n, "aria-label") != "" || attr(n, "aria-labelledby") != "" {
		return true
	}
	for p := range n.Ancestors() {
		if p.Data == "label" {
			return true
		}
	}
	return false
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func save(t *testing.T, name string, b []byte) {
	t.Helper()
	if *gallery == "" {
		return
	}
	file := filepath.Join(*gallery, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// saveStatic writes the files that the pages refer to, under their public names.
func saveStatic(t *testing.T) {
	t.Helper()
	for _, name := range []string{"app.css", "app.js", "favicon.svg", "htmx-2.0.11.min.js",
		"idiomorph-ext-0.7.4.min.js", "upload.js", "timefield.js", "pictures.css", "dashboards.css", "places.css",
		"fonts/inter-latin-wght-normal.woff2", "fonts/jetbrains-mono-latin-wght-normal.woff2"} {
		w := httptest.NewRecorder()
		static.Handler().ServeHTTP(w, httptest.NewRequest("GET", static.Path(name), nil))
		b, _ := io.ReadAll(w.Body)
		save(t, static.Path(name), b)
	}
}
