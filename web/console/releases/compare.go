package releases

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/compare"
	"fleetd/web/ui"
)

// compareAge is how long a comparison of a campaign is shown: it reads all devices of the campaign.
const compareAge = 30 * time.Second

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
	// A campaign exists for a viewer only if all its devices do, so all viewers share the comparison.
	var err error
	result.Result, err = s.differences.get(id, s.Now(), compareAge, nil, func() (compare.Result, error) {
		return s.Compare.Campaign(fleet.WithoutScope(ctx), id)
	})
	return result, err
}
