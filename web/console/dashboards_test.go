package console_test

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// within returns the elements of a name below the element with an id.
func (p *page) within(id, name string) (found []*html.Node) {
	for _, n := range p.find("#" + id) {
		for d := range n.Descendants() {
			if d.Type == html.ElementNode && d.Data == name {
				found = append(found, d)
			}
		}
	}
	return found
}

// The page of dashboards: its address has the whole view, and links lead to what a figure counts.
func TestDashboards(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	b := c.as(fleet.RoleViewer)
	b.get("/dashboards").wantStatus(http.StatusOK).wantText("#main", "Nothing has been counted")
	at := b.get("/dashboards?range=1y&from=2026-01-01T08:00&to=2026-01-02&of=tag:lab").wantRedirect("/dashboards?")
	u, err := url.Parse(at)
	if err != nil || u.Query().Get("range") != "" || u.Query().Get("of") != "tag:lab" {
		t.Errorf("a choice of times leads to %s", at)
	}
	for _, name := range []string{"from", "to"} {
		value := u.Query().Get(name)
		if _, err := time.Parse(time.RFC3339, value); err != nil || !strings.HasSuffix(value, "Z") {
			t.Errorf("%s of %s", name, at)
		}
	}
	hour := time.Now().UTC().Truncate(time.Hour)
	if _, err := c.store.CountTrends(t.Context(), hour.Add(time.Hour+10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	when := url.Values{"from": {hour.Add(-time.Hour).Format(time.RFC3339)}, "to": {hour.Add(time.Hour).Format(time.RFC3339)}}.Encode()
	p := b.get("/dashboards?"+when).wantStatus(http.StatusOK).wantText("#dash-versions", "Versions").
		wantText("#dash-crashes", "No device reported a crash")
	links := 0
	for _, n := range p.within("dash-versions", "a") {
		if strings.HasPrefix(attribute(n, "href"), "/history?at=") {
			b.get(attribute(n, "href")).wantStatus(http.StatusOK)
			links++
		}
	}
	if links < 3 { // of the part, the step and its row
		t.Errorf("%d links to the devices that are counted", links)
	}
	c.exec(`INSERT INTO releases (id, version, state, created_by, created_at, changed_at)
		VALUES (gen_random_uuid(), '7.7.7', 'released', '{}', $1, $1), (gen_random_uuid(), '8.8.8', 'draft', '{}', $1, $1)`,
		hour.Add(-time.Minute))
	p = b.get("/dashboards?"+when).wantText("#main", "Release 7.7.7 was created")
	marked := slices.ContainsFunc(p.within("dash-versions", "g"), func(g *html.Node) bool {
		return attribute(g, "class") == "trend-strip dash-mark dash-mark-release"
	})
	if !marked || strings.Contains(p.text("#main"), "8.8.8") {
		t.Error("the release is not marked, or a draft is")
	}
	const bad = 0 // shown with the reason
	for address, want := range map[string]int{"/dashboards?range=2y": bad, "/dashboards?from=x": bad,
		"/dashboards?from=2000-01-01T00:00:00Z": bad, "/dashboards?of=lab": bad, "/dashboards?of=filter:none": 404,
		"/dashboards?" + url.Values{"of": {"filter:x' OR 1=1 --"}}.Encode():           404,
		"/dashboards?" + url.Values{"of": {"tag:<script>alert(1)</script>"}}.Encode(): 200,
		"/dashboards?from=0001-01-01T00:00:00Z&to=9999-12-31T00:00:00Z":               bad,
	} {
		p := b.get(address).wantStatus(cmp.Or(want, http.StatusOK))
		if len(p.within("main", "script")) > 0 {
			t.Errorf("%s has a script", address)
		}
		if want == bad && len(p.find("div[role=alert]")) == 0 {
			t.Errorf("%s does not say what is wrong", address)
		}
	}
}

// A person with a scope sees figures of the devices in it only, and no names of other groups.
func TestDashboardsInScope(t *testing.T) {
	b := newScopeBench(t)
	person := b.person("vera", operator.Access{Role: fleet.RoleViewer, Scope: "tag:in"})
	hour := time.Now().UTC().Truncate(time.Hour)
	for _, at := range []time.Time{hour.Add(time.Minute), hour.Add(time.Hour + 10*time.Minute)} {
		if _, err := b.store.CountTrends(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	when := url.Values{"from": {hour.Add(-time.Hour).Format(time.RFC3339)}, "to": {hour.Add(time.Hour).Format(time.RFC3339)}}.Encode()
	devices := func(p *page) (last string) {
		for _, n := range p.within("dash-boards", "strong") {
			last += n.FirstChild.Data
		}
		return last
	}
	whole, scoped := b.as(fleet.RoleViewer).get("/dashboards?"+when), person.get("/dashboards?"+when)
	if devices(whole) != "2" || devices(scoped) != "1" {
		t.Errorf("the fleet has %q devices, the scope %q", devices(whole), devices(scoped))
	}
	for _, n := range scoped.find("option") {
		if strings.Contains(attribute(n, "value"), ":") {
			t.Errorf("a choice in the scope: %s", attribute(n, "value"))
		}
	}
	if strings.Contains(scoped.body, marker) {
		t.Error("the page has a name of the device outside")
	}
	for _, of := range []string{"board:bread-compact-wifi", "tag:" + marker, "tag:none"} {
		p := person.get("/dashboards?" + url.Values{"of": {of}}.Encode()).wantStatus(http.StatusForbidden)
		if len(p.find("#dash-boards")) > 0 {
			t.Errorf("%s has figures", of)
		}
	}
}
