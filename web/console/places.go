package console

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/campaign"
	"fleetd/fleet/place"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/console/record"
	"fleetd/web/ui"
)

func (s *Server) placeRoutes() []pages.Route {
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathPlaces, Role: fleet.RoleViewer, Reach: access.List, Page: s.listPlaces},
		{Method: http.MethodGet, Pattern: ui.PathPlaces + "/*", Role: fleet.RoleViewer, Reach: access.List,
			Page: s.showPlace},
	}
}

func (s *Server) listPlaces(r *http.Request) (pages.Answer, error) {
	tree, err := s.Places.All(r.Context(), pages.ViewerOf(r.Context()).Actor())
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(ui.PlacesPage{Tree: tree}.Page())
}

// showPlace shows the place in the rest of the address.
func (s *Server) showPlace(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	tree, err := s.Places.Within(ctx, pages.ViewerOf(ctx).Actor(), strings.TrimPrefix(r.URL.Path, ui.PathPlaces+"/"))
	if err != nil {
		return pages.Answer{}, err
	}
	page := ui.PlacePage{Tree: tree, CanAct: pages.MayAct(ctx)}
	here := page.Place()
	q, err := fleet.ParseQuery(here.Path.Query())
	if err != nil {
		return pages.Answer{}, err
	}
	parts, partsCtx := errgroup.WithContext(ctx)
	parts.Go(func() error { return s.countPlace(partsCtx, q, &page) })
	parts.Go(func() (err error) {
		page.Campaigns, err = s.campaignsOf(partsCtx, here)
		return err
	})
	if err := parts.Wait(); err != nil {
		return pages.Answer{}, err
	}
	alerts := slices.DeleteFunc(s.Alerts.Current(pages.ViewerOf(ctx).Actor()), func(a alert.Alert) bool {
		return !slices.Contains(here.Alerts, a.ID)
	})
	page.Alerts = record.AlertCards(ctx, alerts)
	return pages.Show(page.Page())
}

// countPlace counts the devices of a place by presence, version and board, and those that need attention.
func (s *Server) countPlace(ctx context.Context, q fleet.Query, page *ui.PlacePage) error {
	queries := make([]fleet.Query, len(ui.PlaceConcerns))
	for i, text := range ui.PlaceConcerns {
		term, err := fleet.ParseQuery(text)
		if err != nil {
			return err
		}
		queries[i] = q.And(term)
	}
	var err error
	if page.Concerns, err = s.Devices.CountEach(ctx, queries); err != nil {
		return err
	}
	by, err := s.Devices.CountByFields(ctx, q, "presence", "version", "board")
	if err != nil {
		return err
	}
	page.Now = ui.NewPresenceNow(fleet.PresenceOf(by[0]), q.Text)
	page.Versions, page.Boards = by[1], by[2]
	return nil
}

// campaignsOf returns the campaigns under way at a place, newest first.
func (s *Server) campaignsOf(ctx context.Context, p place.Place) ([]ui.CampaignRow, error) {
	if len(p.Campaigns) == 0 {
		return nil, nil
	}
	open, err := s.Campaigns.OpenCampaigns(ctx)
	if err != nil {
		return nil, err
	}
	slices.Reverse(open)
	return s.releases.CampaignRows(ctx, slices.DeleteFunc(open, func(c campaign.Campaign) bool {
		return !slices.Contains(p.Campaigns, c.ID)
	}))
}
