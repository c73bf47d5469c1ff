package rollout

import (
	"container/list"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// deployment is a deployment in memory: queued, active, or failed but still open to late proof.
type deployment struct {
	campaign.Deployment
	camp *openCampaign

	// Not stored yet.
	events []campaign.DeploymentEvent
	seen   []campaign.Observation // since the row was stored
	acts   []campaign.Act
	dirty  bool
	lazy   bool // only its download progress changed: storing that can wait, and it is shown once stored

	// Where it waits: in a list of its campaign, for a time, or neither.
	in    *list.List
	place *list.Element
	at    time.Time // its due time in the timers
	timer int       // its index in the timers; -1 if it is not there
	stuck bool      // its device blocks it for an unknown time
	saw   fleet.Presence

	zone       *time.Location // of the device; nil if not read yet
	prepared   bool           // the baseline for the next attempt was read
	waits      bool           // the index lists it as waiting to be notified
	busy       bool           // its baseline is being read, or its health checks run
	talkID     uuid.UUID      // conversation whose end is or was awaited; zero without one
	talk       time.Time      // when the conversation began to delay it
	talking    bool           // the timers include the end of that wait
	restarting bool           // ordered to restart so that it polls
	afterStart bool           // verifying since before this engine started: fleetd caused its reconnection
	back       time.Time      // when it reconnected after that
	askBuild   bool           // the previous process may have lost a boot poll: query the build before the checks
	reports    int            // number of reports on jobs from the device since the engine loaded the deployment
	spared     time.Time      // no timeout applies before: fleetd could not query the device
	epoch      int64          // of the connection at the time of the last request for the image; 0 if unknown
	heap       int64          // free heap in its latest boot poll, bytes
	attemptEnd chan struct{}  // closed when the attempt is over; nil without one
}

// cameBack reports whether the connection is the one that fleetd's own restart caused, which is
// not the device's fault. For a device that connects while the engine starts, both the presence
// and the event report the connection; the presence is in whole milliseconds.
func (d *deployment) cameBack(at time.Time) bool {
	if !d.afterStart {
		return !at.Truncate(time.Millisecond).After(d.back)
	}
	d.afterStart, d.back = false, at
	return true
}

// late reports whether later evidence still changes the deployment: proof that re-opens it, or
// the device's own report of why it failed.
func late(s campaign.DeploymentState) bool {
	switch s {
	case campaign.DeploymentTimedOut, campaign.DeploymentFailed, campaign.DeploymentAborted, campaign.DeploymentRolledBack:
		return true
	}
	return false
}

// attach loads a row into memory, and puts the deployment where it waits.
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

// detach removes a deployment from memory. Its row remains in the store.
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

// settle puts a deployment where it waits for its next step.
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

// endAttempt ends the attempt's call. The outcome of that call no longer has any effect.
func (d *deployment) endAttempt() {
	d.spared = time.Time{}
	if d.attemptEnd != nil {
		close(d.attemptEnd)
		d.attemptEnd = nil
	}
}

// activeElsewhere reports whether another deployment in memory is updating the device.
func (l *loop) activeElsewhere(d *deployment) bool {
	return slices.ContainsFunc(l.byDevice[d.Device], func(other *deployment) bool {
		return other != d && other.State.Active()
	})
}
