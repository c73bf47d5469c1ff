package console_test

import (
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/web/ui"
)

// tagged gives a device its tags.
func (c *site) tagged(id fleet.DeviceID, tags ...string) {
	c.t.Helper()
	if _, err := c.devices.Update(c.t.Context(), anna, id, fleet.DevicePatch{Tags: &tags}); err != nil {
		c.t.Fatal(err)
	}
}

// classed returns the links of the page with a class that begins so.
func (p *page) classed(prefix string) (found []*html.Node) {
	for _, n := range p.within("main", "a") {
		if strings.HasPrefix(attribute(n, "class"), prefix) {
			found = append(found, n)
		}
	}
	return found
}

// The tree of places, the page of one, and where their figures lead.
func TestPlaces(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	b.get("/places").wantStatus(http.StatusOK).wantText("#main", "No device has a tag yet")
	for _, id := range []fleet.DeviceID{"a085e3112233", "a085e3112244", "a085e3112255"} {
		c.enrol(id)
	}
	c.tagged("a085e3112233", "lab")
	b.get("/places").wantStatus(http.StatusOK).wantText("#main", "No tag has a slash yet")
	c.tagged("a085e3112233", "site-1/room-1", "lab")
	c.tagged("a085e3112244", "site-1/room-2")
	c.tagged("a085e3112255", "50%/a?b#c")
	p := b.get("/places").wantStatus(http.StatusOK).wantText("#main", "site-1").wantText("#main", "2 places within")
	links := map[string]int{}
	for _, n := range p.classed("place-") {
		href := attribute(n, "href")
		links[strings.SplitN(href, "?", 2)[0]]++
		b.get(href).wantStatus(http.StatusOK)
	}
	for _, want := range []string{"/places/site-1", "/places/site-1/room-1", "/places/50%25/a%3Fb%23c", "/places/lab", "/devices"} {
		if links[want] == 0 {
			t.Errorf("no link to %s: %v", want, links)
		}
	}
	p = b.get("/places/site-1").wantStatus(http.StatusOK).wantText("h1", "site-1")
	acts := 0
	for _, n := range p.classed("btn") {
		href := attribute(n, "href")
		page := b.get(href).wantStatus(http.StatusOK)
		if !strings.Contains(href, "q=tag%3Asite-1%2Csite-1%2F%2A") || !strings.Contains(page.body, "tag:site-1,site-1/*") {
			t.Errorf("%s does not have the query", href)
		}
		acts++
	}
	if acts != 3 {
		t.Errorf("%d acts", acts)
	}
	list := b.get("/devices?q=tag%3Asite-1%2Csite-1%2F%2A")
	for id, in := range map[string]bool{"a085e3112233": true, "a085e3112244": true, "a085e3112255": false} {
		if got := len(list.find("#device-"+id)) > 0; got != in {
			t.Errorf("%s is in the list of site-1: %t", id, got)
		}
	}
	for _, n := range c.as(fleet.RoleViewer).get("/places/site-1").wantStatus(http.StatusOK).classed("btn") {
		if strings.HasPrefix(attribute(n, "href"), ui.PathCampaignNew) || strings.HasPrefix(attribute(n, "href"), ui.PathFanOutNew) {
			t.Errorf("a viewer has the act %s", attribute(n, "href"))
		}
	}
	for _, path := range []string{"none", "site", "site-1/", "site-1//room-1", "SITE-1", "site-1/room-1/x", "%00", "%ff", "..%2fsite-1",
		"site-1%0a", "*", "site-1,lab", "%22", "site-1%2Froom-1%2F..", strings.Repeat("a/", 200) + "a", strings.Repeat("a", 5000)} {
		b.get("/places/" + path).wantStatus(http.StatusNotFound)
	}
	b.get("/places/site-1%2Froom-1").wantStatus(http.StatusOK)
	c.browser().get("/places/site-1").wantRedirect("/sign-in?next=")
}

// A person with a scope sees the places of the devices in it only, and counts no others.
func TestPlacesInScope(t *testing.T) {
	b := newScopeBench(t)
	b.tagged(inside, "in", "site/a")
	b.tagged(outside, marker, "site/a", "site/"+marker, marker+"/x")
	person := b.person("vera", operator.Access{Role: fleet.RoleViewer, Scope: "tag:in"})
	whole, scoped := b.as(fleet.RoleViewer).get("/places"), person.get("/places")
	whole.wantText("#main", "2 devices").wantText("#main", marker)
	scoped.wantText("#main", "1 device")
	for _, p := range []*page{scoped, person.get("/places/site"), person.get("/places/site/a")} {
		p.wantStatus(http.StatusOK)
		if strings.Contains(p.body, marker) || strings.Contains(p.body, "2 devices") {
			t.Errorf("%s discloses the device outside", p.what)
		}
	}
	for _, path := range []string{"/places/" + marker, "/places/site/" + marker, "/places/" + marker + "/x"} {
		person.get(path).wantStatus(http.StatusNotFound)
	}
}
