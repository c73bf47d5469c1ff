package enrolment

import (
	"context"
	"fleetd/fleet"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Rules are the rules by which devices join without an operator, in
// the modes code and approve; in the mode open every device joins, and no rule
// is asked. Boot polls are matched in memory.
type Rules struct {
	store RuleStore
	now   func() time.Time

	changing sync.Mutex // one change at a time: the order of rules is read and written
	active   atomic.Pointer[[]*activeRule]
}

// An activeRule is a rule as boot polls meet it.
type activeRule struct {
	Rule
	accepted *atomic.Int64 // shared with the rule's next version
	refused  *atomic.Int64
}

// NewRules makes the service. Load it before the first poll.
func NewRules(store RuleStore, now func() time.Time) *Rules {
	if now == nil {
		now = time.Now
	}
	s := &Rules{store: store, now: now}
	s.active.Store(new([]*activeRule))
	return s
}

// Load reads the rules into memory.
func (s *Rules) Load(ctx context.Context) error {
	rules, err := s.store.EnrolmentRules(ctx)
	if err != nil {
		return err
	}
	before := *s.active.Load()
	active := make([]*activeRule, len(rules))
	for i, r := range rules {
		a := &activeRule{Rule: r}
		if at := slices.IndexFunc(before, func(b *activeRule) bool { return b.ID == r.ID }); at >= 0 {
			a.accepted, a.refused = before[at].accepted, before[at].refused
		} else {
			a.accepted, a.refused = new(atomic.Int64), new(atomic.Int64)
			a.accepted.Store(int64(r.Accepted)) // what memory counts may not be stored yet
		}
		active[i] = a
	}
	s.active.Store(&active)
	return nil
}

// match returns the rule that decides about a device, nil if none does. Of a
// rule that accepts, a place is taken.
func (s *Rules) match(p BootPoll) *activeRule {
	if s == nil {
		return nil
	}
	for _, r := range *s.active.Load() {
		switch {
		case !r.Enabled || !r.Matches(p):
		case r.Action == RuleRefuse:
			r.refused.Add(1)
			return r
		case r.takePlace():
			return r
		}
	}
	return nil
}

func (r *activeRule) takePlace() bool {
	for {
		n := r.accepted.Load()
		if r.MaxDevices > 0 && n >= int64(r.MaxDevices) {
			return false
		}
		if r.accepted.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// A RuleRow is a rule with what it has done.
type RuleRow struct {
	Rule
	Refused int // polls, since the start of the process
}

// Rules returns the rules in their order.
func (s *Rules) Rules() []RuleRow {
	active := *s.active.Load()
	rows := make([]RuleRow, len(active))
	for i, r := range active {
		rows[i] = r.row()
	}
	return rows
}

func (r *activeRule) row() RuleRow {
	row := RuleRow{Rule: r.Rule, Refused: int(r.refused.Load())}
	row.Accepted = int(r.accepted.Load())
	return row
}

// Rule returns the rule with the given id, or [fleet.ErrNotFound].
func (s *Rules) Rule(id uuid.UUID) (RuleRow, error) {
	for _, r := range *s.active.Load() {
		if r.ID == id {
			return r.row(), nil
		}
	}
	return RuleRow{}, fleet.Refuse(fleet.ErrNotFound, "unknown_rule", "rule", id)
}

// Create adds a rule at the end.
func (s *Rules) Create(ctx context.Context, by fleet.Principal, r Rule) (RuleRow, error) {
	if err := by.May(fleet.RoleAdmin, "change_enrolment_rules"); err != nil {
		return RuleRow{}, err
	}
	if err := r.clean(); err != nil {
		return RuleRow{}, err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	rules := *s.active.Load()
	if len(rules) >= MaxEnrolmentRules {
		return RuleRow{}, fleet.Refuse(fleet.ErrConflict, "too_many_rules.enrolment", "n", len(rules))
	}
	now := s.now().UTC()
	r.ID, r.CreatedBy, r.CreatedAt, r.UpdatedAt = uuid.Must(uuid.NewV7()), by.Name, now, now
	r.Position = 0
	if len(rules) > 0 {
		r.Position = rules[len(rules)-1].Position + 1
	}
	return s.changed(ctx, r.ID, s.store.CreateEnrolmentRule(ctx, by, r))
}

// Update changes a rule; its order and its counts stay.
func (s *Rules) Update(ctx context.Context, by fleet.Principal, id uuid.UUID,
	change func(*Rule) error) (RuleRow, error) {
	if err := by.May(fleet.RoleAdmin, "change_enrolment_rules"); err != nil {
		return RuleRow{}, err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	row, err := s.Rule(id)
	if err != nil {
		return RuleRow{}, err
	}
	r := row.Rule
	r.Devices = slices.Clone(r.Devices) // polls are matched with the rule as it is
	r.Networks = slices.Clone(r.Networks)
	if err := change(&r); err != nil {
		return RuleRow{}, err
	}
	if err := r.clean(); err != nil {
		return RuleRow{}, err
	}
	r.ID, r.UpdatedAt = id, s.now().UTC()
	return s.changed(ctx, id, s.store.UpdateEnrolmentRule(ctx, by, r))
}

// Delete removes a rule. Devices that it let in stay.
func (s *Rules) Delete(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	if err := by.May(fleet.RoleAdmin, "change_enrolment_rules"); err != nil {
		return err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	if _, err := s.Rule(id); err != nil {
		return err
	}
	if err := s.store.DeleteEnrolmentRule(ctx, by, id); err != nil {
		return err
	}
	return s.Load(ctx)
}

// Move puts a rule to another place, counted from 0; beyond the end is the end.
func (s *Rules) Move(ctx context.Context, by fleet.Principal, id uuid.UUID, place int) (RuleRow, error) {
	if err := by.May(fleet.RoleAdmin, "change_enrolment_rules"); err != nil {
		return RuleRow{}, err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	if _, err := s.Rule(id); err != nil {
		return RuleRow{}, err
	}
	var ids []uuid.UUID
	for _, r := range *s.active.Load() {
		if r.ID != id {
			ids = append(ids, r.ID)
		}
	}
	ids = slices.Insert(ids, min(max(place, 0), len(ids)), id)
	return s.changed(ctx, id, s.store.OrderEnrolmentRules(ctx, by, ids, id))
}

func (s *Rules) changed(ctx context.Context, id uuid.UUID, err error) (RuleRow, error) {
	if err == nil {
		err = s.Load(ctx)
	}
	if err != nil {
		return RuleRow{}, err
	}
	return s.Rule(id)
}

// A RuleMatch says which rule would decide about a device that waits.
type RuleMatch struct {
	Device  fleet.DeviceID
	Rule    uuid.UUID
	Name    string
	Action  RuleAction
	Enabled bool // false: it would, if it were enabled
}

// Preview returns for each waiting device the first rule whose conditions hold
// for what it last polled: what happens when it asks again. A rule that is not
// enabled is reported where no enabled one fits.
func (s *Rules) Preview(waiting []WaitingDevice) []RuleMatch {
	var all []RuleMatch
	rules, now := *s.active.Load(), s.now()
	for _, w := range waiting {
		if w.Again {
			continue // a known device: never a rule's to decide
		}
		p := BootPoll{Device: w.Device, Board: w.Board, RemoteAddr: w.RemoteAddr, At: now}
		var found *activeRule
		for _, r := range rules {
			full := r.MaxDevices > 0 && r.accepted.Load() >= int64(r.MaxDevices)
			none := full || w.Why.needsProof()
			if !r.Matches(p) || none && r.Action == RuleAccept || found != nil && !r.Enabled {
				continue
			}
			if found = r; r.Enabled {
				break
			}
		}
		if found != nil {
			all = append(all, RuleMatch{Device: w.Device, Rule: found.ID, Name: found.Name, Action: found.Action,
				Enabled: found.Enabled})
		}
	}
	return all
}
