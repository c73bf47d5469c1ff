package rollout

import (
	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// maxReports bounds the accepted reports of a device about one deployment. An attempt of the
// included firmware makes some 25 reports.
const maxReports = 300

// mayReport reports whether a report of the device is accepted: only about its own deployment,
// and only up to [maxReports].
func (d *deployment) mayReport(device fleet.DeviceID) bool {
	d.reports++
	return d.Device == device && d.reports <= maxReports
}

// supersedes reports whether in makes old superfluous: both are the progress of the same
// attempt's download, from the same reporter, which is the web server or the device.
func supersedes(in, old input) bool {
	return in.seen.Kind == old.seen.Kind && in.seen.Attempt == old.seen.Attempt && in.reporter == old.reporter &&
		in.seen.Job == old.seen.Job
}

// isProgress reports whether an input can be superseded.
func isProgress(o campaign.Observation) bool {
	return o.Kind == fleet.EvidenceBytes || o.Kind == fleet.EvidenceJob && o.Job == fleet.JobProgress
}
