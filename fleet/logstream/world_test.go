package logstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/logstream"
	"fleetd/fleet/record"
)

var admin = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "anna", Role: fleet.RoleAdmin}

// A world has a log and streams in memory. The store behaves as the one in PostgreSQL, which package postgres tests.
type world struct {
	*logstream.Service
	mu         sync.Mutex
	log        []record.Entry
	streams    map[uuid.UUID]logstream.Stream
	deliveries map[uuid.UUID][]logstream.Delivery
}

func newWorld(t *testing.T) *world {
	sealer, err := enrolment.NewSealer(make([]byte, enrolment.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{streams: map[uuid.UUID]logstream.Stream{}, deliveries: map[uuid.UUID][]logstream.Delivery{}}
	w.Service = logstream.New(logstream.Options{Store: w, Log: w, Sealer: sealer})
	w.Hurry(2*time.Millisecond, 200*time.Millisecond)
	return w
}

// run runs the service until stop is called, or the test ends.
func (w *world) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = w.Run(ctx) })
	stop = func() {
		cancel()
		done.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// create adds a stream from the start of the log.
func (w *world) create(t *testing.T, r logstream.Request) (logstream.Stream, string) {
	t.Helper()
	name := "archive"
	r.Name, r.From = &name, "start"
	s, secret, err := w.Create(t.Context(), admin, r)
	if err != nil {
		t.Fatal(err)
	}
	return s, secret
}

// seal appends n calls to the log.
func (w *world) seal(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		i := len(w.log)
		line := fmt.Sprintf(`{"entry":"call","device_id":"dev-%d","tool":"self.reboot","state":"succeeded","trace_id":`+
			`"0af76519-16cd-43dd-8448-eb211c80319c"}`, i%3)
		w.add(record.Call.String(), line)
	}
}

func (w *world) add(kind, line string) {
	e := record.Entry{Number: int64(len(w.log)), Kind: kind, Subject: "s", At: time.Unix(1_790_000_000, 123000).UTC()}
	if line != "" {
		e.Line = json.RawMessage(line)
	}
	w.log = append(w.log, e)
}

func (w *world) stream(id uuid.UUID) logstream.Stream {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.streams[id]
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: ", what)
		}
	}
}

func (w *world) Status() record.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return record.Status{Origin: "fleetd/test", Latest: record.Checkpoint{Size: int64(len(w.log))}}
}

func (w *world) Read(_ context.Context, first, end int64) ([]record.Entry, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log[first:end]), nil
}

func (w *world) EntryAt(context.Context, time.Time) (int64, error) { return 7, nil }

func (w *world) CreateLogStream(_ context.Context, _ fleet.Principal, s logstream.Stream) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams[s.ID] = s
	return nil
}

func (w *world) LogStreams(context.Context) (list []logstream.Stream, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.streams {
		list = append(list, s)
	}
	return list, nil
}

func (w *world) LogStream(_ context.Context, id uuid.UUID) (logstream.Stream, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.streams[id]
	if !ok {
		return s, fleet.ErrNotFound
	}
	return s, nil
}

func (w *world) UpdateLogStream(_ context.Context, _ fleet.Principal, s logstream.Stream) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Next, s.Revision = w.streams[s.ID].Next, s.Revision+1
	w.streams[s.ID] = s
	return nil
}

func (w *world) ReplayLogStream(_ context.Context, _ fleet.Principal, id uuid.UUID, next int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.streams[id]
	s.Next, s.Revision = next, s.Revision+1
	w.streams[id] = s
	return nil
}

func (w *world) DeleteLogStream(_ context.Context, _ fleet.Principal, id uuid.UUID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.streams, id)
	return nil
}

func (w *world) AdvanceLogStream(_ context.Context, id uuid.UUID, revision, next int64, failures int,
	d logstream.Delivery) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.streams[id]
	if !ok || s.Revision != revision {
		return false, nil
	}
	s.Next, s.Failures = max(s.Next, next), failures
	if !d.At.IsZero() {
		s.Last = d
		w.deliveries[id] = append(w.deliveries[id], d)
	}
	w.streams[id] = s
	return true, nil
}

func (w *world) StopLogStream(_ context.Context, id uuid.UUID, revision int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.streams[id]; s.Revision == revision {
		s.Enabled, s.Revision = false, s.Revision+1
		w.streams[id] = s
	}
	return nil
}

func (w *world) LogStreamDeliveries(_ context.Context, id uuid.UUID, limit int) ([]logstream.Delivery, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := slices.Clone(w.deliveries[id])
	slices.Reverse(list)
	return list[:min(limit, len(list))], nil
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*fleet.Error](err); ok {
		return e.Code
	}
	return ""
}
