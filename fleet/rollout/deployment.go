package rollout

import (
	"container/list"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// A deployment is one that the engine holds in memory: queued, active, or given
// up and still open to late proof.
type deployment struct {
	campaign.Deployment
	camp *openCampaign

	// What the store does not know yet.
	events []campaign.DeploymentEvent
	seen   []campaign.Observation // since the row was stored
	acts   []campaign.Act
	dirty  bool
	lazy   bool // only the progress of its download changed: that can wait, and is shown once it is stored

	// Where it waits: in a list of its campaign, for a time, or neither.
	in    *list.List
	place *list.Element
	at    time.Time // for which it is in the timers
	timer int       // its index there; -1 if it is not
	stuck bool      // its device is what blocks it, for an unknown time
	saw   fleet.Presence

	zone       *time.Location // of the device; nil if not read yet
	prepared   bool           // its baseline was taken, for the attempt to come
	waits      bool           // the index says that it waits to be notified
	busy       bool           // a baseline or its health checks are being taken
	talkID     uuid.UUID      // conversation whose end is or was waited for; zero without one
	talk       time.Time      // since when
	talking    bool           // is in the timers for that
	restarting bool           // was asked to restart, so that it polls
	afterStart bool           // verifying since before this engine: its reconnection is our doing
	back       time.Time      // of that reconnection
	askBuild   bool           // a boot poll may have been lost with the process before: ask before the checks
	reports    int            // on jobs, that the device made since the engine holds it
	spared     time.Time      // time does not judge it before: fleetd could not ask it
	epoch      int64          // of the connection that stood when the last byte was sent; 0 if unknown
	heap       int64          // free heap that its latest boot poll reported, bytes
	attemptEnd chan struct{}  // closed when the attempt is over; nil without one
}

// cameBack reports whether a connection is the one that fleetd's restart made
// necessary, which is no fault of the device. Of a device that connects while
// the engine starts both the presence and the event report it, the first in
// whole milliseconds.
func (d *deployment) cameBack(at time.Time) bool {
	if !d.afterStart {
		return !at.Truncate(time.Millisecond).After(d.back)
	}
	d.afterStart, d.back = false, at
	return true
}

// late reports whether what comes later still changes the deployment: proof that
// re-opens it, or the device's own report on why it failed.
func late(s campaign.DeploymentState) bool {
	switch s {
	case campaign.DeploymentTimedOut, campaign.DeploymentFailed, campaign.DeploymentAborted, campaign.DeploymentRolledBack:
		return true
	}
	return false
}

// attach adds a row to memory, and puts it where it waits.
func (l *loop) attach(c *openCampaign, row campaign.Deployment) *deployment {
	d := &deployment{Deployment: row, camp: c, timer: -1, attemptEnd: l.e.adoptCall(&row)}
	l.byID[d.ID] = d
	l.byDevice[d.Device] = append(l.byDevice[d.Device], d)
	l.e.index.add(d)
	c.held[d.ID] = d
	c.count(d.State, 1)
	l.settle(d)
	return d
}

// detach forgets a deployment: its row is all that is left of it.
func (l *loop) detach(d *deployment) {
	if l.byID[d.ID] != d {
		return
	}
	l.unplace(d)
	l.setWaits(d, false)
	d.endAttempt()
	d.camp.count(d.State, -1)
	delete(d.camp.held, d.ID)
	delete(l.byID, d.ID)
	rest := slices.DeleteFunc(l.byDevice[d.Device], func(other *deployment) bool { return other == d })
	if l.byDevice[d.Device] = rest; len(rest) == 0 {
		delete(l.byDevice, d.Device)
	}
	l.e.index.remove(d)
}

// settle puts a deployment where it waits for what comes next.
func (l *loop) settle(d *deployment) {
	l.unplace(d)
	l.setWaits(d, d.State == campaign.DeploymentQueued)
	switch {
	case d.State.Active():
		d.prepared = false
		if d.Deadline != nil {
			l.timers.set(d, *d.Deadline)
		}
		return
	case d.State == campaign.DeploymentQueued && d.NotBefore != nil && d.NotBefore.After(l.now):
		l.timers.set(d, *d.NotBefore)
	case d.State == campaign.DeploymentQueued:
		d.waitIn(&d.camp.ready, false)
	case d.State.Final() && !d.dirty && !late(d.State):
		l.detach(d)
	}
	d.endAttempt()
}

func (l *loop) setWaits(d *deployment, waits bool) {
	if d.waits != waits {
		d.waits = waits
		l.e.index.setWaiting(d.Device, waits)
	}
}

func (l *loop) unplace(d *deployment) {
	l.timers.remove(d)
	if d.in != nil {
		d.in.Remove(d.place)
		d.in, d.place = nil, nil
	}
	d.setStuck(false)
	d.talking = false
	if d.restarting {
		d.restarting = false
		d.camp.restarting--
	}
}

func (d *deployment) waitIn(in *list.List, front bool) {
	d.in = in
	if front {
		d.place = in.PushFront(d)
	} else {
		d.place = in.PushBack(d)
	}
}

func (d *deployment) setStuck(stuck bool) {
	if d.stuck == stuck {
		return
	}
	d.stuck = stuck
	n := -1
	if stuck {
		n = 1
	}
	d.camp.stuck[d.Wave] += n
	d.camp.judged = false
}

// endAttempt ends the attempt's call, whose outcome has no effect any more.
func (d *deployment) endAttempt() {
	d.spared = time.Time{}
	if d.attemptEnd != nil {
		close(d.attemptEnd)
		d.attemptEnd = nil
	}
}

// activeElsewhere reports whether the device is being updated by another
// deployment that the engine knows.
func (l *loop) activeElsewhere(d *deployment) bool {
	return slices.ContainsFunc(l.byDevice[d.Device], func(other *deployment) bool {
		return other != d && other.State.Active()
	})
}
