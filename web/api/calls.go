package api

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/access"
)

func (a *api) registerCalls() {
	register(a, operation{id: "make-call", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodPost, path: "/devices/{id}/calls", role: fleet.RoleOperator,
		noun:    "device",
		summary: "Call a tool of a device", picture: true, usual: a.usualCall,
		about: "Waits for the outcome and answers 200 with the call, whatever its state; refused and unanswered calls are recorded, too. " +
			"A call that needs an approval is answered at once, in the state pending_approval: who may approves it at approval_id, and its outcome is read at /calls/{id}. " +
			"With the header Prefer: respond-async it answers 202 at once; the call is at Location. " +
			"self.screen.preview_image takes a picture: a snapshot named in picture, or a file, in a form whose part call is this JSON. " +
			"A call that would interrupt a conversation of the device (it restarts, leaves the network, or gets other settings) waits for its end, for a bounded time: it is answered at once, pending, and waits says for what. interrupt: true, or POST /calls/{id}/interrupt, sends it all the same. " +
			"With offline: wait a call to a device that is not connected is answered at once, in the state pending_device, and sent once the device is back, until wait_until at the latest; then it is canceled, with the code wait_expired. It outlives a restart of the server, and is judged again before it is sent. Calls that wait for one device are sent in their order; of one device 20 may wait, of one principal 500. POST /calls/{id}/cancel cancels it. " +
			"A tool with an effect (see the list of tools) takes the device away, and is judged by that.",
		more: func(h *huma.Operation) {
			also[callView](a, h, "202", "The call was made; its outcome comes at Location")
		}}, a.makeCall)
	describePictureForm(a.huma.OpenAPI().Paths["/devices/{id}/calls"].Post)
	register(a, operation{id: "list-device-calls", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/calls",
		role: fleet.RoleViewer, noun: "device",
		summary: "List the calls made to a device, newest first"}, a.listDeviceCalls)
	register(a, operation{id: "list-calls", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/calls", role: fleet.RoleViewer,
		summary: "List calls, newest first"}, a.listCalls)
	register(a, operation{id: "get-call", reach: access.Record, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/calls/{id}", role: fleet.RoleViewer,
		noun:    "call",
		summary: "Show a call"}, a.getCall)
	register(a, operation{id: "interrupt-call", reach: access.Record, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/calls/{id}/interrupt", role: fleet.RoleOperator,
		noun:    "call",
		summary: "Send a call that waits for the end of a conversation",
		about:   "The call's evidence records who requested this. call_not_waiting: the call is not waiting."}, a.interruptCall)
	register(a, operation{id: "cancel-call", reach: access.Record, models: fleet.ModelsOwn,
		method: http.MethodPost, path: "/calls/{id}/cancel", role: fleet.RoleOperator,
		noun:    "call",
		summary: "Cancel a call that waits for its device, or for the end of a conversation",
		about:   "For the caller, and for operators who may call the tool; a language model can cancel only its own calls. A canceled call was not sent and will not be. call_not_waiting: the call is not waiting, or was already sent. To cancel a call that waits for an approval, withdraw the approval."}, a.cancelCall)
}

// arguments are the arguments of a call: a JSON object.
type arguments json.RawMessage

// Schema returns the schema of an object; only the tool defines its properties.
func (arguments) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true,
		Description: "Arguments of the tool, at most 3 KiB; {} if left out"}
}

// MarshalJSON and UnmarshalJSON preserve the JSON byte for byte.
func (v arguments) MarshalJSON() ([]byte, error) { return json.RawMessage(v).MarshalJSON() }

func (v *arguments) UnmarshalJSON(data []byte) error {
	*v = append((*v)[:0], data...)
	return nil
}

type makeCallInput struct {
	DevicePath
	Prefer string `header:"Prefer" maxLength:"200" doc:"respond-async does not wait for the outcome"`
	Body   struct {
		Tool        string      `json:"tool" minLength:"1" maxLength:"200" example:"self.audio_speaker.set_volume"`
		Arguments   arguments   `json:"arguments,omitempty"`
		Picture     *pictureRef `json:"picture,omitempty" doc:"Picture for self.screen.preview_image"`
		TimeoutMs   int64       `json:"timeout_ms,omitempty" minimum:"0" maximum:"300000" doc:"How long to wait for the answer; 0: depends on the tool"`
		Purpose     string      `json:"purpose,omitempty" maxLength:"300" doc:"Reason for the call, at most 300 bytes; shown to approvers if the policy requires approval"`
		Offline     string      `json:"offline,omitempty" enum:"refuse,wait" doc:"Handling of a device that is not connected. refuse, the default: the call ends as offline at once. wait: the call is sent when the device is back"`
		OfflineWait int64       `json:"offline_wait_ms,omitempty" minimum:"0" maximum:"604800000" doc:"With wait: how long from now; 0: 24 hours"`
		Interrupt   bool        `json:"interrupt,omitempty" doc:"Do not wait for a conversation that the call would interrupt"`
	}
}

type makeCallOutput struct {
	Status            int
	Location          string `header:"Location"`
	PreferenceApplied string `header:"Preference-Applied"`
	Body              callView
}

// request returns the call without its picture.
func (in *makeCallInput) request(by fleet.Principal) (call.Request, error) {
	id, err := in.device()
	var wait time.Duration
	switch {
	case in.Body.Offline == "wait":
		wait = cmp.Or(time.Duration(in.Body.OfflineWait)*time.Millisecond, call.DefaultCallOfflineWait)
	case in.Body.OfflineWait != 0 && err == nil:
		err = fleet.Refuse(fleet.ErrInvalid, "offline_wait_without_wait").At("offline_wait_ms")
	}
	return call.Request{Actor: by, Device: id, Tool: in.Body.Tool, Arguments: json.RawMessage(in.Body.Arguments),
		Timeout: time.Duration(in.Body.TimeoutMs) * time.Millisecond, Purpose: in.Body.Purpose,
		Interrupt: in.Body.Interrupt, OfflineWait: wait}, err
}

func (a *api) makeCall(ctx context.Context, by fleet.Principal, in *makeCallInput) (*makeCallOutput, error) {
	r, err := in.request(by)
	if err != nil {
		return nil, err
	}
	if r.Picture, err = a.pictureFor(ctx, r.Device, r.Tool, in.Body.Picture); err != nil {
		return nil, err
	}
	if prefersAsync(in.Prefer) {
		c, err := a.Calls.Start(ctx, r)
		return &makeCallOutput{http.StatusAccepted, prefix + "/calls/" + c.ID.String(), "respond-async", viewOfCall(c)}, err
	}
	c, err := a.Calls.Make(ctx, r)
	return &makeCallOutput{Status: http.StatusOK, Body: viewOfCall(c)}, err
}

// prefersAsync reads the Prefer header (RFC 7240).
func prefersAsync(prefer string) bool {
	for p := range strings.SplitSeq(prefer, ",") {
		name, _, _ := strings.Cut(p, ";")
		if strings.EqualFold(strings.TrimSpace(name), "respond-async") {
			return true
		}
	}
	return false
}

// CallFilter is the filter of lists of calls.
type CallFilter struct {
	Paging
	Tool   string    `query:"tool" maxLength:"200"`
	Actor  string    `query:"actor" maxLength:"200" doc:"Name of the caller"`
	State  []string  `query:"state" enum:"pending_approval,pending_device,pending,sent,succeeded,tool_error,timed_out,unknown,refused,invalid,offline,canceled" doc:"One or several, separated by commas"`
	FanOut string    `query:"fanout" format:"uuid" doc:"Id of the fan-out that made the calls"`
	Talk   string    `query:"conversation" format:"uuid" doc:"Id of the conversation whose model requested the calls"`
	Digest string    `query:"digest" maxLength:"44" pattern:"^hmac-sha256:[0-9a-f]{32}$" doc:"Digest of a value in the arguments; see redaction rules"`
	Since  time.Time `query:"since" doc:"Created at or after this time"`
	Until  time.Time `query:"until" doc:"Created before this time"`
}

func (in CallFilter) filter() call.Filter {
	f := call.Filter{Tool: in.Tool, Actor: in.Actor, Digest: in.Digest, Since: in.Since, Until: in.Until, Limit: in.Limit,
		Cursor: in.Cursor}
	for _, s := range in.State {
		f.States = append(f.States, fleet.CallState(s))
	}
	f.FanOut, _ = uuid.Parse(in.FanOut) // huma has validated the UUID
	f.Conversation, _ = uuid.Parse(in.Talk)
	return f
}

type listDeviceCallsInput struct {
	DevicePath
	CallFilter
}

func (a *api) listDeviceCalls(ctx context.Context, _ fleet.Principal,
	in *listDeviceCallsInput) (*answer[list[callView]],
	error) {
	d, err := a.find(ctx, in.DevicePath)
	if err != nil {
		return nil, err
	}
	f := in.filter()
	f.Device = d.ID
	return a.calls(ctx, f)
}

type listCallsInput struct {
	Device string `query:"device" maxLength:"80" doc:"Device id; a MAC address in any form"`
	CallFilter
}

func (a *api) listCalls(ctx context.Context, _ fleet.Principal, in *listCallsInput) (*answer[list[callView]], error) {
	f := in.filter()
	var err error
	if f.Device, err = deviceParam(in.Device); err != nil {
		return nil, err
	}
	return a.calls(ctx, f)
}

// deviceParam reads an optional device id.
func deviceParam(s string) (fleet.DeviceID, error) {
	if s == "" {
		return "", nil
	}
	return fleet.ParseDeviceID(s)
}

func (a *api) calls(ctx context.Context, f call.Filter) (*answer[list[callView]], error) {
	page, err := a.Calls.List(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, viewOfCall), nil
}

// IDPath is the input of operations on one thing with a UUID.
type IDPath struct {
	ID string `path:"id" format:"uuid"`
}

func (p IDPath) pathID() string { return p.ID }

// uuid returns the id, whose format huma has validated.
func (p IDPath) uuid() uuid.UUID {
	id, _ := uuid.Parse(p.ID)
	return id
}

func (a *api) getCall(ctx context.Context, _ fleet.Principal, in *IDPath) (*answer[callView], error) {
	c, err := a.Calls.Get(ctx, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(viewOfCall(c)), nil
}

func (a *api) interruptCall(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[callView], error) {
	c, err := a.Calls.Interrupt(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(viewOfCall(c)), nil
}

func (a *api) cancelCall(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[callView], error) {
	c, err := a.Calls.Cancel(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(viewOfCall(c)), nil
}
