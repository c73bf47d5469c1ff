package enrolment

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
)

// Rules are the rules by which devices join without an operator in the modes code and approve.
// In the mode open every device joins and no rule applies. Boot polls are matched in memory.
type Rules struct {
	store RuleStore
	now   func() time.Time

	table *table.Table[[]*activeRule]
}

// An activeRule is a rule as boot polls are matched with it.
type activeRule struct {
	Rule
	accepted *atomic.Int64 // shared with the rule's next version
	refused  *atomic.Int64
}

// NewRules returns a Rules service. Call Load before the first poll.
func NewRules(store RuleStore, now func() time.Time) *Rules {
	if now == nil {
		now = time.Now
	}
	s := &Rules{store: store, now: now}
	s.table = table.New(table.Options[[]*activeRule]{Read: s.read, What: "enrolment rules"})
	return s
}

// Load reads the rules into memory.
func (s *Rules) Load(ctx context.Context) error { return s.table.Load(ctx) }

func (s *Rules) read(ctx context.Context, before *[]*activeRule) (*[]*activeRule, error) {
	rules, err := s.store.EnrolmentRules(ctx)
	if err != nil {
		return nil, err
	}
	var known []*activeRule
	if before != nil {
		known = *before
	}
	active := make([]*activeRule, len(rules))
	for i, r := range rules {
		a := &activeRule{Rule: r}
		if at := slices.IndexFunc(known, func(b *activeRule) bool { return b.ID == r.ID }); at >= 0 {
			a.accepted, a.refused = known[at].accepted, known[at].refused
		} else {
			a.accepted, a.refused = new(atomic.Int64), new(atomic.Int64)
			a.accepted.Store(int64(r.Accepted)) // the count in memory may not be stored yet
		}
		active[i] = a
	}
	return &active, nil
}

// match returns the rule that decides about a device, or nil. If the rule accepts, match counts
// the device against the rule's maximum.
func (s *Rules) match(p BootPoll) *activeRule {
	if s == nil {
		return nil
	}
	for _, r := range *s.table.State() {
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

// A RuleRow is a rule with its counts.
type RuleRow struct {
	Rule
	Refused int // polls since the start of the process
}

// Rules returns the rules in their order.
func (s *Rules) Rules() []RuleRow {
	active := *s.table.State()
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
	for _, r := range *s.table.State() {
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
	now := s.now().UTC()
	r.ID, r.CreatedBy, r.CreatedAt, r.UpdatedAt = uuid.Must(uuid.NewV7()), by.Name, now, now
	return s.change(ctx, r.ID, func(rules *[]*activeRule) error {
		n := len(*rules)
		if n >= MaxEnrolmentRules {
			return fleet.Refuse(fleet.ErrConflict, "too_many_rules.enrolment", "n", n)
		}
		if r.Position = 0; n > 0 {
			r.Position = (*rules)[n-1].Position + 1
		}
		return s.store.CreateEnrolmentRule(ctx, by, r)
	})
}

// Update changes a rule. Its position and its counts stay.
func (s *Rules) Update(ctx context.Context, by fleet.Principal, id uuid.UUID,
	change func(*Rule) error) (RuleRow, error) {
	if err := by.May(fleet.RoleAdmin, "change_enrolment_rules"); err != nil {
		return RuleRow{}, err
	}
	return s.change(ctx, id, func(*[]*activeRule) error {
		row, err := s.Rule(id)
		if err != nil {
			return err
		}
		r := row.Rule
		r.Devices = slices.Clone(r.Devices) // polls are matched with the rule at the same time
		r.Networks = slices.Clone(r.Networks)
		if err := change(&r); err != nil {
			return err
		}
		if err := r.clean(); err != nil {
			return err
		}
		r.ID, r.UpdatedAt = id, s.now().UTC()
		return s.store.UpdateEnrolmentRule(ctx, by, r)
	})
}

// Delete removes a rule. Devices that it let in stay.
func (s *Rules) Delete(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	if err := by.May(fleet.RoleAdmin, "change_enrolment_rules"); err != nil {
		return err
	}
	return s.table.Change(ctx, 0, func(*[]*activeRule) error {
		if _, err := s.Rule(id); err != nil {
			return err
		}
		return s.store.DeleteEnrolmentRule(ctx, by, id)
	})
}

// Move moves a rule to a position counted from 0; a position beyond the end means the end.
func (s *Rules) Move(ctx context.Context, by fleet.Principal, id uuid.UUID, place int) (RuleRow, error) {
	if err := by.May(fleet.RoleAdmin, "change_enrolment_rules"); err != nil {
		return RuleRow{}, err
	}
	return s.change(ctx, id, func(rules *[]*activeRule) error {
		if _, err := s.Rule(id); err != nil {
			return err
		}
		order, _ := table.Move(*rules, func(r *activeRule) uuid.UUID { return r.ID }, id, max(place, 0), 0)
		return s.store.OrderEnrolmentRules(ctx, by, order, id)
	})
}

// change applies a change and returns the resulting rule.
func (s *Rules) change(ctx context.Context, id uuid.UUID, do func(*[]*activeRule) error) (RuleRow, error) {
	if err := s.table.Change(ctx, 0, do); err != nil {
		return RuleRow{}, err
	}
	return s.Rule(id)
}

// A RuleMatch names the rule that would decide about a waiting device.
type RuleMatch struct {
	Device  fleet.DeviceID
	Rule    uuid.UUID
	Name    string
	Action  RuleAction
	Enabled bool // false: it would decide if it were enabled
}

// Preview returns for each waiting device the first rule that matches its last poll, which is the rule
// that decides when the device polls again. If no enabled rule matches, Preview returns a disabled one.
func (s *Rules) Preview(waiting []WaitingDevice) []RuleMatch {
	var all []RuleMatch
	rules, now := *s.table.State(), s.now()
	for _, w := range waiting {
		if w.Again {
			continue // a known device: rules never decide about it
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
