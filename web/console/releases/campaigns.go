package releases

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// campaignRoutes are the addresses of campaigns.
func (s *Server) campaignRoutes() []pages.Route {
	const viewer, operator = fleet.RoleViewer, fleet.RoleOperator
	const get, post = http.MethodGet, http.MethodPost
	campaign := ui.PathCampaigns + "/{campaign}"
	device := campaign + "/devices/{device}"
	routes := []pages.Route{
		{Method: get, Pattern: ui.PathCampaigns, Role: viewer, Reach: access.List, Page: s.listCampaigns},
		{Method: get, Pattern: ui.PathCampaignNew, Role: operator, Reach: access.Audience, Page: s.planCampaign,
			Heavy: heavy.Preview},
		{Method: post, Pattern: ui.PathCampaigns, Role: operator, Reach: access.Audience, Page: s.createCampaign,
			Heavy: heavy.Preview},
		{Method: get, Pattern: campaign, Role: viewer, Reach: access.Audience, Page: s.showCampaign},
		{Method: get, Pattern: campaign + "/edit", Role: operator, Reach: access.Audience, Page: s.replanCampaign,
			Heavy: heavy.Preview},
		{Method: post, Pattern: campaign + "/edit", Role: operator, Reach: access.Audience, Page: s.editCampaign,
			Heavy: heavy.Preview},
		{Method: get, Pattern: campaign + "/devices", Role: viewer, Reach: access.Audience, Page: s.listDeployments},
		{Method: get, Pattern: device, Role: viewer, Reach: access.Audience, Page: s.showDeployment},
		{Method: post, Pattern: device + "/retry", Role: operator, Reach: access.Audience, Page: s.retryDeployment},
	}
	for name, act := range s.campaignActs() {
		routes = append(routes, pages.Route{Method: post, Pattern: campaign + "/" + name, Role: operator, Reach: access.Audience,
			Page: s.campaignAct(name,
				act)})
	}
	return routes
}

func (s *Server) listCampaigns(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.CampaignsPage{List: pages.ListURL(r, ui.PathCampaigns, "state"), CanAct: pages.MayAct(ctx)}
	found, err := s.Campaigns.Campaigns(ctx, campaignFilter(page.List))
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Next = found.Next
	if page.Rows, err = s.CampaignRows(ctx, found.Items); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func campaignFilter(l ui.ListURL) campaign.Filter {
	return campaign.Filter{States: ui.CampaignStates(l.Get("state")), Limit: pages.LimitOf(l), Cursor: l.Get("cursor")}
}

// rowsAtOnce bounds the queries that one list runs concurrently.
const rowsAtOnce = 4

// CampaignRows returns the rows of campaigns with their progress.
func (s *Server) CampaignRows(ctx context.Context, all []campaign.Campaign) ([]ui.CampaignRow, error) {
	rows := make([]ui.CampaignRow, len(all))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(rowsAtOnce)
	for i, c := range all {
		g.Go(func() (err error) {
			rows[i], err = s.CampaignRow(ctx, c)
			return err
		})
	}
	return rows, g.Wait()
}

// CampaignRow returns the row of a campaign with its progress.
func (s *Server) CampaignRow(ctx context.Context, c campaign.Campaign) (row ui.CampaignRow, err error) {
	row = ui.CampaignRow{Campaign: c, Waves: len(c.Plan.Waves)}
	if release, err := s.releaseOf(ctx, c); err != nil {
		return row, err
	} else if release != nil {
		row.Version = release.Version
	}
	if c.StartedAt == nil {
		return row, nil
	}
	p, err := s.campaignProgress(ctx, c)
	row.Tally = ui.NewCampaignTally(p.counts.ByState)
	return row, err
}

// releaseOf returns the campaign's release; nil for a rollback.
func (s *Server) releaseOf(ctx context.Context, c campaign.Campaign) (*firmware.Release, error) {
	if c.Plan.Release == uuid.Nil {
		return nil, nil
	}
	r, err := s.Firmware.Release(ctx, c.Plan.Release)
	return &r, err
}

func campaignID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "campaign"))
	if err != nil {
		return id, pages.ErrNoPage
	}
	return id, nil
}

func (s *Server) showCampaign(r *http.Request) (pages.Answer, error) {
	id, err := campaignID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	board, err := s.campaignBoard(r.Context(), id)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(board.Page())
}

// rateSpan is the time span of a board's chart.
const rateSpan = time.Hour

// campaignBoard returns the present state of a campaign. It reads row and waves each time, so an
// act shows at once; counts may lag a moment.
func (s *Server) campaignBoard(ctx context.Context, id uuid.UUID) (b ui.CampaignBoard, err error) {
	if b.Campaign, err = s.Campaigns.Campaign(ctx, id); err != nil {
		return b, err
	}
	if b.Waves, err = s.Campaigns.Waves(ctx, id); err != nil {
		return b, err
	}
	if with := b.Campaign.RollbackWith; with != uuid.Nil {
		rollback, err := s.Campaigns.Campaign(ctx, with)
		if err != nil && !errors.Is(err, fleet.ErrNotFound) { // hidden from this viewer
			return b, err
		}
		b.Rollback = rollback.State
	}
	if b.Release, err = s.releaseOf(ctx, b.Campaign); err != nil {
		return b, err
	}
	p, err := s.campaignProgress(ctx, b.Campaign)
	if err != nil {
		return b, err
	}
	b.Progress, b.Downloads = p.counts, p.downloads
	if b.Compare, err = s.compareCampaign(ctx, id, p.counts); err != nil {
		return b, err
	}
	b.Viewer, b.CanAct = pages.ViewerOf(ctx).Actor(), pages.MayAct(ctx)
	b.To = s.Now().Truncate(time.Minute).Add(time.Minute)
	b.From = b.To.Add(-rateSpan)
	return b, nil
}
