package telemetry

import (
	"context"
	"fleetd/fleet"
	"time"

	"github.com/google/uuid"
)

// A Job is work that goes on after the reply to a call, over restarts
// too: an upgrade, a rollback. Devices with the included firmware report it
// (notifications/job); its fields are the device's word.
type Job struct {
	Device     fleet.DeviceID
	ID         string         // as fleetd named it, or the device did; at most 48 bytes
	Kind       string         // "upgrade", "rollback"
	State      fleet.JobState //
	Percent    int            // 0 to 100
	Code       string         // failed: "checksum", "wrong_target", "rolled_back", …
	Reason     string         // failed: a sentence
	Deployment uuid.UUID      // zero if it belongs to no campaign
	StartedAt  time.Time      // in a report: zero, unless it says that the job was accepted
	UpdatedAt  time.Time
	FinishedAt *time.Time
}

// JobStore keeps jobs, a bounded number per device.
type JobStore interface {
	// SaveDeviceJobs creates or updates jobs, each named once. An outcome stays:
	// a report that comes late changes nothing (see [Job.Restarts]).
	SaveDeviceJobs(ctx context.Context, jobs []Job) error
	DeviceJobs(ctx context.Context, device fleet.DeviceID, limit int) ([]Job, error) // newest first
}
