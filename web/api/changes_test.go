package api

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/changes"
	"fleetd/fleet/history"
	"fleetd/fleet/telemetry"
)

// What happened lately over REST: counts, ids and acts, what a scope shows, and times that are none.
func TestChanges(t *testing.T) {
	w := newWorld(t)
	newSides(t, w)
	w.alerts.Look(t.Context()) // the devices listed other tools with the same firmware
	if err := w.store.SaveVitals(t.Context(), map[fleet.DeviceID]telemetry.Vitals{
		other: {At: time.Now().UTC(), Boots: 1, ResetReason: "panic"}}); err != nil {
		t.Fatal(err)
	}
	all := decode[ChangesView](t, w.get(t, "/changes"), 200)
	if all.Span != "1h" || all.Until.Sub(all.Since).Round(time.Minute) != time.Hour || all.Compared.Before(all.Since) {
		t.Errorf("of the last hour: %s, from %s to %s, compared with %s", all.Span, all.Since, all.Until, all.Compared)
	}
	if all.ByField["added"] != 3 || len(all.ByField) != len(history.Fields) || all.Rebuilt != 3 || all.Online != 2 ||
		all.Calls != 6 || all.FailedCalls != 0 || all.AlertsBegan != 1 || all.AlertsEnded != 0 ||
		all.Crashed != (DeviceSelectionView{1, "crashed<1h"}) || all.Configured.More ||
		!slices.Equal(all.Configured.Devices, []fleet.DeviceID{unit, other}) ||
		!slices.Equal(all.Versions, []VersionChangeView{{"2.0.3", 0, 3}}) {
		t.Errorf("of the last hour: %+v", all)
	}
	held := func(v ChangesView) (n int) {
		for _, a := range v.Acts {
			if a.Action == "device.hold" && slices.Equal(a.Actors, []string{"admin-script"}) {
				n += a.Count
			}
		}
		return n
	}
	if held(all) != 2 || len(all.Acts) != changes.MaxActs || all.ActsTotal <= changes.MaxActs {
		t.Errorf("%d acts: %+v", all.ActsTotal, all.Acts)
	}
	// The queries select the devices that are counted.
	for _, s := range []DeviceSelectionView{all.Away, all.Crashed} {
		found := decode[list[deviceView]](t, w.get(t, "/devices?q="+url.QueryEscape(s.Query)), 200)
		if len(found.Items) != s.Devices {
			t.Errorf("%s selects %d devices, not %d", s.Query, len(found.Items), s.Devices)
		}
	}
	bearer := []string{"Authorization", "Bearer " + w.scoped(t, fleet.RoleViewer, "tag:in")}
	scoped := decode[ChangesView](t, w.as(t, "", "GET", "/changes?since=15m", "", bearer...), 200)
	if scoped.Span != "15m" || scoped.ByField["added"] != 1 || scoped.Rebuilt != 1 || scoped.Online != 1 ||
		scoped.Calls != 3 || scoped.AlertsBegan != 0 || scoped.Crashed != (DeviceSelectionView{0, "crashed<15m"}) ||
		!slices.Equal(scoped.Configured.Devices, []fleet.DeviceID{unit}) ||
		!slices.Equal(scoped.Versions, []VersionChangeView{{"2.0.3", 0, 1}}) || held(scoped) != 1 {
		t.Errorf("in a scope: %+v", scoped)
	}
	for _, since := range []string{"2h", "24h", "1H", "-1h", "1d,1h", "1h'", "2026-06-01T08:00:00Z", strings.Repeat("1h", 99)} {
		p := w.get(t, "/changes?since="+url.QueryEscape(since)).problem(t)
		if p.Status != 422 || p.Code != "invalid_request" || p.Errors[0].Field != "query.since" {
			t.Errorf("%q is answered %d %s, %+v", since, p.Status, p.Code, p.Errors)
		}
	}
	if r := w.as(t, "", "GET", "/changes", ""); r.status != 401 {
		t.Errorf("without a token: %d", r.status)
	}
}
