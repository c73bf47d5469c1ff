package console

import (
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/fleet/trend"
	"fleetd/web/access"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

func (s *Server) dashboardRoutes() []route {
	return []route{{method: http.MethodGet, pattern: ui.PathDashboards, role: fleet.RoleViewer, reach: access.List,
		page: s.showDashboards}}
}

func (s *Server) showDashboards(r *http.Request) (answer, error) {
	ctx, zone := r.Context(), viewerOf(r.Context()).zone
	_, scoped := fleet.ScopeOf(ctx)
	page := ui.DashboardsPage{List: listURL(r, ui.PathDashboards, "range", "from", "to", "of"), Now: s.now(), Scoped: scoped}
	q := trend.Question{Of: page.List.Get("of"), Range: page.List.Get("range")}
	local, err := dashboardTimes(&page, &q, zone)
	if err == nil && local {
		return goTo(shareable(page.List, q))
	}
	var choices trend.Choices
	parts, partsCtx := errgroup.WithContext(ctx)
	parts.Go(func() (err error) {
		choices, err = s.Trends.Choices(partsCtx)
		return err
	})
	if err == nil {
		page.Figures, err = s.Trends.Figures(ctx, q)
	}
	if failed := parts.Wait(); failed != nil {
		return answer{}, failed
	}
	page.Choices = choices
	page.Query, page.Listed = groupQuery(q.Of, choices.Filters)
	switch status := statusOf(err); {
	case err == nil:
	case status == http.StatusUnprocessableEntity: // the address has a wrong value, which the form can mend
		page.Problem = explain(ctx, err)
	case errorCode(err) == "trend_outside_scope" || errorCode(err) == "unknown_filter":
		page.Problem = explain(ctx, err)
		return answer{status: status, page: page.Page()}, nil
	default:
		return answer{}, err
	}
	return show(page.Page())
}

// dashboardTimes reads the times of the address, and reports whether one is without a zone: such an address would mean
// another time to a viewer elsewhere.
func dashboardTimes(page *ui.DashboardsPage, q *trend.Question, zone *time.Location) (local bool, err error) {
	for name, f := range map[string]struct {
		at   *time.Time
		text *string
	}{"from": {&q.From, &page.FromText}, "to": {&q.To, &page.ToText}} {
		text := page.List.Get(name)
		if text == "" {
			continue
		}
		*f.text = text
		if *f.at, err = forms.Moment(text, zone); err != nil {
			return false, err
		}
		if !strings.HasSuffix(text, "Z") {
			local = true
		}
		*f.text = f.at.In(zone).Format("2006-01-02T15:04")
	}
	return local, nil
}

// shareable returns the address with times in UTC, and without a range that they replace.
func shareable(l ui.ListURL, q trend.Question) string {
	for name, at := range map[string]time.Time{"from": q.From, "to": q.To} {
		if !at.IsZero() {
			l.Values.Set(name, at.UTC().Format(time.RFC3339))
		}
	}
	return l.With("range", "")
}

// groupQuery returns the query of the devices of a group, and whether there is one.
func groupQuery(of string, filters []fleet.Filter) (string, bool) {
	kind, value, _ := strings.Cut(of, ":")
	if kind != "filter" {
		if of == "" {
			return "", true
		}
		return ui.Term(kind, value), true
	}
	for _, f := range filters {
		if f.Name == value {
			return f.Query, true
		}
	}
	return "", false
}
