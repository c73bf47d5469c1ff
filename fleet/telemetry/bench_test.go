package telemetry_test

import (
	"context"
	"encoding/json"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

const unit = fleet.DeviceID("a085e3112233")

var (
	ann = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ann", Role: fleet.RoleOperator}
	bob = fleet.Principal{Kind: fleet.KindOperator, ID: "2", Name: "bob", Role: fleet.RoleAdmin}
)

// bench is a call service over scripted devices. Its calls own no addresses and watch nothing,
// unless a test replaces them.
type bench struct {
	*call.Service
	store   *fleettest.CallStore
	devices *fleettest.Devices
	targets *fleet.Targets
	link    *fleettest.Link
}

func newBench(t *testing.T) *bench {
	b := &bench{store: &fleettest.CallStore{}, devices: &fleettest.Devices{}, link: &fleettest.Link{}}
	b.devices.PutInventory(fleet.Inventory{ID: "inv", Tools: []fleet.Tool{{Name: "self.get_device_status",
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`), Audience: fleet.AudienceModel}}})
	b.devices.Put(fleet.Device{ID: unit, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv"})
	b.targets = fleet.NewTargets(b.devices, b.devices)
	b.Service = call.New(call.Options{Store: b.store, Targets: b.targets, Link: b.link, Watcher: unseen{},
		Events: &fleet.Events{}})
	t.Cleanup(b.Shutdown)
	return b
}

func (b *bench) put(change func(*fleet.Device)) {
	d, _ := b.devices.Device(context.Background(), unit)
	change(&d)
	b.devices.Put(d)
	b.targets.Forget(unit)
}

// unseen is a watcher that observes nothing.
type unseen struct{}

func (unseen) Watch(fleet.DeviceID) (<-chan fleet.Evidence, func()) { return nil, func() {} }

func answer(text string) fleettest.Script {
	return func(context.Context, string, json.RawMessage) (fleet.Answer, error) { return fleettest.Text(text), nil }
}
