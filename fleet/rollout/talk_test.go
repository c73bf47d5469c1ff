package rollout_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// A device in conversation is notified after the conversation, or after the maximum wait. A
// long conversation delays no other device, and the row of its device shows the reason and the
// end of the wait.
func TestConversationsAreNotInterrupted(t *testing.T) {
	tests := []struct {
		name  string
		mode  firmware.DispatchMode
		talks time.Duration
		// when the device is notified
		least, most time.Duration
	}{
		{"push after a conversation", firmware.ModePush, 90 * time.Second, 90 * time.Second, 100 * time.Second},
		{"push after the bound", firmware.ModePush, time.Hour, 2 * time.Minute, 130 * time.Second},
		{"restart after a conversation", firmware.ModePull, 90 * time.Second, 90 * time.Second, 100 * time.Second},
		{"restart after the bound", firmware.ModePull, time.Hour, 2 * time.Minute, 130 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.add("device01", "")
				w.add("device02", "")
				c := w.plan(func(p *campaign.Plan) { p.Mode, p.PullNow = tt.mode, tt.mode == firmware.ModePull }, 2)
				w.talk("device01", tt.talks)
				begin := time.Now()
				stop := w.start()
				sleep(30 * time.Second)
				d := w.deployment(c.ID, "device01")
				want := fleet.Because(call.ReasonInConversation, "since_at", begin, "until_at", begin.Add(w.talks.Bound))
				if d.State != campaign.DeploymentQueued || !d.Reason.Equal(want) {
					t.Errorf("a device in conversation is %s for %v, want %v", d.State, d.Reason, want)
				}
				if other := w.deployment(c.ID, "device02"); other.State == campaign.DeploymentQueued &&
					!other.Reason.Is(campaign.ReasonAwaitsPollAfter) {
					t.Errorf("another device is %s: %v", other.State, other.Reason)
				}
				for w.deployment(c.ID, "device01").Reason.Is(call.ReasonInConversation) {
					time.Sleep(time.Second)
				}
				if waited := time.Since(begin); waited < tt.least || waited > tt.most {
					t.Errorf("waited %v, want %v to %v", waited, tt.least, tt.most)
				}
				w.await(c.ID, time.Hour, campaign.Completed)
				stop()
				close(w.over)
				sleep(2 * time.Hour)
				if len(w.bad) > 0 {
					t.Error(w.bad)
				}
			})
		})
	}
}

// A conversation that begins after another one gets the full wait. If one begins between the
// dispatch and the call, the attempt is repeated and not counted.
func TestConversationFollowsConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("device01", "")
		c := w.plan(func(p *campaign.Plan) { p.Mode = firmware.ModePush }, 1)
		talked := false
		w.store.watch = func(op string, _ uuid.UUID, id fleet.DeviceID) {
			if op == "dispatch" && !talked {
				talked = true
				w.talk(id, time.Minute)
			}
		}
		stop := w.start()
		sleep(20 * time.Second)
		d := w.deployment(c.ID, "device01")
		if d.State != campaign.DeploymentQueued || d.Failures != 0 || !d.Reason.Is(campaign.ReasonNotSent) {
			t.Errorf("%s, %d failures: %v", d.State, d.Failures, d.Reason)
		}
		w.await(c.ID, time.Hour, campaign.Completed)
		if d := w.deployment(c.ID, "device01"); d.Attempt != 2 || d.Failures != 0 {
			t.Errorf("%d attempts, %d failures", d.Attempt, d.Failures)
		}
		stop()
		close(w.over)
		sleep(2 * time.Hour)
		if len(w.bad) > 0 {
			t.Error(w.bad)
		}
	})
}
