package campaign

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// State is where a campaign stands.
//
//	draft -> awaiting_approval -> scheduled -> running <-> paused -> completed | completed_with_errors
//	draft -> discarded; awaiting_approval -> denied -> draft (by an edit)
//	running | paused -> stopping -> aborted; scheduled | running | paused -> expired
type State string

const (
	Draft               State = "draft" // planned, with its dry run on record
	AwaitingApproval    State = "awaiting_approval"
	Denied              State = "denied"
	Discarded           State = "discarded"
	Scheduled           State = "scheduled"
	Running             State = "running"
	Paused              State = "paused"   // dispatches nothing; what is in flight goes on
	Stopping            State = "stopping" // aborted; waits for what has downloaded already
	Completed           State = "completed"
	CompletedWithErrors State = "completed_with_errors"
	Aborted             State = "aborted"
	Expired             State = "expired" // its end came before its devices were done
)

// States lists every state, in the order they are shown.
var States = []State{Draft, AwaitingApproval, Denied, Discarded,
	Scheduled, Running, Paused, Stopping, Completed,
	CompletedWithErrors, Aborted, Expired}

// Final reports whether the campaign is over. A retry or rollback makes new work of it.
func (s State) Final() bool {
	switch s {
	case Discarded, Completed, CompletedWithErrors, Aborted, Expired:
		return true
	}
	return false
}

// Open reports whether the engine has to look after the campaign.
func (s State) Open() bool {
	switch s {
	case Scheduled, Running, Paused, Stopping:
		return true
	}
	return false
}

// PauseReason says who or what paused a campaign.
type PauseReason string

const (
	PausedByOperator  PauseReason = "operator"
	PausedByWindow    PauseReason = "window"    // goes on when the next window opens
	PausedByThreshold PauseReason = "threshold" // an abort rule
	PausedByGate      PauseReason = "gate"      // a wave waits for an operator to advance it
	PausedBySystem    PauseReason = "system"    // the release was revoked, or the like
)

// EndBehavior says what happens to devices that are not done when a campaign ends.
type EndBehavior string

const (
	EndStopRollout   EndBehavior = "stop_rollout"    // nothing new is dispatched; what is in flight finishes
	EndCancelQueued  EndBehavior = "cancel_queued"   // as above, and retries that wait are canceled too
	EndAbortInFlight EndBehavior = "abort_in_flight" // downloads are cut as well
)

// A Plan is what an operator asks for. Limits and defaults stand with
// [Plan.Normalize].
type Plan struct {
	Name    string           `json:"name"`
	Release uuid.UUID        `json:"release"` // zero for a rollback, whose devices each get their own image
	Query   string           `json:"query"`   // picks the audience
	Devices []fleet.DeviceID `json:"devices,omitempty"`
	// Within is the filter of who made the plan: it has only devices that this covers,
	// also those that come to match while it runs. Its terms are joined with those of
	// Query, see [Plan.Audience]. The service writes it; "" where the maker is operator
	// on every device.
	Within string `json:"within,omitempty"`

	Mode      firmware.DispatchMode `json:"mode"`
	PullNow   bool                  `json:"pull_now,omitempty"`  // pull: reboot online devices so that they poll
	Waves     []WavePlan            `json:"waves"`               // at least one; together they hold the whole audience
	Supersede bool                  `json:"supersede,omitempty"` // move devices here that wait in other campaigns
	// AllowDowngrade lets devices have an older version than they run, or
	// another build of the same version; a boot poll then offers it with force.
	AllowDowngrade bool `json:"allow_downgrade,omitempty"`

	// A continuous campaign adds devices that come to match while it runs, up
	// to MaxDevices, until EndAt; both are then required.
	Continuous bool `json:"continuous,omitempty"`
	MaxDevices int  `json:"max_devices,omitempty"`

	MaxInFlight  int           `json:"max_in_flight"`            // devices between dispatch and their first connection
	MaxPerMinute int           `json:"max_per_minute,omitempty"` // dispatches; 0 does not limit
	AbortRules   []AbortRule   `json:"abort_rules"`
	Windows      []Window      `json:"windows,omitempty"` // none: always open
	Jitter       time.Duration `json:"jitter_ns,omitempty"`
	StartAt      *time.Time    `json:"start_at,omitempty"`
	EndAt        *time.Time    `json:"end_at,omitempty"` // nil: a week after it started
	EndBehavior  EndBehavior   `json:"end_behavior"`

	HealthChecks     []HealthCheck `json:"health_checks,omitempty"`
	ForbidRemoved    []string      `json:"forbid_removed,omitempty"` // tools that must still be offered; ["*"]: every one
	MinHeapPercent   int           `json:"min_heap_percent"`         // of the free heap before; 0 does not check
	MaxReconnects    int           `json:"max_reconnects"`           // during the soak
	ApprovalRequired bool          `json:"approval_required,omitempty"`
	MaxAttempts      int           `json:"max_attempts"`
}

// WaveGate says who opens the wave after this one.
type WaveGate string

const (
	GateAuto   WaveGate = "auto"
	GateManual WaveGate = "manual"
)

// A WavePlan is one step of a campaign as planned.
type WavePlan struct {
	Name string `json:"name"`
	// Percent of the audience that has had its turn after this wave: 1, 10, 100.
	// Count instead is the number of devices of this wave, Devices names them.
	Percent        float64          `json:"percent,omitempty"`
	Count          int              `json:"count,omitempty"`
	Devices        []fleet.DeviceID `json:"devices,omitempty"`
	SuccessPercent float64          `json:"success_percent"` // of the devices with a verdict
	// verdicts needed to judge; a smaller wave needs all of its devices
	MinSample int           `json:"min_sample"`
	Soak      time.Duration `json:"soak_ns"` // how long each device must stay well
	Gate      WaveGate      `json:"gate"`
}

// AbortScope says over which deployments an abort rule counts.
type AbortScope string

const (
	ScopeWave     AbortScope = "wave"
	ScopeCampaign AbortScope = "campaign"
	ScopeBoard    AbortScope = "board" // any one board of the campaign
)

// AbortAction says what a rule that fires does.
type AbortAction string

const (
	AbortPause       AbortAction = "pause"
	AbortAbort       AbortAction = "abort"
	AbortAndRollback AbortAction = "abort_and_rollback"
)

// ClassAny is the class of an [AbortRule] that counts every failure.
const ClassAny = "any"

// An AbortRule stops a campaign that goes wrong.
type AbortRule struct {
	// Class is a final state that counts as failure (failed, timed_out,
	// rolled_back, wrong_build, unhealthy, rejected) or "any" for all of them.
	Class       string       `json:"class"`
	MinExecuted int          `json:"min_executed"`      // devices dispatched before the rule may fire
	Percent     float64      `json:"percent"`           // of a cohort, see [Cohorts]; 0 fires at the first
	Measure     AbortMeasure `json:"measure,omitempty"` // what is held against Percent
	Scope       AbortScope   `json:"scope"`
	Wave        int          `json:"wave,omitempty"` // 1-based: only in that wave; 0: in any
	Action      AbortAction  `json:"action"`
}

// AbortMeasure says what of a cohort an abort rule compares with its threshold.
type AbortMeasure string

const (
	// MeasureBound is what the share is at least, with 99 % confidence: the lower
	// end of its Wilson interval. A few failures among the first devices are then
	// no reason to stop. Plans leave it out, so that older ones keep their digests.
	MeasureBound AbortMeasure = "lower_bound"
	// MeasureShare is the plain share.
	MeasureShare AbortMeasure = "share"
)

// DeviceZone as the zone of a [Window] means each device's own.
const DeviceZone = fleet.DeviceZone

// A Window is a recurring time in which devices may be dispatched.
type Window = fleet.Window

// A HealthCheck calls a tool after the upgrade, and before it for comparison.
type HealthCheck struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Assert    []Assertion     `json:"assert,omitempty"` // none: the tool must answer without error
	Retries   int             `json:"retries,omitempty"`
}

// An Assertion holds a JSON path of a tool's answer against a value. The
// answer is the JSON in its text, or its text as a string.
type Assertion struct {
	Path  string          `json:"path"`            // JSONPath: "$.battery.level"
	Op    string          `json:"op"`              // eq ne lt le gt ge exists matches unchanged
	Value json.RawMessage `json:"value,omitempty"` // not for exists and unchanged
}

// A Campaign is a plan to bring an audience to a release, and how far it got.
type Campaign struct {
	ID    uuid.UUID
	Plan  Plan
	State State

	PauseReason PauseReason  // while paused
	Reason      fleet.Reason // why it is paused, denied, aborted
	Wave        int          // 0-based: the wave that is open
	Advance     bool         // an operator passed the gate of the open wave

	// Digest names exactly what was approved: images, targets and their waves,
	// rules, windows and times. Any edit before the start changes it.
	Digest string
	// Images are those that its devices may get. nil: an earlier version of
	// fleetd planned it, and nothing more is dispatched until it is planned again.
	Images []string
	// Planned is the plan as the digest has it, once Plan was changed while the
	// campaign ran; nil until then.
	Planned    *Plan
	Targets    int // devices with a deployment that is not skipped, as planned
	Skipped    int
	Approval   *Approval
	RollbackOf uuid.UUID // zero unless it is a rollback
	CreatedBy  fleet.Principal
	CreatedAt  time.Time
	EditedBy   fleet.Principal // who made the plan what it is
	EditedAt   time.Time
	StartedBy  *fleet.Principal // who asked it to start
	// TakenOverBy is in whose name it goes on since who planned or started it was gone;
	// nil while they are there.
	TakenOverBy *fleet.Principal
	StartedAt   *time.Time
	FinishedAt  *time.Time
	Revision    int64 // of the row: a change to an older one is refused
	// RollbackWanted says that the devices it updated shall be rolled back when
	// it has stopped; RollbackWith is the campaign that does.
	RollbackWanted bool
	// RollbackBy asked for that; nil if a rule of the plan did.
	RollbackBy *fleet.Principal
	// RollbackReason says why the rollback that was asked for was not made, or not of
	// all devices; zero if it was.
	RollbackReason fleet.Reason
	// OverruledAt is when an operator went on in spite of the failures so far: the
	// abort rules are silent until there is another. nil if no one did.
	OverruledAt  *time.Time
	RollbackWith uuid.UUID
}

// Ends returns when the campaign ends, whatever its devices do; false before
// its start if the plan names no time.
func (c Campaign) Ends() (time.Time, bool) {
	switch {
	case c.Plan.EndAt != nil:
		return *c.Plan.EndAt, true
	case c.StartedAt != nil:
		return c.StartedAt.Add(planLife), true
	}
	return time.Time{}, false
}

// An Approval is a second person's approval of one digest.
type Approval struct {
	By     fleet.Principal `json:"by"`
	At     time.Time       `json:"at"`
	Digest string          `json:"digest"`
	// Rollback: a rule of the plan aborts and rolls back, so that the way back is
	// approved with it.
	Rollback bool `json:"rollback,omitempty"`
	// Of, on a rollback, is the campaign whose approval it carries; zero on others.
	Of uuid.UUID `json:"of,omitzero"`
}

// WaveState is where a wave stands.
type WaveState string

const (
	WavePending  WaveState = "pending"
	WaveRunning  WaveState = "running"
	WaveSoaking  WaveState = "soaking" // every device that could be reached runs its image; some must still stay well
	WaveGated    WaveState = "gate"    // judged good; an operator has to open the next
	WaveFinished WaveState = "finished"
	WaveFailed   WaveState = "failed" // judged bad
)

// A Wave is one step of a campaign as it went.
type Wave struct {
	Campaign   uuid.UUID
	Number     int // 0-based
	Plan       WavePlan
	Size       int // devices planned, skipped ones not counted
	State      WaveState
	Verdict    fleet.Reason // why it was judged as it was
	StartedAt  *time.Time
	FinishedAt *time.Time
}
