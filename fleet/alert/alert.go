// Package alert monitors the health of the fleet: it checks conditions periodically and has
// an alert open while a condition holds.
//
// The conditions are one table ([Conditions]), and so are the states of an alert ([Next]). An
// alert opens after its condition has held for some time, and ends after the condition has
// not held for some time, so brief changes do not flap. An alert is a kind with parameters;
// text is made where it is shown.
//
// A [Silence] keeps alerts from being sent for a while, and a [Route] limits the alerts that a
// receiver gets.
//
// It uses no SQL, HTTP or mail server directly. Its goroutines are [Service.Run] and
// [Service.RunMail]; a mutex guards the latest findings.
package alert

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A Severity is how bad an alert is.
type Severity string

const (
	Warning Severity = "warning"
	Bad     Severity = "bad"
)

// A Status is the state of an alert.
type Status string

const (
	Open         Status = "open"
	Acknowledged Status = "acknowledged" // a person is handling it
	Ended        Status = "ended"
)

// Statuses lists every status.
var Statuses = []Status{Open, Acknowledged, Ended}

// An Event is a transition of an alert's state.
type Event string

const (
	Opened   Event = "opened"   // its condition has held for long enough
	Worsened Event = "worsened" // its severity rose, or its devices have doubled since it was acknowledged
	Acked    Event = "acknowledged"
	Unacked  Event = "reopened" // who acknowledged it took that back
	Closed   Event = "ended"    // its condition has not held for long enough

	Silenced   Event = "silenced"   // a silence applies to it
	Unsilenced Event = "unsilenced" // no silence applies any more, and its condition holds
)

// Events lists every event.
var Events = []Event{Opened, Worsened, Acked, Unacked, Closed, Silenced, Unsilenced}

// next is the state machine: it maps a state and an event to the new state. Missing entries
// are impossible. "" is the state before the alert exists.
var next = map[Status]map[Event]Status{
	"":           {Opened: Open},
	Open:         {Worsened: Open, Acked: Acknowledged, Closed: Ended, Silenced: Open, Unsilenced: Open},
	Acknowledged: {Worsened: Open, Unacked: Open, Closed: Ended, Silenced: Acknowledged, Unsilenced: Acknowledged},
	Ended:        {},
}

// Next returns the state after the event; ok is false if the event cannot happen
// in the state.
func Next(s Status, e Event) (to Status, ok bool) {
	to, ok = next[s][e]
	return to, ok
}

// An Alert is a present or past problem.
type Alert struct {
	ID       uuid.UUID
	Kind     Kind
	Subject  string // the campaign's id, the upstream's name; "" for the fleet
	State    Status
	Severity Severity
	Devices  int          // number of affected devices; 0 if it concerns no device
	Params   fleet.Params // parameters of its text, as its condition lists them
	Query    string       // finds the devices; "" if there are none
	Began    time.Time    // when its condition was first found to hold

	QuietSince *time.Time // when its condition stopped to hold; nil while it holds
	EndedAt    *time.Time

	AckedBy    fleet.Principal // the latest principal that acknowledged it
	AckedAt    *time.Time
	AckedCount int // Devices at that time
	Note       string

	// Silence keeps it from being sent; nil if none does. It stays until fleetd has sent the alert after
	// the silence's end: see [Alert.Silenced].
	Silence *Silence
}

// Reason returns the alert's code and parameters.
func (a Alert) Reason() fleet.Reason { return fleet.Reason{Code: string(a.Kind), Params: a.Params} }

// A Record is one event in the history of an alert.
type Record struct {
	Seq      int64
	Alert    uuid.UUID
	At       time.Time
	Event    Event
	Severity Severity
	Devices  int
	By       fleet.Principal // zero means fleetd itself
	Note     string
}

// A Change is an alert to be stored.
type Change struct {
	Alert Alert
	From  Status // state as read; "" to create the alert
	Event Event  // "" if only its parameters changed
	At    time.Time
	By    fleet.Principal // zero means fleetd itself
	Note  string          // of the event

	Devices []fleet.DeviceID // all devices, if known; otherwise the alert's query finds them
}

// Affected returns the devices of the alert.
func (c Change) Affected() Devices {
	switch {
	case c.Devices != nil:
		return Devices{IDs: c.Devices}
	case c.Alert.Kind == ToolQuarantined:
		return Devices{IDs: []fleet.DeviceID{fleet.DeviceID(c.Alert.Subject)}}
	}
	return Devices{Query: c.Alert.Query}
}

// A Filter narrows a list of alerts. Zero fields do not filter.
type Filter struct {
	States []Status
	Limit  int
	Cursor string
}

// Store stores alerts and their settings.
type Store interface {
	SilenceStore
	// OpenAlerts lists the alerts that have not ended: silenced ones last, unacknowledged ones
	// first, then by severity, by number of devices and by age, the oldest first.
	OpenAlerts(ctx context.Context) ([]Alert, error)
	Alerts(ctx context.Context, f Filter) (fleet.Page[Alert], error) // newest first
	Alert(ctx context.Context, id uuid.UUID) (Alert, error)
	AlertRecords(ctx context.Context, id uuid.UUID) ([]Record, error) // oldest first
	// ChangeAlert stores a change and its event if the alert is still in the change's From
	// state; otherwise it returns [fleet.ErrConflict].
	ChangeAlert(ctx context.Context, c Change) error
	AlertSettings(ctx context.Context) (Settings, error)
	SaveAlertSettings(ctx context.Context, by fleet.Principal, s Settings) error
}
