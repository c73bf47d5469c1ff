package trend

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// MaxEvents is how many events a range has at most; the oldest are left out.
const MaxEvents = 100

// An EventKind is something that may explain a change of figures.
type EventKind string

const (
	EventRelease  EventKind = "release"  // a release was created
	EventCampaign EventKind = "campaign" // a campaign was started
	EventStart    EventKind = "start"    // fleetd was started, or another core took over
)

// EventKinds lists every kind.
var EventKinds = []EventKind{EventRelease, EventCampaign, EventStart}

// An Event is one moment in a range.
type Event struct {
	At   time.Time
	Kind EventKind
	ID   uuid.UUID // of the release or the campaign; nil of a start
	Name string    // version of the release, name of the campaign, node that was started
}

// eventKinds returns the kinds that the principal of the context may see: campaigns and starts concern the whole
// fleet, releases belong to no device.
func eventKinds(ctx context.Context) []EventKind {
	if _, narrow := fleet.ScopeOf(ctx); narrow {
		return []EventKind{EventRelease}
	}
	return EventKinds
}
