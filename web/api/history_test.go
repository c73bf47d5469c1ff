package api

import (
	"net/url"
	"testing"
	"time"

	"fleetd/fleet"
)

// The past of the fleet over REST: a list, counts, changes, a series and the states of a device.
func TestHistory(t *testing.T) {
	w := newWorld(t)
	begin := decode[HistoryView](t, w.get(t, "/history"), 200)
	if begin.Begin.IsZero() || begin.Versions.After(begin.Begin) {
		t.Errorf("the history begins %+v", begin)
	}
	time.Sleep(2 * time.Millisecond)
	before := time.Now()
	time.Sleep(2 * time.Millisecond)
	if r := w.as(t, fleet.RoleOperator, "PATCH", "/devices/a085e3112233", `{"tags":["moved"],"name":"Hall"}`); r.status != 200 {
		t.Fatalf("answered %d", r.status)
	}
	at := func(path string, moment time.Time, more string) string {
		return path + "?as_of=" + url.QueryEscape(moment.UTC().Format(time.RFC3339Nano)) + more
	}
	all := decode[list[PastDevice]](t, w.get(t, "/history/devices"), 200)
	then := decode[list[PastDevice]](t, w.get(t, at("/history/devices", before, "")), 200)
	if len(all.Items) == 0 || len(then.Items) != len(all.Items) {
		t.Errorf("%d devices then, %d now", len(then.Items), len(all.Items))
	}
	if l := decode[list[PastDevice]](t, w.get(t, at("/history/devices", before, "&q=tag:moved")), 200); len(l.Items) != 0 {
		t.Errorf("moved before it was: %+v", l.Items)
	}
	l := decode[list[PastDevice]](t, w.get(t, "/history/devices?q=tag:moved"), 200)
	if len(l.Items) != 1 || l.Items[0].ID != "a085e3112233" || l.Items[0].Since.Before(before) ||
		l.Items[0].Presence == "" {
		t.Errorf("moved: %+v", l.Items)
	}
	c := decode[pastCounts](t, w.get(t, "/history/counts?by=tag"), 200)
	if c.Total != len(all.Items) || c.By != "tag" {
		t.Errorf("counts %+v", c)
	}
	d := decode[pastChanges](t, w.get(t, "/history/diff?q=tag:moved&from="+
		url.QueryEscape(before.UTC().Format(time.RFC3339Nano))), 200)
	if d.Devices != 1 || d.ByField["tags"] != 1 || d.ByField["name"] != 1 || d.Items[0].Before == nil ||
		d.Items[0].After.Name != "Hall" {
		t.Errorf("changes %+v", d)
	}
	a := decode[AdoptionView](t, w.get(t, "/history/adoption?points=2"), 200)
	if len(a.Times) != 2 || len(a.Series) == 0 {
		t.Errorf("adoption %+v", a)
	}
	states := decode[list[PastDevice]](t, w.get(t, "/devices/a085e3112233/states"), 200)
	if len(states.Items) < 2 || states.Items[0].Name != "Hall" {
		t.Errorf("states %+v", states.Items)
	}
	for path, code := range map[string]string{
		"/history/devices?as_of=yesterday":            "invalid_request",
		"/history/devices?as_of=2020-01-01T00:00:00Z": "before_history",
		"/history/counts?as_of=2099-01-01T00:00:00Z":  "future_moment",
		"/history/devices?q=seen>1h":                  "no_history_of_field",
		"/history/devices?cursor=x":                   "invalid_cursor",
		"/history/diff?cursor=x":                      "invalid_cursor",
		"/history/diff?from=2099-01-01T00:00:00Z":     "future_moment",
		"/history/adoption?from=2000-01-01T00:00:00Z": "before_history",
		"/history/adoption?points=501":                "invalid_request",
		at("/history/diff", before, "&to="+url.QueryEscape(begin.Begin.Format(time.RFC3339Nano))): "invalid_history_period",
	} {
		if p := w.get(t, path).problem(t); p.Status != 422 || p.Code != code {
			t.Errorf("%s is answered %d %s, want %s", path, p.Status, p.Code, code)
		}
	}
}
