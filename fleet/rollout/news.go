package rollout

import (
	"time"

	"fleetd/fleet"
)

// newsEvery bounds how often live views of a campaign are told to look.
const newsEvery = 250 * time.Millisecond

type news struct {
	pending bool
	at      time.Time
}

// announce tells live views of the campaigns that moved on.
func (l *loop) announce() {
	for _, c := range l.campaigns {
		if !c.news.pending || l.now.Sub(c.news.at) < newsEvery {
			continue
		}
		c.news = news{at: l.now}
		l.o.Events.Publish(fleet.Event{Kind: fleet.EventCampaign, At: l.now, Subject: c.ID.String()})
	}
}

// tell tells live views of a deployment that was stored.
func (l *loop) tell(d *deployment) {
	d.camp.news.pending = true
	if l.o.Events.Idle() {
		return
	}
	l.o.Events.Publish(fleet.Event{Kind: fleet.EventDeployed, At: l.now, Device: d.Device, Subject: d.Campaign.String()})
}
