package call

import (
	"context"
	"errors"
	"slices"
	"time"

	"fleetd/fleet"
)

// What a worker of a fan-out does with one device.

const fanOutCallsLimit = 50 // calls of one device in one fan-out that are read

// call makes one call, and waits while the database is unavailable. After an error it waits for
// the record of the call, which then decides whether the device has had its call. A device
// whose call is refused, not just unrecorded, leaves the fan-out with the reason.
func (r *fanOutRun) call(o fanOutOrder) fanOutResult {
	result := fanOutResult{device: o.device}
	again, conflicts := false, 0
	var open *unsettledError
	try := func(stalled func(error)) error {
		if err := r.awaitSettled(&open); err != nil {
			return err
		}
		if again {
			ctx, cancel := context.WithTimeout(r.ctx, fanOutDBTimeout)
			defer cancel()
			if due, err := r.due(ctx, o.device); err != nil || !due {
				return err
			}
		}
		again = true
		c, err := r.makeCall(o, stalled)
		switch {
		case errors.As(err, &open): // shown as waiting first
			if conflicts++; conflicts == 1 { // whatever the conflict was: the settled record decides
				err = fleet.Refuse(fleet.ErrUnavailable, "not_recorded.conflict", "detail", err)
			}
		case err == nil && withoutRecord(c):
			err = &fleet.Error{Kind: fleet.ErrUnavailable, Code: c.Error.Code, Params: c.Error.Params}
		case err == nil:
			result.offline = r.retriesOffline(c)
		}
		return err
	}
	err := r.showStuck(func(stalled func(error)) error {
		return r.s.untilDone(r.ctx, func() error { return try(stalled) }, stalled)
	})
	switch {
	case err == nil, r.ctx.Err() != nil:
	case errors.Is(err, fleet.ErrActorGone):
		result.gone = true
	case errors.Is(err, fleet.ErrOffline):
		result.offline = true
	case errors.Is(err, ErrTalking):
		result.talking = true
	default:
		result.err = r.skip(o.device, err, open)
	}
	return result
}

// makeCall makes a call and waits for its outcome. If the run ends, makeCall returns and the call
// continues without it: a call that waits for its turn or for an answer does not delay a stop.
func (r *fanOutRun) makeCall(o fanOutOrder, stalled func(error)) (fleet.Call, error) {
	if r.ctx.Err() != nil {
		return fleet.Call{}, r.ctx.Err()
	}
	actor, err := r.actorFor(o.device)
	if err != nil {
		return fleet.Call{}, err
	}
	r.acting.RUnlock()
	c, err := r.s.calls.Make(context.Background(), Request{Actor: actor, Device: o.device, Tool: r.f.Tool,
		Arguments: r.sent, Timeout: r.f.Timeout, FanOut: r.f.ID, UnlessOffline: o.unlessOffline,
		Interrupt: r.f.Interrupt, UnlessTalking: true, Outwaited: o.outwaited,
		stalled: stalled, grant: o.grant, approval: r.f.Approval})
	r.acting.RLock()
	if r.over {
		return fleet.Call{}, r.ctx.Err()
	}
	return c, err
}

// actorFor returns the maker of the fan-out with its current rights, or an error if the maker
// may no longer act, or not on this device. The record of the fan-out has neither the maker's
// scope nor tools.
func (r *fanOutRun) actorFor(id fleet.DeviceID) (fleet.Principal, error) {
	if r.s.calls.o.Authority == nil {
		return r.f.Actor, nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, fanOutDBTimeout)
	defer cancel()
	actor, err := r.s.calls.principalNow(ctx, r.f.Actor)
	if err != nil || !actor.Hides() {
		return actor, err
	}
	t, err := r.s.calls.o.Targets.Get(ctx, id, r.s.now())
	if err == nil && !actor.Sees(t.Device) {
		err = fleet.Refuse(fleet.ErrNotFound, fleet.CodeOutOfScope, "actor", actor.Name, "device", t.Device.Title())
	}
	return actor, err
}

// awaitSettled waits until the record of an earlier call is final.
func (r *fanOutRun) awaitSettled(open **unsettledError) error {
	if *open == nil {
		return nil
	}
	select {
	case <-(*open).settled:
		*open = nil
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// skip removes a device that cannot be called from the fan-out, unless the record shows that
// the device has had its call.
func (r *fanOutRun) skip(id fleet.DeviceID, why error, open *unsettledError) error {
	target := FanOutTarget{Device: id, Reason: skipReason(why)}
	r.s.log.Error("a device of a fan-out cannot be called", "fanout", r.f.ID, "device", id, "reason", target.Reason, "err",
		why)
	if err := r.awaitSettled(&open); err != nil {
		return err
	}
	return r.persist(func(ctx context.Context) error {
		if due, err := r.due(ctx, id); err != nil || !due {
			return err
		}
		return r.s.store.SkipTarget(ctx, r.f.ID, target)
	})
}

// Reasons of a [FanOutTarget] that could not be called.
const (
	reasonDeviceUnknown = "device_unknown"
	reasonRecordRefused = "record_refused" // the database refuses the record of its call
)

// skipReason returns the code of an error, or the code of its kind.
func skipReason(err error) string {
	var known *fleet.Error
	switch {
	case errors.As(err, &known) && known.Code != "":
		return known.Code
	case errors.Is(err, fleet.ErrNotFound):
		return reasonDeviceUnknown
	}
	return reasonRecordRefused
}

// due reports whether the device still has to be called, according to the record.
func (r *fanOutRun) due(ctx context.Context, id fleet.DeviceID) (bool, error) {
	made, err := r.s.calls.List(ctx, Filter{FanOut: r.f.ID, Device: id, Since: r.f.CreatedAt.Add(-24 * time.Hour),
		Limit: fanOutCallsLimit})
	counts := func(c fleet.Call) bool {
		stopped := c.State == fleet.CallCanceled && c.Error != nil && c.Error.Code == fleet.CodeStopped
		return !stopped && !withoutRecord(c) && !r.retriesOffline(c)
	}
	return !slices.ContainsFunc(made.Items, counts), err
}

// withoutRecord reports whether the call was not sent because its record could not be written.
func withoutRecord(c fleet.Call) bool {
	return c.State == fleet.CallCanceled && c.Error != nil && (c.Error.Code == fleet.CodeNotRecorded ||
		c.Error.Code == fleet.CodeRecordLate)
}

// retriesOffline reports whether the call does not count because its device was offline and the
// fan-out waits for the device.
func (r *fanOutRun) retriesOffline(c fleet.Call) bool {
	until := r.f.WaitsUntil()
	return until != nil && r.s.now().Before(*until) &&
		(c.State == fleet.CallOffline || c.State == fleet.CallCanceled) && c.Error != nil && c.Error.Code == fleet.CodeOffline
}
