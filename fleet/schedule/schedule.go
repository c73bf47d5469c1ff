// Package schedule makes the same call to many devices at planned times. A [Schedule] has a cron
// expression, a time zone and a call; each [Run] is a fan-out on record.
//
// A run starts in the name of the principal that made or last changed the schedule, with the rights that
// the principal has then. An instant has one run at most, also after a crash or a change of the leader. A
// run that cannot start within [Grace] is recorded as missed and not made up.
//
// The package uses neither SQL nor a queue: its store queues the start of each run, and the queue calls
// [Service.Due]. Times are UTC, and a cron expression is in the wall clock time of its zone. A [Service]
// has no goroutine; a lock per group of schedules lets one run of a schedule start at a time.
package schedule

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// Limits of schedules.
const (
	Grace        = 5 * time.Minute // how late a run may start
	MaxJitter    = 24 * time.Hour
	MaxSchedules = 1000
	maxName      = 120 // bytes
	maxNote      = 200 // bytes
	// maxMissed is how many missed runs of one outage are listed; earlier ones are only counted.
	maxMissed = 100
	// gapInstants is how many coming instants are compared with the jitter.
	gapInstants = 100
	// PreviewInstants is how many coming instants a preview lists.
	PreviewInstants = 10
)

// State is the state of a schedule.
type State string

const (
	Active  State = "active"
	Paused  State = "paused"  // by a person or a program
	Blocked State = "blocked" // the latest run was refused for lack of rights; the next one is tried
	Ended   State = "ended"   // no instant is left
)

// States lists every state of a schedule.
var States = []State{Active, Paused, Blocked, Ended}

// RunState is the state of a run.
type RunState string

const (
	Starting RunState = "starting" // its fan-out is being created
	Running  RunState = "running"  // its fan-out is open
	Done     RunState = "done"     // its fan-out has ended
	Refused  RunState = "refused"  // nothing was called, or the approval of the fan-out was denied
	Missed   RunState = "missed"   // fleetd could not start it in time
	Skipped  RunState = "skipped"  // the previous run was still open, or the schedule was paused
)

// RunStates lists every state of a run.
var RunStates = []RunState{Starting, Running, Done, Refused, Missed, Skipped}

// A Schedule is a call to many devices that is repeated.
type Schedule struct {
	ID          uuid.UUID
	Name        string
	Cron        string // five fields
	TimeZone    string // IANA name
	Query       string // as written
	Within      string // filter of the principal's scope when it made or changed the schedule
	Tool        string
	Arguments   json.RawMessage // with values under redaction rules replaced by their digests
	Sealed      []byte          // the true arguments, encrypted; nil without digests
	Jitter      time.Duration   // each run starts at a random moment within it after its instant
	StartAt     *time.Time      // no instant before it
	EndAt       *time.Time      // no instant from it on
	MaxInFlight int             // 0: [call.DefaultInFlight]
	Timeout     time.Duration   // of each call; 0: the tool's default
	OfflineWait time.Duration   // see [call.FanOut]

	Paused   bool
	PausedBy string
	Note     string // why it was paused
	// Actor is the principal in whose name the runs start: the one that made or last changed the schedule.
	Actor     fleet.Principal
	CreatedBy string
	CreatedAt time.Time
	UpdatedAt time.Time
	Version   int64        // counts the changes by people and programs
	Next      *Instant     // nil while paused, and after the last one
	Blocked   fleet.Reason // why the latest run was refused for lack of rights; zero if it was not
	Last      *Run         // nil before the first
}

// An Instant is a time at which a run is planned, and the time at which it starts.
type Instant struct {
	PlannedAt time.Time
	DueAt     time.Time // PlannedAt, and a random part of the jitter
}

// State returns the state of the schedule.
func (s *Schedule) State() State {
	switch {
	case s.Paused:
		return Paused
	case s.Next == nil:
		return Ended
	case s.Blocked.Code != "":
		return Blocked
	}
	return Active
}

// window returns the schedule's times as the opening times of a window.
func (s *Schedule) window() fleet.Window { return fleet.Window{Cron: s.Cron, TimeZone: s.TimeZone} }

// audience returns the query of the devices, held within the filter of the principal's scope.
func (s *Schedule) audience() (fleet.Query, error) {
	q, err := fleet.ParseQuery(s.Query)
	if err != nil {
		return fleet.Query{}, err
	}
	within, err := fleet.ParseScope(s.Within)
	if err != nil {
		return fleet.Query{}, err
	}
	return fleet.ParseQuery(q.And(within).Text) // also bounds both together
}

// request returns the fan-out of a run.
func (s *Service) request(sch *Schedule, id uuid.UUID, by fleet.Principal) (call.FanOutRequest, error) {
	q, err := sch.audience()
	r := call.FanOutRequest{ID: id, Actor: by, Query: q.Text, Tool: sch.Tool, Timeout: sch.Timeout,
		MaxInFlight: sch.MaxInFlight, OfflineWait: sch.OfflineWait, Purpose: sch.Name}
	if err == nil {
		r.Arguments, err = s.arguments(sch)
	}
	return r, err
}

// Terms returns the terms of the schedule's audience. A principal that is limited to some devices sees
// the schedule if these contain all terms of its filter: all devices of each run then match the filter.
func (s *Schedule) Terms() []string {
	q, err := s.audience()
	if err != nil {
		return []string{}
	}
	return Terms(q)
}

// Terms returns the terms of a query in a form in which equal terms are equal texts.
func Terms(q fleet.Query) []string {
	terms := make([]string, 0, len(q.Terms))
	for _, t := range q.Terms {
		values := make([]string, len(t.Values))
		for i, v := range t.Values {
			values[i] = strings.ToLower(v)
		}
		slices.Sort(values)
		text, _ := json.Marshal([]any{t.Not, t.Field, t.Op, values, t.Age}) // strings and numbers marshal
		terms = append(terms, string(text))
	}
	return terms
}

// A Run is one instant of a schedule, or one start by hand.
type Run struct {
	ID        uuid.UUID
	Schedule  uuid.UUID
	PlannedAt time.Time
	DueAt     time.Time
	StartedAt *time.Time // nil if no fan-out was made
	State     RunState
	Manual    bool            // started by hand
	Actor     fleet.Principal // in whose name it starts
	FanOut    uuid.UUID       // zero if none was made
	Reason    fleet.Reason    // of a run that is refused, missed or skipped, or whose fan-out was canceled
	Omitted   int64           // of a missed run: so many were missed before it and have no row

	Targets int // of the fan-out
}

// RunFilter selects runs of a schedule.
type RunFilter struct {
	State  RunState // "" for all
	Limit  int
	Cursor string
}

// Store stores schedules and their runs. Reads are narrowed to the scope of the context. It queues a call
// of [Service.Due] for each new instant, in the transaction that stores the instant.
type Store interface {
	// CreateSchedule refuses a schedule beyond the limit.
	CreateSchedule(ctx context.Context, s Schedule, limit int) error
	// SaveSchedule stores a changed schedule, and runs that the change ends. It changes nothing and returns
	// [ErrChanged] if the version or the next instant is no longer that of was.
	SaveSchedule(ctx context.Context, by fleet.Principal, action string, was, s Schedule, runs []Run) error
	DeleteSchedule(ctx context.Context, by fleet.Principal, s Schedule) error
	Schedule(ctx context.Context, id uuid.UUID) (Schedule, error)
	Schedules(ctx context.Context, limit int, cursor string) (fleet.Page[Schedule], error) // by name
	ScheduleRuns(ctx context.Context, id uuid.UUID, f RunFilter) (fleet.Page[Run], error)  // latest first
	ScheduleRun(ctx context.Context, id uuid.UUID) (Run, error)
	// DueSchedules returns the schedules whose next run is due, or that have a run in the state starting.
	DueSchedules(ctx context.Context, now time.Time) ([]uuid.UUID, error)
	StartingRuns(ctx context.Context, id uuid.UUID) ([]Run, error)
	// ClaimRuns stores runs and the instant that follows them. It reports false, and changes nothing, if
	// the schedule has changed. A run in the state starting becomes skipped if another one is open.
	ClaimRuns(ctx context.Context, s Schedule, runs []Run, next *Instant) ([]Run, bool, error)
	// ClaimManual stores a run by hand, and refuses it if another one is open.
	ClaimManual(ctx context.Context, by fleet.Principal, s Schedule, r Run) error
	// SettleRun stores the outcome of a run that is starting. blocked is the schedule's new reason.
	SettleRun(ctx context.Context, r Run, blocked fleet.Reason) error
}

// FanOuts makes the fan-outs; [call.FanOuts] implements it.
type FanOuts interface {
	Preview(ctx context.Context, r call.FanOutRequest) (call.FanOutPreview, error)
	Create(ctx context.Context, r call.FanOutRequest) (call.FanOut, error)
	Get(ctx context.Context, id uuid.UUID) (call.FanOut, error)
}
