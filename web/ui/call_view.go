package ui

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"fleetd/fleet"
)

// A CallPage is one recorded call: GET [CallPath].
type CallPage struct {
	Call CallView
}

// A CallView is one call with all its details. It is shown on its own page and next to a tool's
// form; a live stream sends it as a patch.
type CallView struct {
	Call       fleet.Call
	DeviceName string
	Pictures   []Snapshot // uploaded for this call
	Compact    bool       // shown next to the form: links to the record, omits the form's values

	// What the viewer may do while the call waits.
	CanCancel, CanInterrupt bool
}

// CallImagePath serves an image in a call's result, by its index in the content.
func CallImagePath(id string, n int) string {
	return CallPath(id) + "/images/" + strconv.Itoa(n)
}

func (v CallView) id() string { return v.Call.ID.String() }

func (v CallPage) eventsURL() string {
	if v.Call.Call.State.Final() && v.Call.Call.Late != nil {
		return "" // nothing can change any more
	}
	return EventsURL(ViewCall, url.Values{"id": {v.Call.id()}})
}

// contentPart is one piece of an MCP result.
type contentPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	MIMEType string `json:"mimeType"`
}

func content(result json.RawMessage) []contentPart {
	var r struct {
		Content []contentPart `json:"content"`
	}
	if json.Unmarshal(result, &r) != nil {
		return []contentPart{{Type: "text", Text: string(result)}}
	}
	return r.Content
}

// A step is one moment of a call's timeline.
type step struct {
	at     time.Time
	key    string
	reason fleet.Reason  // the event, if it has a code
	detail string        // the event otherwise: foreign text
	after  time.Duration // since the step before
}

// steps returns the time stamps and the evidence, in order.
func (v CallView) steps() []step {
	c := v.Call
	steps := []step{{at: c.CreatedAt, key: "call.step.created"}}
	if c.SentAt != nil {
		steps = append(steps, step{at: *c.SentAt, key: "call.step.sent"})
	}
	for _, e := range c.Evidence {
		switch e.Kind {
		case fleet.EvidenceSent, fleet.EvidenceAnswer:
		case fleet.EvidenceJob: // a call receives only the acceptance
			steps = append(steps, step{at: e.At, key: "evidence.job"})
		default:
			s := step{at: e.At, key: "evidence." + string(e.Kind), reason: e.Reason}
			if s.reason.Is("") {
				s.detail = e.Detail
			}
			steps = append(steps, s)
		}
	}
	if c.FinishedAt != nil {
		steps = append(steps, step{at: *c.FinishedAt, key: "call.step.finished"})
	}
	if c.Late != nil {
		steps = append(steps, step{at: c.Late.At, key: "call.step.late"})
	}
	for i := 1; i < len(steps); i++ {
		steps[i].after = steps[i].at.Sub(steps[i-1].at)
	}
	return steps
}

// request returns the message to the device.
func (v CallView) request() string {
	args := v.Call.Arguments
	if !json.Valid(args) {
		args = json.RawMessage("{}")
	}
	return indent(rpcMessage(v.Call.RPCID, v.Call.Tool, args))
}

// rpcMessage formats a call with its fields in the order of the wire.
func rpcMessage(id any, tool string, arguments any) []byte {
	type params struct {
		Name      string `json:"name"`
		Arguments any    `json:"arguments"`
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(struct {
		JSONRPC string `json:"jsonrpc"`
		ID      any    `json:"id"`
		Method  string `json:"method"`
		Params  params `json:"params"`
	}{"2.0", id, "tools/call", params{tool, arguments}}) // into memory, of valid JSON
	return b.Bytes()
}

// means returns the message that explains the outcome for the device.
func (v CallView) means() (key string, ok bool) {
	if v.Call.State == fleet.CallSucceeded && fleet.EffectOf(v.Call.Tool) == fleet.EffectLeaves {
		return "call.means.left", true
	}
	key, ok = explained[v.Call.State]
	if !fleet.ByEvidence(v.Call.Tool) {
		return key, ok
	}
	switch {
	case v.Call.State == fleet.CallTimedOut:
		key = "call.means.timed_out.evidence"
	case v.Call.State != fleet.CallSent:
	case v.Call.Tool == fleet.ToolUpgradeFirmware:
		key = "call.means.sent.upgrade"
	case fleet.EffectOf(v.Call.Tool) == fleet.EffectLeaves:
		key = "call.means.sent.leaves"
	default:
		key = "call.means.sent.restarts"
	}
	return key, ok
}

// explained are the outcomes that need an explanation for the device: whether the tool may have
// run.
var explained = map[fleet.CallState]string{
	fleet.CallPendingApproval: "approval.waits", fleet.CallPendingDevice: "call.means.pending_device",
	fleet.CallPending: "call.means.pending", fleet.CallSent: "call.means.sent",
	fleet.CallTimedOut: "call.means.timed_out", fleet.CallUnknown: "call.means.unknown",
	fleet.CallRefused: "call.means.not_sent", fleet.CallInvalid: "call.means.not_sent",
	fleet.CallOffline: "call.means.not_sent", fleet.CallCanceled: "call.means.not_sent",
	fleet.CallToolError: "call.means.tool_error",
}

// firstText returns the first text of the result; it omits "true", which adds nothing to the state.
func (v CallView) firstText() string {
	for _, p := range content(v.Call.Result) {
		if p.Type == "text" && p.Text != "true" {
			return p.Text
		}
	}
	return ""
}
