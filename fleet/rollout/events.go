package rollout

import (
	"time"

	"fleetd/fleet"
)

// eventsEvery bounds how often open pages of a campaign are notified.
const eventsEvery = 250 * time.Millisecond

type events struct {
	pending bool
	at      time.Time
}

// announce publishes an event for each campaign that moved on.
func (l *loop) announce() {
	for _, c := range l.campaigns {
		if !c.events.pending || l.now.Sub(c.events.at) < eventsEvery {
			continue
		}
		c.events = events{at: l.now}
		l.o.Events.Publish(fleet.Event{Kind: fleet.EventCampaign, At: l.now, Subject: c.ID.String()})
	}
}

// publish notifies open pages of a stored deployment.
func (l *loop) publish(d *deployment) {
	d.camp.events.pending = true
	if !l.o.Events.Wanted(fleet.EventDeployed) {
		return
	}
	l.o.Events.Publish(fleet.Event{Kind: fleet.EventDeployed, At: l.now, Device: d.Device, Subject: d.Campaign.String()})
}
