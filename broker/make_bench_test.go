package broker

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// records accepts every record at once, so a benchmark measures the path to the device and back.
type records struct {
	call.Store
	fleet.DeviceStore
	fleet.InventoryStore
}

func (records) InsertCall(context.Context, *fleet.Call) error { return nil }
func (records) FinishCall(context.Context, *fleet.Call) error { return nil }

func (records) Device(_ context.Context, id fleet.DeviceID) (fleet.Device, error) {
	return fleet.Device{ID: id, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "1"}, nil
}

func (records) Inventory(context.Context, string) (*fleet.Inventory, error) {
	return &fleet.Inventory{ID: "1", Tools: []fleet.Tool{{Name: "self.audio_speaker.set_volume", InputSchema: json.RawMessage(
		`{"type":"object","properties":{"volume":{"type":"integer","minimum":0,"maximum":100}},"required":["volume"]}`)}}}, nil
}

// BenchmarkMake measures calls as the domain makes them, without a database, to several numbers
// of devices at a time.
func BenchmarkMake(bench *testing.B) {
	const devices = 64
	b, _ := start(bench, nil)
	startEchoes(bench, b, devices)
	var events fleet.Events
	targets := fleet.NewTargets(records{}, records{})
	calls := call.New(call.Options{Store: records{}, Targets: targets, Link: b, Events: &events})
	defer calls.Shutdown()
	sub := events.Subscribe(1, nil, fleet.EventRelease)
	defer sub.Close()
	bench.ReportAllocs()
	bench.ResetTimer()
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range devices {
		id := testID(w)
		wg.Go(func() {
			for next.Add(1) <= int64(bench.N) {
				c, err := calls.Make(context.Background(), call.Request{Actor: fleet.Principal{Role: fleet.RoleOperator},
					Device: id, Tool: "self.audio_speaker.set_volume", Arguments: json.RawMessage(`{"volume":50}`)})
				if err != nil || c.State != fleet.CallSucceeded {
					bench.Error(c.State, c.Error, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
