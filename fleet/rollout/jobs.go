package rollout

import (
	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// maxReports bounds what a device is listened to about one deployment. An
// attempt of the included firmware makes some 25 reports.
const maxReports = 300

// mayReport reports whether a device is listened to: about its own deployment,
// and not without end.
func (d *deployment) mayReport(device fleet.DeviceID) bool {
	d.reports++
	return d.Device == device && d.reports <= maxReports
}

// supersedes reports whether in makes old superfluous: both are the progress of
// the same attempt's download, by the web server or by the device.
func supersedes(in, old input) bool {
	return in.seen.Kind == old.seen.Kind && in.seen.Attempt == old.seen.Attempt && in.reporter == old.reporter &&
		in.seen.Job == old.seen.Job
}

// isProgress reports whether an input can be superseded.
func isProgress(o campaign.Observation) bool {
	return o.Kind == fleet.EvidenceBytes || o.Kind == fleet.EvidenceJob && o.Job == fleet.JobProgress
}
