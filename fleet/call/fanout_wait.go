package call

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Which devices a fan-out waits for, and for how long: disconnected devices, and devices in a
// conversation.

const (
	flappingPause  = time.Second // before a device is tried again that is connected but was offline for the call
	presenceBuffer = 4096
)

// sortOut parks the devices that the run waits for; the others become ready.
func (r *fanOutRun) sortOut(page []fleet.DeviceID) error {
	var away []fleet.DeviceID
	for _, id := range page {
		if r.s.presence.IsConnected(id) {
			r.ready = append(r.ready, id)
		} else {
			away = append(away, id)
		}
	}
	if len(away) > 0 && r.s.now().Before(r.graceEnd()) {
		if err := r.findAbsent(away); err != nil {
			return err
		}
	}
	for _, id := range away {
		r.parkOrCall(id)
	}
	return nil
}

// waitFor returns until when the run waits for the device if it is disconnected. The time is
// zero or in the past if the run does not wait.
func (r *fanOutRun) waitFor(id fleet.DeviceID) time.Time {
	var until time.Time
	if at := r.f.WaitsUntil(); at != nil {
		until = *at
	}
	if grace := r.graceEnd(); !r.absent[id] && grace.After(until) {
		until = grace
	}
	return until
}

// graceEnd returns the end of the time that the fleet has to reconnect after the start.
func (r *fanOutRun) graceEnd() time.Time { return r.s.started.Add(r.s.grace) }

// findAbsent finds the devices that were already disconnected before fleetd started.
func (r *fanOutRun) findAbsent(ids []fleet.DeviceID) error {
	return r.persist(func(ctx context.Context) error {
		alive, err := r.s.store.LastAlive(ctx, r.s.started)
		if err != nil {
			return err
		}
		devices, err := r.s.devices.DevicesByID(ctx, ids)
		for _, d := range devices {
			r.absent[d.ID] = !wasConnected(d, alive)
		}
		return err
	})
}

// wasConnected reports whether the device was connected when fleetd last ran, according to the
// record. A stop or start of fleetd records the end of each connection.
func wasConnected(d fleet.Device, alive time.Time) bool {
	switch d.Presence {
	case fleet.PresenceOnline, fleet.PresenceUnresponsive, fleet.PresenceUnknownEdge:
		return true
	case fleet.PresenceOffline:
		return !d.PresenceSince.Before(alive)
	}
	return false
}

// parkOrCall parks a device that was found offline, if the run waits for it.
func (r *fanOutRun) parkOrCall(id fleet.DeviceID) {
	now := r.s.now()
	until := r.waitFor(id)
	if !now.Before(until) {
		r.ready = append(r.ready, id)
		return
	}
	if r.s.presence.IsConnected(id) { // it connected meanwhile, or its connection flaps
		if soon := now.Add(flappingPause); soon.Before(until) {
			until = soon
		}
	}
	r.parked[id] = until
	if r.wake.IsZero() || until.Before(r.wake) {
		r.wake = until
	}
	r.changed.Store(true)
}

// A talkWait is the wait for the end of a conversation.
type talkWait struct {
	id    uuid.UUID
	began time.Time
}

// waitsForTalks reports whether the run calls devices only after their conversations.
func (r *fanOutRun) waitsForTalks() bool {
	return r.s.calls.o.Interruptions != nil && Interrupts(r.f.Tool) && !r.f.Interrupt
}

// parkTalking parks a device that was found in a conversation, until the conversation ends or
// the wait reaches its bound.
func (r *fanOutRun) parkTalking(id fleet.DeviceID) {
	now, talks := r.s.now(), r.s.calls.o.Interruptions
	if c, talking := talks.Open.Of(id); talking && r.talks[id].id != c.ID {
		r.talks[id] = talkWait{c.ID, now}
	}
	w, waits := talks.Wait(id, r.talks[id].began, now)
	if !waits { // the conversation ended meanwhile
		r.ready = append(r.ready, id)
		return
	}
	r.parked[id], r.inTalk[id] = w.Until, true
	if r.wake.IsZero() || w.Until.Before(r.wake) {
		r.wake = w.Until
	}
	r.changed.Store(true)
}

// outwaited returns the device's conversation if the wait for it reached its bound.
func (r *fanOutRun) outwaited(id fleet.DeviceID) uuid.UUID {
	w, waited := r.talks[id]
	if !waited || r.s.now().Before(w.began.Add(r.s.calls.o.Interruptions.bound())) {
		return uuid.Nil
	}
	return w.id
}

func (r *fanOutRun) unpark(id fleet.DeviceID) {
	delete(r.parked, id)
	delete(r.inTalk, id)
	r.ready = append(r.ready, id)
	r.changed.Store(true)
}

// follow subscribes to the presence of devices, and to their conversations if the run waits for
// these.
func (r *fanOutRun) follow() {
	kinds := []fleet.EventKind{fleet.EventPresence}
	if r.waitsForTalks() {
		kinds = append(kinds, fleet.EventConversation)
	}
	r.presence = r.s.events.Subscribe(presenceBuffer, func(e *fleet.Event) bool {
		return e.Kind == fleet.EventConversation || e.Presence == fleet.PresenceOnline ||
			e.Presence == fleet.PresenceUnresponsive
	}, kinds...)
}

// seen returns the presence events, or a nil channel, which never delivers, if the run waits
// for no device.
func (r *fanOutRun) seen() <-chan fleet.Event {
	if r.presence == nil {
		return nil
	}
	return r.presence.C
}

// online calls a device that connected or whose conversation ended. If the subscription fell
// behind, online subscribes again and checks the parked devices.
func (r *fanOutRun) online(e fleet.Event, ok bool) {
	if ok {
		_, waited := r.parked[e.Device]
		if waited && e.Kind == fleet.EventConversation {
			_, talks := r.s.calls.o.Interruptions.Open.Of(e.Device)
			waited = r.inTalk[e.Device] && !talks
		}
		if waited {
			r.unpark(e.Device)
		}
		return
	}
	select {
	case <-r.ctx.Done(): // fleetd stops, and ends all subscriptions
		return
	case <-time.After(fanOutPause):
	}
	r.follow()
	for id := range r.parked {
		if r.s.presence.IsConnected(id) {
			r.unpark(id)
		}
	}
}

// wakeUp makes the devices ready whose time has come.
func (r *fanOutRun) wakeUp() {
	now := r.s.now()
	r.wake = time.Time{}
	for id, at := range r.parked {
		if !now.Before(at) {
			r.unpark(id)
		} else if r.wake.IsZero() || at.Before(r.wake) {
			r.wake = at
		}
	}
}
