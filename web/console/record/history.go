package record

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/fleet/history"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// historyRoutes are the pages about the past of the fleet.
func (s *Server) historyRoutes() []pages.Route {
	return []pages.Route{{Method: http.MethodGet, Pattern: ui.PathHistory, Role: fleet.RoleViewer, Reach: access.List,
		Page: s.showHistory}}
}

func (s *Server) showHistory(r *http.Request) (pages.Answer, error) {
	ctx, zone := r.Context(), pages.ViewerOf(r.Context()).Zone
	begin, err := s.History.Begin(ctx)
	if err != nil {
		return pages.Answer{}, err
	}
	page := ui.HistoryPage{List: pages.ListURL(r, ui.PathHistory, "at", "with", "q", "field", "after"), Begin: begin.States,
		Now: s.Now(), Query: r.URL.Query().Get("q"), Field: history.Field(r.URL.Query().Get("field"))}
	if slide, err := strconv.Atoi(r.URL.Query().Get("slide")); err == nil && slide >= 0 && slide <= ui.SlideSteps {
		at := begin.States.Add(time.Duration(slide) * (page.Now.Sub(begin.States) / ui.SlideSteps))
		return pages.GoTo(page.List.With("at", ceilSecond(at).In(zone).Format(ui.HistoryTime)))
	}
	page.At = page.Now
	asked := url.Values{"at": {page.List.Get("at")}, "with": {page.List.Get("with")}}
	at, err := pages.FormMoment(asked, "at", zone)
	if err == nil {
		page.With, err = pages.FormMoment(asked, "with", zone)
	}
	if at != nil {
		page.At = *at
	}
	page.AtText, page.WithText = cmp.Or(asked.Get("at"), page.At.In(zone).Format(ui.HistoryTime)), asked.Get("with")
	if err == nil {
		err = s.fillHistory(ctx, &page)
	}
	switch {
	case pages.ErrorCode(err) == "invalid_cursor":
		return pages.GoTo(page.List.At(""))
	case err != nil && pages.StatusOf(err) == http.StatusUnprocessableEntity:
		page.Problem = pages.Explain(ctx, err)
	case err != nil:
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// ceilSecond returns the next full second: times in addresses have no fractions, and the beginning of the history
// does.
func ceilSecond(at time.Time) time.Time {
	if whole := at.Truncate(time.Second); !whole.Equal(at) {
		return whole.Add(time.Second)
	}
	return at
}

// fillHistory asks for the parts of the page at once: each reads all devices.
func (s *Server) fillHistory(ctx context.Context, page *ui.HistoryPage) error {
	q, err := fleet.ParseQuery(page.Query)
	if err != nil {
		return err
	}
	var found fleet.Page[history.Device]
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() (err error) {
		found, err = s.History.Devices(ctx, history.Filter{At: page.At, Query: q, Limit: pages.LimitOf(page.List),
			Cursor: page.List.Get("cursor")})
		return err
	})
	parts.Go(func() (err error) {
		page.Counts, err = s.History.Counts(ctx, page.At, q)
		return err
	})
	parts.Go(func() (err error) {
		page.Adoption, err = s.AdoptionChart(ctx, "", AdoptionPoints)
		return err
	})
	if page.With != nil {
		page.DiffFrom, page.DiffTo = page.At, *page.With
		if page.DiffTo.Before(page.DiffFrom) {
			page.DiffFrom, page.DiffTo = page.DiffTo, page.DiffFrom
		}
		parts.Go(func() (err error) {
			page.Diff, err = s.History.Diff(ctx, history.DiffFilter{From: page.DiffFrom, To: page.DiffTo, Query: q,
				Field: page.Field, Limit: pages.LimitOf(page.List), Cursor: page.List.Get("after")})
			return err
		})
	}
	err = parts.Wait()
	page.Rows, page.Prev, page.Next = found.Items, found.Prev, found.Next
	return err
}

// AdoptionPoints is the number of moments of a chart of adoption.
const AdoptionPoints = 31

// AdoptionChart returns how versions spread in the last 30 days; one of them and the sum of the rest, if it is named.
func (s *Server) AdoptionChart(ctx context.Context, version string, points int) (chart ui.AdoptionChart, err error) {
	chart.ID, chart.Title = "adoption-chart", pages.Text(ctx, "history.adoption")
	chart.Adoption, err = s.History.Adoption(ctx, history.AdoptionFilter{Points: points, Version: version})
	if pages.ErrorCode(err) == "invalid_history_period" { // the history has just begun
		err = nil
	}
	return chart, err
}
