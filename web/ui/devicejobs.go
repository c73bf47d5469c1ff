package ui

import (
	"context"
	"strconv"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// DeviceJobs are a device's own reports on work that outlasts a call; a live
// stream sends them as a patch.
type DeviceJobs struct {
	Device    fleet.DeviceID
	Jobs      []telemetry.Job         // newest first
	Campaigns map[uuid.UUID]uuid.UUID // by deployment, of those that belong to one
	Always    bool                    // say so if there are none
}

var jobTones = map[fleet.JobState]tone{
	fleet.JobAccepted: toneNone, fleet.JobProgress: toneBusy, fleet.JobDone: toneGood, fleet.JobFailed: toneBad,
}

// deploymentURL leads to the job's part in a campaign, "" if it has none.
func (v DeviceJobs) deploymentURL(j telemetry.Job) string {
	campaign, ok := v.Campaigns[j.Deployment]
	if !ok {
		return ""
	}
	return CampaignPath(campaign.String(), "devices", string(v.Device))
}

// why is a failed job's code in a sentence of ours; "" for a code that only
// newer firmware knows.
func why(ctx context.Context, code string) string {
	text, _ := known(ctx, "job.code."+code)
	return text
}

func percentOf(j telemetry.Job) string { return strconv.Itoa(min(max(j.Percent, 0), 100)) }
