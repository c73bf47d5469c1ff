package telemetry

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A Job is work that continues after the reply to a call, even over restarts: an upgrade, a
// rollback. Devices with the included firmware report it (notifications/job); the fields are as
// the device reported them.
type Job struct {
	Device     fleet.DeviceID
	ID         string // chosen by fleetd or by the device; at most 48 bytes
	Kind       string // "upgrade", "rollback"
	State      fleet.JobState
	Percent    int       // 0 to 100
	Code       string    // failed: "checksum", "wrong_target", "rolled_back", …
	Reason     string    // failed: a sentence
	Deployment uuid.UUID // zero if it belongs to no campaign
	StartedAt  time.Time // in a report: zero, unless the report is that the job was accepted
	UpdatedAt  time.Time
	FinishedAt *time.Time
}

// JobStore stores jobs, a bounded number per device.
type JobStore interface {
	// SaveDeviceJobs creates or updates jobs, each at most once in the slice. An outcome is
	// final: a late report changes nothing (see [Job.Restarts]).
	SaveDeviceJobs(ctx context.Context, jobs []Job) error
	DeviceJobs(ctx context.Context, device fleet.DeviceID, limit int) ([]Job, error) // newest first
}

// Bounds of a device's report on a job.
const (
	maxJobID     = 48
	maxJobField  = 32
	maxJobReason = 200
)

// parseJob parses the params of notifications/job. It returns false if they lack the job's ID
// or state.
func parseJob(device fleet.DeviceID, params json.RawMessage, now time.Time) (Job, bool) {
	f, ok := readFields(params)
	if !ok {
		return Job{}, false
	}
	at := f.moment(now)
	j := Job{Device: device, ID: f.text("job", maxJobID+1), Kind: f.text("kind", maxJobField),
		State:   fleet.JobState(f.text("state", maxJobField)),
		Percent: min(100, int(f.count("percent", maxVitalCount))), UpdatedAt: at}
	if j.ID == "" || len(j.ID) > maxJobID {
		return Job{}, false
	}
	j.Deployment, _, _ = fleet.ParseUpgradeJob(j.ID)
	switch j.State {
	case fleet.JobAccepted:
		j.StartedAt = at
	case fleet.JobProgress:
	case fleet.JobDone:
		j.Percent, j.FinishedAt = 100, &at
	case fleet.JobFailed:
		j.FinishedAt, j.Code, j.Reason = &at, f.text("code", maxJobField), f.text("reason", maxJobReason)
	default:
		return Job{}, false
	}
	return j, true
}

// Restarts reports whether a report shows that an ended job has begun again. Devices reuse some
// names ("poll"); each attempt of a campaign has a separate one.
func (j Job) Restarts(ended Job) bool {
	return j.Deployment == uuid.UUID{} && j.StartedAt.After(ended.UpdatedAt)
}

// mergeJob merges two reports on one job; the store does the same in SQL. Devices store reports
// while they are offline, so reports may arrive out of order.
func mergeJob(older, newer Job) Job {
	switch {
	case older.State.Final() && newer.Restarts(older):
		return newer
	case older.State.Final(), older.State == fleet.JobProgress && newer.State == fleet.JobAccepted:
		return older
	}
	if !older.StartedAt.IsZero() {
		newer.StartedAt = older.StartedAt
	}
	if newer.Kind == "" {
		newer.Kind = older.Kind
	}
	if newer.State == fleet.JobFailed {
		newer.Percent = max(newer.Percent, older.Percent) // the furthest progress
	}
	return newer
}
