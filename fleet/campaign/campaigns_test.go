package campaign_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

var (
	ana = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ana", Role: fleet.RoleOperator}
	bo  = fleet.Principal{Kind: fleet.KindOperator, ID: "2", Name: "bo", Role: fleet.RoleOperator}
	vi  = fleet.Principal{Kind: fleet.KindOperator, ID: "3", Name: "vi", Role: fleet.RoleViewer}
)

// plans is the service with a real store, devices and a release.
type plans struct {
	*campaign.Service
	t     *testing.T
	store *postgres.Store
	now   time.Time
	r250  firmware.Release
	woken int
}

func newPlans(t *testing.T, devices int) *plans {
	t.Helper()
	t.Parallel()
	p := &plans{t: t, store: postgres.New(pgtest.New(t), postgres.Options{}), now: time.Date(2026, 11, 21, 9, 0, 0, 0,
		time.UTC)}
	p.serve(false)
	p.join(devices, "2.4.2")
	p.r250 = p.release("2.5.0")
	return p
}

func (p *plans) serve(requireApproval bool) {
	p.Service = campaign.New(campaign.Options{Store: p.store, Firmware: p.store, Devices: p.store, Inventories: p.store,
		Quarantines: p.store, Requeue: p.store.Requeue, RolledBack: p.store.RolledBackBuilds,
		RequireApproval: requireApproval, Wake: func() { p.woken++ },
		Now: func() time.Time { return p.now }})
}

// join makes boot polls of devices that run the version, alternating between two boards.
func (p *plans) join(devices int, version string) {
	p.t.Helper()
	var polls []enrolment.PollRecord
	for i := range devices {
		id := fleet.DeviceID(fmt.Sprintf("a085e3%06x", i))
		poll := enrolment.BootPoll{Device: id, ClientID: "c", At: p.now, Board: []string{"bread", "box"}[i%2],
			Chip:    "esp32s3",
			Version: version, ELFSHA256: elfOf(version), Slot: "ota_0",
			Layout: &fleet.FlashLayout{SlotSize: 4 << 20, Labels: []string{"ota_0", "ota_1", "assets"}, FlashBytes: 16 << 20}}
		polls = append(polls, enrolment.PollRecord{Poll: poll, Admission: enrolment.Admission{Device: id,
			Enrolment: fleet.EnrolmentEnrolled, ClientID: "c"}})
	}
	if err := p.store.SavePolls(p.t.Context(), polls); err != nil {
		p.t.Fatal(err)
	}
}

func elfOf(version string) string {
	sum := sha256.Sum256([]byte("elf " + version))
	return hex.EncodeToString(sum[:])
}

func (p *plans) image(version string) firmware.Image {
	p.t.Helper()
	sum := sha256.Sum256([]byte(version))
	img, _, err := p.store.CreateImage(p.t.Context(), ana, firmware.Image{SHA256: hex.EncodeToString(sum[:]),
		Size: 1 << 20, Chip: "esp32s3",
		Version: version, Project: "xiaozhi", ELFSHA256: elfOf(version), MaxChipRev: 65535, UploadedBy: ana,
		CreatedAt: p.now})
	if err != nil {
		p.t.Fatal(err)
	}
	return img
}

func (p *plans) release(version string) firmware.Release {
	p.t.Helper()
	r := firmware.Release{ID: uuid.Must(uuid.NewV7()), Version: version, State: firmware.ReleaseReleased,
		Images:    []firmware.Image{p.image(version)},
		CreatedBy: ana, CreatedAt: p.now, ChangedAt: p.now}
	if err := p.store.CreateRelease(p.t.Context(), ana, r); err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *plans) plan(change ...func(*campaign.Plan)) campaign.Plan {
	plan := campaign.Plan{Name: "to 2.5.0", Release: p.r250.ID, Query: ""}
	for _, f := range change {
		f(&plan)
	}
	return plan
}

func (p *plans) created(change ...func(*campaign.Plan)) campaign.Campaign {
	p.t.Helper()
	c, err := p.Create(p.t.Context(), ana, p.plan(change...))
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

func needsApproval(p *campaign.Plan) { p.ApprovalRequired = true }

// refusedAs fails the test unless err carries the code.
func refusedAs(t *testing.T, err error, code string) {
	t.Helper()
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("error is %v, want one with code %s", err, code)
	}
}

func TestCampaignIsPlannedWithItsAudience(t *testing.T) {
	p := newPlans(t, 40)
	dry, err := p.DryRun(t.Context(), vi, p.plan())
	if err != nil {
		t.Fatal(err)
	}
	if dry.Matched != 40 || dry.Targets != 40 || len(dry.Waves) != 3 || dry.Waves[0].Size != 1 || dry.Waves[1].Size != 3 ||
		dry.Waves[2].Size != 36 {
		t.Errorf("dry run is %+v, want 40 devices in waves of 1, 3 and 36", dry)
	}
	if dry.FirstDispatch == nil || !dry.FirstDispatch.Equal(p.now) || dry.Estimate == 0 {
		t.Errorf("dry run starts %v and takes %v", dry.FirstDispatch, dry.Estimate)
	}
	c := p.created()
	if c.State != campaign.Draft || c.Targets != 40 || c.Skipped != 0 || len(c.Digest) != 64 {
		t.Errorf("campaign is %+v", c)
	}
	if c, err = p.Start(t.Context(), ana, c.ID); err != nil || c.State != campaign.Running || c.StartedAt == nil {
		t.Errorf("started: %+v, %v", c, err)
	}
	if p.woken < 2 {
		t.Errorf("the engine was told %d times, want at each change", p.woken)
	}
	_, err = p.Start(t.Context(), ana, c.ID)
	refusedAs(t, err, "wrong_state")
	_, err = p.Create(t.Context(), vi, p.plan())
	refusedAs(t, err, "forbidden")
}

func TestCampaignLeavesOutWhoDoesNotFit(t *testing.T) {
	p := newPlans(t, 6)
	ids, _ := p.store.DeviceIDs(t.Context(), fleet.Query{})
	until := p.now.Add(time.Hour)
	for _, i := range []int{0, 2, 3} {
		if err := p.store.SetHold(t.Context(), ana, ids[i], &fleet.Hold{Reason: "demo", By: ana, Since: p.now,
			Until: &until}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.store.Quarantine(t.Context(), campaign.Quarantine{Device: ids[1],
		Reason: fleet.Because(campaign.ReasonFailedAttempts, "times", 3, "within_ms", time.Hour),
		Since:  p.now,
		Until:  until}); err != nil {
		t.Fatal(err)
	}
	held := fleet.Because(firmware.FitHeld, "name", ana.Name, "detail", "demo")
	want := []firmware.Misfits{
		{Reason: firmware.SkipHeld, Board: "bread", Detail: held, Count: 2, Sample: []fleet.DeviceID{ids[0], ids[2]}},
		{Reason: firmware.SkipHeld, Board: "box", Detail: held, Count: 1, Sample: ids[3:4]},
		{Reason: firmware.SkipQuarantined, Board: "box", Detail: fleet.Because(campaign.ReasonFailedAttempts, "times", 3,
			"within_ms", time.Hour), Count: 1, Sample: ids[1:2]}}
	dry, err := p.DryRun(t.Context(), ana, p.plan())
	if diff := cmp.Diff(want, dry.Skipped); diff != "" || err != nil {
		t.Error(err, diff)
	}
	c := p.created(func(p *campaign.Plan) { p.Name = "first" })
	if c.Targets != 2 || c.Skipped != 4 {
		t.Errorf("%d targets, %d skipped; want 2 and 4", c.Targets, c.Skipped)
	}
	for i := range want {
		want[i].Detail, want[i].Sample = fleet.Reason{}, nil
	}
	progress, err := p.CampaignProgress(t.Context(), c.ID)
	if diff := cmp.Diff(want, progress.Skipped); diff != "" || err != nil {
		t.Error(err, diff)
	}
	_, err = p.Create(t.Context(), ana, p.plan(func(p *campaign.Plan) { p.Devices = ids[:2] }))
	refusedAs(t, err, "empty_audience")
	_, err = p.Create(t.Context(), ana, p.plan(func(p *campaign.Plan) { p.Query = "board:none" }))
	refusedAs(t, err, "empty_audience")
}

// A plan warns about the devices that rolled the release back, and tries it on them again.
func TestDryRunCountsWhoRolledTheReleaseBack(t *testing.T) {
	p := newPlans(t, 4)
	first := p.created()
	ids, err := p.store.DeviceIDs(t.Context(), fleet.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for i, state := range []campaign.DeploymentState{campaign.DeploymentRolledBack, campaign.DeploymentRolledBack,
		campaign.DeploymentFailed} {
		d, err := p.store.Deployment(t.Context(), first.ID, ids[i])
		if err != nil {
			t.Fatal(err)
		}
		d.State, d.FinishedAt = state, &p.now
		if stale, err := p.store.SaveDeployments(t.Context(), []campaign.DeploymentChange{{Deployment: d}}); err != nil ||
			len(stale) > 0 {
			t.Fatal(stale, err)
		}
	}
	warned := func(devices ...fleet.DeviceID) (details []string) {
		t.Helper()
		dry, err := p.DryRun(t.Context(), ana, p.plan(func(p *campaign.Plan) { p.Devices, p.Supersede = devices, true }))
		if err != nil || dry.Targets != len(devices) {
			t.Fatalf("%d targets, %v", dry.Targets, err)
		}
		for _, w := range dry.Warnings {
			if w.Code == campaign.WarnRolledBack {
				details = append(details, w.Detail)
			}
		}
		return details
	}
	if diff := cmp.Diff([]string{"2"}, warned(ids...)); diff != "" {
		t.Error(diff)
	}
	if got := warned(ids[2], ids[3]); got != nil {
		t.Errorf("of devices that did not roll it back: %q", got)
	}
	other := p.release("2.6.0")
	dry, err := p.DryRun(t.Context(), ana, p.plan(func(p *campaign.Plan) { p.Release, p.Supersede = other.ID, true }))
	warns := slices.ContainsFunc(dry.Warnings, func(w campaign.PlanWarning) bool {
		return w.Code == campaign.WarnRolledBack
	})
	if warns || err != nil {
		t.Errorf("of another release: %+v, %v", dry.Warnings, err)
	}
}

func TestTwoCampaignsOverOneDevice(t *testing.T) {
	p := newPlans(t, 4)
	first := p.created()
	if _, err := p.Start(t.Context(), ana, first.ID); err != nil {
		t.Fatal(err)
	}
	dry, err := p.DryRun(t.Context(), ana, p.plan())
	if err != nil {
		t.Fatal(err)
	}
	if dry.Targets != 0 || len(dry.Conflicts) != 1 || dry.Conflicts[0].Campaign != first.ID ||
		dry.Conflicts[0].Waiting != 4 {
		t.Errorf("the second campaign: %d targets, conflicts %+v; want none, and 4 waiting in the first", dry.Targets,
			dry.Conflicts)
	}
	_, err = p.Create(t.Context(), ana, p.plan())
	refusedAs(t, err, "empty_audience")
	second := p.created(func(p *campaign.Plan) { p.Supersede = true })
	if second.Targets != 4 {
		t.Errorf("superseding takes over %d devices, want 4", second.Targets)
	}
}

func TestApproval(t *testing.T) {
	p := newPlans(t, 8)
	ctx := t.Context()
	c := p.created(needsApproval)
	c, err := p.Start(ctx, ana, c.ID)
	if err != nil || c.State != campaign.AwaitingApproval {
		t.Fatalf("start: %s, %v; want awaiting_approval", c.State, err)
	}
	_, err = p.Approve(ctx, ana, c.ID, c.Digest)
	refusedAs(t, err, "second_person_needed")
	_, err = p.Approve(ctx, vi, c.ID, c.Digest)
	refusedAs(t, err, "forbidden")

	// An edit meanwhile makes the approver's digest stale.
	edited, err := p.Edit(ctx, ana, c.ID, p.plan(needsApproval, func(p *campaign.Plan) { p.MaxInFlight = 50 }))
	if err != nil || edited.State != campaign.Draft || edited.Digest == c.Digest {
		t.Fatalf("edited: %+v, %v", edited, err)
	}
	_, err = p.Approve(ctx, bo, c.ID, c.Digest)
	refusedAs(t, err, "approval_is_stale")

	if edited, err = p.Approve(ctx, bo, c.ID, edited.Digest); err != nil || edited.State != campaign.Draft ||
		edited.Approval == nil {
		t.Fatalf("approved before the start: %+v, %v", edited, err)
	}
	if edited, err = p.Start(ctx, ana, c.ID); err != nil || edited.State != campaign.Running {
		t.Fatalf("started with approval: %s, %v", edited.State, err)
	}

	// An approved campaign can be made stricter, not looser.
	_, err = p.Edit(ctx, ana, c.ID, p.plan(needsApproval, func(p *campaign.Plan) { p.MaxInFlight = 60 }))
	refusedAs(t, err, "loosening_needs_approval")
	if edited, err = p.Edit(ctx, ana, c.ID,
		p.plan(needsApproval, func(p *campaign.Plan) { p.MaxInFlight = 5 })); err != nil || edited.Plan.MaxInFlight != 5 {
		t.Errorf("stricter: %+v, %v", edited.Plan, err)
	}
	other := p.release("2.6.0")
	_, err = p.Edit(ctx, ana, c.ID, p.plan(needsApproval, func(p *campaign.Plan) { p.Release = other.ID }))
	if err == nil {
		t.Error("the release of a running campaign was changed")
	}
}

func TestApprovalCanBeMadeTheRule(t *testing.T) {
	p := newPlans(t, 2)
	p.serve(true)
	c := p.created()
	if c, err := p.Start(t.Context(), ana, c.ID); err != nil || c.State != campaign.AwaitingApproval {
		t.Errorf("a plan that does not ask for approval: %s, %v", c.State, err)
	}
}

func TestDenial(t *testing.T) {
	p := newPlans(t, 2)
	c := p.created(needsApproval)
	if _, err := p.Start(t.Context(), ana, c.ID); err != nil {
		t.Fatal(err)
	}
	_, err := p.Deny(t.Context(), bo, c.ID, " ")
	refusedAs(t, err, "invalid_reason")
	if c, err = p.Deny(t.Context(), bo, c.ID, "not before the trade fair"); err != nil || c.State != campaign.Denied {
		t.Fatalf("denied: %s, %v", c.State, err)
	}
	_, err = p.Start(t.Context(), ana, c.ID)
	refusedAs(t, err, "wrong_state")
	if c, err = p.Edit(t.Context(), ana, c.ID, p.plan(needsApproval)); err != nil || c.State != campaign.Draft {
		t.Errorf("edited after a denial: %s, %v", c.State, err)
	}
}

func TestCampaignNeedsAGoodRelease(t *testing.T) {
	p := newPlans(t, 2)
	ctx := t.Context()
	c := p.created()
	if err := p.store.SetReleaseState(ctx, ana, p.r250.ID, firmware.ReleaseReleased, firmware.ReleaseRevoked,
		"bricks boxes", p.now); err != nil {
		t.Fatal(err)
	}
	_, err := p.Start(ctx, ana, c.ID)
	refusedAs(t, err, "release_revoked")
	_, err = p.Create(ctx, ana, p.plan())
	refusedAs(t, err, "release_revoked")
	_, err = p.Create(ctx, ana, p.plan(func(p *campaign.Plan) { p.Release = uuid.New() }))
	if !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("an unknown release: %v", err)
	}
	_, err = p.Create(ctx, ana, p.plan(func(p *campaign.Plan) { p.Release = uuid.Nil }))
	refusedAs(t, err, "release_missing")
}

func TestCampaignIsSteered(t *testing.T) {
	p := newPlans(t, 20)
	ctx := t.Context()
	start := p.now.Add(time.Hour)
	c := p.created(func(p *campaign.Plan) { p.StartAt = &start })
	for _, step := range []struct {
		name string
		do   func(context.Context, fleet.Principal, uuid.UUID) (campaign.Campaign, error)
		want campaign.State // "" expects wrong_state
	}{
		{"pause a draft", p.pause, ""},
		{"start", p.Start, campaign.Scheduled},
		{"pull now, not running", p.PullNow, ""},
		{"abort", p.abort, campaign.Stopping},
		{"abort again", p.abort, ""},
		{"resume what stops", p.Resume, ""},
	} {
		got, err := step.do(ctx, ana, c.ID)
		if step.want == "" {
			refusedAs(t, err, "wrong_state")
		} else if err != nil || got.State != step.want {
			t.Errorf("%s: %s, %v; want %s", step.name, got.State, err, step.want)
		}
	}

	c = p.created(func(p *campaign.Plan) { p.Supersede = true })
	c, _ = p.Start(ctx, ana, c.ID)
	if c, err := p.pause(ctx, ana, c.ID); err != nil || c.PauseReason != campaign.PausedByOperator ||
		said(c.Reason) != "lunch" {
		t.Errorf("paused: %+v, %v", c, err)
	}
	if c, err := p.Resume(ctx, ana, c.ID); err != nil || c.State != campaign.Running || !c.Reason.Is("") {
		t.Errorf("resumed: %+v, %v", c, err)
	}
	if c, err := p.Advance(ctx, ana, c.ID); err != nil || !c.Advance {
		t.Errorf("advanced: %+v, %v", c, err)
	}
	_, err := p.Rollback(ctx, ana, c.ID)
	refusedAs(t, err, "still_running")
	_, _, err = p.Retry(ctx, ana, c.ID, nil, nil)
	refusedAs(t, err, "nothing_to_retry")
	_, _, err = p.Retry(ctx, ana, c.ID, []campaign.DeploymentState{campaign.DeploymentSucceeded}, nil)
	refusedAs(t, err, "invalid_state")
}

func (p *plans) pause(ctx context.Context, by fleet.Principal, id uuid.UUID) (campaign.Campaign, error) {
	return p.Pause(ctx, by, id, "lunch")
}

func (p *plans) abort(ctx context.Context, by fleet.Principal, id uuid.UUID) (campaign.Campaign, error) {
	return p.Abort(ctx, by, id, false)
}

// settle ends deployments of the campaign as given, as the engine would.
func (p *plans) settle(c campaign.Campaign, end func(d *campaign.Deployment)) {
	p.t.Helper()
	for wave := range c.Plan.Waves {
		live, err := p.store.OpenWave(p.t.Context(), &c, wave, p.now)
		if err != nil {
			p.t.Fatal(err)
		}
		var changes []campaign.DeploymentChange
		for _, d := range live {
			end(&d)
			d.FinishedAt = &p.now
			changes = append(changes, campaign.DeploymentChange{Deployment: d,
				Events: []campaign.DeploymentEvent{{ID: uuid.Must(uuid.NewV7()),
					Deployment: d.ID, At: p.now, Kind: fleet.EvidenceBootPoll, From: campaign.DeploymentQueued, To: d.State}}})
		}
		if stale, err := p.store.SaveDeployments(p.t.Context(), changes); err != nil || len(stale) > 0 {
			p.t.Fatalf("%d stale, %v", len(stale), err)
		}
	}
}

func TestRollbackTakesEachDeviceToItsOwnBuild(t *testing.T) {
	p := newPlans(t, 6)
	ctx := t.Context()
	c := p.created()
	c, _ = p.Start(ctx, ana, c.ID)
	n := 0
	p.settle(c, func(d *campaign.Deployment) {
		if n++; n <= 4 {
			d.State, d.Booted = campaign.DeploymentSucceeded, true
		} else {
			d.State, d.Class = campaign.DeploymentFailed, campaign.FailureImage
		}
		if n == 4 {
			d.FromELF = elfOf("unknown here")
		}
	})
	c, err := p.pause(ctx, ana, c.ID)
	if err != nil {
		t.Fatal(err)
	}
	p.image("2.4.2")
	p.join(6, "2.5.0")
	back, err := p.Rollback(ctx, bo, c.ID)
	if err != nil {
		t.Fatal(err)
	}
	if back.State != campaign.Running || back.RollbackOf != c.ID || back.Targets != 3 || back.Skipped != 1 {
		t.Errorf("rollback is %+v", back)
	}
	page, err := p.Deployments(ctx, campaign.DeploymentFilter{Campaign: back.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range page.Items {
		switch {
		case d.Skip == firmware.SkipNoEarlier:
		case d.TargetELF != elfOf("2.4.2") || !d.Force:
			t.Errorf("%s goes to %.8s with force %v", d.Device, d.TargetELF, d.Force)
		}
	}
	_, err = p.Rollback(ctx, bo, c.ID)
	refusedAs(t, err, "rolled_back_already")
}
