package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/schedule"
)

var _ schedule.Store = (*Store)(nil)

// A Timer queues the start of a run in the transaction that stores its instant. version is that of the
// schedule.
type Timer func(ctx context.Context, tx pgx.Tx, id uuid.UUID, version int64, at schedule.Instant) error

// SetTimer sets where starts of runs are queued; without it none are. It must be called before the store
// is used.
func (s *Store) SetTimer(t Timer) { s.timer = t }

func (s *Store) queueRun(ctx context.Context, tx pgx.Tx, sch schedule.Schedule, next *schedule.Instant) error {
	if s.timer == nil || next == nil {
		return nil
	}
	return s.timer(ctx, tx, sch.ID, sch.Version, *next)
}

const scheduleColumns = `id, name, cron, time_zone, query, within, tool, arguments, jitter_ms, start_at, end_at,
	max_in_flight, timeout_ms, offline_wait_ms, paused, paused_by, note, actor_kind, actor_id, actor_name, actor_role,
	created_by, created_at, updated_at, version, next_planned_at, next_due_at, blocked_code, blocked_params,
	sealed_arguments`

type scheduleRow struct {
	ID            uuid.UUID
	Name          string
	Cron          string
	TimeZone      string
	Query         string
	Within        string
	Tool          string
	Arguments     []byte
	JitterMs      int64
	StartAt       *time.Time
	EndAt         *time.Time
	MaxInFlight   int
	TimeoutMs     int64
	OfflineWaitMs int64
	Paused        bool
	PausedBy      string
	Note          string
	ActorKind     fleet.PrincipalKind
	ActorID       string
	ActorName     string
	ActorRole     fleet.Role
	CreatedBy     string
	CreatedAt     time.Time
	UpdatedAt     time.Time
	Version       int64
	NextPlannedAt *time.Time
	NextDueAt     *time.Time
	BlockedCode   string
	BlockedParams []byte

	SealedArguments []byte
}

func toSchedule(row pgx.CollectableRow) (schedule.Schedule, error) {
	r, err := pgx.RowToStructByName[scheduleRow](row)
	if err != nil {
		return schedule.Schedule{}, err
	}
	sch := schedule.Schedule{ID: r.ID, Name: r.Name, Cron: r.Cron, TimeZone: r.TimeZone, Query: r.Query,
		Within: r.Within, Tool: r.Tool, Arguments: r.Arguments, Jitter: time.Duration(r.JitterMs) * time.Millisecond,
		StartAt: r.StartAt, EndAt: r.EndAt, MaxInFlight: r.MaxInFlight,
		Timeout:     time.Duration(r.TimeoutMs) * time.Millisecond,
		OfflineWait: time.Duration(r.OfflineWaitMs) * time.Millisecond,
		Paused:      r.Paused, PausedBy: r.PausedBy, Note: r.Note,
		Actor:     fleet.Principal{Kind: r.ActorKind, ID: r.ActorID, Name: r.ActorName, Role: r.ActorRole},
		CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Version: r.Version,
		Sealed: r.SealedArguments}
	if r.NextPlannedAt != nil {
		sch.Next = &schedule.Instant{PlannedAt: r.NextPlannedAt.UTC(), DueAt: r.NextDueAt.UTC()}
	}
	sch.Blocked, err = reasonOf(r.BlockedCode, r.BlockedParams)
	return sch, err
}

// reasonOf returns the reason with a stored code and parameters.
func reasonOf(code string, params []byte) (r fleet.Reason, err error) {
	if r.Code = code; params != nil {
		err = json.Unmarshal(params, &r.Params)
	}
	return r, err
}

// scheduleArgs returns the values of scheduleColumns and terms.
func scheduleArgs(sch schedule.Schedule) []any {
	var planned, due *time.Time
	if sch.Next != nil {
		planned, due = &sch.Next.PlannedAt, &sch.Next.DueAt
	}
	return []any{sch.ID, cleanText(sch.Name), sch.Cron, sch.TimeZone, cleanText(sch.Query), cleanText(sch.Within),
		cleanText(sch.Tool), cleanJSON(sch.Arguments), sch.Jitter.Milliseconds(), sch.StartAt, sch.EndAt, sch.MaxInFlight,
		sch.Timeout.Milliseconds(), sch.OfflineWait.Milliseconds(), sch.Paused, cleanText(sch.PausedBy), cleanText(sch.Note),
		sch.Actor.Kind, sch.Actor.ID, cleanText(sch.Actor.Name), sch.Actor.Role, cleanText(sch.CreatedBy), sch.CreatedAt,
		sch.UpdatedAt, sch.Version, planned, due, sch.Blocked.Code, reasonParams(sch.Blocked), sch.Sealed, sch.Terms()}
}

// scheduleDetail returns the detail of a schedule's audit entries.
func scheduleDetail(sch schedule.Schedule) map[string]any {
	detail := map[string]any{"name": sch.Name, "cron": sch.Cron, "time_zone": sch.TimeZone, "query": sch.Query,
		"tool": sch.Tool}
	if sch.Note != "" {
		detail["note"] = sch.Note
	}
	return detail
}

// CreateSchedule adds a schedule.
func (s *Store) CreateSchedule(ctx context.Context, sch schedule.Schedule, limit int) error {
	return s.audited(ctx, sch.Actor, "schedule.create", sch.ID.String(), scheduleDetail(sch), func(tx pgx.Tx) error {
		// The lock makes the count and the insert one step.
		if _, err := tx.Exec(ctx, `LOCK TABLE schedules IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM schedules`).Scan(&n); err != nil {
			return err
		}
		if n >= limit {
			return fleet.Refuse(fleet.ErrConflict, "too_many_schedules", "limit", limit)
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO schedules (`+scheduleColumns+`, terms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8::json, $9, $10, $11, $12,
				$13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31)`,
			scheduleArgs(sch)...)
		if err != nil {
			return err
		}
		return s.queueRun(ctx, tx, sch, sch.Next)
	})
}

// SaveSchedule stores a changed schedule, and runs that the change ends.
func (s *Store) SaveSchedule(ctx context.Context, by fleet.Principal, action string, was, sch schedule.Schedule,
	runs []schedule.Run) error {
	return s.audited(ctx, by, action, sch.ID.String(), scheduleDetail(sch), func(tx pgx.Tx) error {
		var planned *time.Time
		if was.Next != nil {
			planned = &was.Next.PlannedAt
		}
		err := changeOne(ctx, tx, `
			UPDATE schedules SET (`+scheduleColumns+`, terms) = ROW ($1, $2, $3, $4, $5, $6, $7, $8::json, $9, $10, $11, $12,
				$13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26::timestamptz, $27::timestamptz, $28,
				$29::jsonb, $30::bytea, $31::text[])
			WHERE id = $1 AND version = $32 AND next_planned_at IS NOT DISTINCT FROM $33::timestamptz`,
			append(scheduleArgs(sch), was.Version, planned)...)
		if isNotFound(err) {
			return schedule.ErrChanged
		}
		if err != nil {
			return err
		}
		for _, r := range runs {
			if err := insertRun(ctx, tx, r); err != nil {
				return err
			}
		}
		return s.queueRun(ctx, tx, sch, sch.Next)
	})
}

// DeleteSchedule removes a schedule and its runs.
func (s *Store) DeleteSchedule(ctx context.Context, by fleet.Principal, sch schedule.Schedule) error {
	return s.audited(ctx, by, "schedule.delete", sch.ID.String(), scheduleDetail(sch), func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM schedules WHERE id = $1`, sch.ID)
	})
}

// scheduleScope leaves out schedules whose devices may lie outside the principal's filter, and, for a
// language model, those of tools that it may never call.
func (w *where) scheduleScope(ctx context.Context) {
	if q, narrow := fleet.ScopeOf(ctx); narrow {
		w.and("schedules.terms @> ?::text[]", schedule.Terms(q))
	}
	w.toolScope(ctx, "schedules.tool", `EXISTS (SELECT FROM inventories i WHERE schedules.tool = ANY (i.user_tools))`)
}

// Schedule returns one schedule, or [fleet.ErrNotFound].
func (s *Store) Schedule(ctx context.Context, id uuid.UUID) (schedule.Schedule, error) {
	scoped, args := scopedBy([]any{id}, func(w *where) { w.scheduleScope(ctx) })
	rows, _ := s.db.Query(ctx, `SELECT `+scheduleColumns+` FROM schedules WHERE id = $1`+scoped, args...)
	sch, err := pgx.CollectExactlyOneRow(rows, toSchedule)
	if err == nil {
		list := []schedule.Schedule{sch}
		err = s.addLastRuns(ctx, list)
		sch = list[0]
	}
	if err != nil {
		return sch, fmt.Errorf("schedule %s: %w", id, domainError(err))
	}
	return sch, nil
}

// Schedules lists schedules by name.
func (s *Store) Schedules(ctx context.Context, limit int, at string) (fleet.Page[schedule.Schedule], error) {
	none := fleet.Page[schedule.Schedule]{}
	from, err := parseCursor(at, "schedules")
	if err != nil {
		return none, err
	}
	var w where
	w.scheduleScope(ctx)
	if from != nil {
		id, err := uuid.Parse(from.ID)
		if err != nil || from.Back {
			return none, fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
		}
		w.and("(name, id) > (?::text, ?::uuid)", from.Key, id)
	}
	limit = fleet.ClampLimit(limit)
	rows, _ := s.db.Query(ctx, `SELECT `+scheduleColumns+` FROM schedules`+w.String()+` ORDER BY name, id LIMIT `+
		w.arg(limit+1), w.args...)
	list, err := pgx.CollectRows(rows, toSchedule)
	if err != nil {
		return none, fmt.Errorf("schedules: %w", domainError(err))
	}
	page := makePage(list, limit, from, func(sch schedule.Schedule) cursor {
		return cursor{List: "schedules", Key: sch.Name, ID: sch.ID.String()}
	})
	page.Prev = ""
	return page, s.addLastRuns(ctx, page.Items)
}

// runColumns read a run as it is now: a run has ended if its fan-out has.
var runColumns = `r.id, r.schedule_id, r.planned_at, r.due_at, r.started_at, r.manual, r.actor_kind, r.actor_id,
	r.actor_name, r.actor_role, r.fanout_id, r.omitted, coalesce(f.targets, 0) AS targets, ` + runState + ` AS state,
	CASE WHEN r.state <> 'running' OR f.state IS NULL THEN r.code WHEN f.state = 'refused' THEN '` + schedule.FanOutRefused.Code + `'
		WHEN f.state = 'canceled' THEN '` + schedule.FanOutCanceled.Code + `' ELSE r.code END AS code, r.params`

const runState = `CASE WHEN r.state <> 'running' OR f.state IN ('running', 'pending_approval') THEN r.state
	WHEN f.state = 'refused' THEN 'refused' ELSE 'done' END`

const runsAndFanOuts = ` FROM schedule_runs r LEFT JOIN fanouts f ON f.id = r.fanout_id `

func toRun(row pgx.CollectableRow) (schedule.Run, error) {
	r, err := pgx.RowToStructByName[struct {
		ID         uuid.UUID
		ScheduleID uuid.UUID
		PlannedAt  time.Time
		DueAt      time.Time
		StartedAt  *time.Time
		Manual     bool
		ActorKind  fleet.PrincipalKind
		ActorID    string
		ActorName  string
		ActorRole  fleet.Role
		FanoutID   uuid.NullUUID
		Omitted    int64
		Targets    int
		State      schedule.RunState
		Code       string
		Params     []byte
	}](row)
	if err != nil {
		return schedule.Run{}, err
	}
	run := schedule.Run{ID: r.ID, Schedule: r.ScheduleID, PlannedAt: r.PlannedAt.UTC(), DueAt: r.DueAt.UTC(),
		StartedAt: r.StartedAt, State: r.State, Manual: r.Manual, FanOut: r.FanoutID.UUID, Omitted: r.Omitted,
		Targets: r.Targets,
		Actor:   fleet.Principal{Kind: r.ActorKind, ID: r.ActorID, Name: r.ActorName, Role: r.ActorRole}}
	run.Reason, err = reasonOf(r.Code, r.Params)
	return run, err
}

// addLastRuns adds the latest run of each schedule.
func (s *Store) addLastRuns(ctx context.Context, list []schedule.Schedule) error {
	if len(list) == 0 {
		return nil
	}
	rows, _ := s.db.Query(ctx, `
		SELECT r.* FROM unnest($1::uuid[]) AS wanted (id) CROSS JOIN LATERAL (
			SELECT `+runColumns+runsAndFanOuts+`WHERE r.schedule_id = wanted.id ORDER BY r.planned_at DESC LIMIT 1) r`,
		collect(list, func(sch schedule.Schedule) uuid.UUID { return sch.ID }))
	runs, err := pgx.CollectRows(rows, toRun)
	if err != nil {
		return fmt.Errorf("latest runs: %w", domainError(err))
	}
	for i := range list {
		for j := range runs {
			if runs[j].Schedule == list[i].ID {
				list[i].Last = &runs[j]
			}
		}
	}
	return nil
}

// ScheduleRuns lists the runs of a schedule, the latest first.
func (s *Store) ScheduleRuns(ctx context.Context, id uuid.UUID, f schedule.RunFilter) (
	fleet.Page[schedule.Run], error) {
	none := fleet.Page[schedule.Run]{}
	from, err := parseCursor(f.Cursor, "schedule_runs")
	if err != nil {
		return none, err
	}
	var w where
	w.and("r.schedule_id = ?", id)
	if f.State != "" {
		w.and(runState+" = ?", f.State)
	}
	if from != nil {
		planned, err := time.Parse(time.RFC3339Nano, from.Key)
		if err != nil || from.Back {
			return none, fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
		}
		w.and("r.planned_at < ?", planned)
	}
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `SELECT `+runColumns+runsAndFanOuts+w.String()+` ORDER BY r.planned_at DESC LIMIT `+
		w.arg(limit+1), w.args...)
	list, err := pgx.CollectRows(rows, toRun)
	if err != nil {
		return none, fmt.Errorf("runs of schedule %s: %w", id, domainError(err))
	}
	page := makePage(list, limit, from, func(r schedule.Run) cursor {
		return cursor{List: "schedule_runs", Key: r.PlannedAt.Format(time.RFC3339Nano), ID: r.ID.String()}
	})
	page.Prev = ""
	return page, nil
}

// ScheduleRun returns one run, or [fleet.ErrNotFound].
func (s *Store) ScheduleRun(ctx context.Context, id uuid.UUID) (schedule.Run, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+runColumns+runsAndFanOuts+`WHERE r.id = $1`, id)
	r, err := pgx.CollectExactlyOneRow(rows, toRun)
	if err != nil {
		return r, fmt.Errorf("run %s: %w", id, domainError(err))
	}
	return r, nil
}

// DueSchedules returns the schedules whose next run is due, or that have a run in the state starting.
func (s *Store) DueSchedules(ctx context.Context, now time.Time) ([]uuid.UUID, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT id FROM schedules WHERE next_due_at <= $1
		UNION SELECT schedule_id FROM schedule_runs WHERE state = 'starting'`, now)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("due schedules: %w", domainError(err))
	}
	return ids, nil
}

// StartingRuns returns the runs whose start has not ended.
func (s *Store) StartingRuns(ctx context.Context, id uuid.UUID) ([]schedule.Run, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+runColumns+runsAndFanOuts+`
		WHERE r.schedule_id = $1 AND r.state = 'starting' ORDER BY r.planned_at`, id)
	runs, err := pgx.CollectRows(rows, toRun)
	if err != nil {
		return nil, fmt.Errorf("starting runs of schedule %s: %w", id, domainError(err))
	}
	return runs, nil
}

// ClaimRuns stores runs and the instant that follows them.
func (s *Store) ClaimRuns(ctx context.Context, sch schedule.Schedule, runs []schedule.Run, next *schedule.Instant) (
	[]schedule.Run, bool, error) {
	claimed := false
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var planned, due *time.Time
		if next != nil {
			planned, due = &next.PlannedAt, &next.DueAt
		}
		err := changeOne(ctx, tx, `
			UPDATE schedules SET next_planned_at = $4, next_due_at = $5
			WHERE id = $1 AND version = $2 AND next_planned_at = $3 AND NOT paused`,
			sch.ID, sch.Version, sch.Next.PlannedAt, planned, due)
		if isNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		open, err := openRun(ctx, tx, sch.ID)
		if err != nil {
			return err
		}
		for i := range runs {
			if r := &runs[i]; r.State == schedule.Starting && open != nil {
				r.State, r.FanOut = schedule.Skipped, uuid.Nil
				r.Reason = fleet.Because("previous_running", "planned_at", *open)
			}
			if err := insertRun(ctx, tx, runs[i]); err != nil {
				return err
			}
		}
		claimed = true
		return s.queueRun(ctx, tx, sch, next)
	})
	if err != nil {
		return nil, false, fmt.Errorf("runs of schedule %s: %w", sch.ID, domainError(err))
	}
	return runs, claimed, nil
}

// openRun stores which runs have ended with their fan-outs, and returns the instant of one that has not;
// nil if all have.
func openRun(ctx context.Context, tx pgx.Tx, id uuid.UUID) (planned *time.Time, err error) {
	_, err = tx.Exec(ctx, `
		WITH ended AS (SELECT `+runColumns+runsAndFanOuts+`WHERE r.schedule_id = $1 AND r.state = 'running')
		UPDATE schedule_runs SET state = ended.state, code = ended.code
		FROM ended WHERE schedule_runs.id = ended.id AND ended.state <> 'running'`, id)
	if err != nil {
		return nil, err
	}
	err = tx.QueryRow(ctx, `
		SELECT max(planned_at) FROM schedule_runs WHERE schedule_id = $1 AND state IN ('starting', 'running')`, id).
		Scan(&planned)
	return planned, err
}

func insertRun(ctx context.Context, tx pgx.Tx, r schedule.Run) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO schedule_runs (id, schedule_id, planned_at, due_at, started_at, state, manual, actor_kind, actor_id,
			actor_name, actor_role, fanout_id, code, params, omitted)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14::jsonb, $15)`,
		r.ID, r.Schedule, r.PlannedAt, r.DueAt, r.StartedAt, r.State, r.Manual, r.Actor.Kind, r.Actor.ID,
		cleanText(r.Actor.Name), r.Actor.Role, pgUUID(r.FanOut), r.Reason.Code, reasonParams(r.Reason), r.Omitted)
	return err
}

// ClaimManual stores a run by hand.
func (s *Store) ClaimManual(ctx context.Context, by fleet.Principal, sch schedule.Schedule, r schedule.Run) error {
	return s.audited(ctx, by, "schedule.run", sch.ID.String(), scheduleDetail(sch), func(tx pgx.Tx) error {
		// The lock keeps a planned run from starting between the check and the insert.
		if err := changeOne(ctx, tx, `UPDATE schedules SET version = version WHERE id = $1`, sch.ID); err != nil {
			return err
		}
		open, err := openRun(ctx, tx, sch.ID)
		if err != nil {
			return err
		}
		if open != nil {
			return fleet.Refuse(fleet.ErrConflict, "previous_running", "planned_at", *open)
		}
		return insertRun(ctx, tx, r)
	})
}

// SettleRun stores the outcome of a run that is starting.
func (s *Store) SettleRun(ctx context.Context, r schedule.Run, blocked fleet.Reason) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE schedule_runs SET state = $2, started_at = $3, fanout_id = $4, code = $5, params = $6::jsonb
			WHERE id = $1 AND state = 'starting'`,
			r.ID, r.State, r.StartedAt, pgUUID(r.FanOut), r.Reason.Code, reasonParams(r.Reason))
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE schedules SET blocked_code = $2, blocked_params = $3::jsonb WHERE id = $1`,
			r.Schedule, blocked.Code, reasonParams(blocked))
		return err
	})
	if err != nil {
		return fmt.Errorf("run %s: %w", r.ID, domainError(err))
	}
	return nil
}
