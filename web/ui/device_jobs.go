package ui

import (
	"context"
	"strconv"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// DeviceJobs are a device's reports on work that takes longer than a call; a live stream sends them
// as a patch.
type DeviceJobs struct {
	Device    fleet.DeviceID
	Jobs      []telemetry.Job         // newest first
	Campaigns map[uuid.UUID]uuid.UUID // campaigns by deployment
	Always    bool                    // show a text if there are none
}

var jobTones = map[fleet.JobState]tone{
	fleet.JobAccepted: toneNone, fleet.JobProgress: toneBusy, fleet.JobDone: toneGood, fleet.JobFailed: toneBad,
}

// deploymentURL returns the page of the job's deployment, or "" without one.
func (v DeviceJobs) deploymentURL(j telemetry.Job) string {
	campaign, ok := v.Campaigns[j.Deployment]
	if !ok {
		return ""
	}
	return CampaignPath(campaign.String(), "devices", string(v.Device))
}

// why returns the text of a failed job's code; "" for a code of newer firmware.
func why(ctx context.Context, code string) string {
	text, _ := known(ctx, "job.code."+code)
	return text
}

func percentOf(j telemetry.Job) string { return strconv.Itoa(min(max(j.Percent, 0), 100)) }
