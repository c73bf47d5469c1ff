package console

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Limits of the results and reads of one search.
const (
	foundDevices   = 8
	foundCampaigns = 5
	searchedPlans  = 200 // newest campaigns whose names are compared
	maxFindRunes   = 120
)

func (s *Server) findRoutes() []pages.Route {
	return []pages.Route{{Method: http.MethodGet, Pattern: ui.PathFind, Role: fleet.RoleViewer, Reach: access.List,
		Page: s.find}}
}

// find searches for a text among pages, devices, campaigns and calls, within the viewer's scope.
func (s *Server) find(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.FindPage{Query: strings.TrimSpace(r.URL.Query().Get("q"))}
	if utf8.RuneCountInString(page.Query) > maxFindRunes {
		page.Query = string([]rune(page.Query)[:maxFindRunes])
	}
	page.Pages = ui.FindPages(pages.InLanguage(ctx), page.Query)
	if page.Query == "" {
		return pages.Show(page.Page())
	}
	var err error
	if page.Acts, err = s.findActs(ctx, page.Query); err != nil {
		return pages.Answer{}, err
	}
	if page.Devices, page.More, err = s.findDevices(ctx, page.Query); err != nil {
		return pages.Answer{}, err
	}
	if page.Campaigns, err = s.findCampaigns(ctx, page.Query); err != nil {
		return pages.Answer{}, err
	}
	if page.Records, err = s.findRecord(ctx, page.Query); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// findDevices reads the text as a query of devices. An invalid query, such as half a term, finds
// nothing.
func (s *Server) findDevices(ctx context.Context, text string) (found []fleet.Device, more bool, err error) {
	q, err := fleet.ParseQuery(text)
	if err != nil {
		return nil, false, nil
	}
	p, err := s.Devices.Devices(ctx, fleet.DeviceFilter{Query: q, Sort: fleet.SortName, Limit: foundDevices + 1})
	if err != nil {
		return nil, false, err
	}
	found = p.Items
	if len(found) > foundDevices {
		return found[:foundDevices], true, nil
	}
	return found, false, nil
}

func (s *Server) findCampaigns(ctx context.Context, text string) ([]campaign.Campaign, error) {
	all, err := s.Campaigns.Campaigns(ctx, campaign.Filter{Limit: searchedPlans})
	if err != nil {
		return nil, err
	}
	var found []campaign.Campaign
	text = strings.ToLower(text)
	for _, c := range all.Items {
		if len(found) < foundCampaigns && strings.Contains(strings.ToLower(c.Plan.Name), text) {
			found = append(found, c)
		}
	}
	return found, nil
}

// findRecord looks up a call, a bulk call or a campaign by its UUID.
func (s *Server) findRecord(ctx context.Context, text string) ([]ui.FoundRecord, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return nil, nil
	}
	lookups := []struct {
		kind string
		look func() (title string, err error)
	}{
		{ui.FoundCall, func() (string, error) {
			c, err := s.Calls.Get(ctx, id)
			return c.Tool, err
		}},
		{ui.FoundFanOut, func() (string, error) {
			f, err := s.FanOuts.Get(ctx, id)
			return f.Tool, err
		}},
		{ui.FoundCampaign, func() (string, error) {
			c, err := s.Campaigns.Campaign(ctx, id)
			return c.Plan.Name, err
		}},
	}
	for _, l := range lookups {
		title, err := l.look()
		switch {
		case err == nil:
			return []ui.FoundRecord{{Kind: l.kind, ID: id.String(), Title: title}}, nil
		case !errors.Is(err, fleet.ErrNotFound):
			return nil, err
		}
	}
	return nil, nil
}
