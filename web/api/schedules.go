package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/fleet/schedule"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerSchedules() {
	const path, one = "/schedules", "/schedules/{id}"
	register(a, operation{id: "list-schedules", reach: access.List, models: fleet.ModelsNever,
		method: http.MethodGet, path: path, role: fleet.RoleViewer, summary: "List schedules, by name"}, a.listSchedules)
	register(a, operation{id: "create-schedule", reach: access.Audience, models: fleet.ModelsNever, heavy: heavy.Preview,
		method: http.MethodPost, path: path, role: fleet.RoleOperator, created: true,
		summary: "Repeat a call to many devices at planned times",
		about: "Each run is a fan-out in the name of the token that made or last changed the schedule, with the rights that it has then. " +
			"A wall clock time that is skipped when clocks go forward runs at that moment; one that comes twice runs the first time."}, a.createSchedule)
	register(a, operation{id: "preview-schedule", reach: access.Audience, models: fleet.ModelsNever, heavy: heavy.Preview,
		method: http.MethodPost, path: path + "/preview", role: fleet.RoleOperator,
		summary: "Show the next ten instants of a schedule, and which devices a run would call now",
		about:   "Nothing is stored."}, a.previewSchedule)
	register(a, operation{id: "get-schedule", reach: access.Audience, models: fleet.ModelsNever,
		method: http.MethodGet, path: one, role: fleet.RoleViewer, noun: "schedule", summary: "Show a schedule"}, a.getSchedule)
	register(a, operation{id: "update-schedule", reach: access.Audience, models: fleet.ModelsNever, heavy: heavy.Preview,
		method: http.MethodPatch, path: one, role: fleet.RoleOperator, noun: "schedule",
		summary: "Change a schedule; its runs are then in the name of the token"}, a.updateSchedule)
	register(a, operation{id: "delete-schedule", reach: access.Audience, models: fleet.ModelsNever,
		method: http.MethodDelete, path: one, role: fleet.RoleOperator, noun: "schedule",
		summary: "Delete a schedule and its runs; their fan-outs remain"}, a.deleteSchedule)
	register(a, operation{id: "pause-schedule", reach: access.Audience, models: fleet.ModelsNever,
		method: http.MethodPost, path: one + "/pause", role: fleet.RoleOperator, noun: "schedule",
		summary: "Pause a schedule", about: "A fan-out that is open goes on."}, a.pauseSchedule)
	register(a, operation{id: "resume-schedule", reach: access.Audience, models: fleet.ModelsNever,
		method: http.MethodPost, path: one + "/resume", role: fleet.RoleOperator, noun: "schedule",
		summary: "Resume a schedule",
		about:   "Instants during the pause are not missed. If the principal of a schedule may no longer act, the runs are then in the name of the token."}, a.resumeSchedule)
	register(a, operation{id: "run-schedule", reach: access.Audience, models: fleet.ModelsNever, heavy: heavy.Preview,
		method: http.MethodPost, path: one + "/run", role: fleet.RoleOperator, noun: "schedule", created: true,
		summary: "Start a run now, in the name of the token",
		about:   "409 previous_running while another run is open. A run that the rules refuse is on record in the state refused."}, a.runSchedule)
	register(a, operation{id: "list-schedule-runs", reach: access.Audience, models: fleet.ModelsNever,
		method: http.MethodGet, path: one + "/runs", role: fleet.RoleViewer, noun: "schedule",
		summary: "List the runs of a schedule, latest first"}, a.listScheduleRuns)
}

// ScheduleView is a schedule.
type ScheduleView struct {
	ID          uuid.UUID       `json:"id" format:"uuid"`
	Name        string          `json:"name"`
	State       schedule.State  `json:"state" enum:"active,paused,blocked,ended" doc:"blocked: the latest run was refused for lack of rights; the next one is tried"`
	Cron        string          `json:"cron"`
	TimeZone    string          `json:"time_zone"`
	Query       string          `json:"q" doc:"Filter that picks the devices at each run"`
	Within      string          `json:"within" doc:"Filter of the scope of the actor when it made or changed the schedule; the runs stay within it"`
	Tool        string          `json:"tool"`
	Arguments   json.RawMessage `json:"arguments"`
	JitterMs    int64           `json:"jitter_ms" doc:"Each run starts at a random moment within it after its instant"`
	StartAt     *time.Time      `json:"start_at"`
	EndAt       *time.Time      `json:"end_at"`
	MaxInFlight int             `json:"max_in_flight"`
	TimeoutMs   int64           `json:"timeout_ms"`
	OfflineWait int64           `json:"offline_wait_ms"`
	Actor       actorView       `json:"actor" doc:"In whose name the runs start"`
	CreatedBy   string          `json:"created_by"`
	CreatedAt   time.Time       `json:"created_at"`
	UpdatedAt   time.Time       `json:"updated_at"`
	PausedBy    string          `json:"paused_by,omitempty"`
	Note        string          `json:"note,omitempty" doc:"Why it is paused"`
	Next        *instantView    `json:"next" doc:"null while paused, and after the last instant"`
	Blocked     *whyView        `json:"blocked" doc:"Why the latest run was refused for lack of rights"`
	Last        *ScheduleRun    `json:"last_run" doc:"null before the first"`
}

// TransformSchema marks the objects that may be missing as nullable.
func (ScheduleView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "next", "blocked", "last_run")
}

type instantView struct {
	PlannedAt time.Time `json:"planned_at"`
	DueAt     time.Time `json:"due_at" doc:"planned_at and a random part of the jitter"`
}

// whyView is a code with its parameters and its text.
type whyView struct {
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Params  map[string]any `json:"params"`
}

func why(r fleet.Reason) *whyView {
	if r.Code == "" {
		return nil
	}
	return &whyView{r.Code, i18n.Because(i18n.English, time.UTC, "error.code.", r), paramsOf(r)}
}

// ScheduleRun is one run of a schedule.
type ScheduleRun struct {
	ID        uuid.UUID         `json:"id" format:"uuid"`
	PlannedAt time.Time         `json:"planned_at"`
	DueAt     time.Time         `json:"due_at"`
	StartedAt *time.Time        `json:"started_at"`
	State     schedule.RunState `json:"state" enum:"starting,running,done,refused,missed,skipped"`
	Manual    bool              `json:"manual" doc:"Started by hand"`
	Actor     actorView         `json:"actor"`
	FanOutID  *uuid.UUID        `json:"fanout_id" format:"uuid" nullable:"true"`
	Targets   int               `json:"targets" doc:"Devices of the fan-out"`
	Reason    *whyView          `json:"reason" doc:"Of a run that was refused, missed or skipped, or whose fan-out was canceled"`
	Omitted   int64             `json:"omitted" doc:"Of a missed run: so many were missed before it and are not listed"`
}

// TransformSchema marks reason as nullable.
func (ScheduleRun) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "reason")
}

func scheduleRun(r schedule.Run) ScheduleRun {
	v := ScheduleRun{ID: r.ID, PlannedAt: utc(r.PlannedAt), DueAt: utc(r.DueAt), StartedAt: utcOrNil(r.StartedAt),
		State: r.State, Manual: r.Manual, Actor: actor(r.Actor), Targets: r.Targets, Reason: why(r.Reason),
		Omitted: r.Omitted}
	if r.FanOut != uuid.Nil {
		v.FanOutID = ptr(r.FanOut)
	}
	return v
}

func scheduleOf(s schedule.Schedule) ScheduleView {
	v := ScheduleView{ID: s.ID, Name: s.Name, State: s.State(), Cron: s.Cron, TimeZone: s.TimeZone, Query: s.Query,
		Within: s.Within, Tool: s.Tool, Arguments: rawOrNull(s.Arguments), JitterMs: s.Jitter.Milliseconds(),
		StartAt: utcOrNil(s.StartAt), EndAt: utcOrNil(s.EndAt), MaxInFlight: s.MaxInFlight,
		TimeoutMs: s.Timeout.Milliseconds(), OfflineWait: s.OfflineWait.Milliseconds(), Actor: actor(s.Actor),
		CreatedBy: s.CreatedBy, CreatedAt: utc(s.CreatedAt), UpdatedAt: utc(s.UpdatedAt), PausedBy: s.PausedBy,
		Note: s.Note, Blocked: why(s.Blocked)}
	if s.Next != nil {
		v.Next = &instantView{utc(s.Next.PlannedAt), utc(s.Next.DueAt)}
	}
	if s.Last != nil {
		v.Last = ptr(scheduleRun(*s.Last))
	}
	return v
}

func (a *api) listSchedules(ctx context.Context, _ fleet.Principal, in *Paging) (*answer[list[ScheduleView]], error) {
	page, err := a.Schedules.List(ctx, in.Limit, in.Cursor)
	if err != nil {
		return nil, err
	}
	return pageOf(page, scheduleOf), nil
}

// ScheduleBody is the content of a new schedule.
type ScheduleBody struct {
	Name        string     `json:"name" minLength:"1" maxLength:"120"`
	Cron        string     `json:"cron" minLength:"1" maxLength:"100" example:"0 2 * * *" doc:"Five fields: minute, hour, day of the month, month, day of the week"`
	TimeZone    string     `json:"time_zone" minLength:"1" maxLength:"60" example:"Europe/Berlin" doc:"IANA name of the zone of cron"`
	Query       string     `json:"q,omitempty" maxLength:"1024" doc:"Filter that picks the devices at each run; empty: all"`
	Tool        string     `json:"tool" minLength:"1" maxLength:"200"`
	Arguments   arguments  `json:"arguments,omitempty"`
	JitterMs    int64      `json:"jitter_ms,omitempty" minimum:"0" maximum:"86400000" doc:"At most the shortest time between two instants"`
	StartAt     *time.Time `json:"start_at,omitempty" doc:"No instant before it"`
	EndAt       *time.Time `json:"end_at,omitempty" doc:"No instant from it on"`
	MaxInFlight int        `json:"max_in_flight,omitempty" minimum:"0" maximum:"2000" doc:"Maximum calls in flight at once; 0: 64"`
	TimeoutMs   int64      `json:"timeout_ms,omitempty" minimum:"0" maximum:"300000" doc:"Timeout of each call; 0: depends on the tool"`
	OfflineWait int64      `json:"offline_wait_ms,omitempty" minimum:"0" maximum:"86400000" doc:"How long a run waits for devices that are not connected; 0: not at all"`
}

func (b *ScheduleBody) request() schedule.Request {
	return schedule.Request{Name: &b.Name, Cron: &b.Cron, TimeZone: &b.TimeZone, Query: &b.Query, Tool: &b.Tool,
		Arguments: json.RawMessage(b.Arguments), Jitter: ms(&b.JitterMs), StartAt: &b.StartAt, EndAt: &b.EndAt,
		MaxInFlight: &b.MaxInFlight, Timeout: ms(&b.TimeoutMs), OfflineWait: ms(&b.OfflineWait)}
}

// ms returns a duration in milliseconds; nil for nil.
func ms(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	return ptr(time.Duration(*n) * time.Millisecond)
}

func (a *api) createSchedule(ctx context.Context, by fleet.Principal, in *struct{ Body ScheduleBody }) (
	*answer[ScheduleView], error) {
	s, err := a.Schedules.Create(ctx, by, in.Body.request())
	if err != nil {
		return nil, err
	}
	return answerWith(scheduleOf(s)), nil
}

// schedulePreview is what a schedule would do.
type schedulePreview struct {
	Instants []time.Time `json:"instants" nullable:"false" doc:"The next ten, without jitter"`
	Call     previewView `json:"call" doc:"What a run would do now"`
}

func (a *api) previewSchedule(ctx context.Context, by fleet.Principal, in *struct{ Body ScheduleBody }) (
	*answer[schedulePreview], error) {
	p, err := a.Schedules.Preview(ctx, by, in.Body.request())
	if err != nil {
		return nil, err
	}
	return answerWith(schedulePreview{p.Instants, preview(p.Call)}), nil
}

func (a *api) getSchedule(ctx context.Context, _ fleet.Principal, in *IDPath) (*answer[ScheduleView], error) {
	s, err := a.Schedules.Get(ctx, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(scheduleOf(s)), nil
}

type updateScheduleInput struct {
	IDPath
	Body struct {
		Name        *string    `json:"name,omitempty" minLength:"1" maxLength:"120"`
		Cron        *string    `json:"cron,omitempty" minLength:"1" maxLength:"100"`
		TimeZone    *string    `json:"time_zone,omitempty" minLength:"1" maxLength:"60"`
		Query       *string    `json:"q,omitempty" maxLength:"1024"`
		Tool        *string    `json:"tool,omitempty" minLength:"1" maxLength:"200"`
		Arguments   arguments  `json:"arguments,omitempty"`
		JitterMs    *int64     `json:"jitter_ms,omitempty" minimum:"0" maximum:"86400000"`
		StartAt     *time.Time `json:"start_at,omitempty"`
		EndAt       *time.Time `json:"end_at,omitempty"`
		Clear       []string   `json:"clear,omitempty" nullable:"false" enum:"start_at,end_at" doc:"Fields to empty"`
		MaxInFlight *int       `json:"max_in_flight,omitempty" minimum:"0" maximum:"2000"`
		TimeoutMs   *int64     `json:"timeout_ms,omitempty" minimum:"0" maximum:"300000"`
		OfflineWait *int64     `json:"offline_wait_ms,omitempty" minimum:"0" maximum:"86400000"`
	}
}

func (a *api) updateSchedule(ctx context.Context, by fleet.Principal, in *updateScheduleInput) (*answer[ScheduleView],
	error) {
	b := &in.Body
	r := schedule.Request{Name: b.Name, Cron: b.Cron, TimeZone: b.TimeZone, Query: b.Query, Tool: b.Tool,
		Arguments: json.RawMessage(b.Arguments), Jitter: ms(b.JitterMs), MaxInFlight: b.MaxInFlight,
		Timeout: ms(b.TimeoutMs), OfflineWait: ms(b.OfflineWait)}
	if b.StartAt != nil || slices.Contains(b.Clear, "start_at") {
		r.StartAt = &b.StartAt
	}
	if b.EndAt != nil || slices.Contains(b.Clear, "end_at") {
		r.EndAt = &b.EndAt
	}
	s, err := a.Schedules.Update(ctx, by, in.uuid(), r)
	if err != nil {
		return nil, err
	}
	return answerWith(scheduleOf(s)), nil
}

func (a *api) deleteSchedule(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	return &empty{}, a.Schedules.Delete(ctx, by, in.uuid())
}

type pauseScheduleInput struct {
	IDPath
	Body struct {
		Note string `json:"note,omitempty" maxLength:"200" doc:"Why it is paused"`
	}
}

func (a *api) pauseSchedule(ctx context.Context, by fleet.Principal, in *pauseScheduleInput) (*answer[ScheduleView],
	error) {
	s, err := a.Schedules.Pause(ctx, by, in.uuid(), in.Body.Note)
	if err != nil {
		return nil, err
	}
	return answerWith(scheduleOf(s)), nil
}

func (a *api) resumeSchedule(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[ScheduleView], error) {
	s, err := a.Schedules.Resume(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(scheduleOf(s)), nil
}

func (a *api) runSchedule(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[ScheduleRun], error) {
	r, err := a.Schedules.RunNow(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(scheduleRun(r)), nil
}

type listScheduleRunsInput struct {
	IDPath
	Paging
	State schedule.RunState `query:"state" enum:"starting,running,done,refused,missed,skipped"`
}

func (a *api) listScheduleRuns(ctx context.Context, _ fleet.Principal, in *listScheduleRunsInput) (
	*answer[list[ScheduleRun]], error) {
	page, err := a.Schedules.Runs(ctx, in.uuid(), schedule.RunFilter{State: in.State, Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	return pageOf(page, scheduleRun), nil
}
