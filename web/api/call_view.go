package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/i18n"
)

// callView is the contract's call object.
type callView struct {
	ID         uuid.UUID       `json:"id" format:"uuid"`
	DeviceID   fleet.DeviceID  `json:"device_id"`
	Tool       string          `json:"tool"`
	Arguments  json.RawMessage `json:"arguments"`
	Actor      actorView       `json:"actor"`
	FanOutID   *uuid.UUID      `json:"fanout_id" format:"uuid" nullable:"true" doc:"The fan-out that made the call"`
	ApprovalID *uuid.UUID      `json:"approval_id" format:"uuid" nullable:"true" doc:"The approval that the call, or its fan-out, waits for or was given"`
	State      fleet.CallState `json:"state" enum:"pending_approval,pending_device,pending,sent,succeeded,tool_error,timed_out,unknown,refused,invalid,offline,canceled"`
	WaitUntil  *time.Time      `json:"wait_until,omitempty" doc:"Latest time until which the call waits, or could have waited, for its device to come back; omitted if it did not have to"`
	Waits      *waitView       `json:"waits,omitempty" doc:"What a pending call is waiting for, apart from its turn"`
	Result     json.RawMessage `json:"result" doc:"MCP CallToolResult; null if there is no answer, or if it was too large to store"`
	Error      *callErrorView  `json:"error" doc:"Why it did not succeed; for a successful call, why its answer was discarded"`
	Evidence   []evidenceView  `json:"evidence" nullable:"false" doc:"Observations, for a call that is judged by evidence"`
	TimeoutMs  int64           `json:"timeout_ms"`
	CreatedAt  time.Time       `json:"created_at"`
	SentAt     *time.Time      `json:"sent_at" doc:"null if it was not sent"`
	FinishedAt *time.Time      `json:"finished_at"`
	DurationMs *int64          `json:"duration_ms" doc:"From sending to the outcome"`
	Late       *lateView       `json:"late" doc:"Answer that arrived after the call's deadline"`
}

// TransformSchema marks the objects that may be null.
func (callView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "error", "late")
}

// waitView is the reason why a call waits.
type waitView struct {
	Code    string     `json:"code" enum:"in_conversation,device_away" doc:"in_conversation: the device is in a conversation with a voice server; the call is sent after it. device_away: the device is not connected, or an earlier call to it waits; the call is sent when the device is back"`
	SinceAt *time.Time `json:"since_at,omitempty" doc:"Beginning of the conversation"`
	UntilAt time.Time  `json:"until_at" doc:"When the call is sent at the latest; for device_away, when it is canceled"`
}

func waits(r fleet.Reason) *waitView {
	if r.Is("") {
		return nil
	}
	at := func(name string) time.Time {
		text, _ := r.Params[name].(string)
		t, _ := time.Parse(time.RFC3339, text) // in the format that the server wrote
		return t
	}
	v := &waitView{Code: r.Code, UntilAt: at("until_at")}
	if since := at("since_at"); !since.IsZero() {
		v.SinceAt = &since
	}
	return v
}

type actorView struct {
	Kind fleet.PrincipalKind `json:"kind" enum:"operator,program,model,voice,campaign,system"`
	Name string              `json:"name"`
}

func actor(a fleet.Principal) actorView { return actorView{a.Kind, a.Name} }

// lateView is a late answer: either a result or an error.
type lateView struct {
	At     time.Time       `json:"at"`
	Result json.RawMessage `json:"result"`
	Error  *callErrorView  `json:"error"`
}

// TransformSchema marks error as nullable.
func (lateView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "error")
}

// callErrorView is the cause of a failed call.
type callErrorView struct {
	Code    string       `json:"code"`
	Message string       `json:"message"`
	Params  fleet.Params `json:"params,omitempty"`
}

func callErrorOf(e *fleet.CallError) *callErrorView {
	if e == nil {
		return nil
	}
	return &callErrorView{e.Code, i18n.CallErrorDetail(e), e.Params}
}

// evidenceView is an observation during a call.
type evidenceView struct {
	At           time.Time          `json:"at"`
	Kind         fleet.EvidenceKind `json:"kind"`
	Detail       string             `json:"detail,omitempty"`
	DetailCode   string             `json:"detail_code,omitempty" doc:"Reason code of detail; omitted if the detail is the device's or from an older version"`
	DetailParams map[string]any     `json:"detail_params,omitempty" doc:"Parameters of the code"`
	ELF          string             `json:"elf,omitempty"`
}

func evidence(e fleet.Evidence) evidenceView {
	return evidenceView{At: e.At, Kind: e.Kind, Detail: e.Detail, DetailCode: e.Reason.Code, DetailParams: e.Reason.Params,
		ELF: e.ELF}
}

func viewOfCall(c fleet.Call) callView {
	v := callView{ID: c.ID, DeviceID: c.Device, Tool: c.Tool, Arguments: rawOrNull(c.Arguments), Actor: actor(c.Actor),
		State: c.State, WaitUntil: utcOrNil(c.WaitUntil),
		Waits: waits(c.Waits), Result: rawOrNull(c.Result), Error: callErrorOf(c.Error),
		Evidence:  viewed(c.Evidence, evidence),
		TimeoutMs: c.Timeout.Milliseconds(),
		CreatedAt: utc(c.CreatedAt), SentAt: utcOrNil(c.SentAt), FinishedAt: utcOrNil(c.FinishedAt)}
	if c.FanOut != uuid.Nil {
		v.FanOutID = ptr(c.FanOut) // a copy, because its address would move all of c to the heap
	}
	if c.Approval != uuid.Nil {
		v.ApprovalID = ptr(c.Approval)
	}
	if c.SentAt != nil && c.FinishedAt != nil {
		v.DurationMs = ptr(c.Duration().Milliseconds())
	}
	if l := c.Late; l != nil {
		v.Late = &lateView{utc(l.At), rawOrNull(l.Result), callErrorOf(l.Error)}
	}
	return v
}

// writeUsual writes the view of an answered call in the same way as encoding/json, but faster. It
// returns false if the view has other fields, or text that needs escapes: encoding/json then has to
// write it, and must discard the bytes in b.
func (v *callView) writeUsual(b *bytes.Buffer) bool {
	if v.WaitUntil != nil || v.Waits != nil || v.FanOutID != nil ||
		v.ApprovalID != nil || v.Error != nil || len(v.Evidence) > 0 || v.Late != nil ||
		v.SentAt == nil ||
		v.FinishedAt == nil || v.DurationMs == nil {
		return false
	}
	for _, s := range []string{string(v.DeviceID), v.Tool, string(v.Actor.Kind), v.Actor.Name, string(v.State)} {
		if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }) {
			return false
		}
	}
	a := b.AvailableBuffer()
	id, err1 := v.ID.MarshalText()
	a = append(append(a, `{"id":"`...), id...)
	a = append(append(a, `","device_id":"`...), v.DeviceID...)
	a = append(append(a, `","tool":"`...), v.Tool...)
	b.Write(append(a, `","arguments":`...))
	err2 := json.Compact(b, v.Arguments)
	a = append(b.AvailableBuffer(), `,"actor":{"kind":"`...)
	a = append(append(a, v.Actor.Kind...), `","name":"`...)
	a = append(append(a, v.Actor.Name...), `"},"fanout_id":null,"approval_id":null,"state":"`...)
	b.Write(append(append(a, v.State...), `","result":`...))
	err3 := json.Compact(b, v.Result)
	a = append(b.AvailableBuffer(), `,"error":null,"evidence":[],"timeout_ms":`...)
	a = append(strconv.AppendInt(a, v.TimeoutMs, 10), `,"created_at":"`...)
	a, err4 := v.CreatedAt.AppendText(a)
	a, err5 := v.SentAt.AppendText(append(a, `","sent_at":"`...))
	a, err6 := v.FinishedAt.AppendText(append(a, `","finished_at":"`...))
	a = strconv.AppendInt(append(a, `","duration_ms":`...), *v.DurationMs, 10)
	b.Write(append(a, `,"late":null}`...))
	return errors.Join(err1, err2, err3, err4, err5, err6) == nil
}
