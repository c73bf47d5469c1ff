// Package alert says whether the fleet is well: conditions that are looked at again
// and again, and the alerts that are open while one holds.
//
// The conditions are one table ([Conditions]), and so are the states of an alert
// ([Next]). An alert opens when its condition has held for a while, and ends when it
// has not held for a while, so that nothing flaps. What an alert says is its kind
// with parameters; text is made where it is shown.
//
// It knows no SQL, no HTTP and no mail server. Its goroutines are [Service.Run] and
// [Service.RunMail]; a mutex guards what was last found.
package alert

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A Severity says how bad an alert is.
type Severity string

const (
	Warning Severity = "warning"
	Bad     Severity = "bad"
)

// A Status is where an alert stands.
type Status string

const (
	Open         Status = "open"
	Acknowledged Status = "acknowledged" // somebody looks after it
	Ended        Status = "ended"
)

// Statuses lists every one.
var Statuses = []Status{Open, Acknowledged, Ended}

// An Event moves an alert from one state to another.
type Event string

const (
	Opened   Event = "opened"   // its condition has held for long enough
	Worsened Event = "worsened" // its severity rose, or its devices have doubled since it was acknowledged
	Acked    Event = "acknowledged"
	Closed   Event = "ended" // its condition has not held for long enough
)

// Events lists every event.
var Events = []Event{Opened, Worsened, Acked, Closed}

// next is the state machine: what an event makes of a state. What is not here
// cannot happen. "" is the state of an alert that does not exist yet.
var next = map[Status]map[Event]Status{
	"":           {Opened: Open},
	Open:         {Worsened: Open, Acked: Acknowledged, Closed: Ended},
	Acknowledged: {Worsened: Open, Closed: Ended},
	Ended:        {},
}

// Next returns the state after the event; ok is false if the event cannot happen
// in the state.
func Next(s Status, e Event) (to Status, ok bool) {
	to, ok = next[s][e]
	return to, ok
}

// An Alert is something that is, or was, wrong.
type Alert struct {
	ID       uuid.UUID
	Kind     Kind
	Subject  string // the campaign's id, the upstream's name; "" for the fleet
	State    Status
	Severity Severity
	Devices  int          // how many it concerns; 0 for what concerns no device
	Params   fleet.Params // of its text; those of its condition
	Query    string       // finds the devices; "" if there are none
	Began    time.Time    // when its condition was first found to hold

	QuietSince *time.Time // since when its condition is found not to hold; nil while it holds
	EndedAt    *time.Time

	AckedBy    fleet.Principal // the last who did
	AckedAt    *time.Time
	AckedCount int // Devices at that time
	Note       string
}

// Reason is what the alert says, as a code.
func (a Alert) Reason() fleet.Reason { return fleet.Reason{Code: string(a.Kind), Params: a.Params} }

// A Record is one event in the history of an alert.
type Record struct {
	Seq      int64
	Alert    uuid.UUID
	At       time.Time
	Event    Event
	Severity Severity
	Devices  int
	By       fleet.Principal // zero for fleetd itself
	Note     string
}

// A Change is an alert as it is to be stored.
type Change struct {
	Alert Alert
	From  Status // as it was read; "" to create it
	Event Event  // "" if only its figures changed
	At    time.Time
	By    fleet.Principal // zero for fleetd itself
}

// A Filter narrows a list of alerts. Zero fields do not filter.
type Filter struct {
	States []Status
	Limit  int
	Cursor string
}

// Store keeps alerts and their settings.
type Store interface {
	// OpenAlerts lists those that have not ended: those not acknowledged first, then the
	// worst, those that concern most devices, and the oldest.
	OpenAlerts(ctx context.Context) ([]Alert, error)
	Alerts(ctx context.Context, f Filter) (fleet.Page[Alert], error) // newest first
	Alert(ctx context.Context, id uuid.UUID) (Alert, error)
	AlertRecords(ctx context.Context, id uuid.UUID) ([]Record, error) // oldest first
	// ChangeAlert stores a change and its event, if the alert is still in the state
	// that it is changed from; else it fails with [fleet.ErrConflict].
	ChangeAlert(ctx context.Context, c Change) error
	AlertSettings(ctx context.Context) (Settings, error)
	SaveAlertSettings(ctx context.Context, by fleet.Principal, s Settings) error
}
