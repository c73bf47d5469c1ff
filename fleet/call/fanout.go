package call

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// FanOutState is where a fan-out stands.
type FanOutState string

const (
	FanOutPendingApproval FanOutState = "pending_approval" // waits for a person's decision (see [Approval])

	FanOutRunning   FanOutState = "running"
	FanOutCompleted FanOutState = "completed"
	FanOutCanceled  FanOutState = "canceled"
	FanOutRefused   FanOutState = "refused" // its approval was denied, or did not come in time
)

// A FanOut is one call made to many devices: the audience is resolved once, at
// its creation, and each device gets the call at most once.
type FanOut struct {
	ID          uuid.UUID
	Actor       fleet.Principal
	Query       string // the filter as written; "" when devices were ticked
	Tool        string
	Arguments   json.RawMessage
	MaxInFlight int
	Timeout     time.Duration // of each call; 0 takes the tool's default
	OfflineWait time.Duration // how long, from Began, devices that are not connected are waited for; 0: not at all
	Interrupt   bool          // does not wait for the end of conversations; see [Interruptions]
	State       FanOutState
	Targets     int // devices it goes to
	Skipped     int // devices that matched but were left out, or could not be called, each with a reason
	CreatedAt   time.Time
	FinishedAt  *time.Time
	CanceledBy  string
	Code        string    // of why it was canceled; "" if CanceledBy asked for that
	RetryOf     uuid.UUID // the fan-out whose failed devices it calls again; zero if none

	Approval      uuid.UUID  // that it needs or needed; zero if none
	PolicyVersion int64      // for which the approval is good
	StartedAt     *time.Time // when it was approved; nil if it did not wait for that
}

// Open reports whether the fan-out has not ended.
func (f FanOut) Open() bool { return f.State == FanOutRunning || f.State == FanOutPendingApproval }

// interrupts reports whether its calls are to interrupt conversations.
func (f FanOut) interrupts() bool { return f.Interrupt && Interrupts(f.Tool) }

// Began is when it began to call devices, or would if it were approved.
func (f FanOut) Began() time.Time {
	if f.StartedAt != nil {
		return *f.StartedAt
	}
	return f.CreatedAt
}

// WaitsUntil is when devices that are not connected are waited for no longer,
// nil if they are not waited for.
func (f FanOut) WaitsUntil() *time.Time {
	if f.OfflineWait == 0 {
		return nil
	}
	until := f.Began().Add(f.OfflineWait)
	return &until
}

// A FanOutTarget is one device of a fan-out. Reason is set if it was skipped.
type FanOutTarget struct {
	Device fleet.DeviceID
	Reason string    // code: "device_held", "unknown_tool", "invalid_arguments", ...
	Build  ToolBuild // of a fan-out that needs an approval, which names it
}

// FanOutProgress counts a fan-out's calls.
type FanOutProgress struct {
	Waiting     int // not yet called
	AwaitOnline int // of Waiting: called when they come online
	// InConversation, of Waiting: called after the end of their conversations; see [Interruptions]
	InConversation int
	ByState        map[fleet.CallState]int // calls by their state
	Blocked        *FanOutBlock            // nil while the fan-out goes on
}

// A FanOutBlock says what keeps a fan-out from going on, and since when.
type FanOutBlock struct {
	Code  BlockCode
	Since time.Time
}

// BlockCode names what a fan-out waits for.
type BlockCode string

// BlockDatabase: the database does not take the records of its calls.
const BlockDatabase BlockCode = "database_unavailable"

// Done is how many calls have an outcome.
func (p FanOutProgress) Done() int {
	n := 0
	for s, c := range p.ByState {
		if s.Final() {
			n += c
		}
	}
	return n
}

// A FanOutAnswer groups the devices that gave the same answer.
type FanOutAnswer struct {
	State   fleet.CallState
	Text    string           // the answer's text, shortened; foreign text
	Error   *fleet.CallError // of answers without a text that failed
	NoField bool             // of answers grouped by a field: they lack it
	Count   int
	Sample  []fleet.DeviceID // a few of them
	CallIDs []uuid.UUID      // their calls, same order
}

// FanOutStore keeps fan-outs. No target is added to a fan-out, and none removed.
type FanOutStore interface {
	CreateFanOut(ctx context.Context, f *FanOut, targets []FanOutTarget) error
	FanOut(ctx context.Context, id uuid.UUID) (FanOut, error)
	FanOuts(ctx context.Context, limit int, cursor string) (fleet.Page[FanOut], error) // newest first
	RunningFanOuts(ctx context.Context) ([]FanOut, error)
	// PendingTargets returns up to limit devices of a running fan-out, in order
	// after the given device, that have no call yet, or only such as do not
	// count: canceled before they were sent because fleetd stopped or the
	// database was away, or offline while the fan-out waits for such devices.
	PendingTargets(ctx context.Context, id uuid.UUID, after fleet.DeviceID, limit int) ([]fleet.DeviceID, error)
	SkippedTargets(ctx context.Context, id uuid.UUID) ([]fleet.DeviceCount, error) // Value is the reason
	// SkipTarget notes why a target cannot be called; it counts as skipped then.
	SkipTarget(ctx context.Context, id uuid.UUID, t FanOutTarget) error
	FinishFanOut(ctx context.Context, by fleet.Principal, id uuid.UUID, state FanOutState, at time.Time) error
	// StopFanOut cancels a running fan-out, and notes the code as why, for it and for
	// each device that it has not called; these count as skipped then.
	StopFanOut(ctx context.Context, id uuid.UUID, code string, at time.Time) error
	// LastAlive returns when a fleetd last noted, before the given time, that it
	// ran; zero if none did.
	LastAlive(ctx context.Context, before time.Time) (time.Time, error)
	Progress(ctx context.Context, id uuid.UUID) (FanOutProgress, error)
	Answers(ctx context.Context, id uuid.UUID, limit int) ([]FanOutAnswer, error) // largest group first
	// AnswerPage is a stretch of the groups, and how many there are.
	AnswerPage(ctx context.Context, id uuid.UUID, offset, limit int) (page []FanOutAnswer, total int, err error)
	// EachOutcome hands on what each device answered, in the order of the devices,
	// until each returns false.
	EachOutcome(ctx context.Context, id uuid.UUID, each func(FanOutOutcome) bool) error
}
