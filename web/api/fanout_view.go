package api

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/i18n"
)

// FanOutView is a fan-out as in lists.
type FanOutView struct {
	ID          uuid.UUID        `json:"id" format:"uuid"`
	Actor       actorView        `json:"actor"`
	Query       string           `json:"q" doc:"The filter as written; empty when the devices were named"`
	Tool        string           `json:"tool"`
	Arguments   json.RawMessage  `json:"arguments"`
	MaxInFlight int              `json:"max_in_flight"`
	TimeoutMs   int64            `json:"timeout_ms" doc:"Timeout of each call; 0: depends on the tool"`
	Offline     string           `json:"offline" enum:"skip,wait" doc:"Handling of devices that are not connected"`
	OfflineWait int64            `json:"offline_wait_ms" doc:"How long the fan-out waits for them from created_at, or from its approval; 0 with skip"`
	Interrupt   bool             `json:"interrupt" doc:"It does not wait for conversations to end"`
	State       call.FanOutState `json:"state" enum:"pending_approval,running,completed,canceled,refused"`
	ApprovalID  *uuid.UUID       `json:"approval_id" format:"uuid" nullable:"true" doc:"The approval that it waits for or was given"`
	Targets     int              `json:"targets" doc:"Target devices"`
	Skipped     int              `json:"skipped" doc:"Devices that matched but were left out, or could not be called"`
	CreatedAt   time.Time        `json:"created_at"`
	FinishedAt  *time.Time       `json:"finished_at"`
	CanceledBy  *string          `json:"canceled_by"`
	Code        string           `json:"code" doc:"Why fleetd canceled it: actor_gone, if the token or operator that made it is no longer allowed to act; empty otherwise"`
	RetryOf     *uuid.UUID       `json:"retry_of" format:"uuid" nullable:"true" doc:"The fan-out whose failed devices it calls again"`
}

func fanOut(f call.FanOut) FanOutView {
	v := FanOutView{ID: f.ID, Actor: actor(f.Actor), Query: f.Query, Tool: f.Tool, Arguments: rawOrNull(f.Arguments),
		MaxInFlight: f.MaxInFlight, TimeoutMs: f.Timeout.Milliseconds(), Offline: "skip",
		OfflineWait: f.OfflineWait.Milliseconds(), Interrupt: f.Interrupt,
		State: f.State, Targets: f.Targets, Skipped: f.Skipped, Code: f.Code,
		CreatedAt: utc(f.CreatedAt), FinishedAt: utcOrNil(f.FinishedAt)}
	if f.OfflineWait > 0 {
		v.Offline = "wait"
	}
	if f.Approval != uuid.Nil {
		v.ApprovalID = ptr(f.Approval)
	}
	if f.RetryOf != uuid.Nil {
		v.RetryOf = ptr(f.RetryOf)
	}
	if f.CanceledBy != "" {
		v.CanceledBy = &f.CanceledBy
	}
	return v
}

// fanOutProgressView is a fan-out with its progress.
type fanOutProgressView struct {
	FanOutView
	Waiting    *fanOutWaitingView `json:"waiting,omitempty" doc:"What blocks the fan-out; absent if nothing does"`
	Counts     fanOutCounts       `json:"counts"`
	Answers    []fanOutAnswerView `json:"answers" nullable:"false" doc:"Devices by the answer they gave, most first; the 50 largest groups"`
	SkippedFor []reasonView       `json:"skipped_reasons" nullable:"false"`
}

// fanOutWaitingView is the reason why a fan-out waits. The fan-out resumes automatically.
type fanOutWaitingView struct {
	Code  call.BlockCode `json:"code" enum:"database_unavailable" doc:"database_unavailable: the database cannot store the records that must precede the calls"`
	Since time.Time      `json:"since"`
}

func fanOutWaiting(b *call.FanOutBlock) *fanOutWaitingView {
	if b == nil {
		return nil
	}
	return &fanOutWaitingView{Code: b.Code, Since: utc(b.Since)}
}

// fanOutCounts counts devices: those not yet called, those that are done, and the calls by state.
type fanOutCounts struct {
	Waiting   int `json:"waiting" doc:"Not yet called"`
	Awaited   int `json:"awaiting_online" doc:"Of these, not connected: called when they come online"`
	Talking   int `json:"in_conversation" doc:"Of these, in a conversation: called after it ends, or after a time limit"`
	Done      int `json:"done" doc:"Calls with an outcome"`
	Pending   int `json:"pending"`
	Sent      int `json:"sent"`
	Succeeded int `json:"succeeded"`
	ToolError int `json:"tool_error"`
	TimedOut  int `json:"timed_out"`
	Unknown   int `json:"unknown"`
	Refused   int `json:"refused"`
	Invalid   int `json:"invalid"`
	Offline   int `json:"offline"`
	Canceled  int `json:"canceled"`
}

func counts(p call.FanOutProgress) fanOutCounts {
	n := p.ByState
	return fanOutCounts{Waiting: p.Waiting, Awaited: p.AwaitOnline, Talking: p.InConversation, Done: p.Done(),
		Pending:   n[fleet.CallPending],
		Sent:      n[fleet.CallSent],
		Succeeded: n[fleet.CallSucceeded], ToolError: n[fleet.CallToolError], TimedOut: n[fleet.CallTimedOut],
		Unknown: n[fleet.CallUnknown], Refused: n[fleet.CallRefused], Invalid: n[fleet.CallInvalid],
		Offline: n[fleet.CallOffline], Canceled: n[fleet.CallCanceled]}
}

type fanOutAnswerView struct {
	State   fleet.CallState `json:"state"`
	Text    string          `json:"text" doc:"The answer's text or error, shortened; the device's own words"`
	NoField bool            `json:"no_field,omitempty" doc:"With by: these answers lack the value"`
	Count   int             `json:"count"`
	Sample  []sampleView    `json:"sample" nullable:"false" doc:"Some of the devices"`
}

type sampleView struct {
	DeviceID fleet.DeviceID `json:"device_id"`
	CallID   uuid.UUID      `json:"call_id" format:"uuid"`
}

func fanOutAnswer(g call.FanOutAnswer) fanOutAnswerView {
	v := fanOutAnswerView{State: g.State, Text: cmp.Or(g.Text, i18n.CallErrorDetail(g.Error)),
		NoField: g.NoField, Count: g.Count, Sample: []sampleView{}}
	for i := range min(len(g.Sample), len(g.CallIDs)) {
		v.Sample = append(v.Sample, sampleView{g.Sample[i], g.CallIDs[i]})
	}
	return v
}

type reasonView struct {
	Reason string           `json:"reason" example:"device_held"`
	Count  int              `json:"count"`
	Sample []fleet.DeviceID `json:"sample,omitempty" nullable:"false" doc:"Some of the devices"`
}

// previewView is the preview of a fan-out.
type previewView struct {
	Matched  int          `json:"matched"`
	Targets  int          `json:"targets" doc:"Devices that would be called"`
	Offline  int          `json:"offline" doc:"Of these, not connected now; see offline in the request"`
	Talking  int          `json:"in_conversation" doc:"Targets in a conversation whose end the calls would wait for; see interrupt in the request"`
	Approval int          `json:"need_approval" doc:"Targets that need approval; if there are any, the whole fan-out waits for it"`
	UserOnly bool         `json:"user_only" doc:"Language models must not call the tool"`
	Effect   string       `json:"effect" enum:",restarts,leaves_network" doc:"Effect on each device's connection; empty: none"`
	Confirm  bool         `json:"needs_confirm" doc:"confirm must give the number of targets"`
	Skipped  []reasonView `json:"skipped" nullable:"false" doc:"Devices that match but would be left out"`
}

func preview(p call.FanOutPreview) previewView {
	v := previewView{Matched: p.Matched, Targets: p.Targets, Offline: p.Offline, Talking: p.Talking,
		Approval: p.NeedApproval,
		UserOnly: p.UserOnly,
		Effect:   string(p.Effect), Confirm: p.NeedsConfirm(), Skipped: []reasonView{}}
	for _, s := range p.Skipped {
		v.Skipped = append(v.Skipped, reasonView(s))
	}
	return v
}
