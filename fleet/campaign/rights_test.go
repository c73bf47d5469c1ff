package campaign_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// A register holds the current rights of principals, by id. Others keep their rights.
type register map[string]fleet.Principal

func (r register) PrincipalNow(_ context.Context, p fleet.Principal) (fleet.Principal, error) {
	now, known := r[p.ID]
	switch {
	case !known:
		return p, nil
	case now.ID == "":
		return p, fleet.ActorGone(p)
	}
	return now, nil
}

func (p *plans) serveUnder(rights register, requireApproval bool) {
	p.Service = campaign.New(campaign.Options{Store: p.store, Firmware: p.store, Devices: p.store, Inventories: p.store,
		Quarantines: p.store, Requeue: p.store.Requeue, Authority: rights, RequireApproval: requireApproval})
}

// updated returns a campaign in the state, with every device updated.
func (p *plans) updated(state campaign.State, change func(*campaign.Campaign)) campaign.Campaign {
	p.t.Helper()
	c := p.created()
	c, err := p.Start(p.t.Context(), ana, c.ID)
	if err != nil {
		p.t.Fatal(err)
	}
	p.settle(c, func(d *campaign.Deployment) { d.State, d.Booted = campaign.DeploymentSucceeded, true })
	if c, err = p.Campaign(p.t.Context(), c.ID); err != nil {
		p.t.Fatal(err)
	}
	c.State = state
	if change != nil {
		change(&c)
	}
	if err := p.store.ChangeCampaign(p.t.Context(), ana, "", &c); err != nil {
		p.t.Fatal(err)
	}
	p.image("2.4.2")
	p.join(c.Targets, "2.5.0")
	return c
}

// A rollback that comes to nothing prevents neither another one by the operator nor an abort.
func TestTheWayBackStaysOpen(t *testing.T) {
	p := newPlans(t, 4)
	ctx := t.Context()
	c := p.updated(campaign.Paused, nil)
	p.serveUnder(nil, true)
	ends := map[string]func(id uuid.UUID) (campaign.Campaign, error){
		"denied":    func(id uuid.UUID) (campaign.Campaign, error) { return p.Deny(ctx, bo, id, "not now") },
		"discarded": func(id uuid.UUID) (campaign.Campaign, error) { return p.Discard(ctx, bo, id) },
		"waits":     func(id uuid.UUID) (campaign.Campaign, error) { return p.Campaign(ctx, id) },
	}
	var last campaign.Campaign
	for _, end := range []string{"denied", "discarded", "waits"} {
		back, err := p.Rollback(ctx, ana, c.ID)
		if err != nil || back.State != campaign.AwaitingApproval || back.Targets != 4 {
			t.Fatalf("before it was %s: %+v, %v", end, back.State, err)
		}
		if last, err = ends[end](back.ID); err != nil {
			t.Fatal(err)
		}
	}
	p.serveUnder(nil, false)
	c, err := p.Abort(ctx, bo, c.ID, true)
	if err != nil {
		t.Fatal(err)
	}
	c.State = campaign.Aborted // as the engine does
	if err := p.store.ChangeCampaign(ctx, bo, "", &c); err != nil {
		t.Fatal(err)
	}
	if err := p.RollBackAborted(ctx, c.ID); err != nil {
		t.Fatal(err)
	}
	if c, err = p.Campaign(ctx, c.ID); err != nil || c.RollbackWanted || !c.RollbackReason.Is("") {
		t.Fatalf("after the abort: %+v, %v", c, err)
	}
	back, err := p.Campaign(ctx, c.RollbackWith)
	if err != nil || back.State != campaign.Running || !back.StartedBy.Same(bo) || back.Targets != 4 {
		t.Errorf("the rollback of the abort is %s by %v of %d devices, %v", back.State, back.StartedBy, back.Targets, err)
	}
	if last, err = p.Campaign(ctx, last.ID); err != nil || last.State != campaign.Discarded {
		t.Errorf("the rollback that waited is %s, %v", last.State, err)
	}
}

// A rollback has the rights of the principal that asks for it. If a model asks, the rollback
// waits for a person, unless the approved plan allows it. A principal that is gone rolls nothing
// back.
func TestRollbackOfAnAbort(t *testing.T) {
	model := fleet.Principal{Kind: fleet.KindModel, ID: "m", Name: "model", Role: fleet.RoleOperator}
	approved := func(c *campaign.Campaign) {
		c.Approval = &campaign.Approval{By: bo, At: c.CreatedAt, Digest: c.Digest, Rollback: true}
	}
	tests := []struct {
		name   string
		rights register
		change func(*campaign.Campaign)
		state  campaign.State // of the rollback; "" if none may be made
		reason string
	}{
		{"a model aborts", nil, func(c *campaign.Campaign) { c.RollbackBy = &model }, campaign.AwaitingApproval, ""},
		{"a model aborts what was approved", nil, func(c *campaign.Campaign) { approved(c); c.RollbackBy = &model },
			campaign.AwaitingApproval, ""},
		{"a rule of what a model started", nil, func(c *campaign.Campaign) { c.StartedBy = &model },
			campaign.AwaitingApproval, ""},
		{"an approved rule of what a model started", nil, func(c *campaign.Campaign) { approved(c); c.StartedBy = &model },
			campaign.Running, ""},
		{"a person aborts", nil, func(c *campaign.Campaign) { c.RollbackBy = &bo }, campaign.Running, ""},
		{"who aborted is gone", register{bo.ID: {}}, func(c *campaign.Campaign) { c.RollbackBy = &bo }, "", "actor_gone"},
		{"a rule, and who started is gone", register{ana.ID: {}}, nil, "", "actor_gone"},
		{"who aborted is a viewer", register{bo.ID: {Kind: bo.Kind, ID: bo.ID, Name: bo.Name, Role: fleet.RoleViewer}},
			func(c *campaign.Campaign) { c.RollbackBy = &bo }, "", "actor_no_operator"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlans(t, 2)
			ctx := t.Context()
			c := p.updated(campaign.Aborted, func(c *campaign.Campaign) {
				c.RollbackWanted = true
				if tt.change != nil {
					tt.change(c)
				}
			})
			p.serveUnder(tt.rights, false)
			if err := p.RollBackAborted(ctx, c.ID); err != nil {
				t.Fatal(err)
			}
			c, err := p.Campaign(ctx, c.ID)
			if err != nil || c.RollbackWanted || c.RollbackReason.Code != tt.reason {
				t.Fatalf("wanted %v, reason %s, %v", c.RollbackWanted, c.RollbackReason, err)
			}
			if tt.state == "" {
				if c.RollbackWith != uuid.Nil {
					t.Error("a rollback was made")
				}
				return
			}
			if back, err := p.Campaign(ctx, c.RollbackWith); err != nil || back.State != tt.state ||
				back.CreatedBy.Kind == fleet.KindSystem {
				t.Errorf("the rollback is %s of %s, %v", back.State, back.CreatedBy.Kind, err)
			}
		})
	}
}

// Planning refuses a health check whose call its author could not make.
func TestHealthChecksAreTheMakersAtPlanning(t *testing.T) {
	p := newPlans(t, 2)
	tools, err := fleet.NewScope("", "", []string{"self.get_*"})
	if err != nil {
		t.Fatal(err)
	}
	held := fleet.Principal{Kind: fleet.KindProgram, ID: "p", Name: "script", Role: fleet.RoleOperator, Scope: tools}
	model := fleet.Principal{Kind: fleet.KindModel, ID: "m", Name: "model", Role: fleet.RoleOperator}
	checks := func(tool string) campaign.Plan {
		return p.plan(func(c *campaign.Plan) { c.HealthChecks = []campaign.HealthCheck{{Tool: tool}} })
	}
	_, err = p.Create(t.Context(), held, checks("self.audio_speaker.set_volume"))
	refusedAs(t, err, "check_tool_not_allowed")
	_, err = p.Create(t.Context(), model, checks("self.get_system_info"))
	refusedAs(t, err, "check_tool_user_only")
	if _, err := p.Create(t.Context(), held, checks("self.get_device_status")); err != nil {
		t.Errorf("a check that the maker may make: %v", err)
	}
}

// An operator who resumes a campaign whose author is gone takes it over with its plan unchanged;
// a model cannot do so.
func TestResumeTakesOver(t *testing.T) {
	p := newPlans(t, 2)
	c := p.updated(campaign.Paused, func(c *campaign.Campaign) { c.PauseReason = campaign.PausedBySystem })
	p.serveUnder(register{ana.ID: {}}, false)
	got, err := p.Resume(t.Context(), bo, c.ID)
	if err != nil || got.TakenOverBy == nil || !got.TakenOverBy.Same(bo) || got.Digest != c.Digest ||
		!got.EditedBy.Same(ana) {
		t.Errorf("resumed: taken over by %v, %v", got.TakenOverBy, err)
	}
	rights, why, err := got.Rights(t.Context(), register{ana.ID: {}})
	if err != nil || !why.Is("") || !rights.Maker.Same(bo) {
		t.Errorf("it acts for %s, %s, %v", rights.Maker.Name, why, err)
	}
}
