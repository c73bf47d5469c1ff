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
	lookAhead     = 256              // queued devices examined beyond the free places, to get past unreachable ones
	parkedLook    = 64               // parked devices examined per tick, in case evidence about one got lost
	busyPause     = 10 * time.Second // before re-examining a device that another campaign is updating
	presenceGrace = 2 * time.Minute  // for a fleet to reconnect after a start of fleetd
	unsurePause   = 15 * time.Second // before re-examining a device whose build is unconfirmed
)

// notification is a deployment whose device is about to be notified, with the means.
type notification struct {
	d    *deployment
	mode firmware.DispatchMode
	poll *pollRequest // by pull: the poll to answer
	link firmware.Link
	url  string
	// image is the image as read when the device was found to fit it.
	image firmware.Image
}

// dispatch notifies as many devices as places, pace and windows allow, beginning with those
// whose boot poll waits for the reply. It stores links and intents in one transaction, and
// notifies devices only after that.
func (l *loop) dispatch(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	room := l.room()
	notifications := l.answerPolls(ctx, &room)
	budget := l.o.MaxDispatchBatch
	for i := range l.order {
		c := l.order[(i+l.turns)%len(l.order)] // no campaign is always the first
		if c.State != campaign.Running || l.now.Before(c.retryAt) {
			continue
		}
		picked := l.pick(ctx, c, min(budget, room))
		budget, room = budget-len(picked), room-len(picked)
		notifications = append(notifications, picked...)
	}
	l.again = l.again || len(notifications) > 0
	l.save(ctx) // what examining changed, such as devices that no longer fit
	l.notifyAll(ctx, notifications)
	for _, c := range l.order {
		c.picked = 0
	}
}

// room returns how many more devices may be notified before downloads run out of places. It
// reserves a place for each notified device that has not requested the image yet.
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

// places returns how many devices of the campaign may be notified now.
func (l *loop) places(c *openCampaign, budget int) int {
	return max(0, min(budget, c.Plan.MaxInFlight-c.inFlight-c.picked-c.preparing-c.restarting, c.tokens(l.now)))
}

// pick removes from the queue as many devices as may be notified. Beyond those, a turn examines
// only a bounded number of unreachable devices.
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
		if !errors.Is(err, errStandsStill) { // otherwise the next turn pauses it
			l.trouble(ctx, c, err)
		}
		return nil
	}
	c.picked += len(picked)
	c.pace.AllowN(l.now, len(picked))
	return picked
}

// candidates removes devices from the front of the queue, and immediately parks those that are
// known to be unreachable.
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

// park sets a deployment aside until evidence about its device arrives. While the fleet
// reconnects after a start of fleetd, a lack of evidence means little.
func (l *loop) park(d *deployment) {
	d.waitIn(&d.camp.parked, false)
	d.setStuck(d.saw != "" || l.settled)
}

// giveUpSilent counts the devices that did not reconnect after a start.
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

// lookAtParked cycles through the parked devices, a few at a time: an earlier engine may have
// lost the evidence that one reconnected.
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

// beginAttempt moves the deployment in memory to its next attempt, and creates the link for it.
func (l *loop) beginAttempt(t *notification) campaign.Dispatch {
	d := t.d
	from := d.State
	event := campaign.BeginAttempt(&d.Deployment, t.mode, l.now, l.o.Timers)
	t.link, t.url = firmware.NewLink(l.o.PublicURL, d.Link(), l.attemptTimeout(d), l.now)
	t.image = l.images.bySHA[d.Image] // unfit read it in this turn
	d.camp.moved(d, from)
	l.settle(d)
	return campaign.Dispatch{DeploymentChange: campaign.DeploymentChange{Deployment: d.Deployment,
		Events: []campaign.DeploymentEvent{event}}, Link: t.link}
}

// attemptTimeout returns how long an attempt may take until its device has polled.
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

// refused handles a deployment whose attempt was not stored: the deployment moved on, its
// device is active in another campaign, or an operator paused this campaign.
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
		l.begun(ctx, t) // it was stored: only the database's reply got lost
		return
	}
	l.reload = true
	l.replace(d, row)
	if l.byID[d.ID] == d && d.State == campaign.DeploymentQueued {
		l.unplace(d)
		l.timers.set(d, l.now.Add(busyPause))
	}
}
