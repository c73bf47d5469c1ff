package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// What changed lately: each sentence leads to a page, and a person with a scope reads of the devices in it only.
func TestChanges(t *testing.T) {
	b := newScopeBench(t)
	person := b.person("vera", operator.Access{Role: fleet.RoleViewer, Scope: "tag:in"})
	viewer := b.as(fleet.RoleViewer)
	whole := viewer.get("/changes").wantStatus(http.StatusOK).wantText("#main", "2 devices are new").
		wantText("#main", "Acts of people and programs")
	links := 0
	for _, n := range whole.within("main", "a") {
		href := attribute(n, "href")
		if strings.HasPrefix(href, "/history") || strings.HasPrefix(href, "/audit?") || strings.HasPrefix(href, "/calls?") ||
			strings.HasPrefix(href, "/devices?") {
			p := viewer.get(href).wantStatus(http.StatusOK)
			if len(p.find("div[role=alert]")) > 0 {
				t.Errorf("%s has an error", href)
			}
			links++
		}
	}
	if links < 5 {
		t.Errorf("%d links", links)
	}
	scoped := person.get("/changes").wantStatus(http.StatusOK).wantText("#main", "1 device is new")
	if strings.Contains(scoped.body, marker) || strings.Contains(scoped.body, "2 devices") {
		t.Error("a person with a scope reads of the device outside")
	}
	for _, span := range []string{"15m", "1h", "6h", "1d"} {
		person.get("/changes?since=" + span).wantStatus(http.StatusOK)
	}
	for _, span := range []string{"2h", "-1h", "x", "<script>", "\x00", strings.Repeat("1", 5000)} {
		p := person.get("/changes?since=" + url.QueryEscape(span)).wantStatus(http.StatusOK)
		if len(p.find("div[role=alert]")) == 0 || strings.Contains(p.body, "<script>") {
			t.Errorf("%.20q: %.200s", span, p.text("#main"))
		}
	}
}
