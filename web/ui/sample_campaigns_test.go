package ui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/forms"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

var (
	berta   = fleet.Principal{Kind: fleet.KindOperator, Name: "berta", Role: fleet.RoleOperator}
	sampler = uuid.MustParse("01985f2e-7a00-7000-8000-00000000c0de")
)

// campaignSamples are the pages of campaigns in the important states.
var campaignSamples = []sample{
	{"campaigns-0", "/campaigns", ui.CampaignsPage{List: list("/campaigns", ""), CanAct: true}.Page(), false},
	{"campaigns", "/campaigns", campaignsPage(), false},
	{"campaigns-none", "/campaigns?state=draft", ui.CampaignsPage{List: list("/campaigns", "state=draft"),
		CanAct: true}.Page(), false},
	{"campaign-draft", "/campaigns/x", board(campaign.Draft, 0), false},
	{"campaign-approval", "/campaigns/x", board(campaign.AwaitingApproval, 0), false},
	{"campaign-approval-own", "/campaigns/x", ownApproval(), false},
	{"campaign-running", "/campaigns/x", board(campaign.Running, 4312), false},
	{"campaign-soaking", "/campaigns/x", soaking(), false},
	{"campaign-50000", "/campaigns/x", board(campaign.Running, 50_000), false},
	{"campaign-gate", "/campaigns/x", board(campaign.Paused, 43), false},
	{"campaign-threshold", "/campaigns/x", failing(), false},
	{"campaign-done", "/campaigns/x", board(campaign.CompletedWithErrors, 37), false},
	{"campaign-new", "/campaigns/new", wizard(0), false},
	{"campaign-new-run", "/campaigns/new?f=1", wizard(1), false},
	{"campaign-new-bad", "/campaigns/new?f=1", wizard(2), false},
	{"campaign-new-open", "/campaigns/new?f=1&open=1", wizard(4), false},
	{"campaign-edit-running", "/campaigns/x/edit", wizard(3), false},
	{"campaign-devices", "/campaigns/x/devices", deploymentsPage(), false},
	{"campaign-device-waiting", "/campaigns/x/devices/a", deploymentPage(campaign.DeploymentQueued), false},
	{"campaign-device-downloading", "/campaigns/x/devices/a", deploymentPage(campaign.DeploymentDownloading), false},
	{"campaign-device-rolled-back", "/campaigns/x/devices/a", deploymentPage(campaign.DeploymentRolledBack), false},
	{"campaign-device-succeeded", "/campaigns/x/devices/a", deploymentPage(campaign.DeploymentSucceeded), false},
}

func init() { samples = append(samples, campaignSamples...) }

func sampleRelease(version string) firmware.Release {
	r := firmware.Release{ID: uuid.NewSHA1(uuid.Nil, []byte(version)), Version: version, State: firmware.ReleaseReleased,
		Notes: "Better echo cancellation; fixes the reboot at midnight.", CreatedAt: now}
	for i, board := range boards[:3] {
		r.Images = append(r.Images, firmware.Image{SHA256: strings.Repeat(fmt.Sprintf("%02x9a", i+3), 16), Size: 2_731_008 +
			int64(i)*90_112, Board: board, Chip: "esp32s3", Version: version})
	}
	return r
}

func samplePlan(name string) campaign.Plan {
	return campaign.Plan{
		Name: name, Release: sampleRelease("2.4.3").ID, Query: "board:bread-compact-wifi,esp-box-3 -hold",
		Mode: firmware.ModeAuto,
		Waves: []campaign.WavePlan{
			{Name: "Canary", Percent: 1, SuccessPercent: 100, MinSample: 1, Soak: 10 * time.Minute, Gate: campaign.GateManual},
			{Name: "Early", Percent: 10, SuccessPercent: 98, MinSample: 5, Soak: 2 * time.Minute, Gate: campaign.GateAuto},
			{Name: "Everyone", Percent: 100, SuccessPercent: 95, MinSample: 10, Soak: 2 * time.Minute, Gate: campaign.GateAuto},
		},
		AbortRules: []campaign.AbortRule{
			{Class: "rolled_back", MinExecuted: 1, Scope: campaign.ScopeWave, Wave: 1, Action: campaign.AbortPause},
			{Class: campaign.ClassAny, MinExecuted: 5, Percent: 10, Scope: campaign.ScopeCampaign, Action: campaign.AbortPause},
			{Class: campaign.ClassAny, MinExecuted: 20, Percent: 25, Scope: campaign.ScopeBoard,
				Action: campaign.AbortAndRollback},
		},
		MaxInFlight: 64, MaxPerMinute: 200, Windows: []campaign.Window{{Cron: "0 2 * * *", Duration: 3 * time.Hour,
			TimeZone: campaign.DeviceZone}},
		EndBehavior: campaign.EndStopRollout, MinHeapPercent: 50, MaxReconnects: 3, MaxAttempts: 3,
		ForbidRemoved: []string{"self.reboot"},
		HealthChecks: []campaign.HealthCheck{{Tool: "self.get_device_status", Retries: 2, Assert: []campaign.Assertion{
			{Path: "$.audio_speaker.volume", Op: "unchanged"}, {Path: "$.network.signal", Op: "ne",
				Value: json.RawMessage(`"weak"`)}}}},
	}
}

func sampleCampaign(state campaign.State, name string, targets int) campaign.Campaign {
	c := campaign.Campaign{ID: sampler, Plan: samplePlan(name), State: state, Digest: "sha256:" + strings.Repeat("4e", 32),
		Targets: targets, Skipped: 41,
		CreatedBy: berta, CreatedAt: now.Add(-3 * time.Hour), EditedBy: berta, EditedAt: now.Add(-2 * time.Hour)}
	switch state {
	case campaign.Draft, campaign.AwaitingApproval, campaign.Denied, campaign.Discarded:
		return c
	}
	c.StartedAt, c.StartedBy = ago(47*time.Minute), &anna
	c.Approval = &campaign.Approval{By: anna, At: now.Add(-48 * time.Minute), Digest: c.Digest}
	if state.Final() {
		c.FinishedAt = ago(time.Minute)
	}
	return c
}

// sampleTally distributes n deployments over the states, a part of them done.
func sampleTally(n, percentDone int, failing bool) map[campaign.DeploymentState]int {
	done := n * percentDone / 100
	failed := done * 3 / 100
	if failing {
		failed = done * 40 / 100
	}
	m := map[campaign.DeploymentState]int{campaign.DeploymentSucceeded: done - failed,
		campaign.DeploymentRolledBack: failed / 3,
		campaign.DeploymentTimedOut:   failed / 4, campaign.DeploymentFailed: failed - failed/3 - failed/4}
	rest := n - done
	for _, s := range []campaign.DeploymentState{campaign.DeploymentDownloading, campaign.DeploymentVerifying,
		campaign.DeploymentRebooting, campaign.DeploymentSent} {
		k := min(rest, 4+n/400)
		m[s] += k
		rest -= k
	}
	m[campaign.DeploymentQueued] = rest
	return m
}

func sampleBoard(state campaign.State, name string, targets int) ui.CampaignBoard {
	c := sampleCampaign(state, name, max(targets, 37))
	rel := sampleRelease("2.4.3")
	v := ui.CampaignBoard{Compare: comparison("updated"), Campaign: c, Release: &rel, Viewer: anna, CanAct: true, From: now.Truncate(time.Minute).Add(
		-59 * time.Minute), To: now.Truncate(time.Minute).Add(time.Minute)}
	sizes := []int{max(1, c.Targets/100), c.Targets / 10, c.Targets - c.Targets/10 - max(1, c.Targets/100)}
	states := []campaign.WaveState{campaign.WaveFinished, campaign.WaveFinished, campaign.WaveRunning}
	done := []int{100, 100, 55}
	v.Campaign.Wave = 2
	if targets == 0 {
		states, done, v.Campaign.Wave = []campaign.WaveState{campaign.WavePending, campaign.WavePending,
			campaign.WavePending}, []int{0, 0, 0}, 0
	}
	if state.Final() {
		states, done = []campaign.WaveState{campaign.WaveFinished, campaign.WaveFinished, campaign.WaveFailed},
			[]int{100, 100, 100}
	}
	if state == campaign.Paused {
		v.Campaign.PauseReason, v.Campaign.Wave = campaign.PausedByGate, 0
		states, done = []campaign.WaveState{campaign.WaveGated, campaign.WavePending, campaign.WavePending}, []int{100, 0, 0}
	}
	v.Waves, v.Progress = waves(c, sizes, states), progress(sizes, states, done, state.Final())
	if state == campaign.Running {
		for i := range 5 {
			v.Downloads = append(v.Downloads, ui.Download{Device: device(i).ID, Sent: int64(i*490_000 + 120_000),
				Total: 2_731_008, Since: ago(40 * time.Second)})
		}
	}
	return v
}

func waves(c campaign.Campaign, sizes []int, states []campaign.WaveState) (all []campaign.Wave) {
	for i, p := range c.Plan.Waves {
		w := campaign.Wave{Campaign: c.ID, Number: i, Plan: p, Size: sizes[i], State: states[i]}
		if states[i] == campaign.WaveFailed {
			w.Verdict = legacy("87.5% of 32 succeeded; 95% were needed")
		}
		all = append(all, w)
	}
	return all
}

func progress(sizes []int, states []campaign.WaveState, done []int, failing bool) campaign.Progress {
	p := campaign.Progress{ByState: map[campaign.DeploymentState]int{},
		ByBoard: map[string]map[campaign.DeploymentState]int{}, Reached: map[campaign.FunnelStep]int{}, Late: 2,
		Skipped: []firmware.Misfits{{Reason: firmware.SkipInstalled, Board: boards[0], Count: 30},
			{Reason: firmware.SkipInstalled, Count: 3}, {Reason: firmware.SkipPartitions, Board: boards[1], Count: 5},
			{Reason: firmware.SkipHeld, Board: boards[0], Count: 3}}}
	for i, n := range sizes {
		m := map[campaign.DeploymentState]int{campaign.DeploymentPending: n}
		if states[i] != campaign.WavePending {
			m = sampleTally(n, done[i], failing)
		}
		p.ByWave = append(p.ByWave, m)
		for s, k := range m {
			p.ByState[s] += k
		}
	}
	for i, b := range boards[:3] {
		m := map[campaign.DeploymentState]int{}
		for s, k := range p.ByState {
			m[s] = k / (i + 2)
		}
		p.ByBoard[b] = m
	}
	by := p.ByState
	p.Cohorts = campaign.Cohorts{Size: by[campaign.DeploymentSucceeded] + by[campaign.DeploymentVerifying]}
	for _, state := range campaign.DeploymentStates {
		for range by[state] {
			if state.Failed() {
				p.Cohorts.Size++
				p.Cohorts.Failures = append(p.Cohorts.Failures, campaign.CohortFailure{State: state,
					InCampaign: p.Cohorts.Size, InWave: p.Cohorts.Size, InBoard: p.Cohorts.Size})
			}
		}
	}
	p.Cohorts.ByWave = map[int]int{0: p.Cohorts.Size}
	p.Reached = map[campaign.FunnelStep]int{campaign.FunnelPlanned: by[campaign.DeploymentPending] +
		by[campaign.DeploymentQueued], campaign.FunnelNotified: by[campaign.DeploymentSent] + by[campaign.DeploymentTimedOut],
		campaign.FunnelGet:        by[campaign.DeploymentDownloading] + by[campaign.DeploymentFailed],
		campaign.FunnelGoodbye:    by[campaign.DeploymentRebooting],
		campaign.FunnelBootPoll:   by[campaign.DeploymentRolledBack],
		campaign.FunnelInitialize: by[campaign.DeploymentVerifying],
		campaign.FunnelSucceeded:  by[campaign.DeploymentSucceeded]}
	for i := len(campaign.FunnelSteps) - 2; i >= 0; i-- { // a later step includes the earlier ones
		p.Reached[campaign.FunnelSteps[i]] += p.Reached[campaign.FunnelSteps[i+1]]
	}
	sample := []fleet.DeviceID{device(1).ID, device(2).ID, device(3).ID}
	for _, g := range []campaign.FailureGroup{{State: campaign.DeploymentFailed, Class: campaign.FailureDownload,
		Reason: legacy("the transfer ended after 812,032 of 2,731,008 bytes"), Sample: sample},
		{State: campaign.DeploymentRolledBack, Class: campaign.FailureRolledBack, Reason: legacy(hostile[2]), Sample: sample},
		{State: campaign.DeploymentTimedOut, Class: campaign.FailureTimeout,
			Reason: legacy("no boot poll within 10 min of the last byte"), Sample: sample}} {
		if g.Count = by[g.State]; g.Count > 0 {
			p.Failures = append(p.Failures, g)
		}
	}
	for i := range 47 {
		p.Rate = append(p.Rate, campaign.RateBucket{At: now.Truncate(time.Minute).Add(time.Duration(i-46) * time.Minute),
			Succeeded: 30 + i*i%17, Failed: i % 5 / 3})
	}
	return p
}

func board(state campaign.State, targets int) templ.Component {
	return sampleBoard(state, "Echo fix for the lobby 🦊", targets).Page()
}

func ownApproval() templ.Component {
	v := sampleBoard(campaign.AwaitingApproval, hostile[2], 0)
	v.Viewer = berta
	return v.Page()
}

func failing() templ.Component {
	v := sampleBoard(campaign.Paused, "春季升级 · spring", 412)
	v.Campaign.PauseReason, v.Campaign.Reason = campaign.PausedByThreshold,
		legacy("rolled_back: 2 of 4 in wave 1 (rule: the first, of at least 1)")
	v.Waves[0].State, v.Waves[0].Verdict = campaign.WaveRunning, fleet.Reason{}
	v.Progress = progress([]int{40, 41, 331}, []campaign.WaveState{campaign.WaveRunning, campaign.WavePending,
		campaign.WavePending}, []int{60, 0, 0}, true)
	v.Waves[0].Size = 40
	return v.Page()
}

// soaking returns a wave in which every device runs its image and soaks.
func soaking() templ.Component {
	v := sampleBoard(campaign.Running, "Echo fix for the lobby 🦊", 412)
	v.Campaign.Wave = 1
	v.Waves[1].State, v.Waves[2].State = campaign.WaveSoaking, campaign.WavePending
	v.Progress = progress([]int{4, 41, 367}, []campaign.WaveState{campaign.WaveFinished, campaign.WaveSoaking,
		campaign.WavePending}, []int{100, 60, 0}, false)
	v.Progress.SoakUntil = []time.Time{{}, time.Now().Add(4*time.Minute + 12*time.Second), {}}
	v.Downloads = nil
	return v.Page()
}

func campaignsPage() templ.Component {
	v := ui.CampaignsPage{List: list("/campaigns", ""), CanAct: true, Next: "n"}
	for i, s := range campaign.States {
		c := sampleCampaign(s, names[i%len(names)]+" "+string(s), 40*(i*i*i+1))
		c.ID = uuid.NewSHA1(uuid.Nil, []byte(s))
		c.Wave = i % 3
		if s == campaign.Paused {
			c.PauseReason = campaign.PausedByThreshold
		}
		row := ui.CampaignRow{Campaign: c, Version: "2.4.3", Waves: 3, Tally: ui.NewCampaignTally(sampleTally(c.Targets, i*9,
			i%3 == 2))}
		if i == 5 {
			row.Version = ""
		}
		v.Rows = append(v.Rows, row)
	}
	return v.Page()
}

func wizard(step int) templ.Component {
	return late(func(ctx context.Context) templ.Component {
		v := ui.CampaignNewPage{Form: forms.NewPlan(url.Values{}, time.UTC),
			Releases: []firmware.Release{sampleRelease("2.4.3"), sampleRelease("2.4.2")},
			Tools:    tools, Zones: []string{"UTC", "Asia/Shanghai"}}
		if step == 0 {
			v.Plan = campaign.DefaultPlan()
			return v.Page()
		}
		v.Plan = samplePlan("Echo fix for the lobby 🦊")
		v.Form = forms.FillPlan(v.Plan, time.UTC)
		v.Run = sampleRun()
		switch step {
		case 2:
			v.Form.Values["wave.soak"][1] = "soon"
			v.Form.Values["wave.size"][2] = "all"
			v.Form.Read()
			v.Run, v.Problem = nil, i18n.Mark("wave 2: the percentage is smaller than that of the wave before")
		case 3:
			c := sampleCampaign(campaign.Running, "Echo fix", 40)
			v.Campaign, v.Run = &c, nil
		case 4:
			v.Form.Set("open", "1")
		}
		return v.Page()
	})
}

func sampleRun() *campaign.DryRun {
	first := now.Add(9 * time.Hour)
	rel := sampleRelease("2.4.3")
	ids := []fleet.DeviceID{device(1).ID, device(2).ID, device(3).ID, device(4).ID}
	run := &campaign.DryRun{Matched: 4353, Targets: 4312, Offline: 120, FirstDispatch: &first, Estimate: 95 * time.Minute,
		Digest: "sha256:" + strings.Repeat("4e", 32),
		Skipped: []firmware.Misfits{{Reason: firmware.SkipInstalled, Board: boards[0], Count: 30, Sample: ids},
			{Reason: firmware.SkipInstalled, Board: boards[1], Count: 2, Sample: ids[:2]},
			{Reason: firmware.SkipInstalled, Count: 1, Sample: ids[3:]},
			{Reason: firmware.SkipTooLarge, Detail: fleet.Because(firmware.FitSlot, "slot_kib", 1536, "image_kib", 2667), Count: 5, Sample: ids},
			{Reason: firmware.SkipHeld, Count: 3, Sample: ids[:3]}},
		Conflicts: []campaign.PlannedConflict{{Campaign: sampler, Name: hostile[2], Waiting: 12, Active: 2, Sample: ids}},
		Warnings:  []campaign.PlanWarning{{Code: "unsigned"}, {Code: "no_such_code", Detail: "Something new to think of."}}}
	for i, w := range samplePlan("").Waves {
		run.Waves = append(run.Waves, campaign.PlannedWave{WavePlan: w, Size: []int{43, 388, 3881}[i],
			ByBoard: []fleet.DeviceCount{{Value: boards[0], Count: 30}, {Value: boards[1], Count: 10}, {Value: "", Count: 3}},
			Sample:  ids})
	}
	for _, img := range rel.Images {
		run.Images = append(run.Images, campaign.PlannedImage{Image: img, Count: 1437})
	}
	return run
}

func sampleDeployment(i int, s campaign.DeploymentState) campaign.Deployment {
	d := campaign.Deployment{ID: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, "d", i)), Campaign: sampler, Device: device(i).ID,
		Board: device(i).Board, Wave: i % 3, State: s,
		Image: strings.Repeat("9a", 32), ImageSize: 2_731_008, TargetELF: strings.Repeat("b2", 32), ToVersion: "2.4.3",
		FromELF: strings.Repeat("c7", 32), FromVersion: device(i).Version,
		Attempt: 1, BytesSent: 1_612_032, UpdatedAt: now.Add(-time.Duration(i*i) * 7 * time.Second)}
	switch {
	case s == campaign.DeploymentSkipped:
		d.Wave, d.Attempt, d.Skip = -1, 0, firmware.SkipTooLarge
	case s == campaign.DeploymentRolledBack:
		d.Class, d.Attempt, d.Reason = campaign.FailureRolledBack, 2,
			legacy("came back with the earlier build 14 s after it had booted the new one")
	case s.Failed():
		d.Class, d.Reason = campaign.FailureDownload, legacy(hostile[i%len(hostile)])
	case s == campaign.DeploymentQueued:
		d.NotBefore = ago(-4 * time.Minute)
	case s == campaign.DeploymentSucceeded:
		d.Late = i%5 == 1
	case s == campaign.DeploymentDownloading && i%2 == 0: // a device that reports progress
		percent := 55
		d.Percent = &percent
	}
	return d
}

func deploymentsPage() templ.Component {
	c := sampleCampaign(campaign.Running, "Echo fix", 4312)
	v := ui.DeploymentsPage{Campaign: c, List: list("/campaigns/x/devices", "state=active"), Boards: boards, CanAct: true,
		Next: "n",
		Waves: waves(c, []int{1, 2, 3}, []campaign.WaveState{campaign.WaveFinished, campaign.WaveRunning,
			campaign.WavePending})}
	for i, s := range campaign.DeploymentStates {
		v.Rows = append(v.Rows, ui.DeploymentRow{Deployment: sampleDeployment(i, s), Name: names[i%len(names)]})
	}
	return v.Page()
}

func deploymentPage(s campaign.DeploymentState) templ.Component {
	d := sampleDeployment(2, s)
	v := ui.DeploymentView{Campaign: sampleCampaign(campaign.Running, "Echo fix", 4312), Deployment: d, Name: names[2],
		CanAct: true}
	kinds := []struct {
		kind     fleet.EvidenceKind
		detail   string
		from, to campaign.DeploymentState
	}{
		{fleet.EvidencePlanned, "", "", campaign.DeploymentPending}, {fleet.EvidenceWaveOpened, "wave 2",
			campaign.DeploymentPending, campaign.DeploymentQueued},
		{fleet.EvidenceDispatched, "", campaign.DeploymentQueued, campaign.DeploymentDispatching},
		{fleet.EvidenceSent, "id 1207", campaign.DeploymentDispatching, campaign.DeploymentSent},
		{fleet.EvidenceGet, "192.168.4.27", campaign.DeploymentSent, campaign.DeploymentDownloading},
		{fleet.EvidenceDownloaded, "2,731,008 bytes", campaign.DeploymentDownloading, campaign.DeploymentDownloaded},
		{fleet.EvidenceDisconnect, "", campaign.DeploymentDownloaded, campaign.DeploymentRebooting},
		{fleet.EvidenceBootPoll, "2.4.3, ota_1", campaign.DeploymentRebooting, campaign.DeploymentBooted},
		{fleet.EvidenceInitialize, "11 tools", campaign.DeploymentBooted, campaign.DeploymentVerifying},
		{fleet.EvidenceHealthy, "", campaign.DeploymentVerifying, campaign.DeploymentSucceeded},
	}
	n := map[campaign.DeploymentState]int{campaign.DeploymentQueued: 2, campaign.DeploymentDownloading: 5,
		campaign.DeploymentRolledBack: 8, campaign.DeploymentSucceeded: 10}[s]
	at := now.Add(-9 * time.Minute)
	for i, k := range kinds[:n] {
		at = at.Add(time.Duration(i*i*731) * time.Millisecond)
		attempt := 1
		if i < 2 {
			attempt = 0
		}
		v.Events = append(v.Events, campaign.DeploymentEvent{At: at, Attempt: attempt, Kind: k.kind, Reason: legacy(k.detail),
			From: k.from, To: k.to})
	}
	switch s {
	case campaign.DeploymentQueued:
		v.Deployment.Attempt = 0
		v.BlockReason, v.Until = campaign.BlockWindow, ago(-5*time.Hour)
	case campaign.DeploymentRolledBack:
		v.Events = append(v.Events, campaign.DeploymentEvent{At: at.Add(14 * time.Second), Attempt: 1,
			Kind: fleet.EvidenceBootPoll, Reason: legacy("2.4.2, ota_0"),
			From: campaign.DeploymentBooted, To: s})
		v.Quarantine = &campaign.Quarantine{Device: d.Device, Reason: legacy("three failed attempts"), Since: now,
			Until: now.Add(23 * time.Hour)}
	}
	return ui.DeploymentPage{View: v, CanAct: true}.Page()
}
