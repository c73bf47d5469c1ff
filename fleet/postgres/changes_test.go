package postgres_test

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/changes"
	"fleetd/fleet/history"
	"fleetd/fleet/telemetry"
)

// What happened since a moment, in the fleet and in a scope.
func TestEventsSince(t *testing.T) {
	r := newRig(t)
	since := now()
	addDevices(t, r.Store, "d0", "d1", "e1")
	check(t, r.SavePresence(t.Context(), []fleet.PresenceChange{connect("d0", 1, now()), connect("e1", 1, now())}))
	check(t, r.SaveVitals(t.Context(), map[fleet.DeviceID]telemetry.Vitals{
		"d0": {At: now(), Boots: 1, ResetReason: "panic"}, "e1": {At: now(), Boots: 1, ResetReason: "panic"}}))
	check(t, r.UpdateDevice(t.Context(), admin, "d1", fleet.DevicePatch{Tags: ptr([]string{"x"})}))
	check(t, r.UpdateDevice(t.Context(), admin, "e1", fleet.DevicePatch{Tags: ptr([]string{"y"})}))
	e, err := r.EventsSince(t.Context(), since)
	check(t, err)
	if e.Online != 2 || e.Offline != 0 || e.ActCount != 2 || len(e.Acts) != 1 || e.Acts[0].Count != 2 ||
		e.Acts[0].Names[0] != admin.Name {
		t.Errorf("since the start: %+v", e)
	}
	scope, err := fleet.NewScope("id:d*", "", nil)
	check(t, err)
	by := fleet.Principal{Role: fleet.RoleViewer, Scope: scope}
	narrow := fleet.WithScope(t.Context(), by)
	e, err = r.EventsSince(narrow, since)
	check(t, err)
	if e.Online != 1 || e.ActCount != 1 {
		t.Errorf("in a scope: %+v", e)
	}
	if e, err = r.EventsSince(t.Context(), now().Add(time.Minute)); err != nil || e.Online+e.ActCount+e.Calls != 0 {
		t.Errorf("of the time to come: %+v (%v)", e, err)
	}
	s := changes.New(r.Store, history.New(r.Store, time.Now), r.Store, time.Now)
	for _, span := range append([]string{""}, changes.Spans...) {
		sum, err := s.Since(t.Context(), admin, span)
		check(t, err)
		if sum.Crashed != 2 || sum.Fields[history.FieldAdded] != 3 || sum.Online != 2 {
			t.Errorf("in %q: %+v", span, sum)
		}
		sum, err = s.Since(narrow, by, span)
		check(t, err)
		if sum.Crashed != 1 || sum.Fields[history.FieldAdded] != 2 || sum.Online != 1 {
			t.Errorf("in a scope, in %q: %+v", span, sum)
		}
	}
	for _, span := range []string{"2h", "x", "-1h", "1h'"} {
		_, err := s.Since(t.Context(), admin, span)
		wantKind(t, err, fleet.ErrInvalid)
	}
}
