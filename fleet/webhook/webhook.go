// Package webhook posts events of the fleet to addresses that an admin has configured: as JSON that
// is signed with the address's secret, or as a message for a chat service ([Shape]).
//
// A delivery is a job created in the transaction of its event, so none is lost. It is
// repeated until the address responds with a status below 300 or its attempts are used up. A
// receiver may get a delivery twice and recognises it by its delivery_id. A route limits the alerts
// that an address gets. The package uses neither SQL nor a queue directly; [Service] has no
// goroutine, and a mutex guards its pauses.
package webhook

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/call"
)

// EventKind is the kind of event that a webhook is sent for.
type EventKind string

const (
	ApprovalRequested EventKind = "approval.requested"
	ApprovalDecided   EventKind = "approval.decided" // approved, denied, expired or withdrawn
	AlertOpened       EventKind = "alert.opened"
	AlertWorsened     EventKind = "alert.worsened"
	AlertAcknowledged EventKind = "alert.acknowledged"
	AlertEnded        EventKind = "alert.ended"
	Test              EventKind = "test" // an admin requested it
)

// EventKinds lists the kinds that a webhook can be created for.
var EventKinds = []EventKind{ApprovalRequested, ApprovalDecided, AlertOpened, AlertWorsened, AlertAcknowledged,
	AlertEnded}

// A Webhook is an address and the events that are posted to it.
type Webhook struct {
	ID        uuid.UUID
	Name      string
	Shown     string // scheme and host of its URL; the rest is a secret of the receiver
	Address   []byte // the URL, sealed
	Events    []EventKind
	Secret    []byte // sealed
	Enabled   bool
	CreatedBy string
	CreatedAt time.Time
	Last      Delivery // the zero value before the first

	Shape Shape
	Chat  string // id of the Telegram chat; "" for other shapes
	Lang  string // of the text for a chat service: one of [alert.MailLangs]
	Route alert.Route
}

// Gets returns the event that the webhook gets for an event of an alert, "" if it gets none. before
// reports whether the alert was within the route earlier, within whether it is now; both are true
// without a route. A receiver gets an alert that comes into its route later as opened, and so it
// gets an alert whose silence has ended, and one whose acknowledgement was taken back.
func (w Webhook) Gets(e alert.Event, before, within bool) EventKind {
	kind := OfAlert(e)
	switch {
	case e == alert.Silenced || e == "" && before || !before && (e == alert.Closed || !within):
		return ""
	case e == alert.Unsilenced || e == alert.Unacked || e == "" || !before && slices.Contains(w.Events, AlertOpened):
		kind = AlertOpened
	}
	if !slices.Contains(w.Events, kind) {
		return ""
	}
	return kind
}

// A Delivery is the outcome of one attempt.
type Delivery struct {
	Event  EventKind
	At     *time.Time
	Status int          // HTTP status; 0 if there was no response
	Reason fleet.Reason // why it failed; zero if it succeeded
}

// A Job is one event for one webhook.
type Job struct {
	ID      uuid.UUID `json:"id"` // id of the delivery
	Webhook uuid.UUID `json:"webhook"`
	Event   EventKind `json:"event"`
	At      time.Time `json:"at"`
	Path    string    `json:"path"` // path of the page about the event
	Subject string    `json:"subject"`
	// Body is JSON, stored in base64 because jsonb refuses some text from devices and models.
	Body []byte `json:"body"`
}

// NewApprovalJob returns the delivery of an event about an approval.
func NewApprovalJob(hook uuid.UUID, kind EventKind, at time.Time, a call.Approval) Job {
	body, _ := json.Marshal(viewApproval(a)) // strings, numbers and valid JSON always marshal
	return Job{ID: uuid.Must(uuid.NewV7()), Webhook: hook, Event: kind, At: at, Subject: "approval",
		Path: "/approvals/" + a.ID.String(), Body: body}
}

// NewAlertJob returns the delivery of an event about an alert.
func NewAlertJob(hook uuid.UUID, at time.Time, e EventKind, a alert.Alert) Job {
	body, _ := json.Marshal(viewAlert(a)) // strings and numbers always marshal
	return Job{ID: uuid.Must(uuid.NewV7()), Webhook: hook, Event: e, At: at, Subject: "alert",
		Path: "/alerts/" + a.ID.String(), Body: body}
}

// Alert returns the alert of a job about one.
func (j Job) Alert() (alert.Alert, error) {
	var v alertView
	if err := json.Unmarshal(j.Body, &v); err != nil {
		return alert.Alert{}, err
	}
	a := alert.Alert{ID: v.ID, Kind: v.Kind, Subject: v.Subject, State: v.State, Severity: v.Severity, Devices: v.Devices,
		Query: v.Query, Params: v.Params, Began: v.BeganAt, EndedAt: v.EndedAt, Note: v.Note}
	if v.AckedBy != nil {
		a.AckedBy = fleet.Principal{Kind: v.AckedBy.Kind, Name: v.AckedBy.Name}
	}
	return a, nil
}

// Approval returns what the text about an approval needs.
func (j Job) Approval() (call.Approval, error) {
	var v approvalView
	if err := json.Unmarshal(j.Body, &v); err != nil {
		return call.Approval{}, err
	}
	a := call.Approval{ID: v.ID, State: v.State, Subject: v.Subject, Device: v.DeviceID, Targets: v.Targets, Tool: v.Tool,
		AskedBy: fleet.Principal{Kind: v.AskedBy.Kind, Name: v.AskedBy.Name}, Purpose: v.Purpose, Reason: v.Reason}
	if v.DecidedBy != nil {
		a.DecidedBy = fleet.Principal{Kind: v.DecidedBy.Kind, Name: v.DecidedBy.Name}
	}
	return a, nil
}

// OfAlert returns the kind of webhook event for an event of an alert.
func OfAlert(e alert.Event) EventKind { return EventKind("alert." + string(e)) }

// Store stores webhooks.
type Store interface {
	CreateWebhook(ctx context.Context, by fleet.Principal, w Webhook) error
	Webhooks(ctx context.Context) ([]Webhook, error) // by name
	Webhook(ctx context.Context, id uuid.UUID) (Webhook, error)
	UpdateWebhook(ctx context.Context, by fleet.Principal, w Webhook) error
	DeleteWebhook(ctx context.Context, by fleet.Principal, id uuid.UUID) error
	// SealWebhooks seals the addresses that are stored unsealed, all or none of them, and
	// returns how many.
	SealWebhooks(ctx context.Context, seal func(id uuid.UUID, url string) (shown string, address []byte)) (int, error)
	SetWebhookDelivery(ctx context.Context, id uuid.UUID, d Delivery) error
}

// approvalView is the JSON of an approval for receivers.
type approvalView struct {
	ID        uuid.UUID            `json:"id"`
	State     call.ApprovalState   `json:"state"`
	Subject   call.ApprovalSubject `json:"subject"`
	SubjectID uuid.UUID            `json:"subject_id"`
	DeviceID  fleet.DeviceID       `json:"device_id,omitempty"`
	Query     string               `json:"query,omitempty"`
	Targets   int                  `json:"targets"`
	Tool      string               `json:"tool"`
	Arguments json.RawMessage      `json:"arguments"`
	Interrupt bool                 `json:"interrupt,omitempty"`
	Builds    []buildView          `json:"builds"`
	AskedBy   actorView            `json:"asked_by"`
	Person    string               `json:"person,omitempty"`
	Purpose   string               `json:"purpose,omitempty"`
	Rule      string               `json:"rule"`
	RuleName  string               `json:"rule_name"`
	CreatedAt time.Time            `json:"created_at"`
	ExpiresAt time.Time            `json:"expires_at"`
	DecidedBy *actorView           `json:"decided_by"`
	DecidedAt *time.Time           `json:"decided_at"`
	Reason    string               `json:"reason,omitempty"`
}

// buildView is the JSON of a group of equal devices in an approval.
type buildView struct {
	Tool    string `json:"tool_sha256"`
	ELF     string `json:"elf_sha256"`
	Version string `json:"version"`
	Devices int    `json:"devices"`
}

// alertView is the JSON of an alert for receivers.
type alertView struct {
	ID       uuid.UUID      `json:"id"`
	Kind     alert.Kind     `json:"kind"`
	Subject  string         `json:"subject"`
	State    alert.Status   `json:"state"`
	Severity alert.Severity `json:"severity"`
	Devices  int            `json:"devices"`
	Query    string         `json:"query"`
	Params   fleet.Params   `json:"params,omitempty"`
	BeganAt  time.Time      `json:"began_at"`
	EndedAt  *time.Time     `json:"ended_at"`
	AckedBy  *actorView     `json:"acknowledged_by"`
	Note     string         `json:"note,omitempty"`
}

func viewAlert(a alert.Alert) alertView {
	v := alertView{ID: a.ID, Kind: a.Kind, Subject: a.Subject, State: a.State, Severity: a.Severity, Devices: a.Devices,
		Query: a.Query, Params: a.Params, BeganAt: a.Began.UTC(), EndedAt: a.EndedAt, Note: a.Note}
	if a.AckedAt != nil {
		v.AckedBy = &actorView{a.AckedBy.Kind, a.AckedBy.Name}
	}
	return v
}

type actorView struct {
	Kind fleet.PrincipalKind `json:"kind"`
	Name string              `json:"name"`
}

func viewApproval(a call.Approval) approvalView {
	v := approvalView{ID: a.ID, State: a.State, Subject: a.Subject, SubjectID: a.SubjectID, DeviceID: a.Device,
		Query: a.Query, Targets: a.Targets, Tool: a.Tool, Arguments: a.Arguments, Interrupt: a.Interrupt,
		AskedBy: actorView{a.AskedBy.Kind, a.AskedBy.Name}, Person: a.Person, Purpose: a.Purpose, Rule: a.Rule,
		RuleName: a.RuleName, CreatedAt: a.CreatedAt.UTC(), ExpiresAt: a.ExpiresAt.UTC(), Reason: a.Reason}
	for _, b := range a.Builds {
		v.Builds = append(v.Builds, buildView{hex.EncodeToString(b.Tool[:]), b.ELF, b.Version, b.Devices})
	}
	if a.DecidedAt != nil {
		at := a.DecidedAt.UTC()
		v.DecidedBy, v.DecidedAt = &actorView{a.DecidedBy.Kind, a.DecidedBy.Name}, &at
	}
	return v
}
