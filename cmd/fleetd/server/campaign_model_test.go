package server

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/operator"
)

// A language model changes no firmware without an approval: it opens no wave gate and
// starts no rollback. After a rollback was denied or discarded, people can still start
// one: the device returns to its former build.
func TestTheWayBackWithDevices(t *testing.T) {
	t.Parallel()
	b := newImageBench(t, "", nil)
	ctx := t.Context()
	second := fleet.Principal{Kind: fleet.KindOperator, ID: "2", Name: "bea", Role: fleet.RoleAdmin}
	approve := func(c campaign.Campaign) {
		t.Helper()
		if _, err := b.Campaigns.Approve(ctx, second, c.ID, c.Digest); err != nil {
			t.Fatal(err)
		}
	}
	first := b.campaign(b.release(b.image("2.9.0")), func(p *campaign.Plan) { p.Waves = p.Waves[1:] })
	if _, err := b.Campaigns.Start(ctx, testOperator, first.ID); err != nil {
		t.Fatal(err)
	}
	b.await(first.ID, campaign.Completed, "")
	c := b.campaign(b.release(b.image("2.9.1")), func(p *campaign.Plan) { p.ApprovalRequired = true })
	c, err := b.Campaigns.Start(ctx, testOperator, c.ID)
	if err != nil {
		t.Fatal(err)
	}
	approve(c)
	b.await(c.ID, campaign.Paused, campaign.PausedByGate)
	unchanged := func(after string) {
		t.Helper()
		if got := b.versions(); got["2.9.1"] != 1 || got["2.9.0"] != benchDevices-1 {
			t.Errorf("after %s devices run %v", after, got)
		}
	}

	_, secret, err := b.Operators.NewToken(ctx, testOperator, operator.TokenRequest{Name: "model", Kind: fleet.KindModel,
		Role: fleet.RoleOperator, Tools: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	person := b.token
	path := "/campaigns/" + c.ID.String()
	for _, act := range []string{"/advance", "/resume", "/retry", "/pull-now", "/rollback", "/abort"} {
		b.token = secret
		var answer any
		status := b.rest("POST", path+act, map[string]any{"rollback": true}, &answer)
		b.token = person
		time.Sleep(300 * time.Millisecond) // some rounds of the engine
		now, err := b.Campaigns.Campaign(ctx, c.ID)
		if err != nil {
			t.Fatal(err)
		}
		if now.State != campaign.Paused || now.RollbackWanted || now.RollbackWith != uuid.Nil {
			t.Fatalf("%s by a model is answered %d, and the campaign is %s", act, status, now.State)
		}
		unchanged(act)
	}

	if _, err := b.Campaigns.Abort(ctx, testOperator, c.ID, false); err != nil {
		t.Fatal(err)
	}
	b.await(c.ID, campaign.Aborted, "")
	for _, end := range []string{"denied", "discarded", "approved"} {
		back, err := b.Campaigns.Rollback(ctx, testOperator, c.ID)
		if err != nil || back.State != campaign.AwaitingApproval {
			t.Fatalf("the rollback that is to be %s is %s, %v", end, back.State, err)
		}
		switch end {
		case "denied":
			_, err = b.Campaigns.Deny(ctx, second, back.ID, "not now")
		case "discarded":
			_, err = b.Campaigns.Discard(ctx, testOperator, back.ID)
		default:
			approve(back)
			b.eventually("the device to return to its former build", func() bool {
				return b.versions()["2.9.0"] == benchDevices
			})
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		unchanged("a rollback that was " + end)
	}
}

// A health check calls only tools that the token of the plan's maker may call. Otherwise
// planning refuses it, and if the token loses the right later, the check is not made.
func TestHealthChecksKeepToTheToolsOfTheMaker(t *testing.T) {
	const loud = "self.audio_speaker.set_volume"
	s := newRightsWorld(t)
	release := releaseForSim(t, s.testServer, "2.5.0")
	plan := func(name string) map[string]any {
		return map[string]any{"name": name, "release_id": release.ID, "devices": s.lab, "mode": "push",
			"waves":         []any{map[string]any{"percent": 100, "soak_ms": 100}},
			"health_checks": []any{map[string]any{"tool": loud, "arguments": map[string]any{"volume": 13}}}}
	}
	ran := func() (n int) {
		for _, unit := range s.units {
			for _, c := range unit.Calls() {
				if c.Tool == loud {
					n++
				}
			}
		}
		return n
	}
	var c struct{ ID, State, Code string }
	s.actsAs(operator.TokenRequest{Name: "narrow", Role: fleet.RoleOperator, Tools: []string{"self.get_*"}})
	if status := s.rest("POST", "/campaigns", plan("narrow"), &c); status != 403 {
		t.Errorf("a plan with a check that its maker may not make is answered %d, %+v", status, c)
	}

	maker := s.actsAs(operator.TokenRequest{Name: "wide", Role: fleet.RoleOperator, Tools: []string{"self.*"}})
	if status := s.rest("POST", "/campaigns", plan("wide"), &c); status != 201 {
		t.Fatalf("planning is answered %d, %+v", status, c)
	}
	if _, err := s.pool.Exec(t.Context(), `UPDATE tokens SET tools = '{self.get_*}' WHERE id = $1`,
		maker.ID); err != nil {
		t.Fatal(err)
	}
	s.eventually("the token to be narrowed", func() bool {
		p, err := s.Operators.Authenticate(t.Context(), s.token)
		return err == nil && !p.Scope.AllowsTool(loud)
	})
	if status := s.rest("POST", "/campaigns/"+c.ID+"/start", nil, &c); status != 200 {
		t.Fatalf("the start is answered %d, %+v", status, c)
	}
	id := uuid.MustParse(c.ID)
	s.eventually("a device to be judged", func() bool {
		for _, d := range deploymentsOf(t, s.testServer, campaign.Campaign{ID: id}) {
			if slices.Contains([]campaign.DeploymentState{campaign.DeploymentFailed, campaign.DeploymentSucceeded,
				campaign.DeploymentSkipped}, d.State) || d.State.Failed() {
				return true
			}
		}
		return false
	})
	if n := ran(); n > 0 {
		t.Errorf("%d calls of a tool ran that the maker of the plan may not call", n)
	}
}
