package telemetry

import (
	"context"
	"errors"
	"fleetd/fleet"
	"time"
)

// Bounds of what is read at once.
const (
	MaxDeviceJobs     = 50    // kept per device, too
	maxVitalsPoints   = 2_000 // of one answer: the step grows until they suffice
	maxVitalsInterval = 400 * 24 * time.Hour
)

// VitalsKept is how long the history of vitals is kept, and VitalsStepsKept for
// how long of that in steps of [VitalsStep]; what is older is by the hour.
const (
	VitalsKept      = 90 * 24 * time.Hour
	VitalsStepsKept = 3 * 24 * time.Hour
)

// Vitals returns what the device told last, or [fleet.ErrNotFound] with a code
// that says why there may be nothing.
func (r *Reports) Vitals(ctx context.Context, id fleet.DeviceID) (Vitals, error) {
	v, err := r.opts.Store.Vitals(ctx, id)
	return v, neverTold(err, fleet.Refuse(fleet.ErrNotFound, "no_vitals"))
}

// UnsteadyVitals returns the vitals of those among the devices that are in safe
// mode, or have crashed since they last stayed up.
func (r *Reports) UnsteadyVitals(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]Vitals, error) {
	if len(devices) == 0 {
		return nil, nil
	}
	return r.opts.Store.UnsteadyVitals(ctx, devices)
}

// VitalsHistory returns what the device told, oldest first, in steps of at
// least step; they are longer if there would be too many.
func (r *Reports) VitalsHistory(ctx context.Context, id fleet.DeviceID, since, until time.Time, step time.Duration) (
	[]VitalsPoint, error) {
	if !since.Before(until) || until.Sub(since) > maxVitalsInterval {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_interval", "days", int64(maxVitalsInterval/24/time.Hour))
	}
	finest := VitalsStep
	if r.opts.Now().Sub(since) > VitalsStepsKept {
		finest = time.Hour
	}
	step = max(step, until.Sub(since)/maxVitalsPoints, finest)
	step = (step + finest - 1).Truncate(finest)
	return r.opts.Store.VitalsHistory(ctx, id, since, until, step)
}

// DeviceJobs returns the device's jobs, newest first.
func (r *Reports) DeviceJobs(ctx context.Context, id fleet.DeviceID, limit int) ([]Job, error) {
	if limit <= 0 {
		limit = MaxDeviceJobs
	}
	return r.opts.Store.DeviceJobs(ctx, id, min(limit, MaxDeviceJobs))
}

// Config returns the configuration that the device told last, or [fleet.ErrNotFound]
// with a code that says why there may be none.
func (r *Reports) DeviceConfig(ctx context.Context, id fleet.DeviceID) (Config, error) {
	c, err := r.opts.Store.DeviceConfig(ctx, id)
	return c, neverTold(err, fleet.Refuse(fleet.ErrNotFound, "no_config", "tool", fleet.ToolConfigGet))
}

func neverTold(err error, missing *fleet.Error) error {
	if errors.Is(err, fleet.ErrNotFound) {
		return missing
	}
	return err
}
