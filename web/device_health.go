package web

import (
	"context"
	"time"

	"fleetd/fleet"
)

// Reports is what devices with the included firmware told of themselves. What
// a device never told is [fleet.ErrNotFound], or none.
type Reports interface {
	Vitals(ctx context.Context, device fleet.DeviceID) (fleet.Vitals, error)
	VitalsHistory(ctx context.Context, device fleet.DeviceID, since, until time.Time, step time.Duration) ([]fleet.VitalsPoint, error)
	DeviceJobs(ctx context.Context, device fleet.DeviceID, limit int) ([]fleet.DeviceJob, error)
	DeviceConfig(ctx context.Context, device fleet.DeviceID) (fleet.DeviceConfig, error)
}
