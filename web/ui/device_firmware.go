package ui

import (
	"context"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// DeviceUpdates shows on a device's firmware tab why it is, or is not, being updated; a live stream
// sends it as a patch. POST DevicePath(id, "quarantine") lets campaigns update a device again.
type DeviceUpdates struct {
	Device      fleet.DeviceID
	Title       string // of the device
	Outlook     campaign.Outlook
	Deployments []DeploymentView // newest first
	More        bool             // there are older ones
	CanAct      bool
}

// latest returns the deployment that the outlook is about.
func (v DeviceUpdates) latest() (DeploymentView, bool) {
	if v.Outlook.Deployment == nil || v.Outlook.Campaign == nil {
		return DeploymentView{}, false
	}
	return DeploymentView{Campaign: *v.Outlook.Campaign, Deployment: *v.Outlook.Deployment,
		BlockReason: v.Outlook.BlockReason, Until: v.Outlook.Until, CanAct: v.CanAct}, true
}

// sayings returns the answer: the outcome of the latest deployment, and the next expected one.
func (v DeviceUpdates) sayings(ctx context.Context) (all []string) {
	latest, ok := v.latest()
	if ok {
		all = append(all, latest.verdict(ctx))
	}
	underWay := ok && !latest.Deployment.State.Final()
	switch {
	case underWay:
		return all
	case ok && latest.Campaign.State.Open():
		all = append(all, t(ctx, "firmware.why.listed", "name", shorten(latest.Campaign.Plan.Name, 60),
			"state", t(ctx, "campaign.state."+string(latest.Campaign.State))))
	default:
		all = append(all, t(ctx, "firmware.why.no_campaign"))
	}
	switch {
	case len(v.Outlook.Newer) > 0:
		all = append(all, t(ctx, "firmware.why.newer"))
	case len(v.Outlook.RolledBack) > 0:
		all = append(all, t(ctx, "firmware.why.rolled_back"))
	case len(v.Outlook.Misfits) > 0:
		all = append(all, t(ctx, "firmware.why.misfits"))
	default:
		all = append(all, t(ctx, "firmware.why.nothing"))
	}
	if v.Outlook.Hold != nil {
		all = append(all, t(ctx, "firmware.why.held", "name", v.Outlook.Hold.By.Name))
	}
	return all
}

// failed returns the releases that the device did not keep, except the one at the beginning of the
// answer.
func (v DeviceUpdates) failed() (all []campaign.Deployment) {
	for _, d := range v.Outlook.Failed {
		if latest := v.Outlook.Deployment; latest == nil || latest.ID != d.ID {
			all = append(all, d)
		}
	}
	return all
}

// againURL returns the wizard with a release that the device rolled back, for this device alone.
func (v DeviceUpdates) againURL(ctx context.Context, r campaign.RolledBackRelease) string {
	return DeviceActs{Device: v.Device, Title: v.Title, Newer: &r.Release}.updateURL(ctx)
}

func misfitText(ctx context.Context, m campaign.Misfit) string {
	if m.Reason.Is("") {
		return skipText(ctx, m.Skip)
	}
	return reasonText(ctx, m.Reason)
}

// devicePart returns the page of a device's deployment.
func devicePart(d campaign.Deployment) string {
	return CampaignPath(d.Campaign.String(), "devices", string(d.Device))
}

// waiting returns the reason why a queued device waits now; "" if it is not queued.
func (v DeviceUpdates) waiting(ctx context.Context) string {
	latest, ok := v.latest()
	if !ok || latest.Deployment.State.Final() {
		return ""
	}
	return latest.waits(ctx)
}

// folded reports whether the timeline is folded, as those of old deployments are.
func (v DeviceUpdates) folded(i int) bool {
	return i > 0 && v.Deployments[i].Deployment.State.Final()
}
