package record

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/heavy"
	"fleetd/fleet/origin"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/request"
	"fleetd/web/ui"
)

func (s *Server) auditRoutes() []pages.Route {
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathAudit, Role: fleet.RoleViewer, Reach: access.List, Page: s.listAudit},
		{Method: http.MethodGet, Pattern: ui.PathAuditExport, Role: fleet.RoleViewer, Reach: access.List,
			Raw: s.exportAudit, Wait: 2 * time.Minute, Heavy: heavy.Export},
	}
}

// auditFilter reads the list's filter. Times are in the viewer's zone, as in [callFilter].
func auditFilter(l ui.ListURL, zone *time.Location) (f audit.Filter, err error) {
	f = audit.Filter{Subject: l.Get("subject"), Action: l.Get("action"), Actor: l.Get("actor"),
		Outcome: l.Get("outcome"), Limit: pages.LimitOf(l), Cursor: l.Get("cursor")}
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
	return pages.ListURL(r, ui.PathAudit, "kind", "subject", "action", "actor", "outcome", "trace", "address",
		"since", "until")
}

func (s *Server) listAudit(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.AuditPage{List: auditList(r)}
	if pages.ViewerOf(ctx).Actor().FleetRole() != "" {
		page.Record = s.recordLine()
	}
	f, err := auditFilter(page.List, pages.ViewerOf(ctx).Zone)
	if err != nil {
		page.Bad = pages.Explain(ctx, err)
		return pages.Show(page.Page())
	}
	found, err := s.Audit.AuditEntries(ctx, f)
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Prev, page.Next, page.Rows = found.Prev, found.Next, found.Items
	return pages.Show(page.Page())
}

// exportAudit writes the entries of the list's filter as CSV. The file is for programs: codes, and
// times in UTC.
func (s *Server) exportAudit(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	f, err := auditFilter(auditList(r), pages.ViewerOf(ctx).Zone)
	var export *audit.Export
	if err == nil {
		export, err = audit.NewExport(ctx, s.Audit, f, audit.CSV)
	}
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", audit.CSV.MediaType())
	w.Header().Set("Content-Disposition", `attachment; filename="audit.csv"`)
	w.Header().Set("Cache-Control", "no-store")
	if err := export.Write(ctx, w, request.Progress(w)); err != nil {
		s.CutShort(ctx, "audit export", err)
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

func (s *Server) newAuditView(r *http.Request) (pages.View, error) {
	f, err := auditFilter(auditList(r), pages.ViewerOf(r.Context()).Zone)
	f.Cursor, f.Limit = "", fleet.MaxLimit
	return &auditView{server: s, filter: f, since: s.Now()}, err
}

func (v *auditView) Pace() time.Duration { return 2 * pages.PaceCounts }

func (v *auditView) Wants(*fleet.Event) bool { return false }

func (v *auditView) Render(context.Context, []fleet.Event) (pages.Updates, error) {
	return pages.Updates{}, nil
}

// Begin marks all entries so far as shown.
func (v *auditView) Begin(ctx context.Context) (pages.Updates, error) {
	_, err := v.Look(ctx)
	return pages.Updates{}, err
}

func (v *auditView) Look(ctx context.Context) (u pages.Updates, err error) {
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
			u.Fresh++
		}
		if i == 0 && e.At.After(v.since) {
			v.since = e.At
		}
	}
	return u, nil
}
