package call_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

// A commit is shared by everything that waits for it: a commit of a database, or the moment
// when devices answer.
type commit struct {
	mu   sync.Mutex
	next chan struct{}
}

func (c *commit) wait() {
	c.mu.Lock()
	next := c.next
	c.mu.Unlock()
	<-next
}

func (c *commit) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
			c.mu.Lock()
			close(c.next)
			c.next = make(chan struct{})
			c.mu.Unlock()
		}
	}
}

// benchFleet is the environment of fan-outs, at almost no cost.
type benchFleet struct {
	call.FanOutStore
	call.Store
	fleet.DeviceStore
	fleet.InventoryStore
	commits, answers commit
	ended            chan struct{}
	rpcID            atomic.Int32
}

func (f *benchFleet) InsertCall(context.Context, *fleet.Call) error { f.commits.wait(); return nil }
func (f *benchFleet) FinishCall(context.Context, *fleet.Call) error { f.commits.wait(); return nil }
func (f *benchFleet) IsConnected(fleet.DeviceID) bool               { return true }

func (f *benchFleet) Device(_ context.Context, id fleet.DeviceID) (fleet.Device, error) {
	return fleet.Device{ID: id, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "1"}, nil
}

func (f *benchFleet) DevicesByID(ctx context.Context, ids []fleet.DeviceID) (all []fleet.Device, err error) {
	for _, id := range ids {
		d, _ := f.Device(ctx, id)
		all = append(all, d)
	}
	return all, nil
}

func (f *benchFleet) Inventory(context.Context, string) (*fleet.Inventory, error) {
	return &fleet.Inventory{ID: "1", Tools: []fleet.Tool{{Name: "self.a", InputSchema: []byte(`{"type":"object"}`)}}}, nil
}

func (f *benchFleet) CreateFanOut(context.Context, *call.FanOut, []call.FanOutTarget) error {
	return nil
}
func (f *benchFleet) RunningFanOuts(context.Context) ([]call.FanOut, error) { return nil, nil }
func (f *benchFleet) FinishFanOut(context.Context, fleet.Principal, uuid.UUID, call.FanOutState, time.Time) error {
	f.ended <- struct{}{}
	return nil
}

func (f *benchFleet) Introduced(fleet.DeviceID) bool { return true }

func (f *benchFleet) Queue(fleet.DeviceID, fleet.PrincipalKind) (fleet.Turn, error) {
	return benchTurn{f, f.rpcID.Add(1)}, nil
}

type benchTurn struct {
	f  *benchFleet
	id int32
}

var yes = fleettest.Text("true")

var ready = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (t benchTurn) Ready() <-chan struct{} { return ready }
func (t benchTurn) Lost() <-chan struct{}  { return nil }
func (t benchTurn) RPCID() int32           { return t.id }
func (t benchTurn) Done()                  {}
func (t benchTurn) Send(context.Context, fleet.Invocation, func(fleet.Answer)) (fleet.Answer, error) {
	t.f.answers.wait()
	return yes, nil
}

// BenchmarkFanOut measures fan-outs to 10,000 devices, without a database and without a broker.
// One operation is one fan-out.
func BenchmarkFanOut(b *testing.B) {
	const devices = 10_000
	f := &benchFleet{ended: make(chan struct{}), commits: commit{next: make(chan struct{})},
		answers: commit{next: make(chan struct{})}}
	go f.commits.run(b.Context().Done())
	go f.answers.run(b.Context().Done())
	var events fleet.Events
	calls := call.New(call.Options{Store: f, Targets: fleet.NewTargets(f, f), Link: f, Events: &events})
	fanOuts := call.NewFanOuts(call.FanOutsOptions{Store: f, Devices: f, Calls: calls, Presence: f, Events: &events})
	go func() { _ = fanOuts.Run(b.Context()) }()
	time.Sleep(10 * time.Millisecond) // until it runs
	ids := make([]fleet.DeviceID, devices)
	for i := range ids {
		ids[i] = fleet.DeviceID(fmt.Sprintf("02beef%06x", i))
	}
	b.ReportAllocs()
	for b.Loop() {
		_, err := fanOuts.Create(b.Context(), call.FanOutRequest{Actor: fleet.Principal{Role: fleet.RoleAdmin}, Devices: ids,
			Tool: "self.a", MaxInFlight: 512})
		if err != nil {
			b.Fatal(err)
		}
		<-f.ended
	}
}
