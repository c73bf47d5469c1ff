package postgres_test

import (
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/postgres"
	"fleetd/fleet/telemetry"
)

func TestUnsteadyVitals(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	at := now()
	check(t, s.SaveVitals(t.Context(), map[fleet.DeviceID]telemetry.Vitals{
		"steady": {At: at, Boots: 9}, "crashed": {At: at, Crashes: 2}, "safe": {At: at, SafeMode: true},
		"elsewhere": {At: at, SafeMode: true},
	}))
	got, err := s.UnsteadyVitals(t.Context(), []fleet.DeviceID{"steady", "crashed", "safe", "never told", "bad\x00id"})
	check(t, err)
	want := map[fleet.DeviceID]telemetry.Vitals{"crashed": {At: at, Crashes: 2}, "safe": {At: at, SafeMode: true}}
	same(t, got, want)
}
