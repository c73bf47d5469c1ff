package releases

import (
	"context"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// listDeployments shows the devices of a campaign.
func (s *Server) listDeployments(r *http.Request) (pages.Answer, error) {
	id, err := campaignID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	page := ui.DeploymentsPage{List: deploymentsURL(r, id), CanAct: pages.MayAct(ctx)}
	if page.Campaign, err = s.Campaigns.Campaign(ctx, id); err != nil {
		return pages.Answer{}, err
	}
	if page.Waves, err = s.Campaigns.Waves(ctx, id); err != nil {
		return pages.Answer{}, err
	}
	counted, err := s.campaignProgress(ctx, page.Campaign)
	if err != nil {
		return pages.Answer{}, err
	}
	page.Boards = ui.BoardNames(counted.counts)
	found, err := s.Campaigns.Deployments(ctx, deploymentFilter(page.List, id))
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Next = found.Next
	if page.Rows, err = s.deploymentRows(ctx, page.Campaign, found.Items); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func deploymentsURL(r *http.Request, id uuid.UUID) ui.ListURL {
	return pages.ListURL(r, ui.CampaignPath(id.String(), "devices"), "state", "class", "board", "wave", "skip", "device")
}

// deploymentFilter reads the list's filter from its address. An invalid device id matches nothing
// rather than everything.
func deploymentFilter(l ui.ListURL, id uuid.UUID) campaign.DeploymentFilter {
	f := campaign.DeploymentFilter{Campaign: id, States: ui.DeploymentStates(l.Get("state")), Class: campaign.FailureClass(
		l.Get("class")),
		Skip: firmware.SkipReason(l.Get("skip")), Board: fleet.CleanText(l.Get("board"), 200), Limit: pages.LimitOf(l),
		Cursor: l.Get("cursor")}
	if n, err := strconv.Atoi(l.Get("wave")); err == nil && n > 0 && n <= 1000 {
		n--
		f.Wave = &n
	}
	if text := l.Get("device"); text != "" {
		device, err := fleet.ParseDeviceID(text)
		if err != nil {
			device = "-"
		}
		f.Device = device
	}
	return f
}

func (s *Server) deploymentRows(ctx context.Context, c campaign.Campaign, all []campaign.Deployment) (
	[]ui.DeploymentRow, error) {
	ids := make([]fleet.DeviceID, len(all))
	for i, d := range all {
		ids[i] = d.Device
	}
	names, err := s.calls.DeviceNames(ctx, ids)
	if err != nil {
		return nil, err
	}
	blocked, err := s.Campaigns.BlockReasons(ctx, c, all)
	rows := make([]ui.DeploymentRow, len(all))
	for i, d := range all {
		rows[i] = ui.DeploymentRow{Deployment: d, Name: names[d.Device], BlockReason: blocked[d.Device], Mode: c.Plan.Mode}
	}
	return rows, err
}

// showDeployment shows one device's part in a campaign, with all events.
func (s *Server) showDeployment(r *http.Request) (pages.Answer, error) {
	id, err := campaignID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	device, err := pages.DeviceID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	view, err := s.deploymentView(r.Context(), id, device)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(ui.DeploymentPage{View: view, CanAct: view.CanAct}.Page())
}

func (s *Server) deploymentView(ctx context.Context, id uuid.UUID, device fleet.DeviceID) (v ui.DeploymentView,
	err error) {
	v.CanAct = pages.MayAct(ctx)
	if v.Campaign, err = s.Campaigns.Campaign(ctx, id); err != nil {
		return v, err
	}
	if v.Deployment, err = s.Campaigns.Deployment(ctx, id, device); err != nil {
		return v, err
	}
	if v.Events, err = s.Campaigns.DeploymentEvents(ctx, v.Deployment.ID); err != nil {
		return v, err
	}
	names, err := s.calls.DeviceNames(ctx, []fleet.DeviceID{device})
	if err != nil {
		return v, err
	}
	v.Name = names[device]
	out, err := s.Campaigns.Outlook(ctx, device)
	if err != nil {
		return v, err
	}
	v.Quarantine = out.Quarantine
	if out.Deployment != nil && out.Deployment.ID == v.Deployment.ID {
		v.BlockReason, v.Until = out.BlockReason, out.Until
	}
	return v, nil
}
