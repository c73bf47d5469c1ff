package console

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/compare"
	"fleetd/internal/bounded"
	"fleetd/web/ui"
)

// compareAge is how long a comparison of a campaign is shown: it reads all devices of the campaign.
const compareAge = 30 * time.Second

// comparisons caches the comparisons of campaigns for all viewers. A campaign exists for a viewer only if all its
// devices do.
type comparisons struct {
	mu  sync.Mutex
	all *bounded.Cache[uuid.UUID, *comparisonEntry]
}

type comparisonEntry struct {
	mu   sync.Mutex // locked while comparing: others wait for the same result
	at   time.Time
	last compare.Result
}

func (c *comparisons) entry(id uuid.UUID) *comparisonEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.all.Get(id)
	if !ok {
		e = new(comparisonEntry)
		c.all.Add(id, e)
	}
	return e
}

// compareCampaign returns what the failed devices of a campaign that the viewer sees have in common.
func (s *Server) compareCampaign(ctx context.Context, id uuid.UUID, p campaign.Progress) (ui.Comparison, error) {
	result := ui.Comparison{Well: "updated"}
	failed := 0
	for state, n := range p.ByState {
		if state.Failed() || state.Active() {
			failed += n
		}
	}
	if failed < compare.Least || p.ByState[campaign.DeploymentSucceeded] < compare.Least {
		return result, nil
	}
	e := s.differences.entry(id)
	e.mu.Lock()
	defer e.mu.Unlock()
	now := s.now()
	if age := now.Sub(e.at); e.at.IsZero() || age < 0 || age >= compareAge {
		last, err := s.Compare.Campaign(fleet.WithoutScope(ctx), id)
		if err != nil {
			return result, err
		}
		e.at, e.last = now, last
	}
	result.Result = e.last
	return result, nil
}

// compareFanOut returns what the devices of a fan-out on which the call failed have in common.
func (s *Server) compareFanOut(ctx context.Context, p ui.FanOutProgress) (ui.Comparison, error) {
	result := ui.Comparison{Well: "succeeded"}
	failed, well := 0, p.Counts.ByState[fleet.CallSucceeded]
	for state, n := range p.Counts.ByState {
		if state.Failed() {
			failed += n
		}
	}
	if failed < compare.Least || well < compare.Least {
		return result, nil
	}
	var err error
	result.Result, err = s.Compare.FanOut(ctx, p.FanOut.ID)
	return result, err
}
