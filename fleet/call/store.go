package call

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A CallWait is what must be known to send a call that waits until its device is
// back, beyond its record.
type Wait struct {
	Interrupt bool
	Picture   string // blob key; "" for most
}

// A WaitingCall is a call in the state [fleet.CallPendingDevice] as the store knows it.
type WaitingCall struct {
	fleet.Call
	Wait
}

// A CallFilter narrows a list of calls. Zero fields do not filter.
type Filter struct {
	Device fleet.DeviceID
	Tool   string
	Actor  string // name
	// Conversation in which the voice server's model made the calls
	Conversation uuid.UUID
	States       []fleet.CallState
	FanOut       uuid.UUID
	Since        time.Time // inclusive
	Until        time.Time // exclusive
	Limit        int
	Cursor       string
}

// CallStore keeps call records. InsertCall, MarkSent and FinishCall return only
// after the change is durable.
type Store interface {
	InsertCall(ctx context.Context, c *fleet.Call) error
	// MarkSent turns a pending call to sent, before its bytes are written.
	MarkSent(ctx context.Context, c *fleet.Call) error
	// FinishCall stores the outcome (state, result, error, evidence, rpc id, times).
	// A call that is final already stays as it is.
	FinishCall(ctx context.Context, c *fleet.Call) error
	// AddLateAnswer stores an answer that came after the call was given up.
	AddLateAnswer(ctx context.Context, id uuid.UUID, late fleet.LateAnswer) error
	Call(ctx context.Context, id uuid.UUID) (fleet.Call, error)
	Calls(ctx context.Context, f Filter) (fleet.Page[fleet.Call], error) // newest first
	// SettleCalls stores outcomes of calls of which it is not known whether they
	// are on record: those that are not are put there. A call that is final
	// already stays as it is. What an earlier write of the same calls does
	// after this, if the database carries it out late, changes nothing.
	SettleCalls(ctx context.Context, calls []*fleet.Call) error
	// WaitForDevice puts on record that the call waits until its device is back: a new
	// one, or one that is on record and was certainly not sent.
	WaitForDevice(ctx context.Context, c *fleet.Call, w Wait) error
	// SendWaiting turns a call that waits for its device to sent, with its arguments
	// and evidence, before its bytes are written. One that is on record as sent, which
	// its owner knows better, is no conflict.
	SendWaiting(ctx context.Context, c *fleet.Call) error
	// WaitingCalls returns the calls that wait for their devices, oldest first, and
	// forgets the waits of those that are over.
	WaitingCalls(ctx context.Context) ([]WaitingCall, error)
	// RecoverCalls closes what an earlier process left open: pending calls become
	// canceled, sent ones unknown. This process has made no call yet.
	RecoverCalls(ctx context.Context) (canceled, unknown int64, err error)
	// LastArguments returns the arguments this actor last used for the tool on any device, or nil.
	LastArguments(ctx context.Context, actor fleet.Principal, tool string) (json.RawMessage, error)
}

// A CallBucket counts the calls of one stretch of time.
type Bucket struct {
	At                time.Time // start of the stretch
	Succeeded, Failed int
}

// StatsStore answers the overview's questions.
type StatsStore interface {
	CallBuckets(ctx context.Context, since time.Time, step time.Duration) ([]Bucket, error)
	RecentFailures(ctx context.Context, since time.Time, limit int) ([]fleet.Call, error)
}
