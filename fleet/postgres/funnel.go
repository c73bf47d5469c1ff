package postgres

import (
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// stepNumber returns the stored number of a step of the funnel, its position.
func stepNumber(step campaign.FunnelStep) int16 {
	return int16(slices.Index(campaign.FunnelSteps, step))
}

// stepOfState returns the furthest step that a deployment in the state has proven.
func stepOfState(s campaign.DeploymentState) campaign.FunnelStep {
	switch s {
	case campaign.DeploymentSent, campaign.DeploymentOffered, campaign.DeploymentAmbiguous:
		return campaign.FunnelNotified
	case campaign.DeploymentDownloading:
		return campaign.FunnelGet
	case campaign.DeploymentDownloaded:
		return campaign.FunnelDownloaded
	case campaign.DeploymentRebooting:
		return campaign.FunnelGoodbye
	case campaign.DeploymentBooted:
		return campaign.FunnelBootPoll
	case campaign.DeploymentVerifying:
		return campaign.FunnelInitialize
	case campaign.DeploymentSucceeded:
		return campaign.FunnelSucceeded
	}
	return campaign.FunnelPlanned
}

// reached returns the furthest step that a change proves. An outcome alone proves no step: the
// events that led to it count.
func reached(c campaign.DeploymentChange) int16 {
	far := stepNumber(stepOfState(c.Deployment.State))
	if c.Deployment.Booted {
		far = max(far, stepNumber(campaign.FunnelBootPoll))
	}
	for _, e := range c.Events {
		if e.Attempt != c.Deployment.Attempt {
			continue // of an earlier attempt
		}
		far = max(far, stepNumber(stepOfState(e.From)), stepNumber(stepOfState(e.To)), stepNumber(stepOfKind(e)))
	}
	return far
}

func stepOfKind(e campaign.DeploymentEvent) campaign.FunnelStep {
	switch e.Kind {
	case fleet.EvidenceOffered:
		return campaign.FunnelNotified
	case fleet.EvidenceGet, fleet.EvidenceCut:
		return campaign.FunnelGet
	case fleet.EvidenceDownloaded:
		return campaign.FunnelDownloaded
	}
	return campaign.FunnelPlanned
}
