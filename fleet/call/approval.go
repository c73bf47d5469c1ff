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
	MaxPurposeBytes    = 300 // of the reason that the caller gives
)

// ApprovalState is the state of an approval.
//
//	waiting -> approved | denied | expired | withdrawn
type ApprovalState string

const (
	ApprovalWaiting   ApprovalState = "waiting"
	ApprovalApproved  ApprovalState = "approved"
	ApprovalDenied    ApprovalState = "denied"
	ApprovalExpired   ApprovalState = "expired" // its time is over, or the call or device has changed
	ApprovalWithdrawn ApprovalState = "withdrawn"
)

// ApprovalStates lists every state.
var ApprovalStates = []ApprovalState{ApprovalWaiting, ApprovalApproved, ApprovalDenied, ApprovalExpired,
	ApprovalWithdrawn}

// ApprovalSubject is the kind of thing that waits for an approval.
type ApprovalSubject string

const (
	ApprovalOfCall   ApprovalSubject = "call"
	ApprovalOfFanOut ApprovalSubject = "fanout"
)

// Codes of calls and fan-outs that were refused because of their approval.
const (
	CodeApprovalDenied    = "approval_denied"    // by, reason
	CodeApprovalExpired   = "approval_expired"   // no decision in time
	CodeApprovalStale     = "approval_stale"     // something that it names changed since the request; see [Stale]
	CodeApprovalWithdrawn = "approval_withdrawn" // by, reason
)

// Stale is what has changed since an approval was requested. It is the case of [CodeApprovalStale].
type Stale string

const (
	StaleCall     Stale = ""              // the recorded call, or the policy
	StaleAsker    Stale = "asker"         // the caller may not act any more
	StaleTool     Stale = "tool"          // a device no longer offers the tool, or describes it differently
	StaleFirmware Stale = "firmware"      // a device runs different firmware
	StaleUpdate   Stale = "before_update" // the request predates approvals that name tools and firmware
)

// Stales lists every value of [Stale].
var Stales = []Stale{StaleCall, StaleAsker, StaleTool, StaleFirmware, StaleUpdate}

// refusal returns why an approved call is not made.
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

// refused returns why the approval fails.
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

// BuildCount counts the devices of an approval with the same build.
type BuildCount struct {
	ToolBuild
	Devices int
}

// maxApprovalBuilds limits the groups that are shown; the digest covers every device.
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

// An Approval is a request that a person permit a call or a fan-out. It permits exactly what
// Digest names, once, until it expires.
type Approval struct {
	ID        uuid.UUID
	Subject   ApprovalSubject
	SubjectID uuid.UUID
	Digest    [32]byte // see [ApprovalDigest]
	AskedBy   fleet.Principal
	// AskedLine holds the ids of the asker and of everybody in the chain that made the asker's
	// token. They and their tokens may not decide.
	AskedLine     []string
	Person        string // operator who made the asker's token; "" if the asker is one, or none made it
	Purpose       string // reason given by the asker; foreign text
	Rule          string // id of the policy's rule
	RuleName      string
	PolicyVersion int64
	Device        fleet.DeviceID // of a call; "" for a fan-out
	Query         string         // of a fan-out
	Targets       int            // number of devices
	Tool          string
	Arguments     json.RawMessage
	Picture       string // blob key of the picture that the call shows; "" for most
	Interrupt     bool   // the call does not wait for the end of conversations; see [Interruptions]
	// WaitUntil is how long the call may wait for its device; nil: not at all.
	WaitUntil *time.Time
	// Builds lists the devices' descriptions of the tool and their firmware. Empty: the request
	// predates this field, and the approval is useless.
	Builds    []BuildCount
	CreatedAt time.Time
	ExpiresAt time.Time

	State     ApprovalState
	DecidedBy fleet.Principal // the system if it expired
	DecidedAt *time.Time
	Reason    string // given by the person who decided
	Code      string // of the resulting refusal; "" while the approval waits, and once approved
	Stale     Stale  // for [CodeApprovalStale]
}

// StateAt returns the state at a time. A waiting approval whose time is over has expired,
// whatever is on record.
func (a Approval) StateAt(now time.Time) ApprovalState {
	if a.State == ApprovalWaiting && !now.Before(a.ExpiresAt) {
		return ApprovalExpired
	}
	return a.State
}

// Refusal returns why a call whose approval was not given is refused.
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

// ApprovalDigest identifies exactly what is approved: the asker, the devices, each device's
// description of the tool and firmware, the tool with its arguments, whether it interrupts
// conversations, until when it may wait for its device, and the policy's version. Arguments
// count by value: spaces and the order of members do not matter.
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
	text, _ := json.Marshal(struct { // strings, numbers and valid JSON always marshal
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

// digestedJSON returns valid JSON with sorted members and without spaces. Numbers keep their
// spelling.
func digestedJSON(text json.RawMessage) json.RawMessage {
	if len(text) == 0 {
		return json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		quoted, _ := json.Marshal(string(text)) // a string always marshals
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
	Stale  Stale  // for [CodeApprovalStale]
	// Call is the call after the decision: pending, or refused by the gate. Nil for a fan-out,
	// and if the approval was not given.
	Call *fleet.Call
}

// An ApprovalFilter narrows a list of approvals. Zero fields do not filter.
type ApprovalFilter struct {
	States []ApprovalState
	Device fleet.DeviceID
	Limit  int
	Cursor string
}

// ApprovalStore stores approvals.
type ApprovalStore interface {
	// AskForCall and AskForFanOut record an approval together with its call or fan-out. They
	// return only after both are durable.
	AskForCall(ctx context.Context, c *fleet.Call, a *Approval) error
	AskForFanOut(ctx context.Context, f *FanOut, targets []FanOutTarget, a *Approval) error
	Approval(ctx context.Context, id uuid.UUID) (Approval, error)
	Approvals(ctx context.Context, f ApprovalFilter) (fleet.Page[Approval], error) // newest first
	WaitingApprovals(ctx context.Context, now time.Time) (int, error)
	// ApprovalTargets returns the devices of a waiting or approved fan-out, in order, with the
	// tool and firmware that the approval names for each.
	ApprovalTargets(ctx context.Context, fanOut uuid.UUID) ([]ApprovalTarget, error)
	// Decide ends a waiting approval and the wait of its call or fan-out, in one transaction.
	// It returns [fleet.ErrConflict] if the approval no longer waits, or if the decision is
	// to approve it and it has expired at d.At.
	Decide(ctx context.Context, d ApprovalDecision) error
	// ExpireApprovals ends approvals whose time is over, and returns them.
	ExpireApprovals(ctx context.Context, now time.Time) ([]Approval, error)
	// PrincipalLine returns the ids of the principal and of everybody in the chain that made
	// its token, and the name of the operator behind a token.
	PrincipalLine(ctx context.Context, p fleet.Principal) (line []string, person string, err error)
	// PrincipalNow returns the principal with its current rights and scope, or
	// [fleet.ErrNotFound] if it may not act any more.
	PrincipalNow(ctx context.Context, p fleet.Principal, now time.Time) (fleet.Principal, error)
}

// A grant is an approval as the gate uses it: it permits what one version of the policy
// requires approval for, on a device that is as the approval names it.
type grant struct {
	policy int64
	build  ToolBuild
	by     fleet.Principal // the approver
}

// newApproval returns the approval that a verdict requires.
func newApproval(v Verdict, asker fleet.Principal, purpose string, now time.Time) *Approval {
	ttl := v.ApprovalTTL
	if ttl <= 0 {
		ttl = DefaultApprovalTTL
	}
	return &Approval{ID: uuid.Must(uuid.NewV7()), AskedBy: asker, Purpose: fleet.CleanText(purpose, MaxPurposeBytes),
		Rule: v.Rule, RuleName: v.RuleName, PolicyVersion: v.Version, CreatedAt: now,
		ExpiresAt: now.Add(min(ttl, MaxApprovalTTL)), State: ApprovalWaiting}
}

// waitForApproval makes the call wait for a person. The call keeps the arguments of the
// request; fleetd fills in the rest after the approval.
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
	named := []ApprovalTarget{{r.Device, a.calls.gate.build(a.target)}}
	ask.Builds = countBuilds(named)
	ask.Digest = ApprovalDigest(r.Actor, named, r.Tool, a.call.Arguments, r.Picture, ask.Interrupt, ask.WaitUntil,
		v.Version)
	a.call.State, a.call.Approval = fleet.CallPendingApproval, ask.ID
	a.wait = wait{kind: approvalWait, approval: ask}
}
