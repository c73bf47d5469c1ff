package telemetry

import (
	"context"
	"fleetd/fleet"
	"time"
)

// Watch says that somebody looks at the device's log until ctx ends.
func (s *Logs) Watch(ctx context.Context, id fleet.DeviceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[id]++
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watchers[id]--; s.watchers[id] == 0 {
			delete(s.watchers, id)
		}
	})
}

// Run renews what is followed and watched, and forgets what nobody looks at,
// until ctx ends.
func (s *Logs) Run(ctx context.Context) error {
	tick := time.NewTicker(renewBefore / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.tend(ctx)
		}
	}
}

func (s *Logs) tend(ctx context.Context) {
	for id, f := range s.due() {
		s.renew(ctx, id, f)
	}
}

// due marks and returns what is to be renewed; what ended by itself is told,
// what nobody looks at is forgotten.
func (s *Logs) due() map[fleet.DeviceID]Following {
	now, due := s.o.Now(), make(map[fleet.DeviceID]Following)
	var ended []fleet.DeviceID
	s.mu.Lock()
	for id, d := range s.devices {
		f := &d.follow
		switch {
		case !f.Active(now) && !f.Until.IsZero():
			*f = Following{}
			ended = append(ended, id)
		case f.Active(now) && !f.renewal && s.watchers[id] > 0 && f.Until.Sub(now) <= renewBefore && f.Until.Before(f.end()):
			f.renewal = true
			due[id] = *f
		case !f.Active(now) && s.watchers[id] == 0 && now.Sub(d.touched) > logsIdle:
			delete(s.devices, id)
		}
	}
	s.mu.Unlock()
	for _, id := range ended {
		s.tell(id)
	}
	return due
}

// renew asks for another step. If the device does not grant it, its stream
// runs out. The outcome comes by itself: one slow device holds up no other.
func (s *Logs) renew(ctx context.Context, id fleet.DeviceID, f Following) {
	now := s.o.Now()
	until := now.Add(FollowStep)
	if until.After(f.end()) {
		until = f.end()
	}
	c, err := s.o.Calls.Start(ctx, s.followRequest(f.By, id, f.Level, until.Sub(now)))
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.devices[id]
	if d == nil || !d.follow.Since.Equal(f.Since) {
		return // stopped, or started anew
	}
	d.follow.renewal = false
	if err != nil || c.State.Failed() {
		d.follow.Since = f.Until.Add(-FollowLimit) // no more tries: this is the end
		s.o.Log.Info("log no longer followed", "device", id, "state", c.State, "err", err)
		return
	}
	d.follow.Until = until
}
