package calls

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/fleet/schedule"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// scheduleRoutes are the pages of schedules.
func (s *Server) scheduleRoutes() []pages.Route {
	const get, post, viewer, operator = http.MethodGet, http.MethodPost, fleet.RoleViewer, fleet.RoleOperator
	one := ui.PathSchedules + "/{schedule}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathSchedules, Role: viewer, Reach: access.List, Page: s.listSchedules},
		{Method: get, Pattern: ui.PathScheduleNew, Role: operator, Reach: access.Audience, Page: s.planSchedule},
		{Method: post, Pattern: ui.PathSchedules, Role: operator, Reach: access.Audience, Page: s.createSchedule,
			Heavy: heavy.Preview},
		{Method: get, Pattern: one, Role: viewer, Reach: access.Audience, Page: s.showSchedule},
		{Method: get, Pattern: one + "/edit", Role: operator, Reach: access.Audience, Page: s.editSchedule},
		{Method: post, Pattern: one + "/edit", Role: operator, Reach: access.Audience, Page: s.saveSchedule,
			Heavy: heavy.Preview},
		{Method: post, Pattern: one + "/pause", Role: operator, Reach: access.Audience, Page: s.pauseSchedule},
		{Method: post, Pattern: one + "/resume", Role: operator, Reach: access.Audience, Page: s.resumeSchedule},
		{Method: post, Pattern: one + "/run", Role: operator, Reach: access.Audience, Page: s.runSchedule,
			Heavy: heavy.Preview},
		{Method: post, Pattern: one + "/delete", Role: operator, Reach: access.Audience, Page: s.deleteSchedule},
	}
}

func scheduleID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "schedule"))
	if err != nil {
		return id, pages.ErrNoPage
	}
	return id, nil
}

func (s *Server) listSchedules(r *http.Request) (pages.Answer, error) {
	page := ui.SchedulesPage{List: pages.ListURL(r, ui.PathSchedules), CanAct: pages.MayAct(r.Context())}
	found, err := s.Schedules.List(r.Context(), pages.LimitOf(page.List), page.List.Get("cursor"))
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Rows, page.Next = found.Items, found.Next
	return pages.Show(page.Page())
}

// scheduleReason returns the text of the reason of a run.
func scheduleReason(ctx context.Context, r fleet.Reason) string {
	if r.Code == "" {
		return ""
	}
	v := pages.ViewerOf(ctx)
	return i18n.BecauseMarked(v.Lang, v.Zone, "error.code.", r)
}

func (s *Server) showSchedule(r *http.Request) (pages.Answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	page := ui.SchedulePage{List: pages.ListURL(r, ui.SchedulePath(id.String()), "state"), CanAct: pages.MayAct(ctx)}
	if page.Schedule, err = s.Schedules.Get(ctx, id); err != nil {
		return pages.Answer{}, err
	}
	runs, err := s.Schedules.Runs(ctx, id, schedule.RunFilter{State: schedule.RunState(page.List.Get("state")),
		Limit: pages.LimitOf(page.List), Cursor: page.List.Get("cursor")})
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Next, page.Blocked = runs.Next, scheduleReason(ctx, page.Schedule.Blocked)
	for _, run := range runs.Items {
		page.Runs = append(page.Runs, ui.ScheduleRunRow{Run: run, Why: scheduleReason(ctx, run.Reason)})
	}
	return pages.Show(page.Page())
}

// scheduleActed leads back to the schedule after an act. A conflict with its state becomes a message.
func (s *Server) scheduleActed(ctx context.Context, id uuid.UUID, done string, err error) (pages.Answer, error) {
	switch {
	case err != nil && pages.StatusOf(err) == http.StatusConflict:
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Explain(ctx, err)})
	case err != nil:
		return pages.Answer{}, err
	default:
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, done)})
	}
	return pages.GoTo(ui.SchedulePath(id.String()))
}

func (s *Server) pauseSchedule(r *http.Request) (pages.Answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	_, err = s.Schedules.Pause(ctx, pages.ViewerOf(ctx).Actor(), id, r.PostFormValue("note"))
	return s.scheduleActed(ctx, id, "flash.schedule_paused", err)
}

func (s *Server) resumeSchedule(r *http.Request) (pages.Answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	_, err = s.Schedules.Resume(ctx, pages.ViewerOf(ctx).Actor(), id)
	return s.scheduleActed(ctx, id, "flash.schedule_resumed", err)
}

func (s *Server) runSchedule(r *http.Request) (pages.Answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	run, err := s.Schedules.RunNow(ctx, pages.ViewerOf(ctx).Actor(), id)
	if err == nil && run.State == schedule.Refused {
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Text(ctx, "flash.schedule_refused", "why", scheduleReason(ctx, run.Reason))})
		return pages.GoTo(ui.SchedulePath(id.String()))
	}
	return s.scheduleActed(ctx, id, "flash.schedule_run", err)
}

func (s *Server) deleteSchedule(r *http.Request) (pages.Answer, error) {
	id, err := scheduleID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	if err := s.Schedules.Delete(ctx, pages.ViewerOf(ctx).Actor(), id); err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.schedule_deleted")})
	return pages.GoTo(ui.PathSchedules)
}
