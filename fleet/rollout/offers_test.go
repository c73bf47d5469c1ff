package rollout_test

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
)

func TestPullOffersAtTheNextBoot(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(6, nil)
		c := w.plan(func(p *campaign.Plan) { p.Mode = firmware.ModePull }, 6)
		stop := w.start()
		defer stop()
		sleep(time.Hour)
		if n := w.count(c.ID, campaign.DeploymentQueued); n != 6 {
			t.Fatalf("%d devices wait for their boot poll: %v", n, w.outcomes(c.ID))
		}
		for _, d := range w.devices {
			go d.reboot(0)
		}
		w.await(c.ID, time.Hour, campaign.Completed)
	})
}

func TestPullNowRestartsEachDeviceOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fill(8, nil)
		c := w.plan(func(p *campaign.Plan) { p.Mode, p.PullNow, p.MaxInFlight = firmware.ModePull, true, 3 }, 8)
		stop := w.start()
		defer stop()
		w.await(c.ID, time.Hour, campaign.Completed)
		if w.reboots != 8 {
			t.Errorf("%d restarts for 8 devices", w.reboots)
		}
	})
}

// A device that never fetches its offered image gets no further offer after two in an hour,
// however often it polls.
func TestNoMoreThanTwoOffersAnHour(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		d := w.add("device0", "silent")
		c := w.plan(func(p *campaign.Plan) { p.Mode, p.MaxAttempts = firmware.ModePull, 10 }, 1)
		stop := w.start()
		defer stop()
		offers := func(window time.Duration) int {
			n := 0
			for _, e := range w.store.events[w.deployment(c.ID, d.id).ID] {
				if e.Kind == fleet.EvidenceOffered && time.Since(e.At) < window {
					n++
				}
			}
			return n
		}
		for range 60 {
			d.poll(false)
			sleep(2 * time.Minute)
			if n := offers(time.Hour); n > campaign.MaxOffersPerHour {
				t.Fatalf("%d offers within an hour", n)
			}
		}
		if offers(10*time.Hour) < 3 {
			t.Errorf("%d offers in two hours", offers(10*time.Hour))
		}
	})
}

func TestPollOfAStrangerIsAnsweredAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		stop := w.start()
		defer stop()
		sleep(time.Second)
		before := time.Now()
		if offer := w.current().Poll(t.Context(), enrolment.BootPoll{Device: "stranger", At: before}, false); offer != nil {
			t.Errorf("offered %v", offer)
		}
		if time.Since(before) != 0 {
			t.Errorf("waited %v", time.Since(before))
		}
	})
}
