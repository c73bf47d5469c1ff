package enrolment

import (
	"context"
	"slices"
	"time"

	"fleetd/fleet"
)

const (
	forgetEvery = 10 * time.Minute
	sweepEvery  = 10 * time.Second
	// crowdedTTL replaces WaitingTTL when there is no room left: a device that really waits
	// polls every minute or two (protocol 1.5).
	crowdedTTL = 15 * time.Minute
	// crowdedPause prevents a flood of unknown devices from overloading the store.
	crowdedPause = 10 * time.Second
)

// forgetStale removes devices that no longer wait, so invented ids occupy neither memory nor
// codes for long.
func (e *Service) forgetStale(ctx context.Context) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		ttl := e.o.WaitingTTL
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-sweep.C:
			if err := e.DropUnlisted(ctx); err != nil && ctx.Err() == nil {
				e.o.Log.Error("cannot delete the devices that lost their place", "err", err)
			}
			continue
		case <-e.crowded:
			ttl = min(ttl, crowdedTTL)
			e.o.Log.Warn("too many devices wait to be enrolled; forgetting those that stopped polling", "limit", e.waiting.limit)
		}
		if err := e.forget(ctx, e.o.Now().Add(-ttl)); err != nil && ctx.Err() == nil {
			e.o.Log.Error("cannot delete waiting devices", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(crowdedPause):
		}
	}
}

// forget removes waiting devices, and requests of enrolled ones, that have not polled since before.
func (e *Service) forget(ctx context.Context, before time.Time) error {
	if err := e.forgetDevices(ctx, before); err != nil {
		return err
	}
	for _, w := range e.Waiting() {
		switch {
		case !w.LastPoll.Before(before):
			continue
		case !w.Again: // not in the store
			if !w.LastPoll.IsZero() && e.drop(w.Device, before) {
				e.changed(w.Device)
			}
			continue
		}
		err := e.decide(ctx, enrolmentActor, "device.request_expire", w.Device, func(a *Admission) error {
			a.NewClientID, a.ClaimCode, a.Challenge = "", "", ""
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *Service) forgetDevices(ctx context.Context, before time.Time) error {
	if err := e.polls.Lock(ctx); err != nil {
		return err
	}
	defer e.polls.Unlock()
	ids, err := e.o.Store.ForgetWaiting(ctx, before.UTC())
	if err != nil {
		return err
	}
	for _, id := range ids {
		if e.drop(id, before) {
			e.changed(id)
		}
	}
	return nil
}

// drop removes a device from memory unless it has polled since before: then its poll is still
// to be written and restores the device in the store, too.
func (e *Service) drop(id fleet.DeviceID, before time.Time) bool {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.devices[id]
	if st == nil || st.enrolment != fleet.EnrolmentWaiting || st.request != nil && !st.request.lastPoll.Before(before) {
		return false
	}
	e.endRequest(st)
	delete(s.devices, id)
	return true
}

// DropUnlisted deletes from the store the devices that lost their place on the waiting list,
// except those that have polled again since.
func (e *Service) DropUnlisted(ctx context.Context) error {
	gone := e.waiting.takeGone()
	if len(gone) == 0 {
		return nil
	}
	if err := e.polls.Lock(ctx); err != nil {
		return err
	}
	defer e.polls.Unlock()
	gone = slices.DeleteFunc(gone, func(id fleet.DeviceID) bool {
		_, back := e.admission(id)
		return back
	})
	if err := e.o.Store.DropWaiting(ctx, gone); err != nil {
		return err // ForgetWaiting deletes them later
	}
	for _, id := range gone {
		e.changed(id)
	}
	return nil
}
