package postgres

import (
	"context"
	"slices"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// A device that exists for a principal may have a part in a campaign that does
// not, since other devices have one too. What is read of the device then leaves
// the campaign unnamed.
const unnamedCampaign = "—"

// callColumns are those of a call.
func (w *where) callColumns(ctx context.Context) string {
	in := w.devicesInScope(ctx)
	if in == "" {
		return callColumnList
	}
	return strings.Replace(callColumnList, "actor_name,", campaignName(in)+` AS actor_name,`, 1)
}

// campaignName is the name of a call's actor: that of a campaign only if all its
// devices are among those of in.
func campaignName(in string) string {
	return `CASE WHEN actor_kind = 'campaign' AND EXISTS (
		SELECT FROM deployments part WHERE part.campaign_id::text = actor_id AND part.device_id NOT IN ` + in + `)
		THEN '` + unnamedCampaign + `' ELSE actor_name END`
}

// namesCampaign are the reasons whose name is that of another campaign.
var namesCampaign = []string{campaign.ReasonBusyIn, campaign.ReasonFitBusy, campaign.ReasonTakenOver}

// unnamed takes the name of another campaign out of a reason, where the scope
// may not let the principal know of it.
func unnamed(ctx context.Context, r *fleet.Reason) {
	if _, narrow := fleet.ScopeOf(ctx); narrow && slices.Contains(namesCampaign, r.Code) {
		r.Params = map[string]any{"name": unnamedCampaign}
	}
}
