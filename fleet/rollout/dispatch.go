package rollout

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

const (
	lookAhead     = 256              // queued devices looked at beyond the free places, for those that cannot be reached
	parkedLook    = 64               // parked devices looked at per tick, in case evidence of one got lost
	busyPause     = 10 * time.Second // before a device that another campaign has is looked at again
	presenceGrace = 2 * time.Minute  // for a fleet to come back after a start of fleetd
	unsurePause   = 15 * time.Second // before a device whose build is unconfirmed is
)

// A notification is a deployment whose device is about to be notified, and how.
type notification struct {
	d    *deployment
	mode firmware.DispatchMode
	poll *pollRequest // by pull: the poll that is answered
	link firmware.Link
	url  string
	// image is as it was when the device was found to fit it.
	image firmware.Image
}

// dispatch notifies as many devices as places, pace and windows allow: first
// those whose boot poll waits for the answer. Link and intent are stored in one
// transaction; only then are devices notified.
func (l *loop) dispatch(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	room := l.room()
	notifications := l.answerPolls(ctx, &room)
	budget := l.o.MaxDispatchBatch
	for i := range l.order {
		c := l.order[(i+l.turns)%len(l.order)] // none is always the first
		if c.State != campaign.Running || l.now.Before(c.retryAt) {
			continue
		}
		picked := l.pick(ctx, c, min(budget, room))
		budget, room = budget-len(picked), room-len(picked)
		notifications = append(notifications, picked...)
	}
	l.again = l.again || len(notifications) > 0
	l.save(ctx) // what examining led to, such as devices that do not fit any more
	l.notifyAll(ctx, notifications)
	for _, c := range l.order {
		c.picked = 0
	}
}

// room is how many devices more may be notified before downloads have no place:
// those that were notified and have not come for the image will.
func (l *loop) room() int {
	notified := 0
	for _, c := range l.order {
		for _, s := range []campaign.DeploymentState{campaign.DeploymentDispatching, campaign.DeploymentSent,
			campaign.DeploymentOffered} {
			notified += c.tallies.ByState[s]
		}
	}
	return max(0, l.o.Downloads.Room()-notified)
}

// places is how many devices of the campaign may be notified now.
func (l *loop) places(c *openCampaign, budget int) int {
	return max(0, min(budget, c.Plan.MaxInFlight-c.inFlight-c.picked-c.preparing-c.restarting, c.tokens(l.now)))
}

// pick removes from the queue as many devices as may be notified. No turn looks at
// more of it than that and a bounded part of those that cannot be reached.
func (l *loop) pick(ctx context.Context, c *openCampaign, budget int) []notification {
	l.lookAtParked(c)
	free := l.places(c, budget)
	if free == 0 {
		return nil
	}
	candidates := l.candidates(c, free)
	if len(candidates) == 0 {
		return nil
	}
	picked, err := l.examine(ctx, c, candidates)
	if err != nil {
		for _, d := range candidates {
			if d.State == campaign.DeploymentQueued && d.in == nil && d.timer < 0 && !d.busy {
				d.waitIn(&c.ready, true)
			}
		}
		if !errors.Is(err, errStandsStill) { // else the next turn pauses it
			l.trouble(ctx, c, err)
		}
		return nil
	}
	c.picked += len(picked)
	c.pace.AllowN(l.now, len(picked))
	return picked
}

// candidates removes devices from the front of the queue. Those that are plainly
// out of reach are parked at once.
func (l *loop) candidates(c *openCampaign, n int) (all []*deployment) {
	for range n + lookAhead {
		front := c.ready.Front()
		if front == nil || len(all) == n {
			break
		}
		d := front.Value.(*deployment)
		l.unplace(d)
		d.saw, _, _ = l.o.Presence.State(d.Device)
		if d.saw == fleet.PresenceOnline || d.saw == fleet.PresenceUnresponsive {
			all = append(all, d)
			continue
		}
		l.park(d)
	}
	if c.ready.Len() > 0 && len(all) < n {
		l.again = true
	}
	return all
}

// park puts a deployment aside until its device is heard of. That nothing was
// heard of it says little while the fleet comes back after a start of fleetd.
func (l *loop) park(d *deployment) {
	d.waitIn(&d.camp.parked, false)
	d.setStuck(d.saw != "" || l.settled)
}

// giveUpSilent counts the devices that did not come back after a start.
func (l *loop) giveUpSilent() {
	if l.settled || l.now.Sub(l.startedAt) < presenceGrace {
		return
	}
	l.settled = true
	for _, c := range l.order {
		for e := c.parked.Front(); e != nil; e = e.Next() {
			e.Value.(*deployment).setStuck(true)
		}
	}
}

// lookAtParked goes round the parked devices, a few at a time: the evidence that
// one came back may have been lost with a former engine.
func (l *loop) lookAtParked(c *openCampaign) {
	for range min(parkedLook, c.parked.Len()) {
		d := c.parked.Front().Value.(*deployment)
		presence, _, _ := l.o.Presence.State(d.Device)
		if presence != d.saw {
			l.unplace(d)
			d.waitIn(&c.ready, false)
			continue
		}
		c.parked.MoveToBack(d.place)
	}
}

// notifyAll stores the beginning of attempts, and notifies the devices.
func (l *loop) notifyAll(ctx context.Context, notifications []notification) {
	if len(notifications) == 0 {
		return
	}
	dispatches := make([]campaign.Dispatch, len(notifications))
	for i := range notifications {
		dispatches[i] = l.beginAttempt(&notifications[i])
	}
	var refused []uuid.UUID
	err := l.persist(ctx, "dispatches", func(ctx context.Context) (err error) {
		refused, err = l.o.Store.DispatchDeployments(ctx, dispatches)
		return err
	})
	if err != nil && ctx.Err() == nil {
		l.o.Log.Error("devices not told of their images", "count", len(notifications), "err", err)
	}
	isRefused := make(map[uuid.UUID]bool, len(refused))
	for _, id := range refused {
		isRefused[id] = true
	}
	for _, t := range notifications {
		if ctx.Err() != nil || err != nil || isRefused[t.d.ID] {
			l.refused(ctx, t)
			continue
		}
		l.begun(ctx, t)
	}
}

// beginAttempt moves the deployment to its next attempt, in memory, and makes
// the link that goes with it.
func (l *loop) beginAttempt(t *notification) campaign.Dispatch {
	d := t.d
	from := d.State
	event := campaign.BeginAttempt(&d.Deployment, t.mode, l.now, l.o.Timers)
	t.link, t.url = firmware.NewLink(l.o.PublicURL, d.Link(), l.attemptTimeout(d), l.now)
	t.image = l.images.bySHA[d.Image] // read in this turn, by unfit
	d.camp.moved(d, from)
	l.settle(d)
	return campaign.Dispatch{DeploymentChange: campaign.DeploymentChange{Deployment: d.Deployment,
		Events: []campaign.DeploymentEvent{event}}, Link: t.link}
}

// attemptTimeout is how long an attempt may take until its device has polled.
func (l *loop) attemptTimeout(d *deployment) time.Duration {
	t := l.o.Timers
	slowest := time.Duration(0)
	if t.SlowestRate > 0 {
		slowest = time.Duration(d.ImageSize) * time.Second / time.Duration(t.SlowestRate)
	}
	return t.Get + max(t.Resend, slowest) + max(t.Download, 3*slowest) + t.BootPoll + time.Minute
}

// begun notifies a device whose attempt is on record.
func (l *loop) begun(ctx context.Context, t notification) {
	l.stored(t.d)
	t.d.epoch = 0
	if t.mode == firmware.ModePull {
		l.notifyByPoll(t)
		return
	}
	l.notifyByCall(ctx, t)
}

// refused looks at a deployment whose attempt was not stored: it moved on, or
// its device is active in another campaign, or an operator paused this one.
func (l *loop) refused(ctx context.Context, t notification) {
	if t.poll != nil {
		t.poll.answer(nil)
	}
	if ctx.Err() != nil {
		return
	}
	d := t.d
	var row campaign.Deployment
	err := l.persist(ctx, "deployment", func(ctx context.Context) (err error) {
		row, err = l.o.Store.DeploymentByID(ctx, d.ID)
		return err
	})
	if err != nil {
		d.camp.tally(d.Wave, d.State, -1)
		l.detach(d)
		return
	}
	if row.Revision == d.Revision+1 && row.State == d.State && row.Attempt == d.Attempt {
		l.begun(ctx, t) // it was stored: only the reply of the database got lost
		return
	}
	l.reload = true
	l.replace(d, row)
	if l.byID[d.ID] == d && d.State == campaign.DeploymentQueued {
		l.unplace(d)
		l.timers.set(d, l.now.Add(busyPause))
	}
}
