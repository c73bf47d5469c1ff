package server

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/fleettest"
)

// reported are the verdicts on devices that report on their upgrades, and the
// expected texts of their reports.
var reported = map[sim.FaultKind]struct {
	state campaign.DeploymentState
	words string
}{
	sim.FaultNoGet:           {campaign.DeploymentFailed, "the no-get fault keeps the download from starting"},
	sim.FaultCut:             {campaign.DeploymentFailed, "download ended after"},
	sim.FaultLateTrue:        {campaign.DeploymentFailed, "the late-true fault refuses the image"},
	sim.FaultRollback:        {campaign.DeploymentRolledBack, "the new image restarted before it had proved itself"},
	sim.FaultSilentAccept:    {campaign.DeploymentTimedOut, ""},
	sim.FaultWrongBuild:      {campaign.DeploymentWrongBuild, ""},
	sim.FaultPollWithoutMQTT: {campaign.DeploymentTimedOut, ""},
	sim.FaultMQTTWithoutPoll: {campaign.DeploymentTimedOut, ""},
}

// TestCampaignOverReportingFleet runs a campaign over devices that report their
// progress and their failures, over real sockets and a real database. The
// verdicts come from observations; the texts come from the devices.
func TestCampaignOverReportingFleet(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a minute")
	}
	s := startTestServer(t, func(c *Config) { c.timers, c.engineTick = quickTimers, 50*time.Millisecond })
	fleetOf := startSim(t, s, 90, "4%", "--reports")
	c := runCampaign(t, s, campaign.Plan{Name: "reporting", Release: releaseForSim(t, s, "2.5.0").ID, MaxInFlight: 50,
		MaxAttempts: 2,
		Waves:       []campaign.WavePlan{{Name: "all", Percent: 100, SuccessPercent: 10, MinSample: 1, Soak: time.Second}},
		AbortRules: []campaign.AbortRule{{Class: campaign.ClassAny, MinExecuted: 90, Percent: 100,
			Scope: campaign.ScopeCampaign, Action: campaign.AbortPause}}})
	words := func(id fleet.DeviceID) (campaign.Deployment, string) {
		d, err := s.Campaigns.Deployment(t.Context(), c.ID, id)
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		if campaign.ReportedByDevice(d.Reason) {
			said, _ = d.Reason.Params["detail"].(string)
		}
		return d, said
	}
	var good fleet.DeviceID
	seen := map[sim.FaultKind]int{}
	for i := range fleetOf.Len() {
		device := fleetOf.Device(i)
		id, err := fleet.ParseDeviceID(device.ID())
		if err != nil {
			t.Fatal(err)
		}
		d, said := words(id)
		switch faults := device.Faults(); len(faults) {
		case 0:
			good = id
			if d.State != campaign.DeploymentSucceeded || d.Percent == nil || *d.Percent != 100 || d.Attempt != 1 {
				t.Errorf("%s ended %s (%s) at %v in attempt %d", id, d.State, d.Reason, d.Percent, d.Attempt)
			}
		case 1:
			want := reported[faults[0]]
			seen[faults[0]]++
			if want.words != "" { // the report of a device that rolled back arrives after the verdict
				fleettest.EventuallyWithin(t, time.Minute, "the words of "+string(id), func() bool {
					d, said = words(id)
					return said != "" ||
						t.Failed()
				})
			}
			if d.State != want.state || !strings.HasPrefix(said, want.words) || want.words != "" && said == "" {
				events, _ := s.Campaigns.DeploymentEvents(t.Context(), d.ID)
				t.Errorf("%s with %v: %s (%s), want %s and %q; %v", id, faults, d.State, d.Reason, want.state, want.words, events)
			}
		}
	}
	t.Logf("faults seen: %v", seen)
	if len(seen) < len(reported)/2 {
		t.Errorf("of %d faults only %v were seen", len(reported), seen)
	}
	jobs, err := s.store.DeviceJobs(t.Context(), good, 10)
	if err != nil || len(jobs) != 1 || jobs[0].Deployment == uuid.Nil || jobs[0].State != fleet.JobDone {
		t.Errorf("jobs of %s: %+v, %v", good, jobs, err)
	}
}

// runCampaign starts a campaign and waits for its end.
func runCampaign(t *testing.T, s *testServer, plan campaign.Plan) campaign.Campaign {
	t.Helper()
	ctx := t.Context()
	c, err := s.Campaigns.Create(ctx, testOperator, plan)
	if err == nil {
		c, err = s.Campaigns.Start(ctx, testOperator, c.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	fleettest.EventuallyWithin(t, 5*time.Minute, "the end of the campaign", func() bool {
		if c, err = s.Campaigns.Campaign(ctx, c.ID); err != nil {
			t.Fatal(err)
		}
		if c.State == campaign.Paused {
			t.Fatalf("paused: %s, %s", c.PauseReason, c.Reason)
		}
		return c.State.Final()
	})
	return c
}
