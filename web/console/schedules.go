package console

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/fleet/schedule"
	"fleetd/web/access"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// scheduleRoutes are the pages of schedules.
func (s *Server) scheduleRoutes() []route {
	const get, post, viewer, operator = http.MethodGet, http.MethodPost, fleet.RoleViewer, fleet.RoleOperator
	one := ui.PathSchedules + "/{schedule}"
	return []route{
		{method: get, pattern: ui.PathSchedules, role: viewer, reach: access.List, page: s.listSchedules},
		{method: get, pattern: ui.PathScheduleNew, role: operator, reach: access.Audience, page: s.planSchedule},
		{method: post, pattern: ui.PathSchedules, role: operator, reach: access.Audience, page: s.createSchedule,
			heavy: heavy.Preview},
		{method: get, pattern: one, role: viewer, reach: access.Audience, page: s.showSchedule},
		{method: get, pattern: one + "/edit", role: operator, reach: access.Audience, page: s.editSchedule},
		{method: post, pattern: one + "/edit", role: operator, reach: access.Audience, page: s.saveSchedule,
			heavy: heavy.Preview},
		{method: post, pattern: one + "/pause", role: operator, reach: access.Audience, page: s.pauseSchedule},
		{method: post, pattern: one + "/resume", role: operator, reach: access.Audience, page: s.resumeSchedule},
		{method: post, pattern: one + "/run", role: operator, reach: access.Audience, page: s.runSchedule,
			heavy: heavy.Preview},
		{method: post, pattern: one + "/delete", role: operator, reach: access.Audience, page: s.deleteSchedule},
	}
}

func scheduleID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "schedule"))
	if err != nil {
		return id, errNoPage
	}
	return id, nil
}

func (s *Server) listSchedules(r *http.Request) (answer, error) {
	page := ui.SchedulesPage{List: listURL(r, ui.PathSchedules), CanAct: mayAct(r.Context())}
	found, err := s.Schedules.List(r.Context(), limitOf(page.List), page.List.Get("cursor"))
	if errorCode(err) == "invalid_cursor" {
		return goTo(page.List.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	page.Rows, page.Next = found.Items, found.Next
	return show(page.Page())
}

// scheduleReason returns the text of the reason of a run.
func scheduleReason(ctx context.Context, r fleet.Reason) string {
	if r.Code == "" {
		return ""
	}
	v := viewerOf(ctx)
	return i18n.BecauseMarked(v.lang, v.zone, "error.code.", r)
}

func (s *Server) showSchedule(r *http.Request) (answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	page := ui.SchedulePage{List: listURL(r, ui.SchedulePath(id.String()), "state"), CanAct: mayAct(ctx)}
	if page.Schedule, err = s.Schedules.Get(ctx, id); err != nil {
		return answer{}, err
	}
	runs, err := s.Schedules.Runs(ctx, id, schedule.RunFilter{State: schedule.RunState(page.List.Get("state")),
		Limit: limitOf(page.List), Cursor: page.List.Get("cursor")})
	if errorCode(err) == "invalid_cursor" {
		return goTo(page.List.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	page.Next, page.Blocked = runs.Next, scheduleReason(ctx, page.Schedule.Blocked)
	for _, run := range runs.Items {
		page.Runs = append(page.Runs, ui.ScheduleRunRow{Run: run, Why: scheduleReason(ctx, run.Reason)})
	}
	return show(page.Page())
}

// scheduleActed leads back to the schedule after an act. A conflict with its state becomes a message.
func (s *Server) scheduleActed(ctx context.Context, id uuid.UUID, done string, err error) (answer, error) {
	switch {
	case err != nil && statusOf(err) == http.StatusConflict:
		s.flash(ctx, ui.Flash{Bad: true, Text: explain(ctx, err)})
	case err != nil:
		return answer{}, err
	default:
		s.flash(ctx, ui.Flash{Text: text(ctx, done)})
	}
	return goTo(ui.SchedulePath(id.String()))
}

func (s *Server) pauseSchedule(r *http.Request) (answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	_, err = s.Schedules.Pause(ctx, viewerOf(ctx).actor(), id, r.PostFormValue("note"))
	return s.scheduleActed(ctx, id, "flash.schedule_paused", err)
}

func (s *Server) resumeSchedule(r *http.Request) (answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	_, err = s.Schedules.Resume(ctx, viewerOf(ctx).actor(), id)
	return s.scheduleActed(ctx, id, "flash.schedule_resumed", err)
}

func (s *Server) runSchedule(r *http.Request) (answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	run, err := s.Schedules.RunNow(ctx, viewerOf(ctx).actor(), id)
	if err == nil && run.State == schedule.Refused {
		s.flash(ctx, ui.Flash{Bad: true, Text: text(ctx, "flash.schedule_refused", "why", scheduleReason(ctx, run.Reason))})
		return goTo(ui.SchedulePath(id.String()))
	}
	return s.scheduleActed(ctx, id, "flash.schedule_run", err)
}

func (s *Server) deleteSchedule(r *http.Request) (answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	if err := s.Schedules.Delete(ctx, viewerOf(ctx).actor(), id); err != nil {
		return answer{}, err
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.schedule_deleted")})
	return goTo(ui.PathSchedules)
}
