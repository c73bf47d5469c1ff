package rollout_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
)

// register returns the current rights of principals, by name; unknown principals keep their rights.
type register struct {
	mu  sync.Mutex
	now map[string]fleet.Principal
}

func (r *register) set(name string, p fleet.Principal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil {
		r.now = map[string]fleet.Principal{}
	}
	r.now[name] = p
}

func (r *register) PrincipalNow(_ context.Context, p fleet.Principal) (fleet.Principal, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, known := r.now[p.Name]
	switch {
	case !known:
		return p, nil
	case now.Name == "":
		return p, fleet.ActorGone(p)
	}
	return now, nil
}

func scoped(t testing.TB, filter string) fleet.Principal {
	scope, err := fleet.NewScope(filter, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	p := asker
	p.Scope = scope
	return p
}

func (w *world) setDevice(id fleet.DeviceID, change func(*fleet.Device)) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	d := w.store.devices[id]
	change(&d)
	w.store.devices[id] = d
}

// If the maker of a running campaign is revoked, deployments in flight end and no further
// device is notified. The campaign continues for the operator who takes it over.
func TestCampaignPausesWhenItsMakerIsGone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(6, nil)
		c := w.plan(nil, 2, 4)
		stop := w.start()
		defer stop()
		sleep(8 * time.Second)
		w.rights.set("ana", fleet.Principal{})
		c = w.await(c.ID, time.Hour, campaign.Paused)
		if c.PauseReason != campaign.PausedBySystem || !c.Reason.Is("actor_gone") {
			t.Errorf("paused by %s: %s", c.PauseReason, c.Reason)
		}
		sleep(2 * time.Hour)
		done, waiting := w.count(c.ID, campaign.DeploymentSucceeded), w.count(c.ID, campaign.DeploymentPending)
		if done != 2 || waiting != 4 {
			t.Errorf("%d done, %d wait, want the 2 in flight done: %v", done, waiting, w.outcomes(c.ID))
		}
		bo := asker
		bo.Name = "bo"
		w.edit(c.ID, func(c *campaign.Campaign) {
			c.State, c.PauseReason, c.Reason, c.TakenOverBy = campaign.Running, "", fleet.Reason{}, &bo
		})
		w.await(c.ID, time.Hour, campaign.Completed)
	})
}

// A device that leaves the scope of the campaign's maker is skipped: before its wave opens, and
// while it waits for its turn.
func TestDevicesThatLeaveTheScopeAreLeftOut(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(4, nil)
		for _, id := range w.ids() {
			w.setDevice(id, func(d *fleet.Device) { d.Tags = []string{"lab"} })
		}
		c := w.plan(func(p *campaign.Plan) { p.MaxInFlight = 1 }, 2, 2)
		c.EditedBy = scoped(t, "tag:lab")
		w.store.campaigns[c.ID] = c
		stop := w.start()
		defer stop()
		sleep(4 * time.Second)
		left := []fleet.DeviceID{"device001", "device003"} // queued, and in the wave to come
		for _, id := range left {
			w.setDevice(id, func(d *fleet.Device) { d.Tags = nil })
		}
		w.await(c.ID, 3*time.Hour, campaign.Completed)
		for _, id := range left {
			if d := w.deployment(c.ID, id); d.State != campaign.DeploymentSkipped || d.Skip != firmware.SkipOutOfScope ||
				!d.Reason.Is("out_of_scope") || d.Attempt != 0 {
				t.Errorf("%s ended %s, %s (%s) after %d attempts", id, d.State, d.Skip, d.Reason, d.Attempt)
			}
		}
	})
}

// Regardless of its query, a continuous campaign stays within the filter of its maker: it makes
// no deployment and no call outside it.
func TestContinuousCampaignsStayWithinTheirMakersFilter(t *testing.T) {
	updated := 0
	rapid.Check(t, func(rt *rapid.T) {
		filter, query := fleettest.Query(rt, "filter", true).Text, fleettest.Query(rt, "query", false).Text
		n, bad := continuousWithin(t, filter, query)
		if len(bad) > 0 {
			rt.Fatalf("%q within %q: %v", query, filter, bad)
		}
		updated += n
	})
	if updated < 10 {
		t.Errorf("only %d devices were updated by all of these: the test says little", updated)
	}
}

// continuousWithin runs such a campaign, and returns the number of updated devices and the
// actions outside the filter.
func continuousWithin(t *testing.T, filter, query string) (updated int, bad []string) {
	t.Helper()
	maker := scoped(t, filter)
	within := maker.Within(fleet.RoleOperator)
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(5, nil)
		for i, id := range w.ids() {
			w.setDevice(id, func(d *fleet.Device) {
				d.Name = []string{"x tag:lab y", "front", "äb c"}[i%3]
				if i < 2 {
					d.Tags = []string{"lab"}
				}
			})
		}
		w.watch = func(r call.Request) {
			w.store.mu.Lock()
			defer w.store.mu.Unlock()
			if d := w.store.devices[r.Device]; !within.Covers(d) {
				bad = append(bad, fmt.Sprintf("%s of %s", r.Tool, r.Device))
			}
		}
		release := uuid.New()
		w.store.releases[release] = firmware.Release{ID: release, Version: "2.0.1", State: firmware.ReleaseReleased,
			Images: []firmware.Image{w.store.images[imageSHA]}}
		end := time.Now().Add(2 * time.Hour)
		c := w.plan(func(p *campaign.Plan) {
			p.Release, p.Continuous, p.MaxDevices, p.EndAt = release, true, 100, &end
			p.Query, p.Within = query, filter
			p.HealthChecks = []campaign.HealthCheck{{Tool: "self.get_device_status"}}
		}, 0)
		c.EditedBy, c.Targets = maker, 0
		clear(w.store.deployments)
		w.seal(&c)
		w.store.campaigns[c.ID] = c
		stop := w.start()
		defer stop()
		sleep(10 * time.Minute)
		w.store.mu.Lock()
		defer w.store.mu.Unlock()
		for _, d := range w.store.deployments {
			if d.State == campaign.DeploymentSucceeded {
				updated++
			}
			if !within.Covers(w.store.devices[d.Device]) {
				bad = append(bad, "deployment of "+string(d.Device))
			}
		}
	})
	return updated, bad
}
