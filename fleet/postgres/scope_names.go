package postgres

import (
	"context"
	"slices"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// unnamedCampaign replaces the name of a campaign that does not exist for the principal. A device
// that exists for the principal may have a deployment in such a campaign, if other devices have
// one too.
const unnamedCampaign = "—"

// callColumns returns the columns of a call.
func (w *where) callColumns(ctx context.Context) string {
	in := w.devicesInScope(ctx)
	if in == "" {
		return callColumnList
	}
	return strings.Replace(callColumnList, "actor_name,", campaignName(in)+` AS actor_name,`, 1)
}

// campaignName returns the name of a call's actor. If the actor is a campaign, it is named only
// if all its devices are among those selected by in.
func campaignName(in string) string {
	return `CASE WHEN actor_kind = 'campaign' AND EXISTS (
		SELECT FROM deployments part WHERE part.campaign_id::text = actor_id AND part.device_id NOT IN ` + in + `)
		THEN '` + unnamedCampaign + `' ELSE actor_name END`
}

// namesCampaign lists the reasons that contain the name of another campaign.
var namesCampaign = []string{campaign.ReasonBusyIn, campaign.ReasonFitBusy, campaign.ReasonTakenOver}

// unnamed removes the name of another campaign from a reason if the principal's scope is narrow.
func unnamed(ctx context.Context, r *fleet.Reason) {
	if _, narrow := fleet.ScopeOf(ctx); narrow && slices.Contains(namesCampaign, r.Code) {
		r.Params = map[string]any{"name": unnamedCampaign}
	}
}
