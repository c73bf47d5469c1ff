package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// inWorld runs a test in a world with fake time, and checks that nothing forbidden happened.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer func() {
			close(w.over)
			sleep(time.Hour) // scripts run out
			if ids := w.store.unregistered; len(ids) > 0 {
				t.Errorf("boot polls of %v were acted on before they were stored", ids)
			}
			for _, bad := range w.bad {
				t.Error(bad)
			}
		}()
		test(t, w)
	})
}

// verdicts are the expected outcomes by fault of the device.
var verdicts = map[string]campaign.DeploymentState{
	"":                       campaign.DeploymentSucceeded,
	"cut once":               campaign.DeploymentSucceeded,
	"silent":                 campaign.DeploymentTimedOut,
	"cut":                    campaign.DeploymentFailed,
	"stalls":                 campaign.DeploymentFailed,
	"busy":                   campaign.DeploymentFailed,
	"refuses call":           campaign.DeploymentRejected,
	"refuses image":          campaign.DeploymentFailed,
	"refuses image silently": campaign.DeploymentFailed,
	"rolled back":            campaign.DeploymentRolledBack,
	"rolled back later":      campaign.DeploymentRolledBack,
	"wrong build":            campaign.DeploymentWrongBuild,
	"dead":                   campaign.DeploymentTimedOut,
	"no MQTT":                campaign.DeploymentTimedOut,
	"no poll":                campaign.DeploymentTimedOut,
	"last byte late":         campaign.DeploymentSucceeded,
	"last byte late no poll": campaign.DeploymentTimedOut,
	"unhealthy":              campaign.DeploymentUnhealthy,
	"unhealthy before":       campaign.DeploymentSkipped,
	"leaks":                  campaign.DeploymentUnhealthy,
	"slow":                   campaign.DeploymentSucceeded, // late

	// Devices that report on their jobs, as the included firmware does.
	"reports":             campaign.DeploymentSucceeded,
	"reports, resumes":    campaign.DeploymentSucceeded,
	"reports bad image":   campaign.DeploymentFailed,
	"reports refusal":     campaign.DeploymentRejected,
	"reports a cut":       campaign.DeploymentFailed,
	"reports rolled back": campaign.DeploymentRolledBack,
	"liar":                campaign.DeploymentTimedOut,  // reports success, and did nothing
	"doomsayer":           campaign.DeploymentSucceeded, // reports failure, and runs the image
}

func healthPlan(p *campaign.Plan) {
	p.HealthChecks = []campaign.HealthCheck{{Tool: "self.get_device_status", Retries: 1}}
	p.MinHeapPercent = 50
}

func TestEveryFaultGetsItsVerdict(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		want := map[fleet.DeviceID]campaign.DeploymentState{}
		for i, fault := range slices.Sorted(maps.Keys(verdicts)) {
			id := fleet.DeviceID(fmt.Sprintf("device%02d", i))
			w.add(id, fault)
			want[id] = verdicts[fault]
		}
		c := w.plan(healthPlan, 4, len(want)-4)
		stop := w.start()
		defer stop()
		c = w.await(c.ID, 12*time.Hour, campaign.CompletedWithErrors)
		sleep(30 * time.Minute) // late proof comes after the end
		if diff := cmp.Diff(want, w.outcomes(c.ID)); diff != "" {
			for id, d := range w.devices {
				if want[id] != w.outcomes(c.ID)[id] {
					row := w.deployment(c.ID, id)
					t.Logf("%s, fault %q: %s %s; %+v", id, d.fault, row.State, row.Reason, w.story(row))
				}
			}
			t.Errorf("verdicts (-want +got):\n%s", diff)
		}
	})
}

// story returns the recorded events of a deployment, for messages.
func (w *world) story(row campaign.Deployment) (lines []string) {
	for _, e := range w.store.events[row.ID] {
		lines = append(lines, fmt.Sprintf("%s %d %s %s>%s %s", e.At.Format("15:04:05"), e.Attempt, e.Kind, e.From, e.To,
			e.Reason))
	}
	return lines
}

func TestWholeCampaignSucceeds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for i := range 60 {
			w.add(fleet.DeviceID(fmt.Sprintf("device%02d", i)), "")
		}
		c := w.plan(nil, 2, 18, 40)
		stop := w.start()
		defer stop()
		c = w.await(c.ID, 2*time.Hour, campaign.Completed)
		if c.Wave != 2 || c.FinishedAt == nil {
			t.Errorf("ended in wave %d at %v", c.Wave, c.FinishedAt)
		}
		for _, wave := range w.store.waves[c.ID] {
			if wave.State != campaign.WaveFinished || wave.FinishedAt == nil {
				t.Errorf("wave %d is %s: %s", wave.Number, wave.State, wave.Verdict)
			}
		}
	})
}
