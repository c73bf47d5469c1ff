package releases

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// newCampaignView returns the view of a page about campaigns.
func (s *Server) newCampaignView(r *http.Request) (pages.View, error) {
	q := r.URL.Query()
	if q.Get("view") == ui.ViewCampaigns {
		return &campaignListView{server: s, began: s.Now(),
			filter: campaignFilter(pages.ListURL(r, ui.PathCampaigns, "state")),
			rows:   map[string]bool{}, seen: map[string]bool{}}, nil
	}
	id, err := uuid.Parse(q.Get("id"))
	if err != nil {
		return nil, pages.ErrNoPage
	}
	switch q.Get("view") {
	case ui.ViewCampaign:
		return &campaignView{server: s, id: id, sent: sent{}}, nil
	case ui.ViewDeployments:
		return &deploymentsView{server: s, id: id, filter: deploymentFilter(deploymentsURL(r, id), id), sent: sent{}}, nil
	case ui.ViewDeployment:
		device, err := fleet.ParseDeviceID(q.Get("device"))
		if err != nil {
			return nil, pages.ErrNoPage
		}
		return deploymentPageView{s, id, device}, nil
	}
	return nil, pages.ErrNoPage
}

// OfCampaign reports whether an event is about a campaign or its devices.
func OfCampaign(e *fleet.Event) bool {
	return e.Kind == fleet.EventCampaign || e.Kind == fleet.EventDeployed
}

// sent stores what a page has received, so only changes are sent again.
type sent map[string]string

// changed renders a part and returns it, or nil if the page already has it.
func (s sent) changed(ctx context.Context, part string, c templ.Component) (templ.Component, error) {
	var b strings.Builder
	if err := c.Render(ctx, &b); err != nil {
		return nil, err
	}
	if s[part] == b.String() {
		return nil, nil
	}
	s[part] = b.String()
	return templ.Raw(b.String()), nil
}

// A campaignView follows the board of a campaign.
type campaignView struct {
	server *Server
	id     uuid.UUID
	sent   sent
	shape  string // of the page: parts come and go when the campaign starts
}

// Pace bounds the browser's work for the board of a large campaign, where nearly every part changes
// all the time.
func (v *campaignView) Pace() time.Duration { return 2 * pages.PaceCounts }

func (v *campaignView) Wants(e *fleet.Event) bool { return OfCampaign(e) && e.Subject == v.id.String() }

func (v *campaignView) Begin(ctx context.Context) (pages.Updates, error) { return v.show(ctx) }

func (v *campaignView) Render(ctx context.Context, _ []fleet.Event) (pages.Updates, error) {
	u, err := v.show(ctx)
	u.Later = true // the counts may lag a moment
	return u, err
}

func (v *campaignView) show(ctx context.Context) (u pages.Updates, err error) {
	board, err := v.server.campaignBoard(ctx, v.id)
	if err != nil {
		return u, err
	}
	if shape := board.Shape(); shape != v.shape {
		before := v.shape
		if v.shape = shape; before != "" {
			clear(v.sent)
			u.Patches = append(u.Patches, board.Body())
		}
	}
	for name, part := range board.Parts() {
		c, err := v.sent.changed(ctx, name, part)
		if err != nil {
			return u, err
		}
		if c != nil {
			u.Patches = append(u.Patches, c)
		}
	}
	return u, nil
}

// A campaignListView follows the list of campaigns.
type campaignListView struct {
	server *Server
	filter campaign.Filter
	rows   map[string]bool // on the page
	seen   map[string]bool // already checked for new ones
	began  time.Time
}

func (v *campaignListView) Pace() time.Duration { return pages.PaceCounts }

func (v *campaignListView) Wants(e *fleet.Event) bool { return OfCampaign(e) }

func (v *campaignListView) Begin(ctx context.Context) (u pages.Updates, err error) {
	found, err := v.server.Campaigns.Campaigns(ctx, v.filter)
	if err != nil {
		return u, err
	}
	rows, err := v.server.CampaignRows(ctx, found.Items)
	for i, c := range found.Items {
		v.rows[c.ID.String()] = true
		u.Patches = append(u.Patches, rows[i].Row())
	}
	return u, err
}

func (v *campaignListView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
	u.Later = true
	for subject := range Subjects(events) {
		if err := v.show(ctx, subject, &u); err != nil {
			return u, err
		}
	}
	return u, nil
}

// Subjects returns the campaigns that the events are about.
func Subjects(events []fleet.Event) map[string]bool {
	all := make(map[string]bool)
	for _, e := range events {
		if OfCampaign(&e) {
			all[e.Subject] = true
		}
	}
	return all
}

func (v *campaignListView) show(ctx context.Context, subject string, u *pages.Updates) error {
	if !v.rows[subject] && v.seen[subject] {
		return nil
	}
	c, err := v.server.CampaignOf(ctx, subject)
	if err != nil {
		return err
	}
	if !v.rows[subject] {
		v.seen[subject] = true
		if c.CreatedAt.After(v.began) {
			u.Fresh++
		}
		return nil
	}
	row, err := v.server.CampaignRow(ctx, c)
	u.Patches = append(u.Patches, row.Row())
	return err
}

// CampaignOf returns the campaign with the id in an event.
func (s *Server) CampaignOf(ctx context.Context, subject string) (campaign.Campaign, error) {
	id, err := uuid.Parse(subject)
	if err != nil {
		return campaign.Campaign{}, err
	}
	return s.Campaigns.Campaign(ctx, id)
}

// A deploymentsView follows a page of a campaign's devices: only the rows of that page.
type deploymentsView struct {
	server *Server
	id     uuid.UUID
	filter campaign.DeploymentFilter
	rows   []fleet.DeviceID
	sent   sent
}

func (v *deploymentsView) Pace() time.Duration { return pages.PaceCounts }

func (v *deploymentsView) Wants(e *fleet.Event) bool {
	return OfCampaign(e) && e.Subject == v.id.String()
}

func (v *deploymentsView) Begin(ctx context.Context) (u pages.Updates, err error) {
	found, err := v.server.Campaigns.Deployments(ctx, v.filter)
	if err != nil {
		return u, err
	}
	for _, d := range found.Items {
		v.rows = append(v.rows, d.Device)
	}
	return u, v.show(ctx, found.Items, &u)
}

// Render queries the page again. Devices whose new state no longer matches the filter remain
// visible until the page is reloaded.
func (v *deploymentsView) Render(ctx context.Context, _ []fleet.Event) (u pages.Updates, err error) {
	found, err := v.server.Campaigns.Deployments(ctx, v.filter)
	if err != nil {
		return u, err
	}
	gone := make(map[fleet.DeviceID]bool, len(v.rows))
	for _, device := range v.rows {
		gone[device] = true
	}
	var all []campaign.Deployment
	for _, d := range found.Items {
		if gone[d.Device] {
			all = append(all, d)
			delete(gone, d.Device)
		}
	}
	left, err := v.left(ctx, gone)
	if err != nil {
		return u, err
	}
	return u, v.show(ctx, append(all, left...), &u)
}

// left reads rows that the filter no longer finds, a few at a time. A finished deployment does not
// change again, so it is dropped.
func (v *deploymentsView) left(ctx context.Context, gone map[fleet.DeviceID]bool) (all []campaign.Deployment,
	err error) {
	for device := range gone {
		if len(all) == pages.MaxRows {
			break
		}
		d, err := v.server.Campaigns.Deployment(ctx, v.id, device)
		if err != nil {
			return nil, err
		}
		if all = append(all, d); d.State.Final() {
			v.rows = slices.DeleteFunc(v.rows, func(id fleet.DeviceID) bool { return id == device })
		}
	}
	return all, nil
}

func (v *deploymentsView) show(ctx context.Context, all []campaign.Deployment, u *pages.Updates) error {
	c, err := v.server.Campaigns.Campaign(ctx, v.id)
	if err != nil {
		return err
	}
	rows, err := v.server.deploymentRows(ctx, c, all)
	if err != nil {
		return err
	}
	for _, row := range rows {
		c, err := v.sent.changed(ctx, string(row.Deployment.Device), row.Row())
		if err != nil {
			return err
		}
		if c != nil {
			u.Patches = append(u.Patches, c)
		}
	}
	return nil
}

// A deploymentPageView follows one device's part in a campaign.
type deploymentPageView struct {
	server *Server
	id     uuid.UUID
	device fleet.DeviceID
}

func (v deploymentPageView) Pace() time.Duration { return pages.PaceCounts / 2 }

func (v deploymentPageView) Wants(e *fleet.Event) bool {
	return OfCampaign(e) && e.Subject == v.id.String() && (e.Device == "" || e.Device == v.device)
}

func (v deploymentPageView) Begin(ctx context.Context) (pages.Updates, error) {
	page, err := v.server.deploymentView(ctx, v.id, v.device)
	return pages.Updates{Patches: []templ.Component{page.View()}}, err
}

func (v deploymentPageView) Render(ctx context.Context, _ []fleet.Event) (pages.Updates, error) {
	return v.Begin(ctx)
}
