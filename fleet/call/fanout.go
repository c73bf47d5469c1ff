package call

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// FanOutState is the state of a fan-out.
type FanOutState string

const (
	FanOutPendingApproval FanOutState = "pending_approval" // waits for a person's decision (see [Approval])

	FanOutRunning   FanOutState = "running"
	FanOutCompleted FanOutState = "completed"
	FanOutCanceled  FanOutState = "canceled"
	FanOutRefused   FanOutState = "refused" // its approval was denied, or did not come in time
)

// A FanOut is one call made to many devices. Its audience is resolved once, at its creation,
// and each device gets the call at most once.
type FanOut struct {
	ID          uuid.UUID
	Actor       fleet.Principal
	Query       string // the filter as written; "" if the devices were listed
	Tool        string
	Arguments   json.RawMessage // with values under redaction rules replaced by their digests
	Sealed      []byte          // the true arguments, encrypted; nil without digests, and after the end
	MaxInFlight int
	Timeout     time.Duration // of each call; 0: the tool's default
	OfflineWait time.Duration // how long, from Began, it waits for disconnected devices; 0: not at all
	Interrupt   bool          // do not wait for the end of conversations; see [Interruptions]
	State       FanOutState
	Targets     int // devices that it calls
	Skipped     int // devices that matched but were excluded or could not be called, each with a reason
	CreatedAt   time.Time
	FinishedAt  *time.Time
	CanceledBy  string
	Code        string    // why it was canceled; "" if CanceledBy requested that
	RetryOf     uuid.UUID // the fan-out whose failed devices it calls again; zero without one

	Approval      uuid.UUID  // that it requires or required; zero without one
	PolicyVersion int64      // for which the approval is valid
	StartedAt     *time.Time // time of the approval; nil if it needed none
}

// Open reports whether the fan-out has not ended.
func (f FanOut) Open() bool { return f.State == FanOutRunning || f.State == FanOutPendingApproval }

// interrupts reports whether the calls may interrupt conversations.
func (f FanOut) interrupts() bool { return f.Interrupt && Interrupts(f.Tool) }

// Began returns when the fan-out began to call devices: at its approval, or else at its creation.
func (f FanOut) Began() time.Time {
	if f.StartedAt != nil {
		return *f.StartedAt
	}
	return f.CreatedAt
}

// WaitsUntil returns the end of the wait for disconnected devices, or nil without a wait.
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
	Build  ToolBuild // that the fan-out's approval names
}

// FanOutProgress counts a fan-out's calls.
type FanOutProgress struct {
	Waiting     int // not called yet
	AwaitOnline int // of Waiting: called when they connect
	// InConversation counts devices of Waiting that are called after their conversations; see
	// [Interruptions].
	InConversation int
	ByState        map[fleet.CallState]int // calls by their state
	Blocked        *FanOutBlock            // nil while the fan-out goes on
}

// A FanOutBlock is what blocks a fan-out, and since when.
type FanOutBlock struct {
	Code  BlockCode
	Since time.Time
}

// BlockCode is what a fan-out waits for.
type BlockCode string

// BlockDatabase means that the database does not store the records of the calls.
const BlockDatabase BlockCode = "database_unavailable"

// Done returns how many calls have an outcome.
func (p FanOutProgress) Done() int {
	n := 0
	for s, c := range p.ByState {
		if s.Final() {
			n += c
		}
	}
	return n
}

// A FanOutAnswer is a group of devices with the same answer.
type FanOutAnswer struct {
	State   fleet.CallState
	Text    string           // the answer's text, shortened; foreign text
	Error   *fleet.CallError // of failures without a text
	NoField bool             // with grouping by a field: the answers lack it
	Count   int
	Sample  []fleet.DeviceID // some of the devices
	CallIDs []uuid.UUID      // the calls of Sample, in the same order
}

// FanOutStore stores fan-outs. The targets of a fan-out never change.
type FanOutStore interface {
	CreateFanOut(ctx context.Context, f *FanOut, targets []FanOutTarget) error
	FanOut(ctx context.Context, id uuid.UUID) (FanOut, error)
	FanOuts(ctx context.Context, limit int, cursor string) (fleet.Page[FanOut], error) // newest first
	RunningFanOuts(ctx context.Context) ([]FanOut, error)
	// PendingTargets returns up to limit devices of a running fan-out, in order, that follow
	// the given device and have no call that counts. These do not count: calls canceled before
	// they were sent because fleetd stopped or the database was unavailable, and offline calls
	// while the fan-out waits for disconnected devices.
	PendingTargets(ctx context.Context, id uuid.UUID, after fleet.DeviceID, limit int) ([]fleet.DeviceID, error)
	SkippedTargets(ctx context.Context, id uuid.UUID) ([]fleet.DeviceCount, error) // Value is the reason
	// SkipTarget records why a target cannot be called; the target then counts as skipped.
	SkipTarget(ctx context.Context, id uuid.UUID, t FanOutTarget) error
	FinishFanOut(ctx context.Context, by fleet.Principal, id uuid.UUID, state FanOutState, at time.Time) error
	// StopFanOut cancels a running fan-out. It records the code as the reason, for the fan-out
	// and for each device not called yet; these devices then count as skipped.
	StopFanOut(ctx context.Context, id uuid.UUID, code string, at time.Time) error
	// LastAlive returns the last time before the given one at which a fleetd recorded that it
	// ran, or zero.
	LastAlive(ctx context.Context, before time.Time) (time.Time, error)
	Progress(ctx context.Context, id uuid.UUID) (FanOutProgress, error)
	Answers(ctx context.Context, id uuid.UUID, limit int) ([]FanOutAnswer, error) // largest group first
	// AnswerPage returns some of the groups and their total number.
	AnswerPage(ctx context.Context, id uuid.UUID, offset, limit int) (page []FanOutAnswer, total int, err error)
	// EachOutcome calls each with every device's outcome, in the order of the devices, until
	// each returns false.
	EachOutcome(ctx context.Context, id uuid.UUID, each func(FanOutOutcome) bool) error
}
