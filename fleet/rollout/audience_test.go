package rollout_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/rollout"
)

func TestContinuousCampaignTakesNewDevicesUpToItsCap(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(3, nil)
		release := uuid.New()
		w.store.releases[release] = firmware.Release{ID: release, Version: "2.0.1", State: firmware.ReleaseReleased,
			Images: []firmware.Image{w.store.images[imageSHA]}}
		end := time.Now().Add(6 * time.Hour)
		c := w.plan(func(p *campaign.Plan) {
			p.Release, p.Continuous, p.MaxDevices, p.EndAt = release, true, 5, &end
		}, 3)
		stop := w.start()
		defer stop()
		sleep(time.Hour)
		w.store.mu.Lock()
		for _, id := range []fleet.DeviceID{"new1", "new2", "new3"} {
			w.mu.Lock()
			w.add(id, "")
			w.mu.Unlock()
		}
		w.store.mu.Unlock()
		sleep(time.Hour)
		if n := w.count(c.ID, campaign.DeploymentSucceeded); n != 5 {
			t.Errorf("%d devices updated, want 3 and 2 more: %v", n, w.outcomes(c.ID))
		}
		c = w.await(c.ID, 6*time.Hour, campaign.Completed)
		if !c.FinishedAt.After(end.Add(-time.Minute)) {
			t.Errorf("a continuous campaign was over at %v, before its end %v", c.FinishedAt, end)
		}
	})
}

func TestRetiredDevicesAreRemoved(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(2, nil)
		c := w.plan(nil, 2)
		stop := w.start()
		defer stop()
		sleep(8 * time.Second)
		w.current().Observe(rollout.OfRetirement("device000"))
		w.await(c.ID, time.Hour, campaign.Completed)
		if got := w.outcomes(c.ID)["device000"]; got != campaign.DeploymentRemoved {
			t.Errorf("the retired device ended %s", got)
		}
	})
}

// A device that no longer fits when its turn comes is not notified.
func TestFitIsJudgedAgainBeforeTheDispatch(t *testing.T) {
	tests := []struct {
		want   firmware.SkipReason
		change func(w *world, d *fleet.Device)
	}{
		{firmware.SkipHeld, func(_ *world, d *fleet.Device) { d.Hold = &fleet.Hold{Reason: "demo"} }},
		{firmware.SkipInstalled, func(_ *world, d *fleet.Device) { d.ELFSHA256 = newELF }},
		{firmware.SkipRetired, func(_ *world, d *fleet.Device) { now := time.Now(); d.RetiredAt = &now }},
		{firmware.SkipTooLarge, func(_ *world, d *fleet.Device) { d.Layout = &fleet.FlashLayout{SlotSize: 1000} }},
		{firmware.SkipQuarantined, func(w *world, d *fleet.Device) {
			w.store.quarantines[d.ID] = campaign.Quarantine{Device: d.ID, Until: time.Now().Add(time.Hour)}
		}},
	}
	for _, tt := range tests {
		t.Run(string(tt.want), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.fill(2, nil)
				c := w.plan(nil, 2)
				d := w.store.devices["device000"]
				tt.change(w, &d)
				w.store.devices["device000"] = d
				stop := w.start()
				defer stop()
				w.await(c.ID, time.Hour, campaign.Completed)
				if row := w.deployment(c.ID, "device000"); row.State != campaign.DeploymentSkipped || row.Skip != tt.want ||
					row.Attempt != 0 {
					t.Errorf("ended %s, %s, after %d attempts", row.State, row.Skip, row.Attempt)
				}
			})
		})
	}
}

// A device that lacks a required tool after the upgrade is unhealthy.
func TestToolsThatMustStay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(2, func(i int) string { return []string{"", "loses a tool"}[i] })
		c := w.plan(func(p *campaign.Plan) { p.ForbidRemoved = []string{"*"} }, 2)
		stop := w.start()
		defer stop()
		w.await(c.ID, time.Hour, campaign.CompletedWithErrors)
		a, b := w.deployment(c.ID, "device000"), w.deployment(c.ID, "device001")
		if a.State != campaign.DeploymentSucceeded || b.State != campaign.DeploymentUnhealthy {
			t.Errorf("%s and %s (%s), want succeeded and unhealthy", a.State, b.State, b.Reason)
		}
	})
}
