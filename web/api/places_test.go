package api

import (
	"net/url"
	"strings"
	"testing"

	"fleetd/fleet"
)

// Places over REST: figures, a part of the tree, what a scope shows, and paths that are none.
func TestPlaces(t *testing.T) {
	w := newWorld(t)
	for id, tags := range map[string]string{"a085e3112233": `"in","site/a"`, "a085e3112244": `"site/b","hidden/x"`} {
		if r := w.as(t, fleet.RoleOperator, "PATCH", "/devices/"+id, `{"tags":[`+tags+`]}`); r.status != 200 {
			t.Fatalf("answered %d", r.status)
		}
	}
	paths := func(v PlacesView) string {
		var all []string
		for _, p := range v.Items {
			all = append(all, string(p.Path))
		}
		return strings.Join(all, " ")
	}
	all := decode[PlacesView](t, w.get(t, "/places"), 200)
	if paths(all) != "hidden hidden/x in site site/a site/b" || all.Items[3].Devices != 2 ||
		all.Items[3].Query != "tag:site,site/*" || all.More {
		t.Errorf("all places: %s, %+v", paths(all), all.Items)
	}
	site := decode[PlacesView](t, w.get(t, "/places?within=site"), 200)
	if paths(site) != "site site/a site/b" {
		t.Errorf("within site: %s", paths(site))
	}
	bearer := []string{"Authorization", "Bearer " + w.scoped(t, fleet.RoleViewer, "tag:in")}
	scoped := decode[PlacesView](t, w.as(t, "", "GET", "/places", "", bearer...), 200)
	if paths(scoped) != "in site site/a" || scoped.Items[1].Devices != 1 {
		t.Errorf("in a scope: %s, %+v", paths(scoped), scoped.Items)
	}
	for _, path := range []string{"hidden", "site/b"} {
		if p := w.as(t, "", "GET", "/places?within="+path, "", bearer...).problem(t); p.Status != 404 || p.Code != "unknown_place" {
			t.Errorf("in a scope, %s is answered %d %s", path, p.Status, p.Code)
		}
	}
	for path, status := range map[string]int{"none": 404, "site/": 404, "/": 404, "site//a": 404, "../site": 404, "a b": 404,
		"site,in": 404, "*": 404, "\x00": 404, "\xff": 404, strings.Repeat("a/", 99): 404, strings.Repeat("a/", 200): 422} {
		if p := w.get(t, "/places?within="+url.QueryEscape(path)).problem(t); p.Status != status {
			t.Errorf("%q is answered %d %s, want %d", path, p.Status, p.Code, status)
		}
	}
	if r := w.as(t, "", "GET", "/places", ""); r.status != 401 {
		t.Errorf("without a token: %d", r.status)
	}
}
