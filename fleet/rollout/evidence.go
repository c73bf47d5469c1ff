package rollout

import (
	"context"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/telemetry"
)

// Evidence is one observation for the engine.
type Evidence struct {
	Device               fleet.DeviceID // the device that it concerns; for a job, the device that reports
	Deployment           uuid.UUID      // the deployment that it concerns; zero if it concerns the device
	campaign.Observation                // a zero At means now; the zero Kind is no evidence
}

// OfDevice returns evidence from the presence of a device: connections and their ends. Boot
// polls enter with [Engine.Poll].
func OfDevice(id fleet.DeviceID, seen fleet.Evidence) Evidence {
	e := Evidence{Device: id, Observation: campaign.Observation{At: seen.At, Kind: seen.Kind}}
	switch seen.Kind {
	case fleet.EvidenceConnect:
		e.Reason = fleet.Because(campaign.ReasonAddress, "address", seen.Detail)
	case fleet.EvidenceDisconnect, fleet.EvidenceConnectionLost:
		if seen.Detail != "" {
			e.Reason = fleet.Because(campaign.ReasonConnectionEnded, "detail", seen.Detail)
			if !seen.Reason.Is("") {
				e.Reason = e.Reason.With("detail", seen.Reason)
			}
		}
	default:
		return Evidence{}
	}
	return e
}

// OfListing returns evidence that a device answered initialize and tools/list. The build of the
// listing is the one in the latest boot poll.
func OfListing(id fleet.DeviceID, l fleet.ToolListing) Evidence {
	return Evidence{Device: id, Observation: campaign.Observation{At: l.At, Kind: fleet.EvidenceInitialize,
		ELF: l.ELFSHA256}}
}

// OfRetirement returns evidence that a device left service.
func OfRetirement(id fleet.DeviceID) Evidence {
	return Evidence{Device: id, Observation: campaign.Observation{Kind: fleet.EvidenceRetired}}
}

// OfTransfer returns evidence about a deployment's download.
func OfTransfer(t firmware.Transfer) Evidence {
	return Evidence{Deployment: t.Deployment, Observation: campaign.Observation{At: t.At, Kind: t.Kind, Reason: t.Reason,
		Attempt: t.Attempt, Bytes: t.Sent}}
}

// OfJob returns a device's own report on the job of an attempt as evidence.
func OfJob(device fleet.DeviceID, deployment uuid.UUID, attempt int, job telemetry.Job) Evidence {
	return Evidence{Device: device, Deployment: deployment, Observation: campaign.Observation{Kind: fleet.EvidenceJob,
		Attempt: attempt, Job: job.State, Percent: job.Percent, Code: job.Code, Detail: job.Reason}}
}

// ofCall returns evidence from an attempt's own call.
func ofCall(deployment uuid.UUID, attempt int, seen fleet.Evidence) Evidence {
	e := Evidence{Deployment: deployment, Observation: campaign.Observation{At: seen.At, Kind: seen.Kind, Attempt: attempt,
		CallError: seen.Code, Detail: seen.Detail}}
	switch {
	case seen.Kind == fleet.EvidenceJob: // a call reports nothing else
		e.Job, e.Detail = fleet.JobAccepted, ""
	case seen.Code == fleet.CodeToolError:
		e.Code, e.Detail = campaign.ParseRefusal(seen.Detail)
	}
	return e
}

// OrderAnswered accepts a device's answer to an order that an earlier process sent: before a restart, or as
// the leader before this one. The answer counts for the attempt of the order.
func (e *Engine) OrderAnswered(ctx context.Context, order fleet.Call, answer fleet.Answer) {
	d, attempt, err := e.ordered(ctx, order)
	if err != nil {
		e.o.Log.Warn("answer to an order of an earlier process not examined", "device", order.Device, "call", order.ID,
			"err", err)
		return
	}
	if attempt > 0 {
		e.accept(ofCall(d, attempt, call.EvidenceIn(answer, fleet.UpgradeJobName(d, attempt), e.now())))
	}
}

// ordered returns the deployment of an order, and its attempt: the latest one that had begun when the order
// was given; 0 for none.
func (e *Engine) ordered(ctx context.Context, order fleet.Call) (deployment uuid.UUID, attempt int, err error) {
	id, err := uuid.Parse(order.Actor.ID)
	if err != nil {
		return deployment, 0, err
	}
	d, err := e.o.Store.Deployment(ctx, id, order.Device)
	if err != nil {
		return deployment, 0, err
	}
	events, err := e.o.Store.DeploymentEvents(ctx, d.ID)
	for _, event := range events {
		if !event.At.After(order.CreatedAt) {
			attempt = event.Attempt
		}
	}
	return d.ID, attempt, err
}

// Observe accepts evidence about a device or a deployment. It returns immediately; evidence
// that no campaign waits for costs one map lookup. Observe ignores a device's report about the
// deployment of another device.
func (e *Engine) Observe(seen Evidence) {
	owner, held := e.index.deviceOf(seen.Deployment)
	switch {
	case seen.Kind == "":
	case seen.Deployment == uuid.Nil:
		if e.index.has(seen.Device) {
			e.accept(seen)
		}
	case !held:
	case seen.Kind == fleet.EvidenceJob && (seen.Attempt < 1 || owner != "" && owner != seen.Device):
	default:
		e.accept(seen)
	}
}

// accept passes evidence to the loop: from [Engine.Observe], and from the engine's own calls
// and probes, even between two leads.
func (e *Engine) accept(seen Evidence) {
	if seen.At.IsZero() {
		seen.At = e.now()
	}
	in := input{deployment: seen.Deployment, seen: seen.Observation}
	if seen.Deployment == uuid.Nil {
		in.device = seen.Device
	} else {
		in.reporter = seen.Device
	}
	if seen.Kind == fleet.EvidenceGet {
		if owner, _ := e.index.deviceOf(seen.Deployment); owner != "" {
			in.epoch, _ = e.o.Link.Epoch(owner)
		}
	}
	e.inbox.put(in)
}
