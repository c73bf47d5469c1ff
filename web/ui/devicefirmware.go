package ui

import (
	"context"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// DeviceUpdates answers on a device's firmware tab why it is, or is not, being
// updated; a live stream sends it as a patch. POST DevicePath(id,
// "quarantine") lets a device back into campaigns.
type DeviceUpdates struct {
	Device      fleet.DeviceID
	Outlook     campaign.Outlook
	Deployments []DeploymentView // newest first
	More        bool             // there are older ones than are shown
	CanAct      bool
}

// latest is the part in a campaign that the outlook speaks of.
func (v DeviceUpdates) latest() (DeploymentView, bool) {
	if v.Outlook.Deployment == nil || v.Outlook.Campaign == nil {
		return DeploymentView{}, false
	}
	return DeploymentView{Campaign: *v.Outlook.Campaign, Deployment: *v.Outlook.Deployment,
		BlockReason: v.Outlook.BlockReason,
		Until:       v.Outlook.Until}, true
}

// sayings are the answer: what became of its latest part in a campaign, and
// whether there is anything to come.
func (v DeviceUpdates) sayings(ctx context.Context) (all []string) {
	latest, ok := v.latest()
	if ok {
		all = append(all, latest.verdict(ctx))
	}
	switch {
	case ok && !latest.Deployment.State.Final():
	case len(v.Outlook.Newer) > 0:
		all = append(all, t(ctx, "firmware.why.no_campaign"))
	default:
		all = append(all, t(ctx, "firmware.why.nothing"))
	}
	return all
}

// waiting says what a queued device waits for now; "" if it is not queued.
func (v DeviceUpdates) waiting(ctx context.Context) string {
	latest, ok := v.latest()
	if !ok || latest.Deployment.State.Final() {
		return ""
	}
	return latest.waits(ctx)
}

// folded leaves time lines of the past closed.
func (v DeviceUpdates) folded(i int) bool {
	return i > 0 && v.Deployments[i].Deployment.State.Final()
}
