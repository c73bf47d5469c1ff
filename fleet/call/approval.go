package call

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Limits of approvals.
const (
	DefaultApprovalTTL = 15 * time.Minute
	MaxApprovalTTL     = 24 * time.Hour
	MaxPurposeBytes    = 300 // of the reason that the asker gives
)

// ApprovalState is where an approval stands.
//
//	waiting -> approved | denied | expired | withdrawn
type ApprovalState string

const (
	ApprovalWaiting   ApprovalState = "waiting"
	ApprovalApproved  ApprovalState = "approved"
	ApprovalDenied    ApprovalState = "denied"
	ApprovalExpired   ApprovalState = "expired" // its time is over, or what it was asked for has changed
	ApprovalWithdrawn ApprovalState = "withdrawn"
)

// ApprovalStates lists every state.
var ApprovalStates = []ApprovalState{ApprovalWaiting, ApprovalApproved, ApprovalDenied, ApprovalExpired,
	ApprovalWithdrawn}

// ApprovalSubject says what waits for an approval.
type ApprovalSubject string

const (
	ApprovalOfCall   ApprovalSubject = "call"
	ApprovalOfFanOut ApprovalSubject = "fanout"
)

// Codes of calls and fan-outs that were refused because of their approval.
const (
	CodeApprovalDenied    = "approval_denied"    // by, reason
	CodeApprovalExpired   = "approval_expired"   // no decision in time
	CodeApprovalStale     = "approval_stale"     // something that it names changed after it was asked for; see [Stale]
	CodeApprovalWithdrawn = "approval_withdrawn" // by, reason
)

// Stale says what an approval names and is different by now. It is the case of
// [CodeApprovalStale].
type Stale string

const (
	StaleCall     Stale = ""              // the call on record, or the policy
	StaleAsker    Stale = "asker"         // who asked may not act any more
	StaleTool     Stale = "tool"          // a device describes the tool otherwise, or offers it no more
	StaleFirmware Stale = "firmware"      // a device runs other firmware
	StaleUpdate   Stale = "before_update" // it was asked for before approvals named tools and firmware
)

// Stales lists every one.
var Stales = []Stale{StaleCall, StaleAsker, StaleTool, StaleFirmware, StaleUpdate}

// refusal is why a call is not made, although it was approved.
func (s Stale) refusal(tool string) *fleet.CallError {
	tool = fleet.CleanText(tool, 80)
	switch s {
	case StaleAsker:
		return fleet.NewCallError(CodeApprovalStale+".asker", "tool", tool)
	case StaleTool:
		return fleet.NewCallError(CodeApprovalStale+".tool", "tool", tool)
	case StaleFirmware:
		return fleet.NewCallError(CodeApprovalStale+".firmware", "tool", tool)
	case StaleUpdate:
		return fleet.NewCallError(CodeApprovalStale+".before_update", "tool", tool)
	}
	return fleet.NewCallError(CodeApprovalStale, "tool", tool)
}

// refused is why nothing was approved.
func (s Stale) refused(tool string) error {
	switch s {
	case StaleAsker:
		return fleet.Refuse(fleet.ErrConflict, CodeApprovalStale+".asker", "tool", tool)
	case StaleTool:
		return fleet.Refuse(fleet.ErrConflict, CodeApprovalStale+".tool", "tool", tool)
	case StaleFirmware:
		return fleet.Refuse(fleet.ErrConflict, CodeApprovalStale+".firmware", "tool", tool)
	case StaleUpdate:
		return fleet.Refuse(fleet.ErrConflict, CodeApprovalStale+".before_update", "tool", tool)
	}
	return fleet.Refuse(fleet.ErrConflict, CodeApprovalStale, "tool", tool)
}

// An ApprovalTarget is a device that an approval names.
type ApprovalTarget struct {
	Device fleet.DeviceID
	Build  ToolBuild
}

// BuildCount counts the devices of an approval that are alike.
type BuildCount struct {
	ToolBuild
	Devices int
}

// maxApprovalBuilds bounds the groups that are shown; the digest covers each device.
const maxApprovalBuilds = 50

// countBuilds groups devices by their build, largest group first.
func countBuilds(targets []ApprovalTarget) []BuildCount {
	counts := make(map[ToolBuild]int)
	for _, t := range targets {
		counts[t.Build]++
	}
	all := make([]BuildCount, 0, len(counts))
	for b, n := range counts {
		all = append(all, BuildCount{b, n})
	}
	slices.SortFunc(all, func(a, b BuildCount) int {
		return cmp.Or(b.Devices-a.Devices, strings.Compare(a.Version, b.Version), strings.Compare(a.ELF, b.ELF),
			bytes.Compare(a.Tool[:], b.Tool[:]))
	})
	return all[:min(len(all), maxApprovalBuilds)]
}

// An Approval is what a person is asked before a call or a fan-out is made. It is
// good for exactly what Digest names, once, until it expires.
type Approval struct {
	ID        uuid.UUID
	Subject   ApprovalSubject
	SubjectID uuid.UUID
	Digest    [32]byte // see [ApprovalDigest]
	AskedBy   fleet.Principal
	// AskedLine are the ids of the asker and of all who made the tokens up to
	// there. None of them, and no token of theirs, may decide.
	AskedLine     []string
	Person        string // name of the operator who made the asker's token; "" if the asker is one, or none did
	Purpose       string // what the asker gives as reason; foreign text
	Rule          string // id of the policy's rule
	RuleName      string
	PolicyVersion int64
	Device        fleet.DeviceID // of a call; "" for a fan-out
	Query         string         // of a fan-out
	Targets       int            // devices
	Tool          string
	Arguments     json.RawMessage
	Picture       string // blob key of the picture that the call shows; "" for most
	Interrupt     bool   // does not wait for the end of conversations that it interrupts; see [Interruptions]
	// WaitUntil is how long the call may wait until its device is back; nil: not at all.
	WaitUntil *time.Time
	// Builds says how the devices describe the tool, and what firmware they run.
	// Empty: it was asked for before approvals named that, and is good for nothing.
	Builds    []BuildCount
	CreatedAt time.Time
	ExpiresAt time.Time

	State     ApprovalState
	DecidedBy fleet.Principal // the system if it expired
	DecidedAt *time.Time
	Reason    string // given by who decided
	Code      string // of the refusal that it ended in; "" while it waits, and once approved
	Stale     Stale  // of [CodeApprovalStale]
}

// StateAt is the state at a time: an approval that waits longer than it may has
// expired, whatever is on record.
func (a Approval) StateAt(now time.Time) ApprovalState {
	if a.State == ApprovalWaiting && !now.Before(a.ExpiresAt) {
		return ApprovalExpired
	}
	return a.State
}

// Refusal is why the call of an approval that was not given is refused.
func (a Approval) Refusal() *fleet.CallError {
	switch {
	case a.Code == CodeApprovalDenied && a.Reason == "":
		return fleet.NewCallError(CodeApprovalDenied+".bare", "by", a.DecidedBy.Name)
	case a.Code == CodeApprovalDenied:
		return fleet.NewCallError(CodeApprovalDenied, "by", a.DecidedBy.Name, "reason", a.Reason)
	case a.Code == CodeApprovalWithdrawn && a.Reason == "":
		return fleet.NewCallError(CodeApprovalWithdrawn+".bare", "by", a.DecidedBy.Name)
	case a.Code == CodeApprovalWithdrawn:
		return fleet.NewCallError(CodeApprovalWithdrawn, "by", a.DecidedBy.Name, "reason", a.Reason)
	case a.Code == CodeApprovalExpired:
		return fleet.NewCallError(CodeApprovalExpired, "expires_at", a.ExpiresAt)
	}
	return a.Stale.refusal(a.Tool)
}

// ApprovalDigest names exactly what is approved: who asks, which devices, how each
// describes the tool and what firmware it runs, the tool with its arguments,
// whether it interrupts conversations, until when it may wait for its device, under which version of the policy.
// Arguments count by their value: spaces, and the order of members, do not.
func ApprovalDigest(asker fleet.Principal, targets []ApprovalTarget, tool string, arguments json.RawMessage,
	picture string,
	interrupt bool, waitUntil *time.Time, policy int64) [32]byte {
	type device struct {
		ID      fleet.DeviceID `json:"id"`
		Tool    string         `json:"tool_sha256"`
		ELF     string         `json:"elf_sha256"`
		Version string         `json:"version"`
	}
	devices := make([]device, len(targets))
	for i, t := range targets {
		devices[i] = device{t.Device, hex.EncodeToString(t.Build.Tool[:]), t.Build.ELF, t.Build.Version}
	}
	slices.SortFunc(devices, func(a, b device) int { return strings.Compare(string(a.ID), string(b.ID)) })
	var until int64
	if waitUntil != nil {
		until = waitUntil.UnixMilli()
	}
	text, _ := json.Marshal(struct { // of strings, numbers and JSON that was checked
		Kind      fleet.PrincipalKind `json:"kind"`
		ID        string              `json:"id"`
		Devices   []device            `json:"devices"`
		Tool      string              `json:"tool"`
		Arguments json.RawMessage     `json:"arguments"`
		Picture   string              `json:"picture,omitempty"`
		Interrupt bool                `json:"interrupt,omitempty"`
		WaitUntil int64               `json:"wait_until_ms,omitempty"`
		Policy    int64               `json:"policy"`
	}{asker.Kind, asker.ID, devices, tool, digestedJSON(arguments), picture, interrupt, until, policy})
	return sha256.Sum256(text)
}

// digestedJSON is valid JSON with sorted members and without spaces. Numbers
// keep their spelling.
func digestedJSON(text json.RawMessage) json.RawMessage {
	if len(text) == 0 {
		return json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		quoted, _ := json.Marshal(string(text)) // a string marshals
		return quoted
	}
	out, err := json.Marshal(v)
	if err != nil {
		out, _ = json.Marshal(string(text))
	}
	return out
}

// An ApprovalDecision ends an approval.
type ApprovalDecision struct {
	ID     uuid.UUID
	State  ApprovalState
	By     fleet.Principal
	At     time.Time
	Reason string
	Code   string // of the refusal; "" for [ApprovalApproved]
	Stale  Stale  // of [CodeApprovalStale]
	// Call is the call as it goes on: pending, or refused by the gate. Nil for a
	// fan-out, and for what was not approved.
	Call *fleet.Call
}

// An ApprovalFilter narrows a list of approvals. Zero fields do not filter.
type ApprovalFilter struct {
	States []ApprovalState
	Device fleet.DeviceID
	Limit  int
	Cursor string
}

// ApprovalStore keeps approvals.
type ApprovalStore interface {
	// AskForCall and AskForFanOut put what waits and its approval on record
	// together. They return only after both are durable.
	AskForCall(ctx context.Context, c *fleet.Call, a *Approval) error
	AskForFanOut(ctx context.Context, f *FanOut, targets []FanOutTarget, a *Approval) error
	Approval(ctx context.Context, id uuid.UUID) (Approval, error)
	Approvals(ctx context.Context, f ApprovalFilter) (fleet.Page[Approval], error) // newest first
	WaitingApprovals(ctx context.Context, now time.Time) (int, error)
	// ApprovalTargets returns the devices of a fan-out that waits or was approved, in
	// order, with what the approval names of each.
	ApprovalTargets(ctx context.Context, fanOut uuid.UUID) ([]ApprovalTarget, error)
	// Decide ends a waiting approval, and with it the waiting of its call or
	// fan-out, in one transaction. [fleet.ErrConflict]: it waits no more. To approve,
	// it must not have expired at d.At.
	Decide(ctx context.Context, d ApprovalDecision) error
	// ExpireApprovals ends those whose time is over, and returns them.
	ExpireApprovals(ctx context.Context, now time.Time) ([]Approval, error)
	// PrincipalLine returns the ids of the principal and of all who made the tokens
	// up to there, and the name of the operator behind a token.
	PrincipalLine(ctx context.Context, p fleet.Principal) (line []string, person string, err error)
	// PrincipalNow returns the principal as it may act now, with its scope, or
	// [fleet.ErrNotFound] if it may not act any more.
	PrincipalNow(ctx context.Context, p fleet.Principal, now time.Time) (fleet.Principal, error)
}

// A grant is an approval as the gate sees it: it satisfies what one version of
// the policy asks for, of a device that is as the approval names it.
type grant struct {
	policy int64
	build  ToolBuild
	by     fleet.Principal // who approved
}

// newApproval is what is asked for under a verdict.
func newApproval(v Verdict, asker fleet.Principal, purpose string, now time.Time) *Approval {
	ttl := v.ApprovalTTL
	if ttl <= 0 {
		ttl = DefaultApprovalTTL
	}
	return &Approval{ID: uuid.Must(uuid.NewV7()), AskedBy: asker, Purpose: fleet.CleanText(purpose, MaxPurposeBytes),
		Rule: v.Rule, RuleName: v.RuleName, PolicyVersion: v.Version, CreatedAt: now,
		ExpiresAt: now.Add(min(ttl, MaxApprovalTTL)), State: ApprovalWaiting}
}

// waitForApproval has the call wait for a person. Its arguments are those of the
// request: what fleetd fills in comes once it is approved.
func (a *attempt) waitForApproval(v Verdict) {
	r := a.asked
	ask := newApproval(v, r.Actor, r.Purpose, r.now)
	ask.Subject, ask.SubjectID, ask.Device, ask.Targets = ApprovalOfCall, a.call.ID, r.Device, 1
	ask.Tool, ask.Arguments, ask.Picture = r.Tool, a.call.Arguments, r.Picture
	ask.Interrupt = r.interrupts()
	if r.OfflineWait > 0 {
		a.call.WaitUntil = r.waitUntil()
		ask.WaitUntil = a.call.WaitUntil
	}
	named := []ApprovalTarget{{r.Device, a.calls.gate.build(a.target, r.Tool)}}
	ask.Builds = countBuilds(named)
	ask.Digest = ApprovalDigest(r.Actor, named, r.Tool, a.call.Arguments, r.Picture, ask.Interrupt, ask.WaitUntil,
		v.Version)
	a.call.State, a.call.Approval = fleet.CallPendingApproval, ask.ID
	a.wait = wait{kind: approvalWait, approval: ask}
}
