package campaign

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// State is the state of a campaign.
//
//	draft -> awaiting_approval -> scheduled -> running <-> paused -> completed | completed_with_errors
//	draft -> discarded; awaiting_approval -> denied -> draft (by an edit)
//	running | paused -> stopping -> aborted; scheduled | running | paused -> expired
type State string

const (
	Draft               State = "draft" // planned, with a stored dry run
	AwaitingApproval    State = "awaiting_approval"
	Denied              State = "denied"
	Discarded           State = "discarded"
	Scheduled           State = "scheduled"
	Running             State = "running"
	Paused              State = "paused"   // dispatches nothing; deployments in flight continue
	Stopping            State = "stopping" // aborted; waits for devices that have already downloaded the image
	Completed           State = "completed"
	CompletedWithErrors State = "completed_with_errors"
	Aborted             State = "aborted"
	Expired             State = "expired" // the end came before its devices were done
)

// States lists every state, in display order.
var States = []State{Draft, AwaitingApproval, Denied, Discarded,
	Scheduled, Running, Paused, Stopping, Completed,
	CompletedWithErrors, Aborted, Expired}

// Final reports whether the campaign is over. A retry or a rollback can reopen it.
func (s State) Final() bool {
	switch s {
	case Discarded, Completed, CompletedWithErrors, Aborted, Expired:
		return true
	}
	return false
}

// Open reports whether the engine must process the campaign.
func (s State) Open() bool {
	switch s {
	case Scheduled, Running, Paused, Stopping:
		return true
	}
	return false
}

// PauseReason says what paused a campaign.
type PauseReason string

const (
	PausedByOperator  PauseReason = "operator"
	PausedByWindow    PauseReason = "window"    // resumes when the next window opens
	PausedByThreshold PauseReason = "threshold" // an abort rule
	PausedByGate      PauseReason = "gate"      // a wave waits for an operator to advance it
	PausedBySystem    PauseReason = "system"    // the release was revoked, or similar
)

// EndBehavior says what happens to unfinished devices when a campaign ends.
type EndBehavior string

const (
	EndStopRollout   EndBehavior = "stop_rollout"    // nothing new is dispatched; deployments in flight finish
	EndCancelQueued  EndBehavior = "cancel_queued"   // as above, and waiting retries are canceled, too
	EndAbortInFlight EndBehavior = "abort_in_flight" // downloads are cut, too
)

// A Plan is an operator's description of a campaign. [Plan.Normalize] documents its limits and
// defaults.
type Plan struct {
	Name    string           `json:"name"`
	Release uuid.UUID        `json:"release"` // zero for a rollback, in which each device has its own image
	Query   string           `json:"query"`   // selects the audience
	Devices []fleet.DeviceID `json:"devices,omitempty"`
	// Within is the filter of the plan's maker. The plan includes only devices that match it,
	// also among those that are added while it runs. Its terms are joined with those of Query,
	// see [Plan.Audience]. The service sets it; "" if the maker is operator on every device.
	Within string `json:"within,omitempty"`

	Mode      firmware.DispatchMode `json:"mode"`
	PullNow   bool                  `json:"pull_now,omitempty"`  // pull: reboot online devices so that they poll
	Waves     []WavePlan            `json:"waves"`               // at least one; together they cover the whole audience
	Supersede bool                  `json:"supersede,omitempty"` // take over devices that wait in other campaigns
	// AllowDowngrade lets devices get an older version than they run, or another build of the
	// same version. A boot poll then offers it with force.
	AllowDowngrade bool `json:"allow_downgrade,omitempty"`

	// A continuous campaign adds devices that begin to match while it runs, up to MaxDevices,
	// until EndAt. Both are then required.
	Continuous bool `json:"continuous,omitempty"`
	MaxDevices int  `json:"max_devices,omitempty"`

	MaxInFlight  int           `json:"max_in_flight"`            // devices between dispatch and their first connection
	MaxPerMinute int           `json:"max_per_minute,omitempty"` // dispatches; 0: no limit
	AbortRules   []AbortRule   `json:"abort_rules"`
	Windows      []Window      `json:"windows,omitempty"` // none: always open
	Jitter       time.Duration `json:"jitter_ns,omitempty"`
	StartAt      *time.Time    `json:"start_at,omitempty"`
	EndAt        *time.Time    `json:"end_at,omitempty"` // nil: a week after it started
	EndBehavior  EndBehavior   `json:"end_behavior"`

	HealthChecks     []HealthCheck `json:"health_checks,omitempty"`
	ForbidRemoved    []string      `json:"forbid_removed,omitempty"` // tools that must still be offered; ["*"]: every one
	MinHeapPercent   int           `json:"min_heap_percent"`         // of the free heap before; 0: no check
	MaxReconnects    int           `json:"max_reconnects"`           // during the soak
	ApprovalRequired bool          `json:"approval_required,omitempty"`
	MaxAttempts      int           `json:"max_attempts"`
}

// WaveGate says what opens the next wave.
type WaveGate string

const (
	GateAuto   WaveGate = "auto"
	GateManual WaveGate = "manual"
)

// A WavePlan is one step of a campaign as planned.
type WavePlan struct {
	Name string `json:"name"`
	// Percent of the audience that this wave and those before it cover: 1, 10, 100. Count is
	// instead the number of devices of this wave, and Devices lists them.
	Percent        float64          `json:"percent,omitempty"`
	Count          int              `json:"count,omitempty"`
	Devices        []fleet.DeviceID `json:"devices,omitempty"`
	SuccessPercent float64          `json:"success_percent"` // of the devices with a verdict
	// Verdicts needed to judge the wave; a smaller wave needs all of its devices.
	MinSample int           `json:"min_sample"`
	Soak      time.Duration `json:"soak_ns"` // how long each device must stay healthy
	Gate      WaveGate      `json:"gate"`
}

// AbortScope says which deployments an abort rule counts.
type AbortScope string

const (
	ScopeWave     AbortScope = "wave"
	ScopeCampaign AbortScope = "campaign"
	ScopeBoard    AbortScope = "board" // any one board of the campaign
)

// AbortAction is the effect of an abort rule that fires.
type AbortAction string

const (
	AbortPause       AbortAction = "pause"
	AbortAbort       AbortAction = "abort"
	AbortAndRollback AbortAction = "abort_and_rollback"
)

// ClassAny is the class of an [AbortRule] that counts every failure.
const ClassAny = "any"

// An AbortRule stops a campaign with too many failures.
type AbortRule struct {
	// Class is a final state that counts as failure (failed, timed_out,
	// rolled_back, wrong_build, unhealthy, rejected) or "any" for all of them.
	Class       string       `json:"class"`
	MinExecuted int          `json:"min_executed"`      // devices dispatched before the rule may fire
	Percent     float64      `json:"percent"`           // of a cohort, see [Cohorts]; 0: fires at the first
	Measure     AbortMeasure `json:"measure,omitempty"` // what is compared with Percent
	Scope       AbortScope   `json:"scope"`
	Wave        int          `json:"wave,omitempty"` // 1-based: only in that wave; 0: in any
	Action      AbortAction  `json:"action"`
}

// AbortMeasure says which figure of a cohort an abort rule compares with its threshold.
type AbortMeasure string

const (
	// MeasureBound is the lower end of the share's 99 % Wilson interval: the share is at least
	// that high with 99 % confidence. It prevents a few failures among the first devices from
	// stopping the campaign. Plans omit it, so older ones keep their digests.
	MeasureBound AbortMeasure = "lower_bound"
	// MeasureShare is the plain share.
	MeasureShare AbortMeasure = "share"
)

// DeviceZone as the zone of a [Window] means each device's own zone.
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

// An Assertion compares a JSON path of a tool's answer with a value. The answer is the JSON in
// its text, or its text as a string.
type Assertion struct {
	Path  string          `json:"path"`            // JSONPath: "$.battery.level"
	Op    string          `json:"op"`              // eq ne lt le gt ge exists matches unchanged
	Value json.RawMessage `json:"value,omitempty"` // not for exists and unchanged
}

// A Campaign is a plan to bring an audience to a release, and its progress.
type Campaign struct {
	ID    uuid.UUID
	Plan  Plan
	State State

	PauseReason PauseReason  // while paused
	Reason      fleet.Reason // why it is paused, denied, aborted
	Wave        int          // 0-based: the open wave
	Advance     bool         // an operator passed the gate of the open wave

	// Digest identifies exactly what was approved: images, devices and their waves, rules,
	// windows and times. Any edit before the start changes it.
	Digest string
	// Images are the images that its devices may get. nil: an earlier version of fleetd planned
	// the campaign, and nothing more is dispatched until it is planned again.
	Images []string
	// Planned is the plan that the digest covers, if Plan was changed while the campaign ran,
	// and otherwise nil.
	Planned    *Plan
	Targets    int // devices with a deployment that is not skipped, as planned
	Skipped    int
	Approval   *Approval
	RollbackOf uuid.UUID // zero unless it is a rollback
	CreatedBy  fleet.Principal
	CreatedAt  time.Time
	EditedBy   fleet.Principal // the principal that last made or changed the plan
	EditedAt   time.Time
	StartedBy  *fleet.Principal // the principal that requested the start
	// TakenOverBy is the principal in whose name it continues since its maker or starter was
	// gone; nil while both are there.
	TakenOverBy *fleet.Principal
	StartedAt   *time.Time
	FinishedAt  *time.Time
	Revision    int64 // of the row: a change to an older one is refused
	// RollbackWanted reports that the updated devices must be rolled back once the campaign has
	// stopped; RollbackWith is the campaign that does it.
	RollbackWanted bool
	// RollbackBy is the principal that requested the rollback; nil if a rule of the plan did.
	RollbackBy *fleet.Principal
	// RollbackReason is the reason why the requested rollback was not made, or not for all
	// devices; zero if it was.
	RollbackReason fleet.Reason
	// OverruledAt is when an operator resumed the campaign despite the failures so far: the
	// abort rules are silent until the next failure. nil if that did not happen.
	OverruledAt  *time.Time
	RollbackWith uuid.UUID
}

// Ends returns when the campaign ends at the latest. Before its start it returns false if the
// plan has no end.
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
	// Rollback reports that a rule of the plan aborts and rolls back, so the approval also
	// covers the rollback.
	Rollback bool `json:"rollback,omitempty"`
	// Of, on a rollback, is the campaign whose approval covers it; zero on others.
	Of uuid.UUID `json:"of,omitzero"`
}

// WaveState is the state of a wave.
type WaveState string

const (
	WavePending  WaveState = "pending"
	WaveRunning  WaveState = "running"
	WaveSoaking  WaveState = "soaking" // every reachable device runs its image; some must still stay healthy
	WaveGated    WaveState = "gate"    // judged good; an operator must open the next
	WaveFinished WaveState = "finished"
	WaveFailed   WaveState = "failed" // judged bad
)

// A Wave is one step of a campaign and its result.
type Wave struct {
	Campaign   uuid.UUID
	Number     int // 0-based
	Plan       WavePlan
	Size       int // planned devices without skipped ones
	State      WaveState
	Verdict    fleet.Reason // reason of the judgement
	StartedAt  *time.Time
	FinishedAt *time.Time
}
