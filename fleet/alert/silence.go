package alert

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A Silence keeps alerts from being sent, and from counting in the badge, until it ends. It applies to one
// alert, to those of a kind, or to those whose devices all match a filter; with several of these, to alerts
// that fit all of them.
type Silence struct {
	ID        uuid.UUID
	Alert     uuid.UUID // uuid.Nil: not only one
	Kind      Kind      // "": any
	Query     string    // filter; "": any alert, also about no device
	Scope     string    // filter of an operator who may act on some devices only; "" for others
	Reason    string
	CreatedAt time.Time
	Until     time.Time
	By        fleet.Principal
	EndedAt   *time.Time // when a person ended it early; nil otherwise
	EndedBy   string
}

// Holds reports whether the silence has not ended.
func (s Silence) Holds(now time.Time) bool { return s.EndedAt == nil && now.Before(s.Until) }

// names reports whether the silence is about the alert, without regard to devices.
func (s Silence) names(a Alert) bool {
	return (s.Alert == uuid.Nil || s.Alert == a.ID) && (s.Kind == "" || s.Kind == a.Kind)
}

// filter returns the filter that all devices of an alert must match.
func (s Silence) filter() (fleet.Query, error) {
	q, err := fleet.ParseQuery(s.Query)
	if err != nil {
		return q, err
	}
	within, err := fleet.ParseScope(s.Scope)
	return q.And(within), err
}

// Silenced reports whether a silence keeps the alert from being sent.
func (a Alert) Silenced(now time.Time) bool { return a.Silence != nil && a.Silence.Holds(now) }

// Limits of silences.
const (
	MaxSilence  = 90 * day
	MaxSilences = 200 // that have not ended
	MaxReason   = 500 // characters
)

// A SilenceFilter narrows a list of silences. Zero fields do not filter.
type SilenceFilter struct {
	Active bool // only those that have not ended
	Now    time.Time
	Limit  int
	Cursor string
}

// SilenceStore stores silences. Changes write their audit entry.
type SilenceStore interface {
	CreateSilence(ctx context.Context, s Silence) error
	// EndSilence ends a silence; it returns [fleet.ErrConflict] if it has ended already.
	EndSilence(ctx context.Context, by fleet.Principal, id uuid.UUID, at time.Time) error
	Silence(ctx context.Context, id uuid.UUID) (Silence, error)
	Silences(ctx context.Context, f SilenceFilter) (fleet.Page[Silence], error) // newest first
	// ActiveSilences lists the silences that have not ended, the longest first.
	ActiveSilences(ctx context.Context, now time.Time) ([]Silence, error)
	// AttachSilence stores which silence applies to an alert, and the event unless it is "". It returns
	// [fleet.ErrConflict] if the alert's state, or its silence, is not that of was any more.
	AttachSilence(ctx context.Context, was Alert, c Change) error
	// Covered counts the devices in service of an alert that match the filter, and those that do not.
	Covered(ctx context.Context, of Devices, filter fleet.Query) (inside, outside int, err error)
}

// Devices are the devices of an alert: the listed ones or, if the list is nil, those that the query finds.
type Devices struct {
	IDs   []fleet.DeviceID
	Query string
}

// A SilenceRequest describes a silence: Alert, Kind and Query as in [Silence], and its end as a moment or as a
// time from now.
type SilenceRequest struct {
	Alert  uuid.UUID
	Kind   Kind
	Query  string
	Until  time.Time
	For    time.Duration // used if Until is zero
	Reason string
}

// maySilence returns the filter to which the principal's silences are limited: "" for an operator of the fleet,
// the scope of one who may act on some devices only.
func maySilence(by fleet.Principal) (scope string, err error) {
	if err := by.May(fleet.RoleViewer, "see_alerts"); err != nil {
		return "", err
	}
	if err := by.MaySomewhere(fleet.RoleOperator, "silence_alerts"); err != nil {
		return "", err
	}
	return by.Within(fleet.RoleOperator).Text, nil
}

// MaySilence reports whether the principal may silence at least some alerts.
func MaySilence(by fleet.Principal) bool {
	_, err := maySilence(by)
	return err == nil
}

// Silence keeps alerts from being sent for a while.
func (s *Service) Silence(ctx context.Context, by fleet.Principal, r SilenceRequest) (Silence, error) {
	scope, err := maySilence(by)
	if err != nil {
		return Silence{}, err
	}
	now := s.o.Now()
	made := Silence{ID: uuid.Must(uuid.NewV7()), Alert: r.Alert, Kind: r.Kind, Query: r.Query, Scope: scope,
		CreatedAt: now, Until: r.Until.UTC(), By: by}
	if r.Until.IsZero() {
		made.Until = now.Add(r.For)
	}
	if made.Until.Sub(now) < time.Second || made.Until.Sub(now) > MaxSilence {
		return Silence{}, fleet.Refuse(fleet.ErrInvalid, "invalid_silence_end", "limit_ms", MaxSilence).At("until")
	}
	if made.Reason, err = fleet.CleanLine("reason", r.Reason, MaxReason); err != nil {
		return Silence{}, err
	}
	if made.Reason == "" {
		return Silence{}, fleet.Refuse(fleet.ErrInvalid, "invalid_reason.missing").At("reason")
	}
	if r.Kind != "" && !slices.Contains(Kinds, r.Kind) {
		return Silence{}, unknownKind(r.Kind)
	}
	q, err := fleet.ParseQuery(r.Query)
	if err != nil {
		return Silence{}, err
	}
	if made.Query = q.Text; made.Alert == uuid.Nil && made.Kind == "" && made.Query == "" {
		return Silence{}, fleet.Refuse(fleet.ErrInvalid, "invalid_silence.empty")
	}
	if made.Alert != uuid.Nil {
		if err := s.checkSilenced(ctx, made); err != nil {
			return Silence{}, err
		}
	}
	active, err := s.o.Store.ActiveSilences(ctx, now)
	if err != nil {
		return Silence{}, err
	}
	if len(active) >= MaxSilences {
		return Silence{}, fleet.Refuse(fleet.ErrConflict, "too_many_silences", "limit", MaxSilences)
	}
	if err := s.o.Store.CreateSilence(ctx, made); err != nil {
		return Silence{}, err
	}
	s.applySilences(ctx)
	return made, nil
}

// checkSilenced refuses a silence of one alert that has ended or that is about devices beyond the filters.
func (s *Service) checkSilenced(ctx context.Context, made Silence) error {
	a, err := s.o.Store.Alert(ctx, made.Alert)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return fleet.Refuse(fleet.ErrInvalid, "unknown_alert.id", "id", made.Alert.String()).At("alert_id")
	case err != nil:
		return err
	}
	if a.State == Ended {
		return notOpen(a)
	}
	covers, _, err := s.covers(ctx, made, a)
	switch {
	case err != nil:
		return err
	case covers:
		return nil
	case made.Scope != "":
		return fleet.Refuse(fleet.ErrForbidden, "silence_out_of_scope", "actor", made.By.Name)
	}
	return fleet.Refuse(fleet.ErrConflict, "silence_not_covering")
}

// EndSilence ends a silence before its time. An operator with a scope may end silences of the same scope.
func (s *Service) EndSilence(ctx context.Context, by fleet.Principal, id uuid.UUID) (Silence, error) {
	scope, err := maySilence(by)
	if err != nil {
		return Silence{}, err
	}
	made, err := s.o.Store.Silence(ctx, id)
	if err != nil {
		return Silence{}, err
	}
	if scope != "" && made.Scope != scope {
		return Silence{}, fleet.Refuse(fleet.ErrForbidden, "silence_out_of_scope", "actor", by.Name)
	}
	now := s.o.Now()
	if !made.Holds(now) {
		return Silence{}, fleet.Refuse(fleet.ErrConflict, "silence_ended")
	}
	if err := s.o.Store.EndSilence(ctx, by, id, now); err != nil {
		if errors.Is(err, fleet.ErrConflict) {
			err = fleet.Refuse(fleet.ErrConflict, "silence_ended")
		}
		return Silence{}, err
	}
	made.EndedAt, made.EndedBy = &now, by.Name
	s.applySilences(ctx)
	return made, nil
}

// MayEnd reports whether the principal may end the silence.
func (s Silence) MayEnd(by fleet.Principal) bool {
	scope, err := maySilence(by)
	return err == nil && (scope == "" || scope == s.Scope)
}

// Silences lists silences, newest first.
func (s *Service) Silences(ctx context.Context, by fleet.Principal, f SilenceFilter) (fleet.Page[Silence], error) {
	if err := by.May(fleet.RoleViewer, "see_alerts"); err != nil {
		return fleet.Page[Silence]{}, err
	}
	f.Now = s.o.Now()
	return s.o.Store.Silences(ctx, f)
}

// applySilences applies a changed silence at once, without waiting for the loop, and notifies live pages.
func (s *Service) applySilences(ctx context.Context) {
	ctx = context.WithoutCancel(fleet.WithoutScope(ctx))
	if err := s.Load(ctx); err != nil {
		s.o.Log.Warn("could not load alerts", "err", err) // the loop loads them
		return
	}
	if ids := s.hush(ctx); len(ids) > 0 {
		s.changed(ctx, ids)
	}
}

// hushDue reports whether the silence of an alert has ended while its condition holds.
func (s *Service) hushDue(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.open, func(a Alert) bool {
		return a.Silence != nil && !a.Silence.Holds(now) && a.QuietSince == nil
	})
}

// hush compares the alerts that have not ended with the silences, stores which silence applies to each, and
// returns the ids of the changed alerts.
func (s *Service) hush(ctx context.Context) (ids []uuid.UUID) {
	s.mu.Lock()
	open, silences := slices.Clone(s.open), s.silences
	s.mu.Unlock()
	now := s.o.Now()
	for _, a := range open {
		found, ok := s.silenceOf(ctx, silences, a, now)
		if !ok || same(found, a.Silence) || found == nil && a.QuietSince != nil {
			continue
		}
		c := Change{Alert: a, From: a.State, At: now}
		c.Alert.Silence = found
		switch {
		case found == nil:
			c.Event = Unsilenced
		case a.Silence == nil:
			c.Event, c.By, c.Note = Silenced, found.By, found.Reason
		}
		err := s.o.Store.AttachSilence(ctx, a, c)
		switch {
		case err == nil:
			ids = append(ids, a.ID)
			s.log(c)
		case !errors.Is(err, fleet.ErrConflict) && ctx.Err() == nil:
			s.o.Log.Warn("could not silence an alert", "kind", a.Kind, "err", err)
		}
	}
	if len(ids) > 0 {
		if open, err := s.o.Store.OpenAlerts(ctx); err == nil {
			s.setOpen(open)
		}
	}
	return ids
}

// silenceNow returns the silence that applies to a new alert; nil if none does.
func (s *Service) silenceNow(ctx context.Context, a Alert) *Silence {
	s.mu.Lock()
	silences := s.silences
	s.mu.Unlock()
	found, _ := s.silenceOf(ctx, silences, a, s.o.Now())
	return found
}

func same(a, b *Silence) bool { return a == b || a != nil && b != nil && a.ID == b.ID }

// silenceOf returns the silence that applies to the alert, the longest if there are several; nil if none does.
// ok is false if that cannot be determined now; then the alert keeps the silence that it has.
func (s *Service) silenceOf(ctx context.Context, silences []Silence, a Alert, now time.Time) (found *Silence, ok bool) {
	ok = true
	for i, one := range silences {
		if !one.Holds(now) || !one.names(a) {
			continue
		}
		covers, known, err := s.covers(ctx, one, a)
		if err != nil && ctx.Err() == nil {
			s.o.Log.Warn("could not check a silence", "err", err)
		}
		if covers {
			return &silences[i], true
		}
		ok = ok && known && err == nil
	}
	return nil, ok
}

// covers reports whether all devices of the alert match the filters of the silence. known is false if the
// devices are unknown, for example after a start, because the alert's query lists only the first.
func (s *Service) covers(ctx context.Context, one Silence, a Alert) (covers, known bool, err error) {
	q, err := one.filter()
	if err != nil {
		return false, true, err
	}
	if q.Empty() {
		return true, true, nil
	}
	of, all := s.devicesOf(a)
	if len(of.IDs) == 0 && of.Query == "" {
		return false, true, nil
	}
	within, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	inside, outside, err := s.o.Store.Covered(within, of, q)
	if err != nil || inside+outside == 0 {
		return false, false, err
	}
	if outside > 0 {
		return false, true, nil
	}
	return all, all, nil
}

// Devices returns the devices of an alert that has not ended. After a start these may be only the
// first ones of an alert that lists its devices.
func (s *Service) Devices(a Alert) Devices {
	of, _ := s.devicesOf(a)
	return of
}

// devicesOf returns the devices of an alert. all is false if these are only the first.
func (s *Service) devicesOf(a Alert) (of Devices, all bool) {
	s.mu.Lock()
	ids := s.affected[key{a.Kind, a.Subject}]
	s.mu.Unlock()
	of = Change{Alert: a, Devices: ids}.Affected()
	if q, err := fleet.ParseQuery(of.Query); err == nil && len(q.Terms) == 1 && q.Terms[0].Field == "id" {
		return of, len(q.Terms[0].Values) >= a.Devices
	}
	return of, true
}
