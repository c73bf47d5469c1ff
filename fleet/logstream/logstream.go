// Package logstream sends the entries of the sealed record (package record) to other systems, in
// the order of the log: as webhooks, to a syslog server, or to an OpenTelemetry collector.
//
// Each stream has a filter and a cursor, the number of the next entry. The cursor moves on after
// the receiver has confirmed an entry, and survives restarts; after a failure, entries after it
// are sent again. A receiver may therefore get an entry twice, and recognises it by its number.
//
// [Service] manages streams for admins. [Service.Run] sends, and runs in the leading process only.
// The package uses no SQL.
package logstream

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/record"
)

// Kind is the kind of receiver.
type Kind string

const (
	Webhook Kind = "webhook" // POST of a CloudEvent, signed as Standard Webhooks defines
	Syslog  Kind = "syslog"  // RFC 5424 over TLS (RFC 5425)
	OTLP    Kind = "otlp"    // OpenTelemetry logs over HTTP
)

// Kinds lists all kinds.
var Kinds = []Kind{Webhook, Syslog, OTLP}

// A Stream is a receiver and the entries that it gets.
type Stream struct {
	ID        uuid.UUID
	Name      string
	Kind      Kind
	Shown     string // scheme and host of the address; the rest may be a secret of the receiver
	Address   []byte // the URL, sealed
	Secrets   []byte // [secrets], sealed
	CA        string // certificates in PEM that the receiver's is checked with; "": those of the system
	Filter    Filter
	Batch     int // entries of a request, at most
	Enabled   bool
	Revision  int64 // counts changes; a sender with an older one stops
	CreatedBy string
	CreatedAt time.Time

	Next     int64 // number of the first entry that was not confirmed
	Failures int   // attempts that failed since the last that succeeded
	Last     Delivery
}

// A Filter selects entries. An empty list does not filter. An entry without the field is not
// selected by a list for it.
type Filter struct {
	Kinds    []string `json:"kinds,omitempty"`    // kinds of the record
	Actions  []string `json:"actions,omitempty"`  // actions and tools; a trailing * matches any ending
	Outcomes []string `json:"outcomes,omitempty"` // states of calls and of campaign steps, presences
	Devices  []string `json:"devices,omitempty"`
}

// EntryKinds lists the kinds of entries that a filter can name.
var EntryKinds = func() (all []string) {
	for _, k := range slices.Concat(record.Kinds, []record.Kind{record.Forgotten, record.Dropped, record.Started}) {
		all = append(all, k.String())
	}
	return all
}()

// A Delivery is the outcome of one or several requests.
type Delivery struct {
	At          time.Time
	First, Last int64         // numbers of the first and the last entry
	Entries     int           // entries sent
	Requests    int           // requests that sent them
	Removed     int           // entries that were left out because their rows had been removed
	Took        time.Duration // of the requests
	Status      int           // HTTP status of the last; 0 without one
	Reason      fleet.Reason  // why it failed; zero if it succeeded
}

// OK reports whether the receiver confirmed the entries.
func (d Delivery) OK() bool { return d.Reason.Code == "" }

// Store stores streams.
type Store interface {
	CreateLogStream(ctx context.Context, by fleet.Principal, s Stream) error
	LogStreams(ctx context.Context) ([]Stream, error) // by name
	LogStream(ctx context.Context, id uuid.UUID) (Stream, error)
	// UpdateLogStream stores a changed stream if it still has the revision, and increases it. The cursor and the
	// deliveries stay.
	UpdateLogStream(ctx context.Context, by fleet.Principal, s Stream) error
	// ReplayLogStream sets the cursor and increases the revision.
	ReplayLogStream(ctx context.Context, by fleet.Principal, id uuid.UUID, next int64) error
	DeleteLogStream(ctx context.Context, by fleet.Principal, id uuid.UUID) error
	// AdvanceLogStream stores a delivery, and the cursor if it is higher than the stored one. It reports false,
	// and stores nothing, if the stream has another revision.
	AdvanceLogStream(ctx context.Context, id uuid.UUID, revision, next int64, failures int, d Delivery) (bool, error)
	// StopLogStream disables a stream whose receiver answered that it wants no more (410), in the name of fleetd.
	StopLogStream(ctx context.Context, id uuid.UUID, revision int64) error
	// LogStreamDeliveries returns the latest deliveries, newest first.
	LogStreamDeliveries(ctx context.Context, id uuid.UUID, limit int) ([]Delivery, error)
}

// A Log is the sealed record.
type Log interface {
	Status() record.Status
	Read(ctx context.Context, first, end int64) ([]record.Entry, error)
	EntryAt(ctx context.Context, at time.Time) (int64, error)
}

// An event is an entry that a receiver gets.
type event struct {
	record.Entry
	source string // name of the log
	line   fields
}

// fields are what filters and receivers need of a line.
type fields struct {
	Device   string `json:"device_id"`
	Subject  string `json:"subject"`
	Tool     string `json:"tool"`
	Action   string `json:"action"`
	State    string `json:"state"`
	Presence string `json:"presence"`
	To       string `json:"to"`
	Trace    string `json:"trace_id"`
}

// newEvent reads the fields of the entry's line.
func newEvent(source string, e record.Entry) event {
	ev := event{Entry: e, source: source}
	_ = json.Unmarshal(e.Line, &ev.line) // fleetd made the line; without fields, no filter selects it
	return ev
}

func (e *event) device() string { return cmp.Or(e.line.Device, e.Device) }

// subject returns what the entry is about: a device, or the subject of an action.
func (e *event) subject() string { return cmp.Or(e.device(), e.line.Subject, e.Subject) }

func (e *event) action() string { return cmp.Or(e.line.Tool, e.line.Action) }

func (e *event) outcome() string { return cmp.Or(e.line.State, e.line.Presence, e.line.To) }

// trace returns the trace id in hexadecimal, "" if the request had none.
func (e *event) trace() string { return strings.ReplaceAll(e.line.Trace, "-", "") }

// failed reports whether the entry is about something that failed.
func (e *event) failed() bool {
	return fleet.CallState(e.line.State).Failed() || campaign.DeploymentState(e.line.To).Failed()
}

// body returns the entry as a line of JSON.
func (e *event) body() []byte {
	b, _ := json.Marshal(e.Entry) // strings, numbers and valid JSON always marshal
	return b
}

// selects reports whether the filter selects the event.
func (f *Filter) selects(e *event) bool {
	return (len(f.Kinds) == 0 || slices.Contains(f.Kinds, e.Kind)) &&
		(len(f.Actions) == 0 || fleet.MatchTool(f.Actions, e.action())) &&
		(len(f.Outcomes) == 0 || slices.Contains(f.Outcomes, e.outcome())) &&
		(len(f.Devices) == 0 || slices.Contains(f.Devices, e.subject()))
}
