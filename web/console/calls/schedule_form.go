package calls

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/schedule"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// formTime is the layout of a time in a form.
const formTime = "2006-01-02T15:04"

// planSchedule shows the form for a new schedule.
func (s *Server) planSchedule(r *http.Request) (pages.Answer, error) {
	v := r.URL.Query()
	for name, value := range map[string]string{"zone": pages.ViewerOf(r.Context()).Zone.String(), "jitter": "0",
		"max_in_flight": strconv.Itoa(call.DefaultInFlight), "offline_wait": "0"} {
		if !v.Has(name) {
			v.Set(name, value)
		}
	}
	page, err := s.scheduleForm(r.Context(), "", v, nil)
	if err != nil {
		return pages.Answer{}, err
	}
	return showSchedule(page)
}

func (s *Server) createSchedule(r *http.Request) (pages.Answer, error) {
	return s.storeSchedule(r, nil)
}

// editSchedule shows the form of an existing schedule. The address may have another filter or tool.
func (s *Server) editSchedule(r *http.Request) (pages.Answer, error) {
	old, err := s.scheduleOf(r)
	if err != nil {
		return pages.Answer{}, err
	}
	v := valuesOf(old)
	asked := r.URL.Query()
	for _, name := range []string{"q", "tool"} {
		if asked.Has(name) {
			v.Set(name, asked.Get(name))
		}
	}
	page, err := s.scheduleForm(r.Context(), old.ID.String(), v, &old)
	if err != nil {
		return pages.Answer{}, err
	}
	return showSchedule(page)
}

func (s *Server) saveSchedule(r *http.Request) (pages.Answer, error) {
	old, err := s.scheduleOf(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return s.storeSchedule(r, &old)
}

// scheduleOf returns the schedule in the address if the viewer may change it.
func (s *Server) scheduleOf(r *http.Request) (schedule.Schedule, error) {
	id, err := scheduleID(r)
	if err != nil {
		return schedule.Schedule{}, err
	}
	ctx := r.Context()
	return s.Schedules.Editable(ctx, pages.ViewerOf(ctx).Actor(), id)
}

func showSchedule(page ui.ScheduleFormPage) (pages.Answer, error) {
	if page.Problem != "" {
		return pages.ShowAgain(page.Page())
	}
	return pages.Show(page.Page())
}

// valuesOf returns the fields of the form for a schedule.
func valuesOf(sch schedule.Schedule) url.Values {
	v := url.Values{"q": {sch.Query}, "tool": {sch.Tool}, "name": {sch.Name}, "cron": {sch.Cron}, "zone": {sch.TimeZone},
		"jitter":        {strconv.Itoa(int(sch.Jitter / time.Minute))},
		"max_in_flight": {strconv.Itoa(sch.MaxInFlight)},
		"offline_wait":  {strconv.Itoa(int(sch.OfflineWait / time.Minute))}}
	zone, err := time.LoadLocation(sch.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	for name, at := range map[string]*time.Time{"start": sch.StartAt, "end": sch.EndAt} {
		if at != nil {
			v.Set(name, at.In(zone).Format(formTime))
		}
	}
	return v
}

// scheduleForm reads the devices that match and their tools. old is the schedule that the form changes.
func (s *Server) scheduleForm(ctx context.Context, id string, v url.Values, old *schedule.Schedule) (
	ui.ScheduleFormPage, error) {
	page := ui.ScheduleFormPage{ID: id, Values: v, Within: pages.ViewerOf(ctx).Actor().Within(fleet.RoleOperator).Text}
	q, err := fleet.ParseQuery(v.Get("q"))
	if err != nil {
		page.Problem = pages.Explain(ctx, err)
		return page, nil
	}
	if page.Matched, err = s.Devices.CountDevices(ctx, q); err != nil {
		return page, err
	}
	found, err := s.Devices.Devices(ctx, fleet.DeviceFilter{Query: q, Limit: ToolSample})
	if err != nil {
		return page, err
	}
	if page.Tools, err = s.ToolsOf(ctx, found.Items); err != nil {
		return page, err
	}
	name := v.Get("tool")
	if name == "" {
		return page, nil
	}
	i := slices.IndexFunc(page.Tools, func(t fleet.Tool) bool { return t.Name == name })
	if i < 0 {
		page.Problem = pages.Text(ctx, "fanout.no_such_tool", "tool", fleet.CleanText(name, 80))
		return page, nil
	}
	var last json.RawMessage
	if old != nil && old.Tool == name {
		last = old.Arguments
	} else if last, err = s.LastArguments(ctx, page.Tools[i]); err != nil {
		return page, err
	}
	page.Form = ui.NewToolForm(page.Tools[i], last)
	Refill(page.Form, v)
	return page, nil
}

// storeSchedule creates a schedule or changes one, or shows what it would do.
func (s *Server) storeSchedule(r *http.Request, old *schedule.Schedule) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx, id := r.Context(), ""
	if old != nil {
		id = old.ID.String()
	}
	page, err := s.scheduleForm(ctx, id, r.PostForm, old)
	if err != nil {
		return pages.Answer{}, err
	}
	if page.Form == nil || page.Problem != "" {
		if page.Problem == "" {
			page.Problem = pages.Explain(ctx, fleet.Refuse(fleet.ErrInvalid, "invalid_tool.none"))
		}
		return showSchedule(page)
	}
	args, shown, ok := forms.Arguments(page.Form.Fields, r.PostForm)
	page.Form.Fields = shown
	if !ok {
		page.Problem = pages.Text(ctx, "tools.check_fields")
		return showSchedule(page)
	}
	request, err := scheduleRequest(r.PostForm)
	if err == nil {
		request.Arguments = args
		err = s.doSchedule(ctx, &page, request, old, r.PostForm.Get("step") == "preview", &id)
	}
	switch {
	case err != nil && pages.StatusOf(err) >= http.StatusInternalServerError:
		return pages.Answer{}, err
	case err != nil:
		page.Problem = pages.Explain(ctx, err)
		a, _ := pages.ShowAgain(page.Page())
		a.Status = pages.StatusOf(err)
		return a, nil
	case page.Preview != nil:
		return pages.Answer{Page: page.Page(), Whole: true}, nil
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.schedule_saved")})
	return pages.GoTo(ui.SchedulePath(id))
}

func (s *Server) doSchedule(ctx context.Context, page *ui.ScheduleFormPage, r schedule.Request, old *schedule.Schedule,
	preview bool, id *string) error {
	by := pages.ViewerOf(ctx).Actor()
	switch {
	case preview:
		if old != nil {
			r.Edits = old.ID
		}
		p, err := s.Schedules.Preview(ctx, by, r)
		if err == nil {
			page.Preview = &p
		}
		return err
	case old != nil:
		_, err := s.Schedules.Update(ctx, by, old.ID, r)
		return err
	}
	made, err := s.Schedules.Create(ctx, by, r)
	*id = made.ID.String()
	return err
}

// scheduleRequest reads the form, without the arguments.
func scheduleRequest(v url.Values) (r schedule.Request, err error) {
	text := func(name string) *string { return new(strings.TrimSpace(v.Get(name))) }
	r.Name, r.Cron, r.TimeZone, r.Query, r.Tool = text("name"), text("cron"), text("zone"), text("q"), text("tool")
	zone, err := time.LoadLocation(*r.TimeZone)
	if err != nil {
		zone = time.UTC // the service refuses the zone
	}
	start, err := pages.FormMoment(v, "start", zone)
	if err != nil {
		return r, err
	}
	end, err := pages.FormMoment(v, "end", zone)
	if err != nil {
		return r, err
	}
	r.StartAt, r.EndAt = &start, &end
	minutes := func(name string) (*time.Duration, error) {
		n, err := formNumber(v, name)
		return new(time.Duration(n) * time.Minute), err
	}
	if r.Jitter, err = minutes("jitter"); err != nil {
		return r, err
	}
	if r.OfflineWait, err = minutes("offline_wait"); err != nil {
		return r, err
	}
	n, err := formNumber(v, "max_in_flight")
	r.MaxInFlight = &n
	return r, err
}

// formNumber reads a number; "" is 0. A number that is too large for its field is refused later.
func formNumber(v url.Values, name string) (int, error) {
	text := strings.TrimSpace(v.Get(name))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 1_000_000 {
		return 0, fleet.Refuse(fleet.ErrInvalid, "invalid_number", "value", text).At(name)
	}
	return n, nil
}
