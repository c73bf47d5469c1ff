package device

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/telemetry"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// tabLogs is the tab with logs and crashes.
const tabLogs = "logs"

// logRoutes are the pages with logs and core dumps.
func (s *Server) logRoutes() []pages.Route {
	const device, dump = ui.PathDevices + "/{device}", "/core-dumps/{dump}"
	const viewer, operator = fleet.RoleViewer, fleet.RoleOperator
	return []pages.Route{
		{Method: http.MethodGet, Pattern: device + "/logs", Role: viewer, Reach: access.Device, Page: s.showLogs},
		{Method: http.MethodGet, Pattern: device + "/logs.txt", Role: viewer, Reach: access.Device, Raw: s.sendLog},
		{Method: http.MethodPost, Pattern: device + "/logs/fetch", Role: operator, Reach: access.Device,
			Page: s.fetchLog, Wait: 2 * time.Minute},
		{Method: http.MethodPost, Pattern: device + "/logs/follow", Role: operator, Reach: access.Device,
			Page: s.followLog, Wait: 2 * time.Minute},
		{Method: http.MethodPost, Pattern: device + "/logs/stop", Role: operator, Reach: access.Device,
			Page: s.stopLog, Wait: 2 * time.Minute},
		{Method: http.MethodPost, Pattern: device + "/logs/level", Role: operator, Reach: access.Device,
			Page: s.setLogLevel,
			Wait: 2 * time.Minute},
		{Method: http.MethodPost, Pattern: device + "/core-dumps", Role: operator, Reach: access.Device,
			Page: s.fetchCoreDump,
			Wait: call.MaxTimeout + 2*time.Minute},
		{Method: http.MethodGet, Pattern: dump + "/content", Role: operator, Reach: access.Record,
			Raw: s.sendCoreDump},
		{Method: http.MethodPost, Pattern: dump + "/delete", Role: operator, Reach: access.Record,
			Page: s.deleteCoreDump},
	}
}

func (s *Server) showLogs(r *http.Request) (pages.Answer, error) {
	d, inv, err := s.deviceTools(r)
	if err == nil && !d.IsBoard() {
		err = pages.ErrNoPage
	}
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	page := ui.LogsPage{Head: s.Head(r, d, tabLogs)}
	filter := forms.NewLogFilter(r.URL.Query())
	page.Head.Live = filter.Values()
	page.Log = ui.NewDeviceLog(d.ID, s.Logs.View(d.ID, 0), filter, ui.NewOffers(inv), pages.MayActOn(ctx, d), s.Now())
	if page.Crashes, err = s.deviceCrashes(ctx, d.ID, inv); err != nil {
		return pages.Answer{}, err
	}
	if page.Last, err = s.coreDumpCall(r, d); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// coreDumpCall returns the call that the form has just made, unless it succeeded: a core dump that
// arrived is on the page.
func (s *Server) coreDumpCall(r *http.Request, d fleet.Device) (*ui.CallView, error) {
	v, err := s.callOfForm(r, d, fleet.ToolCoreDumpUpload)
	if v == nil || v.Call.State == fleet.CallSucceeded {
		return nil, err
	}
	return v, err
}

// sendLog serves the lines on the page as a file.
func (s *Server) sendLog(w http.ResponseWriter, r *http.Request) {
	d, err := s.Board(r)
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="log-`+string(d.ID)+`.txt"`)
	h.Set("Cache-Control", "no-store")
	var text strings.Builder
	for _, l := range forms.NewLogFilter(r.URL.Query()).Pick(s.Logs.View(d.ID, 0).Lines) {
		text.WriteString(ui.LogText(l))
	}
	_, _ = w.Write([]byte(text.String())) // an error means that the reader has gone
}

func (s *Server) fetchLog(r *http.Request) (pages.Answer, error) {
	return s.actOnLog(r, "logs.flash.fetched", s.Logs.Fetch)
}

func (s *Server) stopLog(r *http.Request) (pages.Answer, error) {
	return s.actOnLog(r, "logs.flash.stopped", s.Logs.Stop)
}

func (s *Server) followLog(r *http.Request) (pages.Answer, error) {
	level := r.PostFormValue("to")
	if !slices.Contains(telemetry.LogLevels, level) {
		return pages.Answer{}, errLogLevel
	}
	return s.actOnLog(r, "logs.flash.followed", func(ctx context.Context, by fleet.Principal, id fleet.DeviceID) (fleet.Call,
		error) {
		return s.Logs.Follow(ctx, by, id, level)
	})
}

var errLogLevel = fleet.Refuse(fleet.ErrInvalid, "invalid_level")

func (s *Server) setLogLevel(r *http.Request) (pages.Answer, error) {
	level, tag := r.PostFormValue("to"), strings.TrimSpace(r.PostFormValue("tag"))
	if level != telemetry.LogSilent && !slices.Contains(telemetry.LogLevels, level) {
		return pages.Answer{}, errLogLevel
	}
	return s.actOnLog(r, "logs.flash.level", func(ctx context.Context, by fleet.Principal, id fleet.DeviceID) (fleet.Call,
		error) {
		return s.Calls.Make(ctx, s.Logs.LevelRequest(by, id, level, tag))
	})
}

// actOnLog makes a call and redirects to the log with the outcome.
func (s *Server) actOnLog(r *http.Request, done string, act func(context.Context, fleet.Principal, fleet.DeviceID) (
	fleet.Call, error)) (pages.Answer, error) {
	d, err := s.Board(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	call, err := act(ctx, pages.ViewerOf(ctx).Actor(), d.ID)
	if err != nil {
		return pages.Answer{}, err
	}
	s.flashOutcome(ctx, call, done)
	to := ui.DevicePath(d.ID, "logs")
	if q := forms.NewLogFilter(url.Values{"level": {r.PostFormValue("level")},
		"q": {r.PostFormValue("q")}}).Values().Encode(); q != "" {
		to += "?" + q
	}
	return pages.GoTo(to)
}

// flashOutcome returns the message for the outcome of a call, with a link to its record.
func (s *Server) flashOutcome(ctx context.Context, c fleet.Call, done string) {
	f := ui.Flash{Text: pages.Text(ctx, done), Link: ui.CallPath(c.ID.String())}
	if c.State.Failed() {
		why := pages.Text(ctx, "state."+string(c.State))
		if c.Error != nil {
			why = callError(ctx, c.Error)
		}
		f = ui.Flash{Bad: true, Text: pages.Text(ctx, "logs.flash.failed", "why", why), Link: f.Link}
	}
	s.Flash(ctx, f)
}

// watchLog begins to show a log. A viewer who follows it need not repeat the request while the page
// is open.
func (v *deviceView) watchLog(ctx context.Context, u *pages.Updates) error {
	v.server.Logs.Watch(ctx, v.id)
	return v.wholeLog(ctx, u)
}

func (v *deviceView) wholeLog(ctx context.Context, u *pages.Updates) error {
	inv, err := v.server.Devices.Tools(ctx, v.id)
	if err != nil {
		return err
	}
	view := v.server.Logs.View(v.id, 0)
	v.log.shown(view)
	log := ui.NewDeviceLog(v.id, view, v.log.filter, ui.NewOffers(inv), v.server.mayCall(ctx, v.id), v.server.Now())
	u.Patches = append(u.Patches, log.State(), log.List())
	return nil
}

// shownLog is the part of a log that a live page has shown.
type shownLog struct {
	filter     forms.LogFilter
	generation uint64
	seq        uint64
	until      time.Time // end of the following
}

func (l *shownLog) shown(v telemetry.LogView) {
	l.generation, l.seq, l.until = v.Generation, v.Last, v.Following.Until
}

// logged shows a new log or crash, on the tab with both.
func (v *deviceView) logged(ctx context.Context, kind fleet.EventKind, u *pages.Updates) error {
	switch {
	case v.tab != tabLogs:
		return nil
	case kind == fleet.EventLog:
		return v.logNews(ctx, u)
	}
	return v.crashes(ctx, u)
}

// logNews adds new lines, or shows the whole log again if that is not enough.
func (v *deviceView) logNews(ctx context.Context, u *pages.Updates) error {
	view := v.server.Logs.View(v.id, v.log.seq)
	if view.Generation != v.log.generation || v.log.seq == 0 {
		return v.wholeLog(ctx, u)
	}
	if !view.Following.Until.Equal(v.log.until) {
		inv, err := v.server.Devices.Tools(ctx, v.id)
		if err != nil {
			return err
		}
		state := ui.NewDeviceLog(v.id, view, v.log.filter, ui.NewOffers(inv), v.server.mayCall(ctx, v.id), v.server.Now())
		u.Patches = append(u.Patches, state.State())
	}
	v.log.shown(view)
	if lines := v.log.filter.Pick(view.Lines); len(lines) > 0 {
		u.Patches = append(u.Patches, ui.LogNews(lines).View())
	}
	return nil
}

// crashes shows a core dump that was added or deleted.
func (v *deviceView) crashes(ctx context.Context, u *pages.Updates) error {
	inv, err := v.server.Devices.Tools(ctx, v.id)
	if err != nil {
		return err
	}
	shown, err := v.server.deviceCrashes(ctx, v.id, inv)
	u.Patches = append(u.Patches, shown.View())
	return err
}

// dumpID returns the core dump in the address.
func dumpID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil {
		return id, pages.ErrNoPage
	}
	return id, nil
}

// callError returns the cause of a failed call in the viewer's language.
func callError(ctx context.Context, e *fleet.CallError) string {
	v := pages.ViewerOf(ctx)
	text, foreign := i18n.CallErrorMarked(v.Lang, v.Zone, e)
	if foreign {
		return i18n.Mark(fleet.CleanText(text, 300))
	}
	return text
}
