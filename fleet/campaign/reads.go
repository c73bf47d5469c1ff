package campaign

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Campaign returns one campaign, or [fleet.ErrNotFound].
func (s *Service) Campaign(ctx context.Context, id uuid.UUID) (Campaign, error) {
	return s.o.Store.Campaign(ctx, id)
}

// Campaigns returns a page of campaigns, newest first.
func (s *Service) Campaigns(ctx context.Context, f Filter) (fleet.Page[Campaign], error) {
	return s.o.Store.Campaigns(ctx, f)
}

// OpenCampaigns returns the campaigns that have not ended, oldest first.
func (s *Service) OpenCampaigns(ctx context.Context) ([]Campaign, error) {
	return s.o.Store.OpenCampaigns(ctx)
}

// Waves returns the waves of a campaign in order.
func (s *Service) Waves(ctx context.Context, campaign uuid.UUID) ([]Wave, error) {
	return s.o.Store.Waves(ctx, campaign)
}

// CampaignProgress counts the deployments of a campaign.
func (s *Service) CampaignProgress(ctx context.Context, campaign uuid.UUID) (Progress, error) {
	return s.o.Store.CampaignProgress(ctx, campaign)
}

// Deployments returns a page of deployments.
func (s *Service) Deployments(ctx context.Context, f DeploymentFilter) (fleet.Page[Deployment], error) {
	return s.o.Store.Deployments(ctx, f)
}

// Deployment returns a device's part in a campaign, or [fleet.ErrNotFound].
func (s *Service) Deployment(ctx context.Context, campaign uuid.UUID, device fleet.DeviceID) (Deployment, error) {
	return s.o.Store.Deployment(ctx, campaign, device)
}

// DeploymentEvents returns the events of a deployment, oldest first.
func (s *Service) DeploymentEvents(ctx context.Context, deployment uuid.UUID) ([]DeploymentEvent, error) {
	return s.o.Store.DeploymentEvents(ctx, deployment)
}

// EventsOf returns the latest events of several deployments, oldest first.
func (s *Service) EventsOf(ctx context.Context, deployments []uuid.UUID) (map[uuid.UUID][]DeploymentEvent, error) {
	return s.o.Store.EventsOf(ctx, deployments)
}

// DeviceDeployments returns the deployments of a device, newest first.
func (s *Service) DeviceDeployments(ctx context.Context, device fleet.DeviceID, limit int) ([]Deployment, error) {
	return s.o.Store.DeviceDeployments(ctx, device, limit)
}

// Quarantines returns the current quarantines, latest first.
func (s *Service) Quarantines(ctx context.Context, now time.Time) ([]Quarantine, error) {
	return s.o.Quarantines.Quarantines(ctx, now)
}

// ClearQuarantine ends the quarantine of a device that failed too often.
func (s *Service) ClearQuarantine(ctx context.Context, by fleet.Principal, device fleet.DeviceID) error {
	if err := by.MaySomewhere(fleet.RoleOperator, "end_quarantine"); err != nil {
		return err
	}
	if err := by.MayOnDevice(ctx, s.o.Devices.Device, device, fleet.RoleOperator, "end_quarantine"); err != nil {
		return err
	}
	return s.o.Quarantines.ClearQuarantine(ctx, by, device)
}
