package policy

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/internal/table"
)

// A Store stores the table. Each change gives the version that it is based on, is stored with
// its audit entry, and creates the next version. It returns [fleet.ErrConflict] if the table
// has another version by now.
type Store interface {
	Policies(ctx context.Context) (rules []Rule, version int64, err error) // by position
	PolicyVersion(ctx context.Context) (int64, error)
	CreatePolicy(ctx context.Context, by fleet.Principal, version int64, r Rule) error
	UpdatePolicy(ctx context.Context, by fleet.Principal, version int64, r Rule) error
	DeletePolicy(ctx context.Context, by fleet.Principal, version int64, r Rule) error
	// OrderPolicies sets the positions of the rules to the order of ids.
	OrderPolicies(ctx context.Context, by fleet.Principal, version int64, ids []uuid.UUID, moved Rule) error
	// CallUses counts the calls made in [from, to) that were not refused.
	CallUses(ctx context.Context, from, to time.Time) ([]Use, error)
	// ToolNames returns the names of all tools that any device offers or has offered.
	ToolNames(ctx context.Context) ([]string, error)
}

// A Service is the policy of this fleetd: it judges calls and changes the table.
type Service struct {
	store Store
	now   func() time.Time

	table *table.Table[Table]
	meter meter
	names atomic.Pointer[nameList]
}

// A Table is all rules in their order, including disabled ones.
type Table struct {
	Version int64
	Rules   []Rule
	set     *Set
}

// Rule returns the rule with the id.
func (t *Table) Rule(id uuid.UUID) (Rule, bool) {
	i := slices.IndexFunc(t.Rules, func(r Rule) bool { return r.ID == id })
	if i < 0 {
		return Rule{}, false
	}
	return t.Rules[i], true
}

var _ call.Policy = (*Service)(nil)

// New returns the service. Call Load before the first call; until then every call is denied.
func New(store Store, log *slog.Logger) *Service {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Service{store: store, now: func() time.Time { return time.Now().UTC() }}
	s.table = table.New(table.Options[Table]{Read: s.read, Version: store.PolicyVersion, Stale: stale,
		VersionOf: func(t *Table) int64 { return t.Version }, What: "policy", Log: log})
	return s
}

// Load reads and compiles the table.
func (s *Service) Load(ctx context.Context) error { return s.table.Load(ctx) }

// Run reloads the table when another process has changed it, until ctx ends.
func (s *Service) Run(ctx context.Context) error { return s.table.Run(ctx) }

// Table returns the current table, by which calls are judged.
func (s *Service) Table() *Table { return s.table.State() }

func (s *Service) read(ctx context.Context, _ *Table) (*Table, error) {
	rules, version, err := s.store.Policies(ctx)
	if err != nil {
		return nil, err
	}
	set, err := Compile(rules, version)
	if err != nil {
		return nil, err
	}
	budget := slices.ContainsFunc(set.rules, func(c *compiled) bool { return c.DailyBudget > 0 })
	if now := s.now(); s.meter.follow(budget, now) {
		uses, err := s.store.CallUses(ctx, now.Truncate(24*time.Hour), now)
		if err != nil {
			s.meter.follow(false, now)
			return nil, err
		}
		s.meter.add(dayOf(now), uses)
	}
	return &Table{Version: version, Rules: rules, set: set}, nil
}

// Judge implements [call.Policy].
func (s *Service) Judge(p *call.Proposal) call.Verdict {
	set := s.Table().set
	if set == nil {
		return call.Verdict{Decision: call.DecisionDeny}
	}
	v := call.Verdict{Decision: call.DecisionAllow, Version: set.Version}
	c, err := set.decide(p)
	var rule *Rule
	if c != nil {
		rule = &c.Rule
		v.Decision, v.Rule, v.RuleName, v.ApprovalTTL = c.Decision, c.key, c.Name, c.ApprovalTTL
	}
	switch {
	case err != nil:
		v.Decision = call.DecisionDeny
		v.Reason = fleet.NewCallError("ambiguous_arguments", "rule", c.Name).Reason()
	case v.Decision != call.DecisionDeny:
		if passed := s.meter.pass(rule, p); passed != nil {
			v.Decision, v.Reason = call.DecisionDeny, passed.Reason()
		}
	case rule.Fixed:
		v.Reason = call.UserOnlyError(p.Tool.Name).Reason()
	case rule.Note != "":
		v.Reason = fleet.NewCallError("policy_denied.note", "rule", c.Name, "note", c.Note).Reason()
	}
	return v
}

// Create adds a rule at the given place, counted from 0, or at the end if place is negative.
// version is the version of the table that the editor saw; 0 means any.
func (s *Service) Create(ctx context.Context, by fleet.Principal, version int64, place int, r Rule) (Rule, error) {
	if err := r.Clean(); err != nil {
		return Rule{}, err
	}
	now := s.now()
	r.ID, r.Fixed, r.UpdatedBy, r.CreatedAt, r.UpdatedAt = uuid.Must(uuid.NewV7()), false, by.Name, now, now
	err := s.change(ctx, by, version, func(t *Table) error {
		if len(t.Rules) >= MaxRules {
			return fleet.Refuse(fleet.ErrConflict, "too_many_rules.policy", "n", len(t.Rules))
		}
		r.Position = table.Place(place, t.fixed(), len(t.Rules))
		return s.store.CreatePolicy(ctx, by, t.Version, r)
	})
	return s.changed(r.ID, err)
}

// Update changes a rule without moving it.
func (s *Service) Update(ctx context.Context, by fleet.Principal, version int64, id uuid.UUID,
	change func(*Rule) error) (Rule, error) {
	err := s.change(ctx, by, version, func(t *Table) error {
		before, err := t.open(id)
		if err != nil {
			return err
		}
		r := before
		if err := change(&r); err != nil {
			return err
		}
		if err := r.Clean(); err != nil {
			return err
		}
		r.ID, r.Position, r.CreatedAt, r.UpdatedBy, r.UpdatedAt = id, before.Position, before.CreatedAt, by.Name, s.now()
		return s.store.UpdatePolicy(ctx, by, t.Version, r)
	})
	return s.changed(id, err)
}

// Delete removes a rule.
func (s *Service) Delete(ctx context.Context, by fleet.Principal, version int64, id uuid.UUID) error {
	return s.change(ctx, by, version, func(t *Table) error {
		r, err := t.open(id)
		if err != nil {
			return err
		}
		return s.store.DeletePolicy(ctx, by, t.Version, r)
	})
}

// Move moves a rule to another place, counted from 0. A place beyond the end means the end,
// and no rule comes before the fixed ones.
func (s *Service) Move(ctx context.Context, by fleet.Principal, version int64, id uuid.UUID, place int) (Rule, error) {
	err := s.change(ctx, by, version, func(t *Table) error {
		r, err := t.open(id)
		if err != nil {
			return err
		}
		var order []uuid.UUID
		order, r.Position = table.Move(t.Rules, func(r Rule) uuid.UUID { return r.ID }, id, place, t.fixed())
		return s.store.OrderPolicies(ctx, by, t.Version, order, r)
	})
	return s.changed(id, err)
}

func (s *Service) change(ctx context.Context, by fleet.Principal, version int64, do func(*Table) error) error {
	if err := by.May(fleet.RoleAdmin, "change_policies"); err != nil {
		return err
	}
	return s.table.Change(ctx, version, do)
}

func stale(version int64) error {
	return fleet.Refuse(fleet.ErrConflict, "policy_changed", "version", version).At("version")
}

// open returns a rule that can be changed.
func (t *Table) open(id uuid.UUID) (Rule, error) {
	r, ok := t.Rule(id)
	switch {
	case !ok:
		return r, fleet.Refuse(fleet.ErrNotFound, "unknown_policy.id", "id", id)
	case r.Fixed:
		return r, fleet.Refuse(fleet.ErrConflict, "policy_fixed", "rule", r.Name)
	}
	return r, nil
}

// fixed returns the number of rules at the beginning that cannot be moved.
func (t *Table) fixed() int {
	n := 0
	for n < len(t.Rules) && t.Rules[n].Fixed {
		n++
	}
	return n
}

func (s *Service) changed(id uuid.UUID, err error) (Rule, error) {
	if err != nil {
		return Rule{}, err
	}
	r, ok := s.Table().Rule(id)
	if !ok { // another process removed it immediately
		return r, fleet.Refuse(fleet.ErrNotFound, "unknown_policy.id", "id", id)
	}
	return r, nil
}
