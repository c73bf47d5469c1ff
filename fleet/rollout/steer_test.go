package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// fill adds n devices; fault returns the fault of the i-th.
func (w *world) fill(n int, fault func(i int) string) {
	for i := range n {
		f := ""
		if fault != nil {
			f = fault(i)
		}
		w.add(fleet.DeviceID(fmt.Sprintf("device%03d", i)), f)
	}
}

// count returns how many deployments of a campaign are in one of the states.
func (w *world) count(id uuid.UUID, states ...campaign.DeploymentState) (n int) {
	for _, s := range w.outcomes(id) {
		for _, want := range states {
			if s == want {
				n++
			}
		}
	}
	return n
}

func (w *world) dispatched() int {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	return len(w.store.dispatches)
}

func TestAbortRulePausesBeforeTheNextDispatch(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(40, func(i int) string { return "rolled back" })
		c := w.plan(func(p *campaign.Plan) {
			p.MaxInFlight = 4
			p.AbortRules = []campaign.AbortRule{{Class: campaign.ClassAny, MinExecuted: 2, Percent: 10,
				Scope: campaign.ScopeCampaign, Action: campaign.AbortPause}}
		}, 40)
		stop := w.start()
		defer stop()
		c = w.await(c.ID, time.Hour, campaign.Paused)
		dispatched := w.dispatched()
		if c.PauseReason != campaign.PausedByThreshold || !c.Reason.Is(campaign.ReasonRuleBound) &&
			!c.Reason.Is(campaign.ReasonWaveIsBad) {
			t.Errorf("paused by %s: %s", c.PauseReason, c.Reason)
		}
		sleep(time.Hour)
		if dispatched > 8 || w.dispatched() != dispatched {
			t.Errorf("%d devices notified before the pause, %d after an hour more", dispatched, w.dispatched())
		}

		w.resume(c.ID)
		sleep(10 * time.Second)
		c = w.await(c.ID, time.Hour, campaign.Paused)
		if more := w.dispatched() - dispatched; more == 0 || more > 8 {
			t.Errorf("%d devices more were notified after an operator went on; want some, until the next failure", more)
		}
	})
}

func TestAbortAndRollback(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(20, func(i int) string {
			if i == 3 {
				return "unhealthy"
			}
			return ""
		})
		c := w.plan(func(p *campaign.Plan) {
			healthPlan(p)
			p.MaxInFlight = 4
			p.AbortRules = []campaign.AbortRule{{Class: "unhealthy", Scope: campaign.ScopeBoard,
				Action: campaign.AbortAndRollback}}
		}, 20)
		stop := w.start()
		defer stop()
		c = w.await(c.ID, time.Hour, campaign.Aborted)
		sleep(time.Minute)
		if len(w.rolled) != 1 || w.rolled[0] != c.ID || !c.RollbackWanted {
			t.Errorf("rollbacks asked for: %v, wanted %v", w.rolled, c.RollbackWanted)
		}
		if n := w.count(c.ID, campaign.DeploymentCanceled); n < 10 {
			t.Errorf("%d devices canceled, want all that waited", n)
		}
	})
}

func TestAbortCutsDownloads(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(12, nil)
		c := w.plan(func(p *campaign.Plan) { p.MaxInFlight = 6 }, 12)
		stop := w.start()
		defer stop()
		sleep(8 * time.Second) // in the middle of the downloads
		w.edit(c.ID, func(c *campaign.Campaign) { c.State = campaign.Stopping })
		w.await(c.ID, time.Minute, campaign.Aborted)
		if a, n := w.count(c.ID, campaign.DeploymentAborted), w.count(c.ID, campaign.DeploymentCanceled); a != 6 || n != 6 {
			t.Errorf("%d aborted, %d canceled, want 6 and 6: %v", a, n, w.outcomes(c.ID))
		}
		sleep(time.Hour)
		for id, d := range w.devices {
			if d.running() != oldELF {
				t.Errorf("%s was updated after the abort", id)
			}
		}
	})
}

func TestAbortLetsDownloadedDevicesFinish(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(4, nil)
		c := w.plan(nil, 4)
		stop := w.start()
		defer stop()
		sleep(15 * time.Second) // all have the image, and restart
		w.edit(c.ID, func(c *campaign.Campaign) { c.State = campaign.Stopping })
		w.await(c.ID, time.Hour, campaign.Aborted)
		if n := w.count(c.ID, campaign.DeploymentSucceeded); n != 4 {
			t.Errorf("%d devices succeeded, want 4: %v", n, w.outcomes(c.ID))
		}
	})
}

func TestManualGateWaitsForAnOperator(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(10, nil)
		c := w.plan(func(p *campaign.Plan) { p.Waves[0].Gate = campaign.GateManual }, 2, 8)
		stop := w.start()
		defer stop()
		c = w.await(c.ID, time.Hour, campaign.Paused)
		sleep(3 * time.Hour)
		if c.PauseReason != campaign.PausedByGate || w.store.waves[c.ID][0].State != campaign.WaveGated ||
			w.count(c.ID, campaign.DeploymentPending) != 8 {
			t.Errorf("paused by %s, wave is %s, %v", c.PauseReason, w.store.waves[c.ID][0].State, w.outcomes(c.ID))
		}
		w.edit(c.ID, func(c *campaign.Campaign) { c.Advance = true })
		w.await(c.ID, time.Hour, campaign.Completed)
	})
}

// A wave without devices has no gate, and neither has a wave without a wave after it.
func TestEmptyWavesHaveNoGate(t *testing.T) {
	for name, sizes := range map[string][]int{"first": {0, 2}, "last": {2, 0, 0}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.fill(2, nil)
				c := w.plan(func(p *campaign.Plan) {
					for i := range p.Waves {
						p.Waves[i].Gate = campaign.GateManual
					}
				}, sizes...)
				stop := w.start()
				defer stop()
				w.await(c.ID, time.Hour, campaign.Completed)
			})
		})
	}
}

func TestFailedWaveStopsTheNext(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(10, func(i int) string {
			if i < 2 {
				return "wrong build"
			}
			return ""
		})
		c := w.plan(func(p *campaign.Plan) { p.Waves[0].SuccessPercent = 100 }, 2, 8)
		stop := w.start()
		defer stop()
		c = w.await(c.ID, time.Hour, campaign.Paused)
		if w.store.waves[c.ID][0].State != campaign.WaveFailed || c.PauseReason != campaign.PausedByThreshold {
			t.Errorf("wave is %s, campaign paused by %s: %s", w.store.waves[c.ID][0].State, c.PauseReason, c.Reason)
		}
		// Resuming does not open the next wave; advancing does.
		w.edit(c.ID, func(c *campaign.Campaign) { c.State, c.PauseReason = campaign.Running, "" })
		sleep(time.Minute)
		c = w.await(c.ID, time.Minute, campaign.Paused)
		if c.PauseReason != campaign.PausedByGate || w.count(c.ID, campaign.DeploymentPending) != 8 {
			t.Errorf("paused by %s, %v", c.PauseReason, w.outcomes(c.ID))
		}
		w.edit(c.ID, func(c *campaign.Campaign) { c.Advance = true })
		c = w.await(c.ID, time.Hour, campaign.CompletedWithErrors)
		if n := w.count(c.ID, campaign.DeploymentSucceeded); n != 8 {
			t.Errorf("%d succeeded", n)
		}
	})
}

// A rule may stop a wave before its verdict. Once the wave can no longer reach its goal it has
// failed, and one resume overrules rule and verdict.
func TestHopelessWaveIsJudgedWhilePaused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(10, func(i int) string {
			if i < 4 {
				return "rolled back"
			}
			return ""
		})
		c := w.plan(func(p *campaign.Plan) {
			p.MaxInFlight = 1
			p.Waves[0].SuccessPercent, p.Waves[0].MinSample = 100, 1
			p.AbortRules = []campaign.AbortRule{{Class: campaign.ClassAny, MinExecuted: 1, Percent: 10,
				Scope: campaign.ScopeCampaign, Action: campaign.AbortPause}}
		}, 8, 2)
		stop := w.start()
		defer stop()
		c = w.await(c.ID, time.Hour, campaign.Paused)
		sleep(time.Minute)
		wave := w.store.waves[c.ID][0]
		if c.PauseReason != campaign.PausedByThreshold || wave.State != campaign.WaveFailed ||
			!wave.Verdict.Is(campaign.ReasonWaveHopeless) {
			t.Errorf("paused by %s, the wave is %s: %s", c.PauseReason, wave.State, wave.Verdict)
		}
		before := w.dispatched()
		w.resume(c.ID)
		sleep(time.Minute)
		if w.dispatched() == before {
			t.Error("after a resume nothing is dispatched")
		}
	})
}

func TestWindowsAndJitter(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) { // it is midnight, 2000-01-01 UTC
		w.fill(30, nil)
		for i, id := range w.ids() {
			if i >= 15 {
				row := w.store.devices[id]
				row.TimeZone = "Asia/Shanghai" // eight hours ahead
				w.store.devices[id] = row
			}
		}
		c := w.plan(func(p *campaign.Plan) {
			p.MaxInFlight = 100
			p.Windows = []campaign.Window{{Cron: "0 2 * * *", Duration: time.Hour, TimeZone: campaign.DeviceZone}}
			p.Jitter = 20 * time.Minute
		}, 30)
		stop := w.start()
		defer stop()
		sleep(time.Minute)
		got, _ := w.store.Campaign(t.Context(), c.ID)
		if got.State != campaign.Paused || got.PauseReason != campaign.PausedByWindow {
			t.Errorf("outside all windows the campaign is %s by %s", got.State, got.PauseReason)
		}
		w.await(c.ID, 48*time.Hour, campaign.Completed)
		minutes := map[int]int{}
		for _, d := range w.store.dispatches {
			zone := time.UTC
			if w.store.devices[d.Deployment.Device].TimeZone != "" {
				zone, _ = time.LoadLocation("Asia/Shanghai")
			}
			at := d.Deployment.UpdatedAt.In(zone)
			if at.Hour() != 2 {
				t.Errorf("%s told at %v", d.Deployment.Device, at)
			}
			minutes[at.Minute()]++
		}
		if len(minutes) < 10 {
			t.Errorf("30 devices were told in %d different minutes: no jitter", len(minutes))
		}
	})
}

func TestWindowThatNeverOpens(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(3, nil)
		end := time.Now().Add(24 * time.Hour)
		c := w.plan(func(p *campaign.Plan) {
			p.Windows = []campaign.Window{{Cron: "0 2 30 2 *", Duration: time.Hour, TimeZone: "UTC"}}
			p.EndAt = &end
		}, 3)
		stop := w.start()
		defer stop()
		c = w.await(c.ID, time.Minute, campaign.Paused)
		if !c.Reason.Is(campaign.ReasonNoWindow) {
			t.Errorf("reason %q", c.Reason)
		}
		w.await(c.ID, 25*time.Hour, campaign.Expired)
		if n := w.count(c.ID, campaign.DeploymentExpired); n != 3 {
			t.Errorf("%d expired: %v", n, w.outcomes(c.ID))
		}
	})
}

func TestPace(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(100, nil)
		c := w.plan(func(p *campaign.Plan) { p.MaxInFlight, p.MaxPerMinute = 1000, 30 }, 100)
		stop := w.start()
		defer stop()
		sleep(time.Minute)
		if n := w.dispatched(); n < 25 || n > 32 {
			t.Errorf("%d devices told in the first minute, want 30", n)
		}
		w.await(c.ID, time.Hour, campaign.Completed)
	})
}

func TestEndBehavior(t *testing.T) {
	tests := []struct {
		end      campaign.EndBehavior
		finished campaign.DeploymentState // of the device in flight
	}{
		{campaign.EndStopRollout, campaign.DeploymentSucceeded},
		{campaign.EndAbortInFlight, campaign.DeploymentAborted},
	}
	for _, tt := range tests {
		t.Run(string(tt.end), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.fill(2, nil)
				end := time.Now().Add(8 * time.Second)
				c := w.plan(func(p *campaign.Plan) { p.MaxInFlight, p.EndAt, p.EndBehavior = 1, &end, tt.end }, 2)
				stop := w.start()
				defer stop()
				w.await(c.ID, time.Hour, campaign.Expired)
				if w.count(c.ID, tt.finished) != 1 || w.count(c.ID, campaign.DeploymentExpired) != 1 {
					t.Errorf("outcomes %v, want one %s and one expired", w.outcomes(c.ID), tt.finished)
				}
			})
		})
	}
}

func TestRevokedImageIsCutAndPauses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(8, nil)
		c := w.plan(func(p *campaign.Plan) { p.MaxInFlight = 4 }, 8)
		stop := w.start()
		defer stop()
		sleep(7 * time.Second)
		w.store.mu.Lock()
		img, now := w.store.images[imageSHA], time.Now()
		img.RevokedAt, img.RevokeReason = &now, "bricks boards"
		w.store.images[imageSHA] = img
		w.store.mu.Unlock()
		c = w.await(c.ID, 2*time.Minute, campaign.Paused)
		if c.PauseReason != campaign.PausedBySystem || c.Reason.Params["detail"] != "bricks boards" {
			t.Errorf("paused by %s: %s", c.PauseReason, c.Reason)
		}
		sleep(time.Hour)
		for id, d := range w.devices {
			if d.running() != oldELF {
				t.Errorf("%s got the revoked image", id)
			}
		}
	})
}

func TestOfflineDevicesDoNotHoldUpTheWave(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(12, nil)
		for _, id := range w.ids()[:3] {
			w.devices[id].online = false
		}
		c := w.plan(func(p *campaign.Plan) { p.Waves[0].MinSample = 2 }, 6, 6)
		stop := w.start()
		defer stop()
		sleep(time.Hour)
		if n := w.count(c.ID, campaign.DeploymentSucceeded); n != 9 {
			t.Fatalf("%d of 9 reachable devices succeeded: %v", n, w.outcomes(c.ID))
		}
		for _, id := range w.ids()[:3] {
			go w.devices[id].boot(oldELF)
			sleep(time.Minute)
		}
		w.await(c.ID, time.Hour, campaign.Completed)
	})
}

func TestRetryOfACompletedCampaign(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(4, func(i int) string {
			if i == 0 {
				return "refuses call"
			}
			return ""
		})
		c := w.plan(nil, 4)
		stop := w.start()
		defer stop()
		w.await(c.ID, time.Hour, campaign.CompletedWithErrors)
		w.devices["device000"].fault = ""
		if n, err := w.store.Requeue(t.Context(), fleet.Principal{}, c.ID, nil, nil, time.Now()); n != 1 || err != nil {
			t.Fatalf("Requeue = %d, %v", n, err)
		}
		w.edit(c.ID, func(c *campaign.Campaign) { c.State, c.FinishedAt = campaign.Running, nil })
		w.await(c.ID, time.Hour, campaign.Completed)
	})
}

func TestTwoCampaignsOverOneDevice(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(3, nil)
		first := w.plan(nil, 3)
		second := w.plan(nil, 3)
		stop := w.start()
		defer stop()
		w.await(first.ID, time.Hour, campaign.Completed, campaign.CompletedWithErrors)
		w.await(second.ID, time.Hour, campaign.Completed, campaign.CompletedWithErrors, campaign.Paused)
		for id := range w.devices {
			a, b := w.outcomes(first.ID)[id], w.outcomes(second.ID)[id]
			if a != campaign.DeploymentSucceeded && b != campaign.DeploymentSucceeded {
				t.Errorf("%s: %s and %s, want one success", id, a, b)
			}
			if a != campaign.DeploymentSkipped && b != campaign.DeploymentSkipped {
				t.Errorf("%s: %s and %s, want one skipped", id, a, b)
			}
		}
	})
}

func TestQuarantineAfterThreeFailures(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(1, func(int) string { return "cut" })
		c := w.plan(nil, 1)
		stop := w.start()
		defer stop()
		w.await(c.ID, 3*time.Hour, campaign.CompletedWithErrors, campaign.Paused)
		q, ok := w.store.quarantines["device000"]
		if !ok || q.Until.Sub(q.Since) != 24*time.Hour || !q.Reason.Is(campaign.ReasonFailedAttempts) {
			t.Errorf("quarantine %+v, %v", q, ok)
		}
	})
}
