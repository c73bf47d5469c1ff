package server

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/operator"
)

// A rightsWorld is a server with six devices, of which three have the tag lab.
type rightsWorld struct {
	*testServer
	lab, others []fleet.DeviceID
	units       map[fleet.DeviceID]*sim.Device
}

func newRightsWorld(t *testing.T) *rightsWorld {
	t.Helper()
	t.Parallel()
	s := &rightsWorld{units: make(map[fleet.DeviceID]*sim.Device)}
	s.testServer = startTestServer(t, func(c *Config) {
		c.timers, c.engineTick, c.EventsMQTTAddr = quickTimers, 20*time.Millisecond, freeAddr(t)
	})
	units := s.simulate(sim.Options{Devices: 6, Seed: 3, TimeScale: 0.01, RecordCalls: 100})
	for i := range units.Len() {
		id, err := fleet.ParseDeviceID(units.Device(i).ID())
		if err != nil {
			t.Fatal(err)
		}
		s.units[id] = units.Device(i)
	}
	for i, v := range s.listed(6) {
		id := fleet.DeviceID(v.ID)
		if i >= 3 {
			s.others = append(s.others, id)
			continue
		}
		s.lab = append(s.lab, id)
		tags := []string{"lab"}
		if _, err := s.Devices.Update(t.Context(), testOperator, id, fleet.DevicePatch{Tags: &tags}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// actsAs makes later requests with a new token, and returns its principal.
func (d *rightsWorld) actsAs(r operator.TokenRequest) fleet.Principal {
	d.t.Helper()
	made, secret, err := d.Operators.NewToken(d.t.Context(), testOperator, r)
	if err != nil {
		d.t.Fatal(err)
	}
	d.token = secret
	return made.Principal()
}

// touched returns the devices that are in a campaign, or were called.
func (d *rightsWorld) touched(among []fleet.DeviceID) (touched []fleet.DeviceID) {
	d.t.Helper()
	for _, id := range among {
		parts, err := d.store.DeviceDeployments(d.t.Context(), id, 10)
		if err != nil {
			d.t.Fatal(err)
		}
		calls, err := d.Calls.List(d.t.Context(), call.Filter{Device: id})
		if err != nil {
			d.t.Fatal(err)
		}
		if len(parts)+len(calls.Items) > 0 {
			touched = append(touched, id)
		}
	}
	return touched
}

// versions returns the versions that the devices run.
func (d *rightsWorld) versions(ids []fleet.DeviceID) (versions []string) {
	for _, id := range ids {
		versions = append(versions, d.units[id].Firmware().Version)
	}
	return versions
}

// Text of the query that is spelled like the scope does not change the scope.
func TestContinuousCampaignStaysWithinItsMakersFilter(t *testing.T) {
	s := newRightsWorld(t)
	lab, others := s.lab, s.others
	release := releaseForSim(t, s.testServer, "2.5.0")
	before := s.versions(others)
	s.actsAs(operator.TokenRequest{Name: "lab", Role: fleet.RoleOperator, Scope: "tag:lab"})

	var c struct{ ID, Q, Within, State string }
	if status := s.rest("POST", "/campaigns", map[string]any{"name": "escape", "release_id": release.ID,
		"q": `-name:"x tag:lab y"`, "continuous": true, "max_devices": 100, "mode": "push",
		"end_at": time.Now().Add(time.Hour),
		"waves":  []any{map[string]any{"percent": 100, "soak_ms": 100}}}, &c); status != 201 || c.Within != "tag:lab" {
		t.Fatalf("planning is answered %d, %+v", status, c)
	}
	if status := s.rest("POST", "/campaigns/"+c.ID+"/start", nil, &c); status != 200 || c.State != "running" {
		t.Fatalf("the start is answered %d, %+v", status, c)
	}
	id := uuid.MustParse(c.ID)
	targets := func() (all []fleet.DeviceID) {
		for device, d := range deploymentsOf(t, s.testServer, campaign.Campaign{ID: id}) {
			if d.State == campaign.DeploymentSucceeded {
				all = append(all, device)
			}
		}
		return all
	}
	s.eventually("the devices of the lab to be updated", func() bool { return len(targets()) >= len(lab) })
	// The engine looks for more devices once before the first outcome, and again during the
	// campaign.
	if got := s.touched(others); len(got) > 0 {
		t.Errorf("devices outside of the maker's filter have a part or were called: %v", got)
	}
	if after := s.versions(others); !slices.Equal(before, after) {
		t.Errorf("devices outside run %v, ran %v", after, before)
	}
	for _, v := range s.versions(lab) {
		if !strings.HasPrefix(v, "2.5.0") {
			t.Errorf("a device of the lab runs %s", v)
		}
	}
}

// A device that leaves the scope of a campaign's maker gets nothing from later waves.
func TestADeviceThatLeavesTheScopeGetsNothing(t *testing.T) {
	s := newRightsWorld(t)
	release := releaseForSim(t, s.testServer, "2.5.0")
	admin := s.token
	s.actsAs(operator.TokenRequest{Name: "lab", Role: fleet.RoleOperator, Scope: "tag:lab"})
	var c struct {
		ID, State string
		Waves     []struct{ State string }
	}
	if status := s.rest("POST", "/campaigns", map[string]any{"name": "two waves", "release_id": release.ID, "q": "tag:lab",
		"mode": "push", "waves": []any{map[string]any{"count": 1, "soak_ms": 100, "gate": "manual"},
			map[string]any{"percent": 100, "soak_ms": 100}}}, &c); status != 201 {
		t.Fatalf("planning is answered %d, %+v", status, c)
	}
	if status := s.rest("POST", "/campaigns/"+c.ID+"/start", nil, &c); status != 200 {
		t.Fatalf("the start is answered %d, %+v", status, c)
	}
	plan := campaign.Campaign{ID: uuid.MustParse(c.ID)}
	s.eventually("the gate after the first wave", func() bool {
		return s.rest("GET", "/campaigns/"+c.ID, nil, &c) == 200 && c.Waves[0].State == "gate"
	})
	var leaves fleet.DeviceID
	for id, d := range deploymentsOf(t, s.testServer, plan) {
		if d.Wave == 1 && (leaves == "" || id < leaves) {
			leaves = id
		}
	}
	before := s.units[leaves].Firmware().Version
	if _, err := s.Devices.Update(t.Context(), testOperator, leaves, fleet.DevicePatch{Tags: &[]string{}}); err != nil {
		t.Fatal(err)
	}
	s.token = admin // only a principal that sees all of its devices sees the campaign
	if status := s.rest("POST", "/campaigns/"+c.ID+"/advance", nil, &c); status != 200 {
		t.Fatalf("passing the gate is answered %d, %+v", status, c)
	}
	s.eventually("the campaign's end", func() bool {
		return s.rest("GET", "/campaigns/"+c.ID, nil, &c) == 200 && strings.HasPrefix(c.State, "completed")
	})
	for id, d := range deploymentsOf(t, s.testServer, plan) {
		switch {
		case id == leaves && (d.State != campaign.DeploymentSkipped || !d.Reason.Is("out_of_scope")):
			t.Errorf("the device that left is %s (%v)", d.State, d.Reason)
		case id != leaves && d.State != campaign.DeploymentSucceeded:
			t.Errorf("a device of the lab is %s (%v)", d.State, d.Reason)
		}
	}
	if after := s.units[leaves].Firmware().Version; after != before {
		t.Errorf("the device that left runs %s, ran %s", after, before)
	}
}
