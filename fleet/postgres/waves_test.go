package postgres_test

import (
	"testing"

	"fleetd/fleet"
)

func TestOpenWave(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	other, others := r.campaign("d1", "d2", "d3")
	r.dispatch(1, dispatch(&others[0]))
	over, _ := r.campaign("d4")
	over.State, over.FinishedAt = fleet.CampaignCompleted, ptr(now())
	check(t, r.ChangeCampaign(ctx, admin, "", over))
	pending, waits := r.campaignOf(fleet.DeploymentPending, "d3", "d5")

	c, all := r.campaignOf(fleet.DeploymentPending, "d1", "d2", "d4", "d5")
	opened, err := r.OpenWave(ctx, c, 1, now())
	if err != nil || len(opened) != 0 {
		t.Errorf("a wave of nobody: %d, %v", len(opened), err)
	}
	at := now()
	opened, err = r.OpenWave(ctx, c, 0, at)
	check(t, err)
	want := []fleet.Deployment{all[2], all[3]}
	for i := range want {
		want[i].State, want[i].UpdatedAt, want[i].Revision = fleet.DeploymentQueued, at, 2
	}
	same(t, opened, want)
	for _, i := range []int{0, 1} {
		d := r.deployment(all[i].ID)
		if d.State != fleet.DeploymentSkipped || d.Skip != fleet.SkipBusy || d.Reason != "busy in campaign "+other.Plan.Name || d.FinishedAt == nil {
			t.Errorf("device %s, busy elsewhere: %+v", d.Device, d)
		}
	}
	same(t, r.history(all[0].ID), []string{"planned pending>pending ", "unfit pending>skipped busy"})
	same(t, r.history(all[2].ID), []string{"planned pending>pending ", "wave_opened pending>queued canary"})
	again, err := r.OpenWave(ctx, c, 0, at)
	if err != nil || len(again) != 0 {
		t.Errorf("opened again: %d, %v", len(again), err)
	}

	// One that supersedes takes over what waits, and nothing that is active.
	taker, waves := r.newCampaign(fleet.CampaignRunning)
	taker.Plan.Supersede, taker.Plan.Name = true, "urgent"
	targets := []fleet.Deployment{r.target("d1", 0, "pending"), r.target("d2", 0, "pending"), r.target("d3", 0, "pending")}
	check(t, r.CreateCampaign(ctx, admin, taker, waves, targets))
	conflicts, err := r.Conflicts(ctx, taker.ID, []fleet.DeviceID{"d1", "d2", "d3", "d4", "nobody"})
	check(t, err)
	same(t, conflicts, []fleet.DeploymentConflict{
		{Device: "d1", Campaign: other.ID, Name: other.Plan.Name, State: fleet.DeploymentDispatching},
		{Device: "d2", Campaign: other.ID, Name: other.Plan.Name, State: fleet.DeploymentQueued},
		{Device: "d3", Campaign: other.ID, Name: other.Plan.Name, State: fleet.DeploymentQueued},
		{Device: "d3", Campaign: pending.ID, Name: pending.Plan.Name, State: fleet.DeploymentPending},
		{Device: "d4", Campaign: c.ID, Name: c.Plan.Name, State: fleet.DeploymentQueued}})
	opened, err = r.OpenWave(ctx, taker, 0, at)
	check(t, err)
	if len(opened) != 2 || opened[0].Device != "d2" || opened[1].Device != "d3" {
		t.Errorf("taken over %+v", opened)
	}
	for _, d := range []fleet.Deployment{others[1], others[2], waits[0]} {
		got := r.deployment(d.ID)
		if got.State != fleet.DeploymentCanceled || got.Skip != fleet.SkipSuperseded || got.Reason != "taken over by campaign urgent" {
			t.Errorf("device %s was taken over, and is %+v", d.Device, got)
		}
	}
	same(t, r.history(waits[0].ID), []string{"planned pending>pending ", "canceled pending>canceled superseded"})
	if got := r.deployment(waits[1].ID); got.State != fleet.DeploymentPending {
		t.Errorf("a device of no concern is %s", got.State)
	}
}

func TestEndWaiting(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, all := r.campaign("d1", "d2", "d3")
	r.dispatch(2, dispatch(&all[0]), dispatch(&all[1]))
	r.save(change(&all[0], fleet.EvidenceRetry, fleet.DeploymentQueued))
	end := func(untriedOnly bool) int {
		t.Helper()
		n, err := r.EndWaiting(ctx, c.ID, fleet.DeploymentCanceled, fleet.EvidenceCanceled, "aborted", now(), untriedOnly)
		check(t, err)
		return n
	}
	if untried, rest, none := end(true), end(false), end(false); untried != 1 || rest != 1 || none != 0 {
		t.Errorf("ended %d, %d and %d", untried, rest, none)
	}
	same(t, r.history(all[2].ID), []string{"planned queued>queued ", "canceled queued>canceled aborted"})
	if got := r.deployment(all[1].ID); got.State != fleet.DeploymentDispatching {
		t.Errorf("one that was under way is %s", got.State)
	}
	stale, err := r.SaveDeployments(ctx, []fleet.DeploymentChange{change(&all[2], fleet.EvidenceSent, fleet.DeploymentSent)})
	if err != nil || len(stale) != 1 {
		t.Errorf("a change from before the end: %v, %v", stale, err)
	}
}

func TestAddTargets(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, _ := r.campaign("d1")
	n, err := r.AddTargets(ctx, c.ID, []fleet.Deployment{r.target("d1", 0, "pending"), r.target("d2", 1, "pending"), r.target("d3", -1, "skipped")})
	if err != nil || n != 2 {
		t.Errorf("added %d, %v", n, err)
	}
	got, err := r.Campaign(ctx, c.ID)
	check(t, err)
	waves, err := r.Waves(ctx, c.ID)
	check(t, err)
	if got.Targets != 2 || got.Skipped != 1 || got.Revision != 1 || waves[0].Size != 1 || waves[1].Size != 3 {
		t.Errorf("campaign %+v, waves %+v", got, waves)
	}
	_, err = r.AddTargets(ctx, r.release.ID, []fleet.Deployment{r.target("d1", 0, "pending")})
	wantKind(t, err, fleet.ErrNotFound)
}

func TestRequeue(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, all := r.campaign("d1", "d2", "d3", "d4")
	for i, to := range []fleet.DeploymentState{fleet.DeploymentTimedOut, fleet.DeploymentRolledBack, fleet.DeploymentSucceeded, fleet.DeploymentCanceled} {
		r.dispatch(1, dispatch(&all[i]))
		all[i].Failures, all[i].Class, all[i].Booted = 3, fleet.FailureTimeout, true
		r.save(change(&all[i], fleet.EvidenceTimer, to))
	}
	requeue := func(states []fleet.DeploymentState, devices ...fleet.DeviceID) int {
		t.Helper()
		n, err := r.Requeue(ctx, admin, c.ID, states, devices, now())
		check(t, err)
		return n
	}
	if n := requeue(nil, "d2", "d3", "d4"); n != 1 {
		t.Errorf("%d of the named ones had failed", n)
	}
	if n := requeue([]fleet.DeploymentState{fleet.DeploymentTimedOut, fleet.DeploymentSucceeded}); n != 1 {
		t.Errorf("%d had timed out", n)
	}
	if n := requeue(nil); n != 0 {
		t.Errorf("%d failures left", n)
	}
	d := r.deployment(all[0].ID)
	if d.State != fleet.DeploymentQueued || d.Attempt != 1 || d.Failures != 0 || d.Class != "" || d.Booted || d.FinishedAt != nil {
		t.Errorf("queued again as %+v", d)
	}
	if h := r.history(d.ID); h[len(h)-1] != "retry timed_out>queued ada" {
		t.Errorf("history %v", h)
	}
	wantAudit(t, r.Store, c.ID.String(), "campaign.create", "campaign.retry", "campaign.retry")
}

func TestLiveDeploymentsAndRollbacks(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, all := r.campaign("d1", "d2", "d3", "d4", "d5")
	r.dispatch(4, dispatch(&all[0]), dispatch(&all[1]), dispatch(&all[2]), dispatch(&all[3]))
	r.save(change(&all[0], fleet.EvidenceBootPoll, fleet.DeploymentBooted),
		change(&all[1], fleet.EvidenceBootPoll, fleet.DeploymentBooted), change(&all[1], fleet.EvidenceHealthy, fleet.DeploymentSucceeded),
		change(&all[2], fleet.EvidenceBootPoll, fleet.DeploymentBooted), change(&all[2], fleet.EvidenceBootPoll, fleet.DeploymentRolledBack),
		change(&all[3], fleet.EvidenceDownloaded, fleet.DeploymentDownloaded), change(&all[3], fleet.EvidenceTimer, fleet.DeploymentTimedOut))
	updated, err := r.Rollbacks(ctx, c.ID)
	check(t, err)
	same(t, updated, all[:2])
	live, err := r.LiveDeployments(ctx)
	check(t, err)
	same(t, live, []fleet.Deployment{all[0], all[4]})
	c.State = fleet.CampaignAborted
	check(t, r.ChangeCampaign(ctx, admin, "", c))
	live, err = r.LiveDeployments(ctx)
	check(t, err)
	same(t, live, nil)
}

func TestCampaignProgress(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, all := r.campaign(devices(9)...)
	_, err := r.AddTargets(ctx, c.ID, []fleet.Deployment{r.target("s", -1, "skipped")})
	check(t, err)
	for i := range 8 {
		r.dispatch(1, dispatch(&all[i]))
	}
	r.save(change(&all[1], fleet.EvidenceSent, fleet.DeploymentSent),
		change(&all[2], fleet.EvidenceGet, fleet.DeploymentDownloading), change(&all[2], fleet.EvidenceRetry, fleet.DeploymentQueued),
		change(&all[3], fleet.EvidenceBootPoll, fleet.DeploymentBooted))
	all[3].Late = true
	r.save(change(&all[3], fleet.EvidenceHealthy, fleet.DeploymentSucceeded))
	for i := 4; i < 8; i++ {
		r.save(change(&all[i], fleet.EvidenceDisconnect, fleet.DeploymentRebooting))
		all[i].Class, all[i].Reason = fleet.FailureRolledBack, "came back"
		r.save(change(&all[i], fleet.EvidenceBootPoll, fleet.DeploymentRolledBack))
	}
	p, err := r.CampaignProgress(ctx, c.ID)
	check(t, err)
	if len(p.Rate) == 0 || len(p.Rate) > 2 {
		t.Fatalf("rate %+v", p.Rate)
	}
	succeeded, failed := 0, 0
	for _, b := range p.Rate {
		succeeded, failed = succeeded+b.Succeeded, failed+b.Failed
	}
	if succeeded != 1 || failed != 4 {
		t.Errorf("rate %+v", p.Rate)
	}
	states := map[fleet.DeploymentState]int{fleet.DeploymentQueued: 2, fleet.DeploymentDispatching: 1, fleet.DeploymentSent: 1,
		fleet.DeploymentSucceeded: 1, fleet.DeploymentRolledBack: 4}
	want := fleet.CampaignProgress{ByState: map[fleet.DeploymentState]int{fleet.DeploymentSkipped: 1},
		ByWave:  []map[fleet.DeploymentState]int{states, {}},
		ByBoard: map[string]map[fleet.DeploymentState]int{"bread-compact-wifi": states},
		Reached: map[fleet.FunnelStep]int{fleet.FunnelPlanned: 9, fleet.FunnelTold: 7, fleet.FunnelGet: 6, fleet.FunnelDownloaded: 5, fleet.FunnelGoodbye: 5,
			fleet.FunnelBootPoll: 1, fleet.FunnelInitialize: 1, fleet.FunnelSucceeded: 1},
		Skipped: map[fleet.SkipReason]int{fleet.SkipHeld: 1}, Late: 1, Rate: p.Rate,
		Failures: []fleet.FailureGroup{{State: fleet.DeploymentRolledBack, Class: fleet.FailureRolledBack, Reason: "came back", Count: 4,
			Sample: []fleet.DeviceID{"d00007", "d00006", "d00005", "d00004"}}}}
	for s, n := range states {
		want.ByState[s] = n
	}
	same(t, p, want)

	// A new attempt begins the funnel anew.
	r.dispatch(1, dispatch(&all[2]))
	p, err = r.CampaignProgress(ctx, c.ID)
	check(t, err)
	if p.Reached[fleet.FunnelGet] != 5 || p.Reached[fleet.FunnelTold] != 6 {
		t.Errorf("funnel %+v", p.Reached)
	}
}
