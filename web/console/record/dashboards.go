package record

import (
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/fleet/trend"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

func (s *Server) dashboardRoutes() []pages.Route {
	return []pages.Route{{Method: http.MethodGet, Pattern: ui.PathDashboards, Role: fleet.RoleViewer, Reach: access.List,
		Page: s.showDashboards}}
}

func (s *Server) showDashboards(r *http.Request) (pages.Answer, error) {
	ctx, zone := r.Context(), pages.ViewerOf(r.Context()).Zone
	_, scoped := fleet.ScopeOf(ctx)
	page := ui.DashboardsPage{List: pages.ListURL(r, ui.PathDashboards, "range", "from", "to", "of"), Now: s.Now(), Scoped: scoped}
	q := trend.Question{Of: page.List.Get("of"), Range: page.List.Get("range")}
	local, err := dashboardTimes(&page, &q, zone)
	if err == nil && local {
		return pages.GoTo(shareable(page.List, q))
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
		return pages.Answer{}, failed
	}
	page.Choices = choices
	page.Query, page.Listed = groupQuery(q.Of, choices.Filters)
	switch status := pages.StatusOf(err); {
	case err == nil:
	case status == http.StatusUnprocessableEntity: // the address has a wrong value, which the form can mend
		page.Problem = pages.Explain(ctx, err)
	case pages.ErrorCode(err) == "trend_outside_scope" || pages.ErrorCode(err) == "unknown_filter":
		page.Problem = pages.Explain(ctx, err)
		return pages.Answer{Status: status, Page: page.Page()}, nil
	default:
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
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
