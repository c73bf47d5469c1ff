package releases

import (
	"context"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/ui"
)

// Maximum ages of the counts of a campaign. Counting 50,000 deployments takes the database a
// moment; all viewers of a campaign share the result.
const (
	progressAge     = 700 * time.Millisecond // less than a stream waits before it renders again
	progressAgeOver = 10 * time.Second       // of a campaign that is over
	maxProgresses   = 200                    // campaigns in the cache
	boardDownloads  = 8                      // transfers that a board shows
)

// A campaignProgress is the counts of a campaign.
type campaignProgress struct {
	revision  int64 // of the campaign
	counts    campaign.Progress
	downloads []ui.Download
}

// campaignProgress returns the counts of a campaign, which are cached for a moment.
func (s *Server) campaignProgress(ctx context.Context, c campaign.Campaign) (campaignProgress, error) {
	most := progressAge
	if c.State.Final() {
		most = progressAgeOver
	}
	current := func(p campaignProgress) bool { return p.revision == c.Revision }
	return s.progress.get(c.ID, s.Now(), most, current, func() (campaignProgress, error) {
		return s.countCampaign(fleet.WithoutScope(ctx), c)
	})
}

func (s *Server) countCampaign(ctx context.Context, c campaign.Campaign) (p campaignProgress, err error) {
	p.revision = c.Revision
	if p.counts, err = s.Campaigns.CampaignProgress(ctx, c.ID); err != nil {
		return p, err
	}
	if p.counts.ByState[campaign.DeploymentDownloading] == 0 {
		return p, nil
	}
	found, err := s.Campaigns.Deployments(ctx, campaign.DeploymentFilter{Campaign: c.ID,
		States: []campaign.DeploymentState{campaign.DeploymentDownloading}, Limit: boardDownloads})
	for _, d := range found.Items {
		p.downloads = append(p.downloads, ui.Download{Device: d.Device, Sent: d.BytesSent, Total: d.ImageSize,
			Percent: d.Percent, Since: d.SentAt})
	}
	return p, err
}
