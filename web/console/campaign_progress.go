package console

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/internal/bounded"
	"fleetd/web/ui"
)

// Maximum ages of the counts of a campaign. Counting 50,000 deployments takes the database a
// moment; all viewers of a campaign share the result.
const (
	progressAge     = 700 * time.Millisecond // shorter than resendAfter, so a second rendering counts again
	progressAgeOver = 10 * time.Second       // of a campaign that is over
	maxProgresses   = 200                    // campaigns in the cache
	boardDownloads  = 8                      // transfers that a board shows
)

// A campaignProgress is the counts of a campaign.
type campaignProgress struct {
	counts    campaign.Progress
	downloads []ui.Download
}

// progresses caches the counts of campaigns for a moment.
type progresses struct {
	mu  sync.Mutex
	all *bounded.Cache[uuid.UUID, *progressEntry]
}

type progressEntry struct {
	mu       sync.Mutex // locked while counting: others wait for the same counts
	at       time.Time
	revision int64
	last     campaignProgress
}

func (p *progresses) entry(id uuid.UUID) *progressEntry {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.all.Get(id)
	if !ok {
		e = new(progressEntry)
		p.all.Add(id, e)
	}
	return e
}

func (p *progresses) get(ctx context.Context, s *Server, c campaign.Campaign) (campaignProgress, error) {
	e := p.entry(c.ID)
	e.mu.Lock()
	defer e.mu.Unlock()
	limit := progressAge
	if c.State.Final() {
		limit = progressAgeOver
	}
	now := s.now()
	if age := now.Sub(e.at); !e.at.IsZero() && age >= 0 && age < limit && e.revision == c.Revision {
		return e.last, nil
	}
	last, err := s.countCampaign(fleet.WithoutScope(ctx), c)
	if err == nil {
		e.at, e.revision, e.last = now, c.Revision, last
	}
	return last, err
}

func (s *Server) countCampaign(ctx context.Context, c campaign.Campaign) (p campaignProgress, err error) {
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
