package rollout

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
)

// notifyByCall calls the device. The call lasts as long as the attempt, and its observations
// return as evidence.
func (l *loop) notifyByCall(ctx context.Context, t notification) {
	d, e := t.d, l.e
	d.attemptEnd = make(chan struct{})
	id, attempt := d.ID, d.Attempt
	order := &call.FirmwareOrder{
		URL: t.url, ELFSHA256: d.TargetELF, Timeout: l.attemptTimeout(d), Done: d.attemptEnd,
		SHA256: d.Image, Size: d.ImageSize, Job: fleet.UpgradeJobName(id, attempt), Manifest: t.image.Manifest,
		Signature: t.image.ManifestSignature,
		Notify: func(seen fleet.Evidence) {
			e.accept(ofCall(id, attempt, seen))
		},
	}
	request := call.Request{Actor: d.camp.actor(), Mandate: d.camp.mandate(), Device: d.Device,
		Tool: fleet.ToolUpgradeFirmware, Firmware: order, UnlessTalking: true, Outwaited: l.outwaited(d)}
	go func() {
		if _, err := e.o.Calls.Make(context.WithoutCancel(ctx), request); err != nil {
			e.o.Log.Warn("upgrade call has no record of its outcome", "device", request.Device, "deployment", id, "err", err)
		}
	}()
}

// restartTimeout is how long a device may take from the order to restart to its boot poll
// before another device gets its place.
const restartTimeout = 3 * time.Minute

// restart makes a device poll now. It stores the order before it sends it.
func (l *loop) restart(d *deployment) {
	if d.Reason.Is(campaign.ReasonAwaitsPollAfter) {
		d.waitIn(&d.camp.parked, false)
		d.setStuck(true)
		return
	}
	d.Reason = fleet.Because(campaign.ReasonAwaitsPollAfter)
	d.acts = append(d.acts, actRestart)
	l.mark(d)
	d.restarting = true
	d.camp.restarting++
	d.camp.pace.AllowN(l.now, 1)
	l.timers.set(d, l.now.Add(restartTimeout))
}

// actRestart is an act of the engine only: the rules do not use it.
const actRestart campaign.Act = "restart"

func (l *loop) orderRestart(ctx context.Context, d *deployment) {
	e, id := l.e, d.ID
	request := call.Request{Actor: d.camp.actor(), Mandate: d.camp.mandate(), Device: d.Device,
		Tool: fleet.ToolReboot, UnlessTalking: true, Outwaited: l.outwaited(d)}
	go func() {
		call, err := e.o.Calls.Make(context.WithoutCancel(ctx), request)
		if err == nil && call.SentAt != nil {
			return
		}
		e.inbox.put(input{do: func(l *loop) { l.notRestarted(id) }})
	}()
}

// notRestarted allows a later order to the device, because this one was not sent.
func (l *loop) notRestarted(id uuid.UUID) {
	d := l.byID[id]
	if d == nil || d.State != campaign.DeploymentQueued || !d.Reason.Is(campaign.ReasonAwaitsPollAfter) {
		return
	}
	d.Reason = fleet.Reason{}
	l.mark(d)
	l.unplace(d)
	l.timers.set(d, l.now.Add(busyPause))
}
