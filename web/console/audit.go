package console

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/heavy"
	"fleetd/fleet/origin"
	"fleetd/web/access"
	"fleetd/web/forms"
	"fleetd/web/request"
	"fleetd/web/ui"
)

func (s *Server) auditRoutes() []route {
	return []route{
		{method: http.MethodGet, pattern: ui.PathAudit, role: fleet.RoleViewer, reach: access.List, page: s.listAudit},
		{method: http.MethodGet, pattern: ui.PathAuditExport, role: fleet.RoleViewer, reach: access.List,
			raw: s.exportAudit, wait: 2 * time.Minute, heavy: heavy.Export},
	}
}

// auditFilter reads the list's filter. Times are in the viewer's zone, as in [callFilter].
func auditFilter(l ui.ListURL, zone *time.Location) (f audit.Filter, err error) {
	f = audit.Filter{Subject: l.Get("subject"), Action: l.Get("action"), Actor: l.Get("actor"),
		Outcome: l.Get("outcome"), Limit: limitOf(l), Cursor: l.Get("cursor")}
	if f.Kinds, err = ui.AuditKinds(l.Get("kind")); err != nil {
		return f, err
	}
	if trace := l.Get("trace"); trace != "" {
		var ok bool
		if f.Trace, ok = origin.ParseTraceID(trace); !ok {
			return f, fleet.Refuse(fleet.ErrInvalid, "invalid_trace_id", "value", trace)
		}
	}
	if f.Address, err = audit.ParseAddress(l.Get("address")); err != nil {
		return f, err
	}
	if f.Since, err = forms.Moment(l.Get("since"), zone); err != nil {
		return f, err
	}
	f.Until, err = forms.Moment(l.Get("until"), zone)
	return f, err
}

func auditList(r *http.Request) ui.ListURL {
	return listURL(r, ui.PathAudit, "kind", "subject", "action", "actor", "outcome", "trace", "address",
		"since", "until")
}

func (s *Server) listAudit(r *http.Request) (answer, error) {
	ctx := r.Context()
	page := ui.AuditPage{List: auditList(r)}
	if viewerOf(ctx).actor().FleetRole() != "" {
		page.Record = s.recordLine()
	}
	f, err := auditFilter(page.List, viewerOf(ctx).zone)
	if err != nil {
		page.Bad = explain(ctx, err)
		return show(page.Page())
	}
	found, err := s.Audit.AuditEntries(ctx, f)
	if errorCode(err) == "invalid_cursor" {
		return goTo(page.List.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	page.Prev, page.Next, page.Rows = found.Prev, found.Next, found.Items
	return show(page.Page())
}

// exportAudit writes the entries of the list's filter as CSV. The file is for programs: codes, and
// times in UTC.
func (s *Server) exportAudit(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	f, err := auditFilter(auditList(r), viewerOf(ctx).zone)
	var export *audit.Export
	if err == nil {
		export, err = audit.NewExport(ctx, s.Audit, f, audit.CSV)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", audit.CSV.MediaType())
	w.Header().Set("Content-Disposition", `attachment; filename="audit.csv"`)
	w.Header().Set("Cache-Control", "no-store")
	if err := export.Write(ctx, w, request.Progress(w)); err != nil {
		s.cutShort(ctx, "audit export", err)
	}
}

// auditSlack is how much earlier than its neighbours a newly visible entry may be dated: as long as
// its change took.
const auditSlack = 10 * time.Second

// An auditView counts the entries written after the page. No event announces them, so it polls.
type auditView struct {
	server *Server
	filter audit.Filter
	since  time.Time
	seen   map[string]bool // written since then, shown or counted
}

func (s *Server) newAuditView(r *http.Request) (view, error) {
	f, err := auditFilter(auditList(r), viewerOf(r.Context()).zone)
	f.Cursor, f.Limit = "", fleet.MaxLimit
	return &auditView{server: s, filter: f, since: s.now()}, err
}

func (v *auditView) pace() time.Duration { return 2 * paceCounts }

func (v *auditView) wants(*fleet.Event) bool { return false }

func (v *auditView) render(context.Context, []fleet.Event) (updates, error) { return updates{}, nil }

// begin marks all entries so far as shown.
func (v *auditView) begin(ctx context.Context) (updates, error) {
	_, err := v.look(ctx)
	return updates{}, err
}

func (v *auditView) look(ctx context.Context) (u updates, err error) {
	f := v.filter
	if from := v.since.Add(-auditSlack); from.After(f.Since) {
		f.Since = from
	}
	found, err := v.server.Audit.AuditEntries(ctx, f)
	if err != nil {
		return u, err
	}
	before := v.seen
	v.seen = make(map[string]bool, len(found.Items))
	for i, e := range found.Items {
		if v.seen[e.Key] = true; !before[e.Key] {
			u.fresh++
		}
		if i == 0 && e.At.After(v.since) {
			v.since = e.At
		}
	}
	return u, nil
}
