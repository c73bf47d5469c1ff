package postgres_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/postgres"
)

// scaleDeployments is the number of devices in the campaigns of TestCampaignScale; without it the
// test does not run.
const scaleDeployments = "FLEETD_SCALE_DEPLOYMENTS"

// TestCampaignScale moves a campaign through its states, in a database that also holds finished
// campaigns, and times the queries of the engine and the pages.
func TestCampaignScale(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv(scaleDeployments))
	if n < 1 {
		t.Skipf("set %s=50000 to take campaigns of so many devices through their states", scaleDeployments)
	}
	ctx, r := t.Context(), newRig(t)
	ids := devices(n)
	for range 3 {
		c, all := r.campaign(ids...)
		r.walk(c, all)
	}
	var c *campaign.Campaign
	var all []campaign.Deployment
	once(t, 8*time.Second, "create the campaign", func() error {
		c, all = r.campaignOf(campaign.DeploymentPending, ids...)
		return nil
	})
	once(t, 8*time.Second, "open its wave", func() error {
		_, err := r.OpenWave(ctx, c, 0, now())
		return err
	})
	for i := range all {
		all[i].State, all[i].Revision = campaign.DeploymentQueued, 2
	}
	r.walk(c, all)

	atMost(t, 50*time.Millisecond, "progress", func() error { _, err := r.CampaignProgress(ctx, c.ID); return err })
	atMost(t, 50*time.Millisecond, "a page of deployments", func() error {
		_, err := r.Deployments(ctx, campaign.DeploymentFilter{Campaign: c.ID, Cursor: pageCursor(t, r.Store, c.ID)})
		return err
	})
	atMost(t, 50*time.Millisecond, "the failed", func() error {
		_, err := r.Deployments(ctx, campaign.DeploymentFilter{Campaign: c.ID,
			States: []campaign.DeploymentState{campaign.DeploymentTimedOut}})
		return err
	})
	device := ids[n/2]
	atMost(t, 10*time.Millisecond, "deployments of a device", func() error {
		_, err := r.DeviceDeployments(ctx, device,
			20)
		return err
	})
	atMost(t, 10*time.Millisecond, "failed attempts of a device", func() error {
		_, err := r.FailedAttempts(ctx, device, now().Add(-time.Hour))
		return err
	})
	atMost(t, 10*time.Millisecond, "offers to a device", func() error {
		_, err := r.OffersSince(ctx, ids[:1], now().Add(-time.Hour))
		return err
	})
	once(t, 2*time.Second, "conflicts of all devices", func() error {
		_, err := r.Conflicts(ctx, uuid.Nil,
			ids)
		return err
	})
	once(t, 8*time.Second, "retry all failures", func() error {
		_, err := r.Requeue(ctx, admin, c.ID, nil, nil, now())
		return err
	})
	atMost(t, time.Second, "live deployments", func() error { _, err := r.LiveDeployments(ctx); return err })
	once(t, 8*time.Second, "end all that wait", func() error {
		_, err := r.EndWaiting(ctx, c.ID, campaign.DeploymentCanceled, fleet.EvidenceCanceled,
			fleet.Because("campaign_time_up"), now(), false)
		return err
	})
	atMost(t, 50*time.Millisecond, "progress", func() error { _, err := r.CampaignProgress(ctx, c.ID); return err })
}

// walk moves deployments through a campaign in batches as the engine does, and judges the rate of
// stored changes.
func (r *rig) walk(c *campaign.Campaign, all []campaign.Deployment) {
	t := r.t
	t.Helper()
	began, longest, changes := time.Now(), time.Duration(0), 0
	timed := func(f func() error) {
		t.Helper()
		at := time.Now()
		check(t, f())
		longest = max(longest, time.Since(at))
	}
	for chunk := range slices.Chunk(all, 1000) {
		var batch []campaign.Dispatch
		for i := range chunk {
			chunk[i].Baseline = campaign.Baseline{Inventory: "9f2c", FreeHeap: 90_000, Slot: "ota_0",
				Answers: map[string]string{"0": "true"}}
			batch = append(batch, dispatch(&chunk[i]))
		}
		timed(func() error { _, err := r.DispatchDeployments(context.Background(), batch); return err })
		changes += len(batch)
	}
	for _, step := range []struct {
		kind fleet.EvidenceKind
		to   campaign.DeploymentState
	}{{fleet.EvidenceSent, campaign.DeploymentSent}, {fleet.EvidenceGet, campaign.DeploymentDownloading},
		{fleet.EvidenceDownloaded, campaign.DeploymentDownloaded},
		{fleet.EvidenceDisconnect, campaign.DeploymentRebooting}, {fleet.EvidenceBootPoll, campaign.DeploymentBooted},
		{fleet.EvidenceInitialize, campaign.DeploymentVerifying}, {fleet.EvidenceHealthy, campaign.DeploymentSucceeded}} {
		for chunk := range slices.Chunk(all, 1000) {
			var batch []campaign.DeploymentChange
			for i := range chunk {
				to := step.to
				if i%30 == 0 && to == campaign.DeploymentSucceeded {
					to, chunk[i].Class, chunk[i].Reason = campaign.DeploymentTimedOut, campaign.FailureTimeout,
						fleet.Because("never_connected")
				}
				batch = append(batch, change(&chunk[i], step.kind, to))
			}
			timed(func() error {
				stale, err := r.SaveDeployments(context.Background(), batch)
				if len(stale) > 0 {
					t.Errorf("%d stale", len(stale))
				}
				return err
			})
			changes += len(batch)
		}
	}
	rate := float64(changes) / time.Since(began).Seconds()
	t.Logf("%d changes at %.0f/s, the longest batch of 1,000 took %v", changes, rate, longest.Round(time.Millisecond))
	if rate < 3000 {
		t.Errorf("%.0f changes a second", rate)
	}
	c.State, c.FinishedAt = campaign.Completed, ptr(now())
	check(t, r.ChangeCampaign(context.Background(), admin, "", c))
	c.State, c.FinishedAt = campaign.Running, nil
	check(t, r.ChangeCampaign(context.Background(), admin, "", c))
}

func pageCursor(t *testing.T, s *postgres.Store, campaignID uuid.UUID) string {
	t.Helper()
	p, err := s.Deployments(t.Context(), campaign.DeploymentFilter{Campaign: campaignID})
	check(t, err)
	return p.Next
}

// once runs a step that cannot be repeated.
func once(t *testing.T, limit time.Duration, what string, f func() error) {
	t.Helper()
	began := time.Now()
	check(t, f())
	took := time.Since(began)
	t.Logf("%8.2f ms  %s", float64(took.Microseconds())/1000, what)
	if took > limit {
		t.Errorf("%s", fmt.Sprintf("%s takes %v, more than %v", what, took, limit))
	}
}
