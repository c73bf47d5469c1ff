package call

import (
	"encoding/json"
	"time"

	"fleetd/fleet"
)

// A FirmwareOrder makes an upgrade call of a campaign. Evidence decides the call's outcome,
// which is also the attempt's: succeeded when a boot poll names the build, tool_error when the
// device refused or came back without the build.
type FirmwareOrder struct {
	URL       string // one-time link of the attempt
	ELFSHA256 string // of the image
	// The following fields go to devices whose tool has a property of the same name.
	SHA256    string // of the bytes, hex
	Size      int64  // bytes
	Job       string // from [fleet.UpgradeJobName]; the device reports on it
	Manifest  string // signed statement about the image; "" without one
	Signature string // of the manifest, base64
	// Notify is called as soon as the call was sent, answered or not sent; it must not block,
	// and may be nil. Kinds: sent, answer, job (the device accepted the named job), refused,
	// late_answer, not_sent. Every order gets sent or not_sent, also if [Service.Make] fails;
	// Code and Detail of not_sent and refused are the code and detail of the call's error.
	Notify func(fleet.Evidence)
	// Timeout is how long the call waits for its evidence; it must be above 0.
	Timeout time.Duration
	// Done, once closed, ends the call: the campaign judged the attempt by other evidence. May
	// be nil.
	Done <-chan struct{}
}

// done returns the order's Done, or a nil channel, which never delivers, for a call that is not
// an upgrade.
func (o *FirmwareOrder) done() <-chan struct{} {
	if o == nil {
		return nil
	}
	return o.Done
}

func (o *FirmwareOrder) notify(e fleet.Evidence) {
	if o != nil && o.Notify != nil {
		o.Notify(e)
	}
}

// arguments returns the order's arguments that the tool offers: stock firmware has only the url
// argument, and gets only that.
func (o *FirmwareOrder) arguments(schema json.RawMessage, url string) json.RawMessage {
	args := map[string]any{"url": url}
	types := propertyTypes(schema)
	for name, text := range map[string]string{"sha256": o.SHA256, "job": o.Job, "manifest": o.Manifest,
		"signature": o.Signature} {
		if text != "" && types[name] == "string" {
			args[name] = text
		}
	}
	if o.Size > 0 && types["size"] == "integer" {
		args["size"] = o.Size
	}
	wire, _ := json.Marshal(args) // strings and a number always marshal
	return wire
}

// propertyTypes returns the properties of an input schema with their types, and none for an
// unreadable schema.
func propertyTypes(schema json.RawMessage) map[string]string {
	var s struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	_ = json.Unmarshal(schema, &s) // a member of another shape does not affect the rest
	types := make(map[string]string, len(s.Properties))
	for name, p := range s.Properties {
		types[name], _ = p.Type.(string)
	}
	return types
}

// EvidenceIn returns what an answer says about an order that an earlier process sent, as that process
// would have notified its campaign. job is the order's job.
func EvidenceIn(answer fleet.Answer, job string, at time.Time) fleet.Evidence {
	order := FirmwareOrder{Job: job}
	e := fleet.Evidence{At: at, Kind: fleet.EvidenceAnswer, Detail: answer.Text}
	switch {
	case answer.Err != nil:
		e.Kind, e.Code, e.Detail = fleet.EvidenceRefused, fleet.CodeToolError, answer.Err.Message
	case answer.IsError:
		e.Kind, e.Code = fleet.EvidenceRefused, fleet.CodeToolError
	case answer.Failed():
		e.Kind, e.Code, e.Detail = fleet.EvidenceRefused, codeAnsweredFalse, ""
	case order.accepts(answer.Text):
		e.Kind, e.Detail = fleet.EvidenceJob, string(fleet.JobAccepted)
	}
	e.Detail = fleet.CleanText(e.Detail, maxOrderDetail)
	return e
}

// accepts reports whether an answer says that the job has begun: the upgrade then continues
// after the answer and sends reports.
func (o *FirmwareOrder) accepts(text string) bool {
	var answer struct {
		Job   string         `json:"job"`
		State fleet.JobState `json:"state"`
	}
	return o.Job != "" && json.Unmarshal([]byte(text), &answer) == nil && answer.Job == o.Job &&
		answer.State == fleet.JobAccepted
}
