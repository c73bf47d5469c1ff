package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/postgres"
)

func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("error %v, want code %s", err, code)
	}
}

// A rig is a store with a release to deploy.
type rig struct {
	*postgres.Store
	t       testing.TB
	image   firmware.Image
	release firmware.Release
}

func newRig(t testing.TB) *rig {
	t.Helper()
	s := newStore(t)
	img := addImage(t, s, "target")
	return &rig{Store: s, t: t, image: img, release: addRelease(t, s, img)}
}

// newCampaign returns a campaign with every field set, and its waves.
func (r *rig) newCampaign(state campaign.State) (*campaign.Campaign, []campaign.Wave) {
	at := now()
	plan := campaign.Plan{Name: "spring \u2713", Release: r.release.ID, Query: "tag:lab", Devices: []fleet.DeviceID{"d0"},
		Mode:    firmware.ModeAuto,
		PullNow: true, AllowDowngrade: true, Continuous: true, MaxDevices: 10, MaxInFlight: 7, MaxPerMinute: 60,
		Waves: []campaign.WavePlan{{Name: "canary", Count: 1, SuccessPercent: 90, MinSample: 1, Soak: time.Minute,
			Gate: campaign.GateManual},
			{Name: "rest", Percent: 100, SuccessPercent: 97.5, Gate: campaign.GateAuto}},
		AbortRules: []campaign.AbortRule{{Class: campaign.ClassAny, MinExecuted: 5, Percent: 10, Scope: campaign.ScopeBoard,
			Action: campaign.AbortPause}},
		Windows: []campaign.Window{{Cron: "0 2 * * *", Duration: time.Hour, TimeZone: campaign.DeviceZone}},
		Jitter:  time.Second, StartAt: &at, EndAt: &at,
		EndBehavior: campaign.EndCancelQueued, ForbidRemoved: []string{"*"}, MinHeapPercent: 50, MaxReconnects: 3,
		ApprovalRequired: true, MaxAttempts: 3, Within: "tag:lab",
		HealthChecks: []campaign.HealthCheck{{Tool: "self.get_device_status", Arguments: []byte(`{"b":1,"a":"\u00e9"}`),
			Retries: 2,
			Assert:  []campaign.Assertion{{Path: "$.b", Op: "ge", Value: []byte(`1.50`)}}}}}
	c := &campaign.Campaign{ID: uuid.Must(uuid.NewV7()), Plan: plan, State: state, PauseReason: campaign.PausedByGate,
		Reason: text("why"), Wave: 1, Advance: true,
		Digest: "d1", Images: []string{"i1", "i2"}, Planned: &campaign.Plan{Name: "before", MaxInFlight: 7},
		Targets: 3, Skipped: 1, Approval: &campaign.Approval{By: admin, At: at, Digest: "d1"}, CreatedBy: admin,
		CreatedAt: at,
		EditedBy:  admin, EditedAt: at, StartedBy: &admin, TakenOverBy: &admin, StartedAt: &at, FinishedAt: &at,
		RollbackWanted: true, RollbackBy: &admin, RollbackReason: text("why not"), OverruledAt: &at}
	var waves []campaign.Wave
	for i, w := range plan.Waves {
		waves = append(waves, campaign.Wave{Campaign: c.ID, Number: i, Plan: w, Size: i + 1, State: campaign.WavePending,
			Verdict: text("none"), StartedAt: &at})
	}
	return c, waves
}

// target returns a deployment as planning makes it.
func (r *rig) target(device fleet.DeviceID, wave int, state campaign.DeploymentState) campaign.Deployment {
	at := now()
	d := campaign.Deployment{ID: uuid.Must(uuid.NewV7()), Device: device, Board: "bread-compact-wifi", Wave: wave,
		State: state, Image: r.image.SHA256,
		ImageSize: r.image.Size, TargetELF: r.image.ELFSHA256, ToVersion: "2.5.0", FromELF: "9f2c", FromVersion: "2.4.0",
		CreatedAt: at, UpdatedAt: at, Revision: 1}
	if state.Final() {
		d.FinishedAt = &at
	}
	if state == campaign.DeploymentSkipped {
		d.Skip, d.Wave = firmware.SkipHeld, -1
	}
	return d
}

// campaign makes a running campaign of queued devices, all in its first wave.
func (r *rig) campaign(devices ...fleet.DeviceID) (*campaign.Campaign, []campaign.Deployment) {
	r.t.Helper()
	return r.campaignOf(campaign.DeploymentQueued, devices...)
}

func (r *rig) campaignOf(state campaign.DeploymentState, devices ...fleet.DeviceID) (*campaign.Campaign,
	[]campaign.Deployment) {
	r.t.Helper()
	c, waves := r.newCampaign(campaign.Running)
	c.PauseReason, c.FinishedAt, c.Images = "", nil, []string{r.image.SHA256}
	var targets []campaign.Deployment
	for _, id := range devices {
		d := r.target(id, 0, state)
		d.Campaign = c.ID
		targets = append(targets, d)
	}
	c.Targets, c.Skipped = len(targets), 0
	check(r.t, r.CreateCampaign(r.t.Context(), admin, c, waves, targets))
	return c, targets
}

func devices(n int) []fleet.DeviceID {
	ids := make([]fleet.DeviceID, n)
	for i := range ids {
		ids[i] = fleet.DeviceID(fmt.Sprintf("d%05d", i))
	}
	return ids
}

func (r *rig) deployment(id uuid.UUID) campaign.Deployment {
	r.t.Helper()
	d, err := r.DeploymentByID(r.t.Context(), id)
	check(r.t, err)
	return d
}

// history returns the transitions of a deployment as text.
func (r *rig) history(id uuid.UUID) (list []string) {
	r.t.Helper()
	events, err := r.DeploymentEvents(r.t.Context(), id)
	check(r.t, err)
	for _, e := range events {
		list = append(list, fmt.Sprintf("%s %s>%s %s", e.Kind, e.From, e.To, said(e.Reason)))
	}
	return list
}

func TestCampaignRoundTrip(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, waves := r.newCampaign(campaign.Draft)
	targets := []campaign.Deployment{r.target("d0", 0, campaign.DeploymentPending),
		r.target("d1", 1, campaign.DeploymentPending), r.target("d2", -1, campaign.DeploymentSkipped)}
	targets[2].Image, targets[1].Joined = "", true
	for i := range targets {
		targets[i].Campaign = c.ID
	}
	check(t, r.CreateCampaign(ctx, admin, c, waves, targets))
	got, err := r.Campaign(ctx, c.ID)
	check(t, err)
	same(t, got, *c)
	wantAllSet(t, *c, "RollbackOf", "RollbackWith")
	wantAllSet(t, c.Plan, "Supersede")
	gotWaves, err := r.Waves(ctx, c.ID)
	check(t, err)
	same(t, gotWaves, waves)
	p, err := r.Deployments(ctx, campaign.DeploymentFilter{Campaign: c.ID})
	check(t, err)
	same(t, p.Items, targets)
	same(t, r.history(targets[2].ID), []string{"planned skipped>skipped held"})

	waves[1].State, waves[1].Verdict, waves[1].Plan.SuccessPercent, waves[1].FinishedAt = campaign.WaveFailed,
		text("bad\x00"),
		50, ptr(now())
	check(t, r.SaveWave(ctx, waves[1]))
	waves[1].Verdict = text("bad")
	gotWaves, err = r.Waves(ctx, c.ID)
	check(t, err)
	same(t, gotWaves, waves)
	wantAllSet(t, waves[1])
	wantAllSet(t, waves[1].Plan, "Count", "Devices", "MinSample", "Soak")

	before := *c
	c.State, c.Reason, c.Plan.Name, c.FinishedAt, c.Approval = campaign.Scheduled, text("go"), "autumn", nil, nil
	check(t, r.ChangeCampaign(ctx, admin, "campaign.start", c))
	check(t, r.ChangeCampaign(ctx, admin, "", c))
	got, err = r.Campaign(ctx, c.ID)
	check(t, err)
	same(t, got, *c)
	if c.Revision != 3 {
		t.Errorf("revision %d", c.Revision)
	}
	wantCode(t, r.ChangeCampaign(ctx, admin, "campaign.pause", &before), "campaign_changed")
	wantAudit(t, r.Store, c.ID.String(), "campaign.create", "campaign.start")

	c.Plan.Query, c.Digest, c.Targets, c.Skipped = "tag:other", "d2", 1, 0
	check(t, r.ReplanCampaign(ctx, admin, c, waves[:1],
		[]campaign.Deployment{r.target("d9", 0, campaign.DeploymentPending)}))
	got, err = r.Campaign(ctx, c.ID)
	check(t, err)
	same(t, got, *c)
	p, err = r.Deployments(ctx, campaign.DeploymentFilter{Campaign: c.ID})
	check(t, err)
	if len(p.Items) != 1 || p.Items[0].Device != "d9" {
		t.Errorf("replanned to %+v", p.Items)
	}
	c.State = campaign.Running
	check(t, r.ChangeCampaign(ctx, admin, "campaign.start", c))
	wantCode(t, r.ReplanCampaign(ctx, admin, c, waves, nil), "campaign_changed")
	wantCode(t, r.DeleteImage(ctx, admin, r.image.SHA256), "image_in_use")
}

func TestCampaignLists(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	a, _ := r.campaign("d1")
	b, _ := r.newCampaign(campaign.Draft)
	b.RollbackOf, b.Plan.Release = a.ID, uuid.Nil
	check(t, r.CreateCampaign(ctx, admin, b, nil, nil))
	first, err := r.Campaigns(ctx, campaign.Filter{Limit: 1})
	check(t, err)
	second, err := r.Campaigns(ctx, campaign.Filter{Limit: 1, Cursor: first.Next})
	check(t, err)
	back, err := r.Campaigns(ctx, campaign.Filter{Limit: 1, Cursor: second.Prev})
	check(t, err)
	same(t, append(first.Items, second.Items...), []campaign.Campaign{*b, *a})
	same(t, back.Items, first.Items)
	some, err := r.Campaigns(ctx, campaign.Filter{States: []campaign.State{campaign.Running}, Release: r.release.ID})
	check(t, err)
	same(t, some.Items, []campaign.Campaign{*a})
	open, err := r.OpenCampaigns(ctx)
	check(t, err)
	same(t, open, []campaign.Campaign{*a})
	_, err = r.Campaigns(ctx, campaign.Filter{Cursor: first.Next + "x"})
	wantKind(t, err, fleet.ErrInvalid)
	_, err = r.Campaign(ctx, uuid.New())
	wantKind(t, err, fleet.ErrNotFound)
	_, err = r.CampaignProgress(ctx, uuid.New())
	wantKind(t, err, fleet.ErrNotFound)

	twice, _ := r.newCampaign(campaign.Draft)
	wantCode(t, r.CreateCampaign(ctx, admin, twice, nil, []campaign.Deployment{r.target("d1", 0, "pending"),
		r.target("d1", 0, "pending")}), "device_twice")
}

func TestDeploymentPages(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, all := r.campaign(devices(7)...)
	var got []campaign.Deployment
	f := campaign.DeploymentFilter{Campaign: c.ID, Limit: 3, Wave: ptr(0), States: []campaign.DeploymentState{"queued"},
		Board: "bread-compact-wifi"}
	for range 3 {
		p, err := r.Deployments(ctx, f)
		check(t, err)
		got = append(got, p.Items...)
		f.Cursor = p.Next
	}
	same(t, got, all)
	if f.Cursor != "" {
		t.Error("the last page has a next one")
	}
	for _, f := range []campaign.DeploymentFilter{{Wave: ptr(1)}, {Skip: firmware.SkipBusy}, {Class: campaign.FailureBusy},
		{Device: "d9"}, {Board: "x"}} {
		f.Campaign = c.ID
		if p, err := r.Deployments(ctx, f); err != nil || len(p.Items) != 0 {
			t.Errorf("%+v finds %d, %v", f, len(p.Items), err)
		}
	}
	d, err := r.Deployment(ctx, c.ID, all[3].Device)
	check(t, err)
	same(t, d, all[3])
	_, err = r.Deployment(ctx, c.ID, "nobody")
	wantKind(t, err, fleet.ErrNotFound)
	other, _ := r.campaignOf(campaign.DeploymentPending, all[3].Device)
	of, err := r.DeviceDeployments(ctx, all[3].Device, 10)
	check(t, err)
	if len(of) != 2 || of[0].Campaign != other.ID || of[1].Campaign != c.ID {
		t.Errorf("deployments of the device %+v", of)
	}
}
