package alert

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// lookTimeout is the timeout of one check of one condition.
const lookTimeout = 10 * time.Second

// A finding means that a condition holds for a subject.
type finding struct {
	subject  string
	severity Severity
	devices  int
	params   fleet.Params
	query    string
	since    time.Time        // when it began to hold; zero means when it was first found
	holds    time.Duration    // how long it must hold, if shorter than the default; 0 for the default
	over     bool             // it no longer holds; params are for its open alert
	ids      []fleet.DeviceID // all devices, if query lists them
}

// A view is the input of a look.
type view struct {
	now       time.Time
	threshold Threshold
	open      map[string]Alert // alerts of the condition that have not ended, by subject
	settling  bool             // presence does not count yet, so nothing opens or worsens
	badFrom   int
}

// A look finds the subjects for which a condition holds. ok is false if that cannot be
// determined now; then nothing opens and nothing ends.
type look func(s *Service, ctx context.Context, v view) (found []finding, ok bool, err error)

// Run checks the conditions until ctx ends. While the database is unavailable, conditions
// keep their state.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(min(s.o.Every, presenceEvery))
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

// Look checks all due conditions once and stores the changes.
func (s *Service) Look(ctx context.Context) {
	now := s.o.Now()
	due := slices.DeleteFunc(slices.Clone(Conditions), func(c Condition) bool { return !s.isDue(c, now) })
	if len(due) == 0 && !s.hushDue(now) {
		return
	}
	if err := s.Load(ctx); err != nil { // another process may have changed them, or the database was restored
		if ctx.Err() == nil {
			s.o.Log.Warn("could not load alerts", "err", err)
		}
		return
	}
	s.settlePresence(ctx, now)
	ids := s.hush(ctx) // before the conditions: an alert that gets worse after its silence is sent
	for _, c := range due {
		if ctx.Err() != nil {
			return
		}
		ids = append(ids, s.lookAt(ctx, c)...)
	}
	if len(ids) > 0 {
		s.changed(ctx, ids)
		if ids := s.hush(ctx); len(ids) > 0 { // their devices may have changed
			s.changed(ctx, ids)
		}
	}
}

// isDue reports whether a condition must be checked now.
func (s *Service) isDue(c Condition, now time.Time) bool {
	early := c.due != nil && c.due(s, now) // call it always: it may record what it sees
	s.mu.Lock()
	defer s.mu.Unlock()
	return early || now.Sub(s.looked[c.Kind]) >= c.Every || s.o.Every < lookEvery
}

// lookAt checks one condition and returns the ids of changed alerts.
func (s *Service) lookAt(ctx context.Context, c Condition) []uuid.UUID {
	now := s.o.Now()
	s.mu.Lock()
	settings := s.settings
	v := view{now: now, threshold: settings.Thresholds[c.Kind], settling: c.Presence && !s.settled, badFrom: c.BadFrom,
		open: make(map[string]Alert)}
	for _, a := range s.open {
		if a.Kind == c.Kind {
			v.open[a.Subject] = a
		}
	}
	s.looked[c.Kind] = now
	s.mu.Unlock()
	if v.threshold.Enabled && v.settling && len(v.open) == 0 {
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
				s.o.Log.Warn("could not check an alert condition", "kind", c.Kind, "err", err)
			}
			return nil
		}
	}
	return s.settle(ctx, c, settings, v, found)
}

// settle compares the findings with the alerts that have not ended.
func (s *Service) settle(ctx context.Context, c Condition, settings Settings, v view, found []finding) (
	ids []uuid.UUID) {
	holds, over := make(map[string]bool), make(map[string]finding)
	s.mu.Lock()
	for k := range s.affected {
		if _, open := v.open[k.subject]; k.kind == c.Kind && !open {
			delete(s.affected, k)
		}
	}
	for _, f := range found {
		if f.ids != nil {
			s.affected[key{c.Kind, f.subject}] = f.ids
		}
	}
	s.mu.Unlock()
	for _, f := range found {
		if f.over {
			over[f.subject] = f
			continue
		}
		holds[f.subject] = true
		change, ok := s.held(c, settings, v, f)
		if ok && change.Event == Opened {
			change.Alert.Silence = s.silenceNow(ctx, change.Alert)
		}
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
		if change, ok := quiet(a, over[subject], v.now, settings.EndAfter, v.threshold.Enabled); ok && s.store(ctx, change) {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

// held returns the change that a finding makes: it opens an alert if the condition has held
// long enough, or updates the open alert.
func (s *Service) held(c Condition, settings Settings, v view, f finding) (Change, bool) {
	a, open := v.open[f.subject]
	if !open {
		if v.settling {
			return Change{}, false
		}
		since, openAfter := v.now, settings.OpenAfter
		if !f.since.IsZero() {
			since = f.since
		}
		if f.holds > 0 {
			openAfter = min(openAfter, f.holds)
		}
		s.mu.Lock()
		k := key{c.Kind, f.subject}
		if at, ok := s.pending[k]; ok {
			since = at
		} else {
			s.pending[k] = since
		}
		ripe := c.AtOnce || v.now.Sub(since) >= openAfter
		if ripe {
			delete(s.pending, k)
		}
		s.mu.Unlock()
		to, _ := Next("", Opened)
		return Change{Event: Opened, At: v.now, Devices: f.ids, Alert: Alert{ID: uuid.Must(uuid.NewV7()), Kind: c.Kind,
			Subject: f.subject, State: to, Severity: f.severity, Devices: f.devices, Params: f.params, Query: f.query,
			Began: since}}, ripe
	}
	if v.settling && (a.QuietSince != nil || a.Severity == Warning && f.severity == Bad) {
		return Change{}, false
	}
	was := a
	a.Devices, a.Params, a.Query, a.QuietSince = f.devices, f.params, f.query, nil
	if f.severity == Bad { // severity does not fall before the alert ends, to avoid flapping
		a.Severity = Bad
	}
	change := Change{Alert: a, From: was.State, At: v.now, Devices: f.ids}
	if worse(was, a) && !v.settling {
		if to, ok := Next(was.State, Worsened); ok {
			change.Event, change.Alert.State = Worsened, to
		}
	}
	same := was.Severity == a.Severity && was.Devices == a.Devices && was.Query == a.Query && was.QuietSince == nil &&
		was.Reason().Equal(a.Reason())
	return change, change.Event != "" || !same
}

// worse reports whether an alert needs attention again: it became bad, or its number of
// devices has doubled since it was acknowledged.
func worse(was, now Alert) bool {
	return was.Severity == Warning && now.Severity == Bad ||
		was.State == Acknowledged && was.AckedCount > 0 && now.Devices >= 2*was.AckedCount
}

// quiet returns the change for an alert whose condition does not hold: the alert ends after
// endAfter, or at once if the condition was disabled. says has its new parameters unless it
// is zero.
func quiet(a Alert, says finding, now time.Time, endAfter time.Duration, enabled bool) (Change, bool) {
	c := Change{Alert: a, From: a.State, At: now}
	if says.over {
		c.Alert.Params, c.Alert.Devices = says.params, says.devices
	}
	if a.QuietSince == nil {
		c.Alert.QuietSince = &now
	}
	if enabled && now.Sub(*c.Alert.QuietSince) < endAfter {
		return c, a.QuietSince == nil || !a.Reason().Equal(c.Alert.Reason())
	}
	to, ok := Next(a.State, Closed)
	c.Event, c.Alert.State, c.Alert.EndedAt = Closed, to, &now
	return c, ok
}

// store stores a change. If another change came first, the next check decides again.
func (s *Service) store(ctx context.Context, c Change) bool {
	err := s.o.Store.ChangeAlert(ctx, c)
	switch {
	case err == nil:
		s.log(c)
		return true
	case errors.Is(err, fleet.ErrConflict), ctx.Err() != nil:
	default:
		s.o.Log.Warn("could not store an alert", "kind", c.Alert.Kind, "err", err)
	}
	return false
}

// log logs the events that fleetd decides.
func (s *Service) log(c Change) {
	if c.Event == "" || c.Event == Acked || c.Event == Unacked {
		return
	}
	s.o.Log.Info("alert "+string(c.Event), "kind", c.Alert.Kind, "subject", c.Alert.Subject,
		"severity", c.Alert.Severity, "devices", c.Alert.Devices)
}
