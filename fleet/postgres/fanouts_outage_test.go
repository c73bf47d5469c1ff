package postgres_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/embedded"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/migrations"
)

// A cluster is a PostgreSQL server of the test's own, which the test may stop.
type cluster struct {
	t   *testing.T
	dir string
	*embedded.Server
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: pgtest.TempDir(t)}
	c.start()
	t.Cleanup(c.stop)
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if c.Server, err = embedded.Start(ctx, embedded.Options{DataDir: c.dir}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		c.t.Error(err)
	}
}

// everywhere reports every device as connected.
type everywhere struct{}

func (everywhere) IsConnected(fleet.DeviceID) bool { return true }

// A restart of PostgreSQL during a fan-out only delays it: every device gets its call, and none
// gets it twice.
func TestFanOutOutlivesARestartOfTheDatabase(t *testing.T) {
	const n = 1500
	pg := newCluster(t)
	db, err := postgres.Open(t.Context(), pg.URL())
	check(t, err)
	t.Cleanup(db.Close)
	check(t, migrations.Up(t.Context(), db))
	var log bytes.Buffer
	store := postgres.New(db, postgres.Options{})
	run(t, store)

	devices, link := &fleettest.Devices{}, &fleettest.Link{}
	devices.PutInventory(fleet.Inventory{ID: "inv", Tools: []fleet.Tool{freezeTool}})
	var mu sync.Mutex
	ran := make(map[fleet.DeviceID]int)
	r := call.FanOutRequest{Actor: admin, Tool: freezeTool.Name, MaxInFlight: 64}
	for i := range n {
		id := fleet.DeviceID(fmt.Sprintf("d%05d", i))
		devices.Put(fleet.Device{ID: id, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv"})
		link.Connect(id, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			mu.Lock()
			ran[id]++
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			return fleettest.Text("true"), nil
		})
		r.Devices = append(r.Devices, id)
	}
	total := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(ran)
	}
	events := &fleet.Events{}
	targets := fleet.NewTargets(devices, devices)
	calls := call.New(call.Options{Store: store, Targets: targets, Link: link, Events: events})
	t.Cleanup(calls.Shutdown)
	fanOuts := call.NewFanOuts(call.FanOutsOptions{Store: store, Devices: devices, Calls: calls,
		Presence: everywhere{}, Events: events, Log: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	var service sync.WaitGroup
	service.Go(func() {
		if err := fanOuts.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); service.Wait() })

	f, err := fanOuts.Create(t.Context(), r)
	check(t, err)
	fleettest.Eventually(t, "the fan-out is under way", func() bool { return total() > 200 })
	stopping := now()
	pg.stop()
	fleettest.Eventually(t, "while the database is away the fan-out is blocked by it", func() bool {
		blocked := fanOuts.Blocked(f.ID)
		return blocked != nil && blocked.Code == call.BlockDatabase && !blocked.Since.Before(stopping)
	})
	before := total()
	pg.start()
	if before >= n {
		t.Fatalf("all %d devices were called before the database stopped", n)
	}
	fleettest.Eventually(t, "completed", func() bool {
		f, err := fanOuts.Get(t.Context(), f.ID)
		return err == nil && f.State == call.FanOutCompleted
	})
	p, err := fanOuts.Progress(t.Context(), f.ID)
	check(t, err)
	if p.ByState[fleet.CallSucceeded] != n || p.Waiting != 0 || p.Blocked != nil {
		t.Errorf("progress at the end: %+v", p)
	}
	if len(ran) != n {
		t.Errorf("%d of %d devices were called", len(ran), n)
	}
	for id, times := range ran {
		if times != 1 {
			t.Errorf("%s was called %d times", id, times)
		}
	}
	var open int
	check(t, db.QueryRow(t.Context(), `SELECT count(*) FROM calls WHERE state IN ('pending', 'sent')`).Scan(&open))
	if open != 0 {
		t.Errorf("%d calls are open on record", open)
	}
	cancel()
	service.Wait()
	t.Logf("%d devices called before the stop; log:\n%s", before, log.String())
	if waits := strings.Count(log.String(), "waits for the database"); waits == 0 || waits > 10 {
		t.Errorf("%d lines say that it waits", waits)
	}
}

// A fan-out that waits for offline devices does not count their calls until the wait is over.
func TestFanOutCountsOffline(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	f := call.FanOut{ID: uuid.Must(uuid.NewV7()), Actor: admin, Tool: "t", MaxInFlight: 2,
		OfflineWait: 1500 * time.Millisecond, State: call.FanOutRunning, Targets: 3, CreatedAt: now()}
	check(t, s.CreateFanOut(ctx, &f, []call.FanOutTarget{{Device: "d0"}, {Device: "d1"}, {Device: "d2"}}))
	got, err := s.FanOut(ctx, f.ID)
	check(t, err)
	same(t, got, f)
	for device, end := range map[fleet.DeviceID]struct {
		state fleet.CallState
		code  string
	}{
		"d0": {fleet.CallOffline, fleet.CodeOffline},
		"d1": {fleet.CallCanceled, fleet.CodeOffline},
		"d2": {fleet.CallCanceled, fleet.CodeNotRecorded},
	} {
		c := newCall(device, fleet.CallPending)
		c.FanOut, c.State, c.SentAt, c.FinishedAt = f.ID, end.state, nil, ptr(now())
		c.Error = &fleet.CallError{Code: end.code, Message: "m"}
		check(t, s.InsertCall(ctx, c))
	}
	pending := func() int {
		t.Helper()
		list, err := s.PendingTargets(ctx, f.ID, "", 10)
		check(t, err)
		p, err := s.Progress(ctx, f.ID)
		check(t, err)
		if len(list) != p.Waiting {
			t.Errorf("%d targets are pending, progress says %d", len(list), p.Waiting)
		}
		return len(list)
	}
	if n := pending(); n != 3 {
		t.Errorf("%d targets are pending while it waits, want 3", n)
	}
	time.Sleep(time.Until(*f.WaitsUntil()))
	if n := pending(); n != 1 {
		t.Errorf("%d targets are pending after the wait, want the one whose call was not recorded", n)
	}
	check(t, s.FinishFanOut(ctx, admin, f.ID, call.FanOutCanceled, now()))
	if list, err := s.PendingTargets(ctx, f.ID, "", 10); err != nil || len(list) != 0 {
		t.Errorf("of a canceled fan-out %v are pending, %v", list, err)
	}
	at, err := s.LastAlive(ctx, now())
	if err != nil || !at.IsZero() {
		t.Errorf("LastAlive = %v, %v before any sample", at, err)
	}
	sample := now().Add(-time.Minute)
	check(t, s.SavePresenceSample(ctx, sample))
	if at, err = s.LastAlive(ctx, now()); err != nil || !at.Equal(sample) {
		t.Errorf("LastAlive = %v, %v; want %v", at, err, sample)
	}
	f.OfflineWait, f.ID = 25*time.Hour, uuid.Must(uuid.NewV7())
	wantKind(t, s.CreateFanOut(ctx, &f, nil), fleet.ErrInvalid)
}
