package device

import (
	"context"
	"net/http"

	"fleetd/fleet"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// shownDeployments is the maximum number of deployments on a device's page.
const shownDeployments = 10

// deviceUpdates returns the reasons why a device is, or is not, being updated.
func (s *Server) deviceUpdates(ctx context.Context, id fleet.DeviceID) (ui.DeviceUpdates, error) {
	v := ui.DeviceUpdates{Device: id, CanAct: s.mayCall(ctx, id)}
	d, err := s.Devices.Device(ctx, id)
	if err != nil {
		return v, err
	}
	v.Title = d.Title()
	if v.Outlook, err = s.Campaigns.Outlook(ctx, id); err != nil {
		return v, err
	}
	all, err := s.Campaigns.DeviceDeployments(ctx, id, shownDeployments+1)
	if err != nil {
		return v, err
	}
	v.More = len(all) > shownDeployments
	for _, d := range all[:min(len(all), shownDeployments)] {
		one := ui.DeploymentView{Deployment: d, CanAct: v.CanAct}
		if one.Campaign, err = s.Campaigns.Campaign(ctx, d.Campaign); err != nil {
			return v, err
		}
		if one.Events, err = s.Campaigns.DeploymentEvents(ctx, d.ID); err != nil {
			return v, err
		}
		v.Deployments = append(v.Deployments, one)
	}
	return v, nil
}

// clearQuarantine lets campaigns update a device again that failed too often.
func (s *Server) clearQuarantine(r *http.Request) (pages.Answer, error) {
	d, err := s.Board(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	err = s.Campaigns.ClearQuarantine(ctx, pages.ViewerOf(ctx).Actor(), d.ID)
	return s.Done(ctx, ui.DevicePath(d.ID, "firmware"), err, "firmware.flash.quarantine", "device", d.Title())
}
