package alert

import (
	"context"
	"errors"
	"time"

	"fleetd/fleet"

	"github.com/google/uuid"
)

// lookTimeout bounds one look at one condition.
const lookTimeout = 10 * time.Second

// A finding says that a condition holds for a subject.
type finding struct {
	subject  string
	severity Severity
	devices  int
	params   fleet.Params
	query    string
}

// A view is what a look is given.
type view struct {
	now       time.Time
	threshold Threshold
	open      map[string]Alert // alerts of the condition that have not ended, by subject
	started   time.Time
	settle    time.Duration
	badFrom   int
}

// A look finds for what a condition holds. ok is false if that cannot be known
// at this time; then nothing opens and nothing ends.
type look func(s *Service, ctx context.Context, v view) (found []finding, ok bool, err error)

// Run looks at the conditions until ctx ends. A condition that cannot be looked
// at, as the database is away, stays as it was.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	for {
		s.Look(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Look looks once at all conditions that are due, and stores what changed.
func (s *Service) Look(ctx context.Context) {
	if err := s.Load(ctx); err != nil { // another process, or a restored database, may have changed them
		if ctx.Err() == nil {
			s.o.Log.Warn("alerts not looked at", "err", err)
		}
		return
	}
	var ids []uuid.UUID
	for _, c := range Conditions {
		if ctx.Err() != nil {
			return
		}
		ids = append(ids, s.lookAt(ctx, c)...)
	}
	if len(ids) > 0 {
		s.changed(ctx, ids)
	}
}

// lookAt looks at one condition and returns which alerts changed.
func (s *Service) lookAt(ctx context.Context, c Condition) []uuid.UUID {
	now := s.o.Now()
	s.mu.Lock()
	settings := s.settings
	v := view{now: now, threshold: settings.Thresholds[c.Kind], started: s.started, settle: settings.Settle,
		badFrom: c.BadFrom, open: make(map[string]Alert)}
	for _, a := range s.open {
		if a.Kind == c.Kind {
			v.open[a.Subject] = a
		}
	}
	due := now.Sub(s.looked[c.Kind]) >= c.Every || s.o.Every < lookEvery
	settled := !c.Presence || now.Sub(s.started) >= settings.Settle
	if due && settled {
		s.looked[c.Kind] = now
	}
	s.mu.Unlock()
	if !due || v.threshold.Enabled && !settled {
		return nil
	}
	var found []finding
	if v.threshold.Enabled {
		within, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		var ok bool
		var err error
		if found, ok, err = c.look(s, within, v); err != nil || !ok {
			if err != nil && ctx.Err() == nil {
				s.o.Log.Warn("a condition of alerts was not looked at", "kind", c.Kind, "err", err)
			}
			return nil
		}
	}
	return s.settle(ctx, c, settings, v, found)
}

// settle compares what was found with the alerts that have not ended.
func (s *Service) settle(ctx context.Context, c Condition, settings Settings, v view, found []finding) (
	ids []uuid.UUID) {
	holds := make(map[string]bool)
	for _, f := range found {
		holds[f.subject] = true
		change, ok := s.held(c, settings, v, f)
		if ok && s.store(ctx, change) {
			ids = append(ids, change.Alert.ID)
		}
	}
	s.mu.Lock()
	for k := range s.pending {
		if k.kind == c.Kind && !holds[k.subject] {
			delete(s.pending, k)
		}
	}
	s.mu.Unlock()
	for subject, a := range v.open {
		if holds[subject] {
			continue
		}
		if change, ok := quiet(a, v.now, settings.EndAfter, v.threshold.Enabled); ok && s.store(ctx, change) {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

// held returns what a finding changes: it opens an alert once it has held for
// long enough, or brings the open one up to date.
func (s *Service) held(c Condition, settings Settings, v view, f finding) (Change, bool) {
	a, open := v.open[f.subject]
	if !open {
		since := v.now
		s.mu.Lock()
		k := key{c.Kind, f.subject}
		if at, ok := s.pending[k]; ok {
			since = at
		} else {
			s.pending[k] = v.now
		}
		ripe := c.AtOnce || v.now.Sub(since) >= settings.OpenAfter
		if ripe {
			delete(s.pending, k)
		}
		s.mu.Unlock()
		to, _ := Next("", Opened)
		return Change{Event: Opened, At: v.now, Alert: Alert{ID: uuid.Must(uuid.NewV7()), Kind: c.Kind,
			Subject: f.subject, State: to, Severity: f.severity, Devices: f.devices, Params: f.params, Query: f.query,
			Began: since}}, ripe
	}
	was := a
	a.Devices, a.Params, a.Query, a.QuietSince = f.devices, f.params, f.query, nil
	if f.severity == Bad { // it does not fall before the alert ends, so that it does not go up and down
		a.Severity = Bad
	}
	change := Change{Alert: a, From: was.State, At: v.now}
	if worse(was, a) {
		if to, ok := Next(was.State, Worsened); ok {
			change.Event, change.Alert.State = Worsened, to
		}
	}
	same := was.Severity == a.Severity && was.Devices == a.Devices && was.Query == a.Query && was.QuietSince == nil &&
		was.Reason().Equal(a.Reason())
	return change, change.Event != "" || !same
}

// worse reports whether an alert needs somebody again: it became bad, or there
// are twice as many devices as when it was acknowledged.
func worse(was, now Alert) bool {
	return was.Severity == Warning && now.Severity == Bad ||
		was.State == Acknowledged && was.AckedCount > 0 && now.Devices >= 2*was.AckedCount
}

// quiet returns what it changes that an alert's condition does not hold: it ends
// once that has lasted. A condition that was switched off ends at once.
func quiet(a Alert, now time.Time, endAfter time.Duration, enabled bool) (Change, bool) {
	c := Change{Alert: a, From: a.State, At: now}
	if a.QuietSince == nil {
		c.Alert.QuietSince = &now
	}
	if enabled && now.Sub(*c.Alert.QuietSince) < endAfter {
		return c, a.QuietSince == nil
	}
	to, ok := Next(a.State, Closed)
	c.Event, c.Alert.State, c.Alert.EndedAt = Closed, to, &now
	return c, ok
}

// store stores a change. If somebody was faster, the next look decides again.
func (s *Service) store(ctx context.Context, c Change) bool {
	err := s.o.Store.ChangeAlert(ctx, c)
	switch {
	case err == nil:
		if c.Event == Opened || c.Event == Worsened || c.Event == Closed {
			s.o.Log.Info("alert "+string(c.Event), "kind", c.Alert.Kind, "subject", c.Alert.Subject,
				"severity", c.Alert.Severity, "devices", c.Alert.Devices)
		}
		return true
	case errors.Is(err, fleet.ErrConflict), ctx.Err() != nil:
	default:
		s.o.Log.Warn("an alert was not stored", "kind", c.Alert.Kind, "err", err)
	}
	return false
}
