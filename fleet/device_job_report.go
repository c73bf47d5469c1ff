package fleet

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Bounds of what a device says of a job.
const (
	maxJobID     = 48
	maxJobWord   = 32
	maxJobReason = 200
)

// parseJob reads the params of notifications/job. It reports false if they do
// not name a job and where it stands.
func parseJob(device DeviceID, params json.RawMessage, now time.Time) (DeviceJob, bool) {
	f, ok := readFields(params)
	if !ok {
		return DeviceJob{}, false
	}
	at := f.moment(now)
	j := DeviceJob{Device: device, ID: f.text("job", maxJobID+1), Kind: f.text("kind", maxJobWord), State: JobState(f.text("state", maxJobWord)),
		Percent: min(100, int(f.count("percent", maxVitalCount))), UpdatedAt: at}
	if j.ID == "" || len(j.ID) > maxJobID {
		return DeviceJob{}, false
	}
	j.Deployment, _, _ = ParseUpgradeJob(j.ID)
	switch j.State {
	case JobAccepted:
		j.StartedAt = at
	case JobProgress:
	case JobDone:
		j.Percent, j.FinishedAt = 100, &at
	case JobFailed:
		j.FinishedAt, j.Code, j.Reason = &at, f.text("code", maxJobWord), f.text("reason", maxJobReason)
	default:
		return DeviceJob{}, false
	}
	return j, true
}

// Restarts reports whether a report says that a job which had ended was begun
// again. Devices use some names more than once ("poll"); an attempt of a
// campaign has its own.
func (j DeviceJob) Restarts(ended DeviceJob) bool {
	return j.Deployment == uuid.UUID{} && j.StartedAt.After(ended.UpdatedAt)
}

// mergeJob is what two reports on one job come to; the store does the same in
// SQL. Devices keep reports while they are offline, and order may suffer.
func mergeJob(older, newer DeviceJob) DeviceJob {
	switch {
	case older.State.Final() && newer.Restarts(older):
		return newer
	case older.State.Final(), older.State == JobProgress && newer.State == JobAccepted:
		return older
	}
	if !older.StartedAt.IsZero() {
		newer.StartedAt = older.StartedAt
	}
	if newer.Kind == "" {
		newer.Kind = older.Kind
	}
	if newer.State == JobFailed {
		newer.Percent = max(newer.Percent, older.Percent) // how far it came
	}
	return newer
}
