package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
)

// checkAgain is the pause after checks that found the device not connected.
const checkAgain = 10 * time.Second

// verify checks a device that reconnected with the image: its tools, its memory, and the plan's
// health checks. The verdict returns as evidence.
func (l *loop) verify(d *deployment) {
	if d.busy {
		return
	}
	d.busy = true
	e, row, heap, checks, question, ask := l.e, d.Deployment, d.heap, d.camp.checker(l.e), d.camp.question(), d.askBuild
	l.inBackground(func(ctx context.Context) {
		var err error
		if ask {
			err = e.confirmBuild(ctx, row, question)
		}
		if err == nil {
			err = e.verdict(ctx, row, heap, checks)
		}
		at := e.now() // inputs queued after the verdict are newer, however late the loop handles them
		e.inbox.put(input{do: func(l *loop) { l.verified(d, row.Attempt, at, err) }})
	})
}

func (l *loop) verified(d *deployment, attempt int, at time.Time, err error) {
	d.busy = false
	d.askBuild = d.askBuild && noVerdict(err)
	if l.byID[d.ID] != d || d.Attempt != attempt || d.State != campaign.DeploymentVerifying {
		return
	}
	o := campaign.Observation{At: at, Kind: fleet.EvidenceHealthy, Attempt: attempt}
	switch {
	case errors.Is(err, errUnasked):
		l.askAgain(d, (*loop).verifyAgain)
		return
	case errors.Is(err, errAbsent):
		l.after(d, checkAgain, (*loop).verifyAgain)
		return
	}
	d.spared = time.Time{}
	if err != nil {
		o.Kind = fleet.EvidenceUnhealthy
		if failed, ok := errors.AsType[*campaign.CheckError](err); ok {
			o.Reason = failed.Reason
		}
	}
	l.observe(d, o)
}

func (l *loop) verifyAgain(d *deployment) {
	if d.State == campaign.DeploymentVerifying && !d.Checked {
		l.verify(d)
	}
}

// after runs a function for a deployment after a pause, if the attempt is still under way.
func (l *loop) after(d *deployment, pause time.Duration, do func(*loop, *deployment)) {
	e, attempt := l.e, d.Attempt
	time.AfterFunc(pause, func() {
		e.inbox.put(input{do: func(l *loop) {
			if l.byID[d.ID] == d && d.Attempt == attempt && d.State.Active() {
				do(l, d)
			}
		}})
	})
}

// askAgain retries a query of a device after the database was unavailable. The device is not at
// fault: its step does not time out meanwhile, and its time to reply starts over.
func (l *loop) askAgain(d *deployment, ask func(*loop, *deployment)) {
	d.spared = l.now.Add(l.o.Timers.Connect)
	l.after(d, l.o.RetryPause, ask)
}

// verdict returns nil for a healthy device, [errAbsent] if the device was unreachable,
// [errUnasked] if the database was unavailable, else the failure.
func (e *Engine) verdict(ctx context.Context, d campaign.Deployment, heap int64, checks checker) error {
	plan := checks.campaign.Plan
	if err := e.checkTools(ctx, d, plan); err != nil {
		return err
	}
	if err := e.checkHeap(ctx, d, heap, plan); err != nil {
		return err
	}
	baseline := d.Baseline.Answers
	if baseline == nil {
		baseline = map[string]string{}
	}
	_, err := checks.checkHealth(ctx, d.Device, baseline)
	return err
}

// confirmBuild queries the build that the device runs. The loop handles the reply as evidence
// before the verdict. For a device that cannot report its build, the latest boot poll counts;
// for one that is not connected, confirmBuild returns [errAbsent].
func (e *Engine) confirmBuild(ctx context.Context, d campaign.Deployment, ask call.Request) error {
	elf, err := e.askBuild(ctx, ask, d.Device)
	if elf != "" {
		e.accept(Evidence{Deployment: d.ID, Observation: campaign.Observation{At: e.now(), Kind: fleet.EvidenceProbe,
			Attempt: d.Attempt, ELF: elf}})
	}
	return err
}

func (e *Engine) checkTools(ctx context.Context, d campaign.Deployment, plan campaign.Plan) error {
	if len(plan.ForbidRemoved) == 0 || d.Baseline.Inventory == "" {
		return nil
	}
	device, err := e.device(ctx, d.Device)
	if err != nil {
		return err
	}
	if device.InventoryID == "" || device.InventoryID == d.Baseline.Inventory {
		return nil
	}
	before, err := e.o.Inventories.Inventory(ctx, d.Baseline.Inventory)
	if err != nil {
		return e.unasked(d.Device, err)
	}
	after, err := e.o.Inventories.Inventory(ctx, device.InventoryID)
	if err != nil {
		return e.unasked(d.Device, err)
	}
	return campaign.InventoryGate(before, after, plan.ForbidRemoved)
}

// checkHeap compares the free heap in boot polls. If this engine has not seen the latest poll,
// checkHeap reads it from the registry.
func (e *Engine) checkHeap(ctx context.Context, d campaign.Deployment, heap int64, plan campaign.Plan) error {
	if plan.MinHeapPercent <= 0 || d.Baseline.FreeHeap <= 0 {
		return nil
	}
	if heap == 0 {
		device, err := e.device(ctx, d.Device)
		if err != nil {
			return err
		}
		if device.Layout != nil && device.ELFSHA256 == d.TargetELF {
			heap = device.Layout.FreeHeap
		}
	}
	return campaign.HeapGate(d.Baseline.FreeHeap, heap, plan.MinHeapPercent)
}

func (e *Engine) device(ctx context.Context, id fleet.DeviceID) (fleet.Device, error) {
	rows, err := e.o.Store.DevicesByID(ctx, []fleet.DeviceID{id})
	if err == nil && len(rows) == 0 {
		err = fleet.ErrNotFound
	}
	if err != nil {
		return fleet.Device{}, e.unasked(id, err)
	}
	return rows[0], nil
}

// unasked logs an error of the store and returns an error without a verdict: [errUnasked] if
// the database was unavailable, else [errAbsent].
func (e *Engine) unasked(id fleet.DeviceID, err error) error {
	e.o.Log.Warn("device not checked", "device", id, "err", err)
	if errors.Is(err, fleet.ErrUnavailable) || errors.Is(err, fleet.ErrNotStored) {
		return fmt.Errorf("%w: %w", errUnasked, err)
	}
	return fmt.Errorf("%w: %w", errAbsent, err)
}
