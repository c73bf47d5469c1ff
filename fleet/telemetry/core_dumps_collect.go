package telemetry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fleetd/fleet"
)

// Limits of the automatic collection of core dumps. Uploads are few and small, but a bad
// release crashes a whole fleet at once.
const (
	collectEvery    = 2 * time.Second
	collectAtOnce   = 2
	collectPause    = time.Minute // after a failure, doubled with each further one
	collectLongest  = time.Hour
	collectFailures = 8 // after so many, the device is skipped until it starts again
)

// collector is the principal for core dumps that fleetd fetches automatically.
var collector = fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd", Role: fleet.RoleOperator}

// coreDumpTry is the state of a core dump that waits on a device.
type coreDumpTry struct {
	boots    int64 // the device's count of starts: a new crash increases it
	failures int
	next     time.Time
	running  bool
	done     bool
}

// Observe receives the latest vitals of devices. It does not block.
func (s *CoreDumps) Observe(latest map[fleet.DeviceID]Vitals) {
	if !s.o.Collect {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, v := range latest {
		t := s.tries[id]
		switch {
		case t != nil && t.running:
		case !v.CoreDump:
			delete(s.tries, id)
		case t == nil || t.boots != v.Boots:
			s.tries[id] = &coreDumpTry{boots: v.Boots}
		}
	}
}

// Run fetches the core dumps that [CoreDumps.Observe] saw, once per crash, and deletes expired
// ones, until ctx ends. It skips devices on a hold.
func (s *CoreDumps) Run(ctx context.Context) error {
	collect, tidy := time.NewTicker(collectEvery), time.NewTicker(time.Hour)
	defer collect.Stop()
	defer tidy.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	places := make(chan struct{}, collectAtOnce)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-collect.C:
			s.start(ctx, &running, places)
		case <-tidy.C:
			s.retain(ctx)
		}
	}
}

// start begins as many tries as there are free places.
func (s *CoreDumps) start(ctx context.Context, running *sync.WaitGroup, places chan struct{}) {
	for range cap(places) - len(places) {
		id, boots, ok := s.nextTry()
		if !ok {
			return
		}
		places <- struct{}{}
		running.Go(func() {
			s.try(ctx, id, boots)
			<-places
		})
	}
}

func (s *CoreDumps) retain(ctx context.Context) {
	if s.o.Keep <= 0 {
		return
	}
	deleted, unused, err := s.o.Store.DeleteCoreDumpsBefore(ctx, s.o.Now().Add(-s.o.Keep))
	if err != nil {
		s.o.Log.Warn("old core dumps not deleted", "err", err)
		return
	}
	for _, blob := range unused {
		s.forgetBlob(ctx, blob)
	}
	if deleted > 0 {
		s.o.Log.Info("old core dumps deleted", "count", deleted)
	}
}

// nextTry returns a core dump that is due, and marks it.
func (s *CoreDumps) nextTry() (id fleet.DeviceID, boots int64, ok bool) {
	now := s.o.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.tries {
		if !t.running && !t.done && !now.Before(t.next) {
			t.running = true
			return id, t.boots, true
		}
	}
	return "", 0, false
}

func (s *CoreDumps) try(ctx context.Context, id fleet.DeviceID, boots int64) {
	wait, err := s.collect(ctx, id, boots)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tries[id]
	t.running = false
	switch {
	case ctx.Err() != nil:
	case wait > 0:
		t.next = s.o.Now().Add(wait)
	case err == nil:
		t.done = true
	default:
		t.failures++
		t.next = s.o.Now().Add(min(collectPause<<(t.failures-1), collectLongest))
		t.done = t.failures >= collectFailures
		s.o.Log.Warn("core dump not fetched", "device", id, "failures", t.failures, "last_try", t.done, "err", err)
	}
}

// collect fetches the core dump if nothing prevents it. wait is the pause before the next look;
// an error means that the try failed.
func (s *CoreDumps) collect(ctx context.Context, id fleet.DeviceID, boots int64) (wait time.Duration, err error) {
	d, err := s.o.Devices.Device(ctx, id)
	if err != nil {
		return 0, err
	}
	if d.Hold.Active(s.o.Now()) {
		return collectPause, nil
	}
	offered, err := s.offers(ctx, id, fleet.ToolCoreDumpUpload)
	if err != nil || !offered || d.RetiredAt != nil || d.Enrolment != fleet.EnrolmentEnrolled {
		return 0, err
	}
	latest, err := s.o.Store.CoreDumps(ctx, id, 1)
	if err != nil {
		return 0, err
	}
	if len(latest) > 0 && boots > 0 && latest[0].Boots == boots {
		return 0, nil // fetched before fleetd started, or by an operator who did not erase it
	}
	return 0, s.fetched(s.Fetch(ctx, collector, id, true))
}

func (s *CoreDumps) fetched(c fleet.Call, err error) error {
	var none *fleet.Error
	switch {
	case errors.As(err, &none) && none.Code == "no_core_dump":
		return nil
	case err != nil:
		return err
	case c.State != fleet.CallSucceeded:
		return fmt.Errorf("call %s ended %s: %s", c.ID, c.State, c.Error)
	}
	s.o.Log.Info("core dump fetched", "device", c.Device, "call", c.ID)
	return nil
}
