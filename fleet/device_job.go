package fleet

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// JobState is where a job of a device stands.
type JobState string

const (
	JobAccepted JobState = "accepted"
	JobProgress JobState = "progress"
	JobDone     JobState = "done"
	JobFailed   JobState = "failed"
)

// Final reports whether the state is an outcome.
func (s JobState) Final() bool { return s == JobDone || s == JobFailed }

// A DeviceJob is work that goes on after the reply to a call, over restarts
// too: an upgrade, a rollback. Devices with the included firmware report it
// (notifications/job); its fields are the device's word.
type DeviceJob struct {
	Device     DeviceID
	ID         string    // as fleetd named it, or the device did; at most 48 bytes
	Kind       string    // "upgrade", "rollback"
	State      JobState  //
	Percent    int       // 0 to 100
	Code       string    // failed: "checksum", "wrong_target", "rolled_back", …
	Reason     string    // failed: a sentence
	Deployment uuid.UUID // zero if it belongs to no campaign
	StartedAt  time.Time // in a report: zero, unless it says that the job was accepted
	UpdatedAt  time.Time
	FinishedAt *time.Time
}

// DeviceJobStore keeps jobs, a bounded number per device.
type DeviceJobStore interface {
	// SaveDeviceJobs creates or updates jobs, each named once. An outcome stays:
	// a report that comes late changes nothing (see [DeviceJob.Restarts]).
	SaveDeviceJobs(ctx context.Context, jobs []DeviceJob) error
	DeviceJobs(ctx context.Context, device DeviceID, limit int) ([]DeviceJob, error) // newest first
}
