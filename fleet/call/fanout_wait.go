package call

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Which devices a fan-out waits for, and for how long: those that are not connected,
// and those in a conversation.

const (
	flappingPause  = time.Second // before a device is tried again that is connected, and was not for the call
	presenceBuffer = 4096
)

// sortOut parks the devices that are waited for; the others are ready.
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

// waitFor is until when the device is waited for if it is not connected. It
// lies in the past, or is zero, if it is not waited for.
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

// graceEnd is when the fleet has had time to come back after the start.
func (r *fanOutRun) graceEnd() time.Time { return r.s.started.Add(r.s.grace) }

// findAbsent notes which devices were not connected before the start of fleetd.
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

// wasConnected reports whether the record says that the device was connected
// when fleetd was last alive. What follows a stop or a start is recorded as the
// end of its connection then.
func wasConnected(d fleet.Device, alive time.Time) bool {
	switch d.Presence {
	case fleet.PresenceOnline, fleet.PresenceUnresponsive:
		return true
	case fleet.PresenceOffline:
		return !d.PresenceSince.Before(alive)
	}
	return false
}

// parkOrCall parks a device that was found offline, if it is waited for.
func (r *fanOutRun) parkOrCall(id fleet.DeviceID) {
	now := r.s.now()
	until := r.waitFor(id)
	if !now.Before(until) {
		r.ready = append(r.ready, id)
		return
	}
	if r.s.presence.IsConnected(id) { // meanwhile, or it comes and goes
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

// waitsForTalks reports whether devices in conversation are called after it.
func (r *fanOutRun) waitsForTalks() bool {
	return r.s.calls.o.Interruptions != nil && Interrupts(r.f.Tool) && !r.f.Interrupt
}

// parkTalking parks a device that was found in a conversation, until its end or
// the bound of the wait.
func (r *fanOutRun) parkTalking(id fleet.DeviceID) {
	now, talks := r.s.now(), r.s.calls.o.Interruptions
	if c, talking := talks.Open.Of(id); talking && r.talks[id].id != c.ID {
		r.talks[id] = talkWait{c.ID, now}
	}
	w, waits := talks.Wait(id, r.talks[id].began, now)
	if !waits { // it ended meanwhile
		r.ready = append(r.ready, id)
		return
	}
	r.parked[id], r.inTalk[id] = w.Until, true
	if r.wake.IsZero() || w.Until.Before(r.wake) {
		r.wake = w.Until
	}
	r.changed.Store(true)
}

// outwaited is the device's conversation if that was waited for long enough.
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

// follow subscribes to the presence of devices, and to their conversations where
// these are waited for.
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

// seen is nil, which never delivers, if no device can be waited for.
func (r *fanOutRun) seen() <-chan fleet.Event {
	if r.presence == nil {
		return nil
	}
	return r.presence.C
}

// online calls a device that came online, or whose conversation ended. A
// subscription that fell behind is made again, and what it missed is looked up.
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
	case <-r.ctx.Done(): // fleetd stops, and with it all events
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
