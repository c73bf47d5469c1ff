package api

import (
	"testing"

	"fleetd/fleet"
)

func TestTimeline(t *testing.T) {
	w := newWorld(t)
	at := "/devices/" + unit.MAC() + "/timeline"
	w.as(t, fleet.RoleAdmin, "PATCH", "/devices/"+string(unit), `{"name":"kitchen"}`)
	all := decode[list[timelineView]](t, w.get(t, at), 200).Items
	if len(all) == 0 || all[0].Kind != fleet.TimelineEdit || all[0].Params["name"] != "kitchen" || all[0].Actor == nil ||
		all[0].Actor.Name == "" {
		t.Fatalf("%+v", all)
	}
	page := decode[list[timelineView]](t, w.get(t, at+"?limit=1"), 200)
	if len(page.Items) != 1 || page.Next == nil {
		t.Fatalf("%+v", page)
	}
	rest := decode[list[timelineView]](t, w.get(t, at+"?cursor="+*page.Next), 200).Items
	if len(rest) != len(all)-1 {
		t.Errorf("%d of %d entries after the first", len(rest), len(all))
	}
	some := decode[list[timelineView]](t, w.get(t, at+"?kinds=presence,firmware"), 200).Items
	for _, e := range some {
		if e.Kind != fleet.TimelinePresence && e.Kind != fleet.TimelineFirmware {
			t.Errorf("%+v", e)
		}
	}
	if len(some) == 0 || len(some) >= len(all) {
		t.Errorf("%d of %d entries are about presence and firmware", len(some), len(all))
	}
	if old := decode[list[timelineView]](t, w.get(t, at+"?before=2020-01-01T00:00:00Z"), 200).Items; len(old) != 0 {
		t.Errorf("%+v", old)
	}
	for _, bad := range []string{"?kinds=weather", "?before=noon", "?cursor=x", "?limit=0"} {
		if p := w.get(t, at+bad).problem(t); p.Status != 422 && p.Status != 400 {
			t.Errorf("%s: %+v", bad, p)
		}
	}
	if p := w.get(t, "/devices/ffffffffffff/timeline").problem(t); p.Status != 404 {
		t.Errorf("%+v", p)
	}
}
