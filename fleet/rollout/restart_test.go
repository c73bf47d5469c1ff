package rollout_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// If an engine dies at any moment, the next one reads the rows, and every device still gets its
// verdict.
func TestNewEngineContinuesFromTheRows(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 5 * time.Second, 8 * time.Second, 15 * time.Second,
		20 * time.Second, 40 * time.Second, 2 * time.Minute} {
		t.Run(after.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.fill(9, nil)
				c := w.plan(func(p *campaign.Plan) { p.MaxInFlight = 5; healthPlan(p) }, 3, 6)
				stop := w.start()
				sleep(after)
				stop()
				stop = w.start()
				defer func() { stop() }()
				w.await(c.ID, 5*time.Hour, campaign.Completed, campaign.CompletedWithErrors)
				want := map[fleet.DeviceID]campaign.DeploymentState{}
				for _, id := range w.ids() {
					want[id] = campaign.DeploymentSucceeded
				}
				if diff := cmp.Diff(want, w.outcomes(c.ID)); diff != "" {
					t.Errorf("verdicts (-want +got):\n%s", diff)
					for id, got := range w.outcomes(c.ID) {
						if got != campaign.DeploymentSucceeded {
							t.Logf("%s: %v", id, w.story(w.deployment(c.ID, id)))
						}
					}
				}
			})
		})
	}
}

// An engine that lost its right to lead and regained it ends its earlier calls when their
// attempts are over: each occupies the line of its device.
func TestCallsOfAnEarlierLeadEnd(t *testing.T) {
	for _, fault := range []string{"", "silent"} {
		t.Run(fault, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.fill(3, func(int) string { return fault })
				c := w.plan(nil, 3)
				stop := w.start()
				defer stop()
				sleep(3 * time.Second)
				if w.calling != 3 {
					t.Fatalf("%d calls under way, want 3", w.calling)
				}
				w.store.mu.Lock()
				lose := w.store.loseLead
				w.store.mu.Unlock()
				lose()
				sleep(5 * time.Second)
				if w.calling != 3 {
					t.Errorf("%d calls under way after the right to lead was lost, want 3", w.calling)
				}
				w.await(c.ID, 5*time.Hour, campaign.Completed, campaign.CompletedWithErrors)
				sleep(time.Second)
				if w.calling != 0 {
					t.Errorf("%d calls hold their devices' lines after the campaign", w.calling)
				}
			})
		})
	}
}

// A device may answer an order only after the engine that gave it has ended. The answer counts for its
// attempt, as it would have with that engine.
func TestOrdersOfAnEarlierEngineAreAnswered(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(4, func(int) string { return "silent" })
		c := w.plan(func(p *campaign.Plan) { p.MaxAttempts = 1 }, 4)
		stop := w.start()
		sleep(3 * time.Second)
		stop()
		defer w.start()()
		sleep(3 * time.Second)
		ids := w.ids()
		order := func(id fleet.DeviceID) fleet.Call {
			d := w.deployment(c.ID, id)
			if d.State != campaign.DeploymentSent || d.Attempt != 1 {
				t.Errorf("%s is %s in attempt %d", id, d.State, d.Attempt)
			}
			return fleet.Call{ID: uuid.New(), Device: id, Tool: fleet.ToolUpgradeFirmware, State: fleet.CallUnknown,
				Actor: fleet.Principal{Kind: fleet.KindCampaign, ID: c.ID.String()}, CreatedAt: *d.SentAt}
		}
		answered := func(order fleet.Call, a fleet.Answer) campaign.Deployment {
			w.current().OrderAnswered(t.Context(), order, a)
			sleep(time.Second)
			return w.deployment(c.ID, order.Device)
		}
		refusal := fleet.Answer{Err: &fleet.ToolError{Message: "no such tool"}}
		if d := answered(order(ids[0]), refusal); d.State != campaign.DeploymentRejected {
			t.Errorf("a device that refused is %s: %v", d.State, w.story(d))
		}
		if d := answered(order(ids[1]), fleet.Answer{Text: "false"}); d.State != campaign.DeploymentRejected {
			t.Errorf("a device that answered false is %s: %v", d.State, w.story(d))
		}
		early := order(ids[2])
		early.CreatedAt = early.CreatedAt.Add(-time.Hour) // of no attempt
		strange := order(ids[2])
		strange.Actor.ID = "another campaign"
		for _, other := range []fleet.Call{early, strange} {
			if d := answered(other, refusal); d.State != campaign.DeploymentSent {
				t.Errorf("the answer to another order made the device %s: %v", d.State, w.story(d))
			}
		}
		accepted := fmt.Sprintf(`{"job":"%s.1","state":"accepted"}`, w.deployment(c.ID, ids[3]).ID)
		before := *w.deployment(c.ID, ids[3]).Deadline
		if d := answered(order(ids[3]), fleet.Answer{Text: accepted}); d.State != campaign.DeploymentSent ||
			!d.Deadline.After(before) {
			t.Errorf("a device that accepted is %s until %v, was until %v: %v", d.State, d.Deadline, before, w.story(d))
		}
		w.await(c.ID, 5*time.Hour, campaign.Completed, campaign.CompletedWithErrors)
	})
}

// A database that accepts rows of deployments but no calls, for instance with a full disk,
// prevents fleetd from checking the health of devices. No device fails for that reason; a
// device that has disappeared meanwhile does.
func TestDevicesThatCannotBeAskedDoNotFail(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("one is gone: %t", gone), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.fill(5, nil)
				c := w.plan(healthPlan, 5)
				defer w.start()()
				sleep(3 * time.Second)
				w.setFull(true) // all are under way
				sleep(2 * time.Hour)
				want := map[fleet.DeviceID]campaign.DeploymentState{}
				for i, id := range w.ids() {
					if want[id] = campaign.DeploymentSucceeded; gone && i == 0 {
						want[id] = campaign.DeploymentTimedOut
						w.devices[id].leave(true)
					}
					if d := w.deployment(c.ID, id); d.State.Final() {
						t.Errorf("%s is %s while it cannot be asked: %v", id, d.State, w.story(d))
					}
				}
				w.setFull(false)
				began := time.Now()
				w.await(c.ID, time.Hour, campaign.Completed, campaign.CompletedWithErrors)
				if took := time.Since(began); !gone && took > time.Minute {
					t.Errorf("the verdicts took %s once devices could be asked", took)
				}
				if diff := cmp.Diff(want, w.outcomes(c.ID)); diff != "" {
					t.Errorf("verdicts (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// While the database is away, no device is notified, no observation gets lost, and polls are
// answered immediately.
func TestDatabaseAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var away atomic.Bool
		w.store.fail = func(string) error {
			if away.Load() {
				return fmt.Errorf("%w: connection refused", fleet.ErrUnavailable)
			}
			return nil
		}
		w.fill(12, nil)
		c := w.plan(func(p *campaign.Plan) { p.MaxInFlight = 6 }, 12)
		stop := w.start()
		defer stop()
		sleep(7 * time.Second)
		away.Store(true)
		sleep(time.Second)
		dispatched := w.dispatched()
		sleep(40 * time.Second)
		if n := w.dispatched(); n != dispatched {
			t.Errorf("%d devices notified without a database", n-dispatched)
		}
		away.Store(false)
		w.await(c.ID, time.Hour, campaign.Completed)
	})
}

// A verdict on the health of a device is as old as its checks. A verdict that waits with the engine
// for the database does not outrank the boot poll of the old build, which is queued after it.
func TestRollbackUnseenWhileTheDatabaseIsAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var away atomic.Bool
		w.store.fail = func(string) error {
			if away.Load() {
				return fmt.Errorf("%w: connection refused", fleet.ErrUnavailable)
			}
			return nil
		}
		w.fill(2, func(i int) string { return []string{"rolled back later", ""}[i] })
		c := w.plan(func(p *campaign.Plan) { healthPlan(p); p.MaxReconnects = 10 }, 2)
		ids := w.ids()
		stop := w.start()
		defer stop()
		for w.deployment(c.ID, ids[0]).State != campaign.DeploymentVerifying {
			time.Sleep(10 * time.Millisecond)
		}
		sleep(45 * time.Millisecond) // the checks of both have begun, and take 100 ms
		away.Store(true)
		go w.devices[ids[1]].powerCycle(3 * time.Second) // to store this, the engine waits while the checks pass
		sleep(40 * time.Second)
		if w.devices[ids[0]].running() != oldELF || w.deployment(c.ID, ids[0]).Checked {
			t.Fatal("the device is to fall back while nothing can be stored")
		}
		away.Store(false)
		w.await(c.ID, time.Hour, campaign.Completed, campaign.CompletedWithErrors)
		want := map[fleet.DeviceID]campaign.DeploymentState{ids[0]: campaign.DeploymentRolledBack,
			ids[1]: campaign.DeploymentSucceeded}
		if diff := cmp.Diff(want, w.outcomes(c.ID)); diff != "" {
			t.Errorf("verdicts (-want +got):\n%s\n%v", diff, w.story(w.deployment(c.ID, ids[0])))
		}
	})
}

// If the write of a boot poll is lost with the process that accepted it, the registry still has
// the image's build. The next engine queries the build from the device.
func TestRollbackLostWithTheProcess(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(2, func(i int) string { return []string{"rolled back later", ""}[i] })
		c := w.plan(func(p *campaign.Plan) { p.MaxReconnects = 10 }, 2)
		ids := w.ids()
		stop := w.start()
		for w.deployment(c.ID, ids[0]).State != campaign.DeploymentVerifying {
			time.Sleep(10 * time.Millisecond)
		}
		stop()
		known := w.devices[ids[0]].registered()
		sleep(40 * time.Second)
		if w.devices[ids[0]].running() != oldELF {
			t.Fatal("the device is to fall back while no engine runs")
		}
		w.store.mu.Lock()
		w.store.devices[ids[0]] = known
		w.store.mu.Unlock()
		stop = w.start()
		defer func() { stop() }()
		w.await(c.ID, time.Hour, campaign.Completed, campaign.CompletedWithErrors)
		want := map[fleet.DeviceID]campaign.DeploymentState{ids[0]: campaign.DeploymentRolledBack,
			ids[1]: campaign.DeploymentSucceeded}
		if diff := cmp.Diff(want, w.outcomes(c.ID)); diff != "" {
			t.Errorf("verdicts (-want +got):\n%s\n%v", diff, w.story(w.deployment(c.ID, ids[0])))
		}
	})
}

// A stored change whose reply got lost is neither repeated nor lost.
func TestLostReplyOfACommit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var n atomic.Int64
		w.store.lost = func(op string) error {
			if (op == "save" || op == "dispatch") && n.Add(1)%3 == 0 {
				return fmt.Errorf("%w: %w", fleet.ErrUnavailable, errors.New("broken pipe"))
			}
			return nil
		}
		w.fill(20, nil)
		c := w.plan(func(p *campaign.Plan) { p.MaxInFlight = 6 }, 20)
		stop := w.start()
		defer stop()
		w.await(c.ID, time.Hour, campaign.Completed)
		for id := range w.devices {
			if row := w.deployment(c.ID, id); row.Attempt != 1 {
				t.Errorf("%s took %d attempts: %v", id, row.Attempt, w.story(row))
			}
		}
	})
}

// If a device reconnects while the engine starts, its presence and the event both report it.
// Neither counts as flapping: fleetd caused the restart.
func TestComingBackAfterARestartIsNoFlapping(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.lag = 20 * time.Millisecond
		w.fill(1, nil)
		c := w.plan(func(p *campaign.Plan) { p.MaxReconnects, p.Waves[0].Soak = 1, time.Hour }, 1)
		id := w.ids()[0]
		stop := w.start()
		defer func() { stop() }()
		sleep(time.Minute)
		if s := w.deployment(c.ID, id).State; s != campaign.DeploymentVerifying {
			t.Fatalf("%s, want verifying", s)
		}
		for range 4 {
			stop()
			w.devices[id].leave(false) // no engine receives it
			sleep(time.Second)
			stop = w.start()
			sleep(w.lag / 2)
			w.devices[id].connect()
			sleep(10 * time.Second)
		}
		if row := w.deployment(c.ID, id); row.Reconnects > 0 || row.State != campaign.DeploymentVerifying {
			t.Errorf("%s after %d reconnections: %v", row.State, row.Reconnects, w.story(row))
		}
		w.await(c.ID, 3*time.Hour, campaign.Completed)
	})
}
