package postgres_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

func TestOpenWave(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	other, others := r.campaign("d1", "d2", "d3")
	r.dispatch(1, dispatch(&others[0]))
	over, _ := r.campaign("d4")
	over.State, over.FinishedAt = campaign.Completed, ptr(now())
	check(t, r.ChangeCampaign(ctx, admin, "", over))
	pending, waits := r.campaignOf(campaign.DeploymentPending, "d3", "d5")

	c, all := r.campaignOf(campaign.DeploymentPending, "d1", "d2", "d4", "d5")
	opened, err := r.OpenWave(ctx, c, 1, now())
	if err != nil || len(opened) != 0 {
		t.Errorf("a wave without devices: %d, %v", len(opened), err)
	}
	at := now()
	opened, err = r.OpenWave(ctx, c, 0, at)
	check(t, err)
	want := []campaign.Deployment{all[2], all[3]}
	for i := range want {
		want[i].State, want[i].UpdatedAt, want[i].Revision = campaign.DeploymentQueued, at, 2
	}
	same(t, opened, want)
	for _, i := range []int{0, 1} {
		d := r.deployment(all[i].ID)
		if d.State != campaign.DeploymentSkipped || d.Skip != firmware.SkipBusy || said(d.Reason) != "busy in campaign "+
			other.Plan.Name || d.FinishedAt == nil {
			t.Errorf("device %s, busy elsewhere: %+v", d.Device, d)
		}
	}
	same(t, r.history(all[0].ID), []string{"planned pending>pending ", "unfit pending>skipped busy"})
	same(t, r.history(all[2].ID), []string{"planned pending>pending ", "wave_opened pending>queued canary"})
	again, err := r.OpenWave(ctx, c, 0, at)
	if err != nil || len(again) != 0 {
		t.Errorf("opened again: %d, %v", len(again), err)
	}

	// A superseding campaign takes over what waits, and nothing that is active.
	taker, waves := r.newCampaign(campaign.Running)
	taker.Plan.Supersede, taker.Plan.Name = true, "urgent"
	targets := []campaign.Deployment{r.target("d1", 0, "pending"), r.target("d2", 0, "pending"),
		r.target("d3", 0, "pending")}
	check(t, r.CreateCampaign(ctx, admin, taker, waves, targets))
	conflicts, err := r.Conflicts(ctx, taker.ID, []fleet.DeviceID{"d1", "d2", "d3", "d4", "nobody"})
	check(t, err)
	same(t, conflicts, []campaign.DeploymentConflict{
		{Device: "d1", Campaign: other.ID, Name: other.Plan.Name, State: campaign.DeploymentDispatching},
		{Device: "d2", Campaign: other.ID, Name: other.Plan.Name, State: campaign.DeploymentQueued},
		{Device: "d3", Campaign: other.ID, Name: other.Plan.Name, State: campaign.DeploymentQueued},
		{Device: "d3", Campaign: pending.ID, Name: pending.Plan.Name, State: campaign.DeploymentPending},
		{Device: "d4", Campaign: c.ID, Name: c.Plan.Name, State: campaign.DeploymentQueued}})
	opened, err = r.OpenWave(ctx, taker, 0, at)
	check(t, err)
	if len(opened) != 2 || opened[0].Device != "d2" || opened[1].Device != "d3" {
		t.Errorf("taken over %+v", opened)
	}
	for _, d := range []campaign.Deployment{others[1], others[2], waits[0]} {
		got := r.deployment(d.ID)
		if got.State != campaign.DeploymentCanceled || got.Skip != firmware.SkipSuperseded ||
			said(got.Reason) != "taken over by campaign urgent" {
			t.Errorf("device %s was taken over, and is %+v", d.Device, got)
		}
	}
	same(t, r.history(waits[0].ID), []string{"planned pending>pending ", "canceled pending>canceled superseded"})
	if got := r.deployment(waits[1].ID); got.State != campaign.DeploymentPending {
		t.Errorf("a device of no concern is %s", got.State)
	}
}

func TestEndWaiting(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, all := r.campaign("d1", "d2", "d3")
	r.dispatch(2, dispatch(&all[0]), dispatch(&all[1]))
	r.save(change(&all[0], fleet.EvidenceRetry, campaign.DeploymentQueued))
	end := func(untriedOnly bool) int {
		t.Helper()
		n, err := r.EndWaiting(ctx, c.ID, campaign.DeploymentCanceled, fleet.EvidenceCanceled, text("aborted"), now(),
			untriedOnly)
		check(t, err)
		return n
	}
	if untried, rest, none := end(true), end(false), end(false); untried != 1 || rest != 1 || none != 0 {
		t.Errorf("ended %d, %d and %d", untried, rest, none)
	}
	same(t, r.history(all[2].ID), []string{"planned queued>queued ", "canceled queued>canceled aborted"})
	if got := r.deployment(all[1].ID); got.State != campaign.DeploymentDispatching {
		t.Errorf("one that was under way is %s", got.State)
	}
	stale, err := r.SaveDeployments(ctx, []campaign.DeploymentChange{change(&all[2], fleet.EvidenceSent,
		campaign.DeploymentSent)})
	if err != nil || len(stale) != 1 {
		t.Errorf("a change from before the end: %v, %v", stale, err)
	}
}

func TestAddTargets(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, _ := r.campaign("d1")
	n, err := r.AddTargets(ctx, c.ID, []campaign.Deployment{r.target("d1", 0, "pending"), r.target("d2", 1, "pending"),
		r.target("d3", -1, "skipped")})
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
	_, err = r.AddTargets(ctx, r.release.ID, []campaign.Deployment{r.target("d1", 0, "pending")})
	wantKind(t, err, fleet.ErrNotFound)
}

func TestRequeue(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, all := r.campaign("d1", "d2", "d3", "d4")
	for i, to := range []campaign.DeploymentState{campaign.DeploymentTimedOut, campaign.DeploymentRolledBack,
		campaign.DeploymentSucceeded, campaign.DeploymentCanceled} {
		r.dispatch(1, dispatch(&all[i]))
		all[i].Failures, all[i].Class, all[i].Booted = 3, campaign.FailureTimeout, true
		r.save(change(&all[i], fleet.EvidenceTimer, to))
	}
	requeue := func(states []campaign.DeploymentState, devices ...fleet.DeviceID) int {
		t.Helper()
		n, err := r.Requeue(ctx, admin, c.ID, states, devices, now())
		check(t, err)
		return n
	}
	if n := requeue(nil, "d2", "d3", "d4"); n != 1 {
		t.Errorf("%d of the named ones had failed", n)
	}
	if n := requeue([]campaign.DeploymentState{campaign.DeploymentTimedOut, campaign.DeploymentSucceeded}); n != 1 {
		t.Errorf("%d had timed out", n)
	}
	if n := requeue(nil); n != 0 {
		t.Errorf("%d failures left", n)
	}
	d := r.deployment(all[0].ID)
	if d.State != campaign.DeploymentQueued || d.Attempt != 1 || d.Failures != 0 || d.Class != "" || d.Booted ||
		d.FinishedAt != nil {
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
	r.save(change(&all[0], fleet.EvidenceBootPoll, campaign.DeploymentBooted),
		change(&all[1], fleet.EvidenceBootPoll, campaign.DeploymentBooted), change(&all[1], fleet.EvidenceHealthy,
			campaign.DeploymentSucceeded),
		change(&all[2], fleet.EvidenceBootPoll, campaign.DeploymentBooted), change(&all[2], fleet.EvidenceBootPoll,
			campaign.DeploymentRolledBack),
		change(&all[3], fleet.EvidenceDownloaded, campaign.DeploymentDownloaded), change(&all[3], fleet.EvidenceTimer,
			campaign.DeploymentTimedOut))
	updated, err := r.Rollbacks(ctx, c.ID)
	check(t, err)
	same(t, updated, all[:2])
	live, err := r.LiveDeployments(ctx)
	check(t, err)
	same(t, live, []campaign.Deployment{all[0], all[4]})
	c.State = campaign.Aborted
	check(t, r.ChangeCampaign(ctx, admin, "", c))
	live, err = r.LiveDeployments(ctx)
	check(t, err)
	same(t, live, nil)
}

// The database orders devices as the rules do, including those dispatched at the same time.
func TestCohorts(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, _ := r.campaign(devices(1)...)
	states := []campaign.DeploymentState{"queued", "verifying", "succeeded", "failed", "rolled_back", "rejected", "aborted",
		"removed"}
	all := make([]campaign.Deployment, 120)
	for i := range all {
		all[i] = r.target(fleet.DeviceID(fmt.Sprintf("%012x", i+1)), i%2, campaign.DeploymentQueued)
		all[i].Campaign = c.ID
		all[i].Board = []string{"", "a", "b"}[i%3]
	}
	_, err := r.AddTargets(ctx, c.ID, all)
	check(t, err)
	random := rand.New(rand.NewPCG(7, 7))
	first := now()
	for i := range all {
		if random.IntN(5) > 0 {
			at := first.Add(time.Duration(random.IntN(30)) * time.Second)
			all[i].DispatchedAt = &at
		}
		r.save(change(&all[i], fleet.EvidenceSent, states[random.IntN(len(states))]))
	}
	got, err := r.Cohorts(ctx, c.ID)
	check(t, err)
	same(t, got, campaign.CohortsOf(all))
	if len(got.Failures) < 20 || got.Size < 60 {
		t.Errorf("only %d failures of %d", len(got.Failures), got.Size)
	}
	other, _ := r.campaign(devices(1)...)
	got, err = r.Cohorts(ctx, other.ID)
	check(t, err)
	same(t, got, campaign.CohortsOf(nil))
}

func TestCampaignProgress(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, all := r.campaign(devices(9)...)
	_, err := r.AddTargets(ctx, c.ID, []campaign.Deployment{r.target("s", -1, "skipped")})
	check(t, err)
	for i := range 8 {
		r.dispatch(1, dispatch(&all[i]))
	}
	r.save(change(&all[1], fleet.EvidenceSent, campaign.DeploymentSent),
		change(&all[2], fleet.EvidenceGet, campaign.DeploymentDownloading), change(&all[2], fleet.EvidenceRetry,
			campaign.DeploymentQueued),
		change(&all[3], fleet.EvidenceBootPoll, campaign.DeploymentBooted))
	all[3].Late = true
	r.save(change(&all[3], fleet.EvidenceHealthy, campaign.DeploymentSucceeded))
	for i := 4; i < 8; i++ {
		r.save(change(&all[i], fleet.EvidenceDisconnect, campaign.DeploymentRebooting))
		all[i].Class, all[i].Reason = campaign.FailureRolledBack, text("came back")
		r.save(change(&all[i], fleet.EvidenceBootPoll, campaign.DeploymentRolledBack))
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
	states := map[campaign.DeploymentState]int{campaign.DeploymentQueued: 2, campaign.DeploymentDispatching: 1,
		campaign.DeploymentSent:      1,
		campaign.DeploymentSucceeded: 1, campaign.DeploymentRolledBack: 4}
	want := campaign.Progress{ByState: map[campaign.DeploymentState]int{campaign.DeploymentSkipped: 1},
		ByWave: []map[campaign.DeploymentState]int{states, {}}, SoakUntil: make([]time.Time, 2),
		ByBoard: map[string]map[campaign.DeploymentState]int{"bread-compact-wifi": states},
		Reached: map[campaign.FunnelStep]int{campaign.FunnelPlanned: 9, campaign.FunnelNotified: 7, campaign.FunnelGet: 6,
			campaign.FunnelDownloaded: 5, campaign.FunnelGoodbye: 5,
			campaign.FunnelBootPoll: 1, campaign.FunnelInitialize: 1, campaign.FunnelSucceeded: 1},
		Skipped: []firmware.Misfits{{Reason: firmware.SkipHeld, Board: "bread-compact-wifi", Count: 1}},
		Late:    1, Rate: p.Rate,
		Failures: []campaign.FailureGroup{{State: campaign.DeploymentRolledBack, Class: campaign.FailureRolledBack,
			Reason: text("came back"), Count: 4,
			Sample: []fleet.DeviceID{"d00007", "d00006", "d00005", "d00004"}}}}
	for s, n := range states {
		want.ByState[s] = n
	}
	want.Cohorts = campaign.CohortsOf(all)
	same(t, p, want)

	// A new attempt restarts the funnel.
	r.dispatch(1, dispatch(&all[2]))
	p, err = r.CampaignProgress(ctx, c.ID)
	check(t, err)
	if p.Reached[campaign.FunnelGet] != 5 || p.Reached[campaign.FunnelNotified] != 6 {
		t.Errorf("funnel %+v", p.Reached)
	}

	// A wave soaks until the last of its devices has been well for long enough.
	soaks := now().Add(7 * time.Minute).Truncate(time.Millisecond)
	for i, until := range []time.Time{soaks.Add(-time.Minute), soaks} {
		all[i].Deadline = &until
		r.save(change(&all[i], fleet.EvidenceInitialize, campaign.DeploymentVerifying))
	}
	p, err = r.CampaignProgress(ctx, c.ID)
	check(t, err)
	if !p.SoakUntil[0].Equal(soaks) || !p.SoakUntil[1].IsZero() {
		t.Errorf("the waves soak until %v, want %v", p.SoakUntil, soaks)
	}
}
