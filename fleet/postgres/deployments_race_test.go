package postgres_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// In whatever order the engine, an abort and a retry run, each deployment's events form one
// unbroken chain that ends in the state of the row, and no change is lost or made twice.
func TestDeploymentsTogether(t *testing.T) {
	ctx, r := t.Context(), newRig(t)
	c, planned := r.campaign(devices(60)...)
	until := time.Now().Add(1500 * time.Millisecond)
	var wg sync.WaitGroup
	loop := func(step func()) {
		wg.Go(func() {
			for time.Now().Before(until) && !t.Failed() {
				step()
			}
		})
	}
	for range 2 {
		loop(func() {
			p, err := r.Deployments(ctx, campaign.DeploymentFilter{Campaign: c.ID, Limit: 60})
			if err != nil {
				t.Error(err)
				return
			}
			rand.Shuffle(len(p.Items), func(i, j int) { p.Items[i], p.Items[j] = p.Items[j], p.Items[i] })
			if _, err := r.SaveDeployments(ctx, randomChanges(p.Items)); err != nil {
				t.Error(err)
			}
		})
	}
	loop(func() {
		if _, err := r.EndWaiting(ctx, c.ID, campaign.DeploymentCanceled, fleet.EvidenceCanceled, fleet.Reason{}, now(),
			false); err != nil {
			t.Error(err)
		}
	})
	loop(func() {
		if _, err := r.Requeue(ctx, admin, c.ID, []campaign.DeploymentState{"canceled", "timed_out"}, nil,
			now()); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	moves := 0
	for _, d := range planned {
		events, err := r.DeploymentEvents(ctx, d.ID)
		check(t, err)
		state := campaign.DeploymentQueued
		for _, e := range events {
			if e.From != state {
				t.Fatalf("device %s: %s from %s, but it was %s", d.Device, e.Kind, e.From, state)
			}
			state = e.To
		}
		got := r.deployment(d.ID)
		if got.State != state || len(events) < 1000 && got.Revision != int64(len(events)) {
			t.Errorf("device %s is %s at revision %d; %d events end in %s", d.Device, got.State, got.Revision, len(events),
				state)
		}
		moves += len(events)
	}
	t.Logf("%d transitions", moves)
}

func randomChanges(list []campaign.Deployment) (changes []campaign.DeploymentChange) {
	to := []campaign.DeploymentState{"queued", "sent", "downloading", "timed_out"}
	for i := range list {
		if d := &list[i]; !d.State.Final() {
			next := to[rand.IntN(len(to))]
			if d.State == campaign.DeploymentDownloading {
				next = to[slices.Index(to, "timed_out")]
			}
			changes = append(changes, change(d, fleet.EvidenceTimer, next))
		}
	}
	return changes
}
