package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fleet"

	"github.com/google/go-cmp/cmp"
)

// inWorld runs a test in a world with fake time, and holds it against what must
// never happen.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer func() {
			close(w.over)
			sleep(time.Hour) // scripts run out
			for _, bad := range w.bad {
				t.Error(bad)
			}
		}()
		test(t, w)
	})
}

// verdicts is what becomes of a device with each fault.
var verdicts = map[string]fleet.DeploymentState{
	"":                       fleet.DeploymentSucceeded,
	"cut once":               fleet.DeploymentSucceeded,
	"silent":                 fleet.DeploymentTimedOut,
	"cut":                    fleet.DeploymentFailed,
	"stalls":                 fleet.DeploymentFailed,
	"busy":                   fleet.DeploymentFailed,
	"refuses call":           fleet.DeploymentRejected,
	"refuses image":          fleet.DeploymentFailed,
	"refuses image silently": fleet.DeploymentFailed,
	"rolled back":            fleet.DeploymentRolledBack,
	"rolled back later":      fleet.DeploymentRolledBack,
	"wrong build":            fleet.DeploymentWrongBuild,
	"dead":                   fleet.DeploymentTimedOut,
	"no MQTT":                fleet.DeploymentTimedOut,
	"no poll":                fleet.DeploymentTimedOut,
	"unhealthy":              fleet.DeploymentUnhealthy,
	"unhealthy before":       fleet.DeploymentSkipped,
	"leaks":                  fleet.DeploymentUnhealthy,
	"slow":                   fleet.DeploymentSucceeded, // late

	// Devices that report on their jobs, as the included firmware does.
	"reports":             fleet.DeploymentSucceeded,
	"reports, resumes":    fleet.DeploymentSucceeded,
	"reports bad image":   fleet.DeploymentFailed,
	"reports refusal":     fleet.DeploymentRejected,
	"reports a cut":       fleet.DeploymentFailed,
	"reports rolled back": fleet.DeploymentRolledBack,
	"liar":                fleet.DeploymentTimedOut,  // says done, and did nothing
	"doomsayer":           fleet.DeploymentSucceeded, // says that it failed, and runs the image
}

func healthPlan(p *fleet.CampaignPlan) {
	p.HealthChecks = []fleet.HealthCheck{{Tool: "self.get_device_status", Retries: 1}}
	p.MinHeapPercent = 50
}

func TestEveryFaultGetsItsVerdict(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		want := map[fleet.DeviceID]fleet.DeploymentState{}
		for i, fault := range slices.Sorted(maps.Keys(verdicts)) {
			id := fleet.DeviceID(fmt.Sprintf("device%02d", i))
			w.add(id, fault)
			want[id] = verdicts[fault]
		}
		c := w.plan(healthPlan, 4, len(want)-4)
		stop := w.start()
		defer stop()
		c = w.await(c.ID, 12*time.Hour, fleet.CampaignCompletedWithErrors)
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

// story is what is on record of a deployment, for messages.
func (w *world) story(row fleet.Deployment) (lines []string) {
	for _, e := range w.store.events[row.ID] {
		lines = append(lines, fmt.Sprintf("%s %d %s %s>%s %s", e.At.Format("15:04:05"), e.Attempt, e.Kind, e.From, e.To, e.Detail))
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
		c = w.await(c.ID, 2*time.Hour, fleet.CampaignCompleted)
		if c.Wave != 2 || c.FinishedAt == nil {
			t.Errorf("ended in wave %d at %v", c.Wave, c.FinishedAt)
		}
		for _, wave := range w.store.waves[c.ID] {
			if wave.State != fleet.WaveFinished || wave.FinishedAt == nil {
				t.Errorf("wave %d is %s: %s", wave.Number, wave.State, wave.Verdict)
			}
		}
	})
}
