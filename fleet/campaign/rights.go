package campaign

import (
	"context"
	"errors"
	"fmt"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// Maker is in whose name the plan is carried out: health checks are judged as its
// calls.
func (c *Campaign) Maker() fleet.Principal {
	if c.TakenOverBy != nil {
		return *c.TakenOverBy
	}
	return c.EditedBy
}

// Starter is who asked for the start.
func (c *Campaign) Starter() fleet.Principal {
	switch {
	case c.TakenOverBy != nil:
		return *c.TakenOverBy
	case c.StartedBy != nil:
		return *c.StartedBy
	}
	return c.EditedBy
}

// Rights are what those who asked for a campaign may do now. It reaches the devices
// on which each of them is operator, and of these only what its plan is held within.
type Rights struct {
	Maker, Starter fleet.Principal
	within         fleet.Query
}

// Rights reads what those who asked for the campaign may do now. The reason is not
// zero if the campaign must not go on: one of them is gone, or is operator no more.
// After an error nothing is known, and the campaign must not go on yet.
func (c *Campaign) Rights(ctx context.Context, a fleet.Authority) (Rights, fleet.Reason, error) {
	var r Rights
	var err error
	if r.within, err = fleet.ParseScope(c.Plan.Within); err != nil {
		return Rights{}, fleet.Reason{}, fmt.Errorf("campaign %s is held within %q: %w", c.ID, c.Plan.Within, err)
	}
	for _, asker := range []struct {
		was fleet.Principal
		now *fleet.Principal
	}{{c.Maker(), &r.Maker}, {c.Starter(), &r.Starter}} {
		switch *asker.now, err = a.PrincipalNow(ctx, asker.was); {
		case errors.Is(err, fleet.ErrActorGone):
			return Rights{}, fleet.Because(ReasonActorGone, "name", asker.was.Name), nil
		case err != nil:
			return Rights{}, fleet.Reason{}, err
		case !asker.now.Role.Allows(fleet.RoleOperator):
			return Rights{}, fleet.Because(ReasonActorNoOperator, "name", asker.was.Name), nil
		}
	}
	return r, fleet.Reason{}, nil
}

// Narrow reports whether there may be devices that the campaign does not reach.
func (r Rights) Narrow() bool { return !r.Narrowed(fleet.Query{}).Empty() }

// Narrowed is the query for the devices that the campaign reaches.
func (r Rights) Narrowed(q fleet.Query) fleet.Query {
	return q.And(r.within).And(r.Maker.Within(fleet.RoleOperator)).And(r.Starter.Within(fleet.RoleOperator))
}

// Outside says why the campaign does not reach a device; zero if it does.
func (r Rights) Outside(d fleet.Device) fleet.Reason {
	for _, asker := range []fleet.Principal{r.Maker, r.Starter} {
		if !asker.RoleOn(d).Allows(fleet.RoleOperator) {
			return fleet.Because(ReasonOutOfScope, "name", asker.Name)
		}
	}
	if !r.within.Covers(d) {
		return fleet.Because(ReasonOutOfPlan, "query", r.within.Text)
	}
	return fleet.Reason{}
}

// Mandate is on whose behalf the campaign makes its own calls.
func (r Rights) Mandate() *call.Mandate {
	return &call.Mandate{Askers: []fleet.Principal{r.Maker, r.Starter}}
}

// CheckMandate is on whose behalf it makes the calls of health checks: they are the
// maker's, who wrote them.
func (r Rights) CheckMandate() *call.Mandate {
	m := r.Mandate()
	m.Author = &r.Maker
	return m
}

// Audience is the query whose devices a plan has, joined with what holds it.
func (p *Plan) Audience() (fleet.Query, error) {
	q, err := fleet.ParseQuery(p.Query)
	if err != nil {
		return fleet.Query{}, err
	}
	within, err := fleet.ParseScope(p.Within)
	if err != nil {
		return fleet.Query{}, err
	}
	return q.And(within), nil
}

// mayCheck refuses a plan with a health check that the principal may not make
// as a call. inventories are what the targets offer; nil before they are known.
func (p *Plan) mayCheck(by fleet.Principal, inventories []*fleet.Inventory) error {
	for i, check := range p.HealthChecks {
		field := fmt.Sprintf("health_checks[%d].tool", i)
		if !by.Scope.AllowsTool(check.Tool) {
			return fleet.Refuse(fleet.ErrForbidden, "check_tool_not_allowed", "tool", check.Tool, "actor", by.Name).At(field)
		}
		if !by.Kind.IsModel() {
			continue
		}
		userOnly := fleet.Tool{Name: check.Tool}.UserOnly()
		for _, inv := range inventories {
			tool, ok := inv.Tool(check.Tool)
			userOnly = userOnly || ok && tool.UserOnly()
		}
		if userOnly {
			return fleet.Refuse(fleet.ErrForbidden, "check_tool_user_only", "tool", check.Tool, "actor", by.Name).At(field)
		}
	}
	return nil
}

// targetInventories are what the devices that are to get an image offer.
func (a *planner) targetInventories(ctx context.Context) (all []*fleet.Inventory, err error) {
	for id := range a.inventories {
		inv, err := a.s.o.Inventories.Inventory(ctx, id)
		if err != nil {
			return nil, err
		}
		all = append(all, inv)
	}
	return all, nil
}

// takeOver makes the campaign the principal's if one of those who asked for it is
// gone: it then goes on in that principal's name. The plan, what holds it and its
// approval stay as they are: what was approved is what runs.
func (s *Service) takeOver(ctx context.Context, by fleet.Principal, c *Campaign) error {
	_, why, err := c.Rights(ctx, s.o.Authority)
	if err != nil || why.Is("") {
		return err
	}
	if by.Kind.IsModel() {
		return fleet.Refuse(fleet.ErrForbidden, "person_needed", "actor", by.Name)
	}
	if err := c.Plan.mayCheck(by, nil); err != nil {
		return err
	}
	c.TakenOverBy = &by
	return nil
}

// keptRights is the authority of a service without one: principals keep the rights
// that they had.
type keptRights struct{}

func (keptRights) PrincipalNow(_ context.Context, p fleet.Principal) (fleet.Principal, error) {
	return p, nil
}

// KeptRights returns the authority, or one that lets principals keep the rights that they
// had if that is nil.
func KeptRights(a fleet.Authority) fleet.Authority {
	if a == nil {
		return keptRights{}
	}
	return a
}
