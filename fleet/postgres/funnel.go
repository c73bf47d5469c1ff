package postgres

import (
	"slices"

	"fleetd/fleet"
)

// stepNumber is how a step of the funnel is stored: by its place.
func stepNumber(step fleet.FunnelStep) int16 { return int16(slices.Index(fleet.FunnelSteps, step)) }

// stepOfState is the furthest step that a deployment has proven that came into
// the state.
func stepOfState(s fleet.DeploymentState) fleet.FunnelStep {
	switch s {
	case fleet.DeploymentSent, fleet.DeploymentOffered, fleet.DeploymentAmbiguous:
		return fleet.FunnelTold
	case fleet.DeploymentDownloading:
		return fleet.FunnelGet
	case fleet.DeploymentDownloaded:
		return fleet.FunnelDownloaded
	case fleet.DeploymentRebooting:
		return fleet.FunnelGoodbye
	case fleet.DeploymentBooted:
		return fleet.FunnelBootPoll
	case fleet.DeploymentVerifying:
		return fleet.FunnelInitialize
	case fleet.DeploymentSucceeded:
		return fleet.FunnelSucceeded
	}
	return fleet.FunnelPlanned
}

// reached is the furthest step that a change gives proof of. Outcomes prove
// nothing of themselves: what led to them counts.
func reached(c fleet.DeploymentChange) int16 {
	far := stepNumber(stepOfState(c.Deployment.State))
	if c.Deployment.Booted {
		far = max(far, stepNumber(fleet.FunnelBootPoll))
	}
	for _, e := range c.Events {
		if e.Attempt != c.Deployment.Attempt {
			continue // of an attempt that is over
		}
		far = max(far, stepNumber(stepOfState(e.From)), stepNumber(stepOfState(e.To)), stepNumber(stepOfKind(e)))
	}
	return far
}

func stepOfKind(e fleet.DeploymentEvent) fleet.FunnelStep {
	switch e.Kind {
	case fleet.EvidenceOffered:
		return fleet.FunnelTold
	case fleet.EvidenceGet, fleet.EvidenceCut:
		return fleet.FunnelGet
	case fleet.EvidenceDownloaded:
		return fleet.FunnelDownloaded
	}
	return fleet.FunnelPlanned
}
