package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
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
	CodeApprovalStale     = "approval_stale"     // the policy or the call changed after it was asked for
	CodeApprovalWithdrawn = "approval_withdrawn" // by, reason
)

// An Approval is what a person is asked before a call or a fan-out is made. It is
// good for exactly what Digest names, once, until it expires.
type Approval struct {
	ID        uuid.UUID
	Subject   ApprovalSubject
	SubjectID uuid.UUID
	Digest    [32]byte // see [ApprovalDigest]
	AskedBy   Principal
	// AskedLine are the ids of the asker and of all who made the tokens up to
	// there. None of them, and no token of theirs, may decide.
	AskedLine     []string
	Person        string // name of the operator who made the asker's token; "" if the asker is one, or none did
	Purpose       string // what the asker gives as reason; foreign text
	Rule          string // id of the policy's rule
	RuleName      string
	PolicyVersion int64
	Device        DeviceID // of a call; "" for a fan-out
	Query         string   // of a fan-out
	Targets       int      // devices
	Tool          string
	Arguments     json.RawMessage
	Picture       string // blob key of the picture that the call shows; "" for most
	Interrupt     bool   // does not wait for the end of conversations that it interrupts; see [Interruptions]
	CreatedAt     time.Time
	ExpiresAt     time.Time

	State     ApprovalState
	DecidedBy Principal // the system if it expired
	DecidedAt *time.Time
	Reason    string // given by who decided
	Code      string // of the refusal that it ended in; "" while it waits, and once approved
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
func (a Approval) Refusal() *CallError {
	switch {
	case a.Code == CodeApprovalDenied && a.Reason == "":
		return NewCallError(CodeApprovalDenied+".bare", "by", a.DecidedBy.Name)
	case a.Code == CodeApprovalDenied:
		return NewCallError(CodeApprovalDenied, "by", a.DecidedBy.Name, "reason", a.Reason)
	case a.Code == CodeApprovalWithdrawn && a.Reason == "":
		return NewCallError(CodeApprovalWithdrawn+".bare", "by", a.DecidedBy.Name)
	case a.Code == CodeApprovalWithdrawn:
		return NewCallError(CodeApprovalWithdrawn, "by", a.DecidedBy.Name, "reason", a.Reason)
	case a.Code == CodeApprovalExpired:
		return NewCallError(CodeApprovalExpired, "expires_at", a.ExpiresAt)
	}
	return NewCallError(CodeApprovalStale)
}

// ApprovalDigest names exactly what is approved: who asks, which devices, the tool
// with its arguments, whether it interrupts conversations, under which version of
// the policy. Arguments count by their value: spaces, and the order of members, do
// not.
func ApprovalDigest(asker Principal, devices []DeviceID, tool string, arguments json.RawMessage, picture string,
	interrupt bool, policy int64) [32]byte {
	sorted := slices.Sorted(slices.Values(devices))
	text, _ := json.Marshal(struct { // of strings, numbers and JSON that was checked
		Kind      PrincipalKind   `json:"kind"`
		ID        string          `json:"id"`
		Devices   []DeviceID      `json:"devices"`
		Tool      string          `json:"tool"`
		Arguments json.RawMessage `json:"arguments"`
		Picture   string          `json:"picture,omitempty"`
		Interrupt bool            `json:"interrupt,omitempty"`
		Policy    int64           `json:"policy"`
	}{asker.Kind, asker.ID, sorted, tool, digestedJSON(arguments), picture, interrupt, policy})
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
	By     Principal
	At     time.Time
	Reason string
	Code   string // of the refusal; "" for [ApprovalApproved]
	// Call is the call as it goes on: pending, or refused by the gate. Nil for a
	// fan-out, and for what was not approved.
	Call    *Call
	Process uuid.UUID // that carries the call out
}

// An ApprovalFilter narrows a list of approvals. Zero fields do not filter.
type ApprovalFilter struct {
	States []ApprovalState
	Device DeviceID
	Limit  int
	Cursor string
}

// ApprovalStore keeps approvals.
type ApprovalStore interface {
	// AskForCall and AskForFanOut put what waits and its approval on record
	// together. They return only after both are durable.
	AskForCall(ctx context.Context, c *Call, a *Approval) error
	AskForFanOut(ctx context.Context, f *FanOut, targets []FanOutTarget, a *Approval) error
	Approval(ctx context.Context, id uuid.UUID) (Approval, error)
	Approvals(ctx context.Context, f ApprovalFilter) (Page[Approval], error) // newest first
	WaitingApprovals(ctx context.Context, now time.Time) (int, error)
	// ApprovalTargets returns the devices of a fan-out that waits.
	ApprovalTargets(ctx context.Context, fanOut uuid.UUID) ([]DeviceID, error)
	// Decide ends a waiting approval, and with it the waiting of its call or
	// fan-out, in one transaction. [ErrConflict]: it waits no more. To approve,
	// it must not have expired at d.At.
	Decide(ctx context.Context, d ApprovalDecision) error
	// ExpireApprovals ends those whose time is over, and returns them.
	ExpireApprovals(ctx context.Context, now time.Time) ([]Approval, error)
	// CancelApprovedStrays cancels approved calls that are open and that another
	// process was to carry out.
	CancelApprovedStrays(ctx context.Context, process uuid.UUID) (int64, error)
	// PrincipalLine returns the ids of the principal and of all who made the tokens
	// up to there, and the name of the operator behind a token.
	PrincipalLine(ctx context.Context, p Principal) (line []string, person string, err error)
	// PrincipalNow returns the principal as it may act now, with its scope, or
	// [ErrNotFound] if it may not act any more.
	PrincipalNow(ctx context.Context, p Principal, now time.Time) (Principal, error)
}

// A grant is an approval as the gate sees it: it satisfies what one version of
// the policy asks for.
type grant struct {
	policy int64
}

// newApproval is what is asked for under a verdict.
func newApproval(v Verdict, asker Principal, purpose string, now time.Time) *Approval {
	ttl := v.ApprovalTTL
	if ttl <= 0 {
		ttl = DefaultApprovalTTL
	}
	return &Approval{ID: uuid.Must(uuid.NewV7()), AskedBy: asker, Purpose: CleanText(purpose, MaxPurposeBytes),
		Rule: v.Rule, RuleName: v.RuleName, PolicyVersion: v.Version, CreatedAt: now,
		ExpiresAt: now.Add(min(ttl, MaxApprovalTTL)), State: ApprovalWaiting}
}

// checkPurpose holds the asker's reason to its limit.
func checkPurpose(purpose string) error {
	if len(purpose) > MaxPurposeBytes {
		return Refuse(ErrInvalid, "invalid_purpose", "limit", MaxPurposeBytes).At("purpose")
	}
	return nil
}
