package campaign

import (
	"context"
	"errors"
	"fmt"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// Maker returns the principal in whose name the plan is carried out. Health checks are judged
// as its calls.
func (c *Campaign) Maker() fleet.Principal {
	if c.TakenOverBy != nil {
		return *c.TakenOverBy
	}
	return c.EditedBy
}

// Starter returns the principal that requested the start.
func (c *Campaign) Starter() fleet.Principal {
	switch {
	case c.TakenOverBy != nil:
		return *c.TakenOverBy
	case c.StartedBy != nil:
		return *c.StartedBy
	}
	return c.EditedBy
}

// Rights are the present rights of the principals behind a campaign. The campaign covers the
// devices on which each of them is operator, limited to the filter of its plan.
type Rights struct {
	Maker, Starter fleet.Principal
	within         fleet.Query
}

// Rights reads the present rights of the campaign's maker and starter. The reason is not zero
// if the campaign must not continue, because one of them is gone or no longer operator. After
// an error the rights are unknown, and the campaign must wait.
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

// Narrow reports whether some devices may be outside the rights of the campaign.
func (r Rights) Narrow() bool { return !r.Narrowed(fleet.Query{}).Empty() }

// Narrowed returns q limited to the devices that the campaign covers.
func (r Rights) Narrowed(q fleet.Query) fleet.Query {
	return q.And(r.within).And(r.Maker.Within(fleet.RoleOperator)).And(r.Starter.Within(fleet.RoleOperator))
}

// Outside returns why the campaign does not cover a device, or zero if it does.
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

// Mandate returns the mandate for the campaign's own calls.
func (r Rights) Mandate() *call.Mandate {
	return &call.Mandate{Askers: []fleet.Principal{r.Maker, r.Starter}}
}

// CheckMandate returns the mandate for the calls of health checks: they count as the maker's,
// who wrote them.
func (r Rights) CheckMandate() *call.Mandate {
	m := r.Mandate()
	m.Author = &r.Maker
	return m
}

// Audience returns the query for the devices of a plan, joined with its filter Within.
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

// mayCheck refuses a plan with a health check whose call the principal may not make.
// inventories are those of the planned devices; nil before they are known.
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

// targetInventories returns the inventories of the devices that get an image.
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

// takeOver transfers the campaign to the principal if its maker or starter is gone. The plan,
// its filter and its approval stay as they are: what was approved is what runs.
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

// keptRights is the authority of a service without one: principals keep the rights that they had.
type keptRights struct{}

func (keptRights) PrincipalNow(_ context.Context, p fleet.Principal) (fleet.Principal, error) {
	return p, nil
}

// KeptRights returns a, or, if a is nil, an authority that lets principals keep the rights that
// they had.
func KeptRights(a fleet.Authority) fleet.Authority {
	if a == nil {
		return keptRights{}
	}
	return a
}
