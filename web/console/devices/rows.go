package devices

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
	"fleetd/web/console/calls"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Reports reads the reports of the devices on a page about themselves.
type Reports interface {
	// UnsteadyVitals returns the reports of devices that crashed or are in safe mode.
	UnsteadyVitals(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]telemetry.Vitals, error)
	VitalsOf(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]telemetry.Vitals, error)
	LastCrashes(ctx context.Context, devices []fleet.DeviceID, vitals map[fleet.DeviceID]telemetry.Vitals) (
		map[fleet.DeviceID]time.Time, error)
}

// deviceRows returns the rows of a list with the columns, and marks devices that do not stay up. It
// reads data outside of the devices' table for these devices alone.
func (s *Server) deviceRows(ctx context.Context, devices []fleet.Device, columns ui.Columns) ([]ui.DeviceRow, error) {
	ids := make([]fleet.DeviceID, len(devices))
	for i, d := range devices {
		ids[i] = d.ID
	}
	details, err := s.deviceDetails(ctx, ids, columns)
	if err != nil {
		return nil, err
	}
	rows := make([]ui.DeviceRow, len(devices))
	for i, d := range devices {
		rows[i] = ui.NewDeviceRow(d, s.Now(), pages.MayActOn(ctx, d))
		rows[i].Talking = s.device.Conversation(d.ID)
		rows[i].Columns = columns
		rows[i].DeviceDetails = details[d.ID]
		if v := rows[i].Vitals; v != nil && (v.SafeMode || v.Crashes > 0) {
			rows[i].Unsteady = v
		}
	}
	return rows, nil
}

func (s *Server) deviceDetails(ctx context.Context, ids []fleet.DeviceID, columns ui.Columns) (
	map[fleet.DeviceID]ui.DeviceDetails, error) {
	read := s.Reports.UnsteadyVitals
	if columns.Has("signal", "heap", "uptime", "crash", "ip") {
		read = s.Reports.VitalsOf
	}
	details := make(map[fleet.DeviceID]ui.DeviceDetails, len(ids))
	vitals, err := read(ctx, ids)
	if err != nil {
		return nil, err
	}
	for id, v := range vitals {
		details[id] = ui.DeviceDetails{Vitals: &v}
	}
	if columns.Has("crash") {
		crashes, err := s.Reports.LastCrashes(ctx, ids, vitals)
		if err != nil {
			return nil, err
		}
		for id, at := range crashes {
			d := details[id]
			d.LastCrash = &at
			details[id] = d
		}
	}
	if columns.Has("campaign") {
		campaigns, err := s.campaignRefs(ctx, ids)
		if err != nil {
			return nil, err
		}
		for id, ref := range campaigns {
			d := details[id]
			d.Campaign = ref
			details[id] = d
		}
	}
	if !columns.Has("picture") {
		return details, nil
	}
	shots, err := s.Pictures.LatestSnapshots(ctx, ids)
	for id, shot := range shots {
		d, picture := details[id], calls.Snapshot(shot)
		d.Picture = &picture
		details[id] = d
	}
	return details, err
}

// campaignRefs returns the campaigns in which the devices wait or work.
func (s *Server) campaignRefs(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]ui.CampaignRef, error) {
	of, err := s.Campaigns.CampaignsOf(ctx, ids)
	if err != nil || len(of) == 0 {
		return nil, err
	}
	open, err := s.Campaigns.OpenCampaigns(ctx)
	if err != nil {
		return nil, err
	}
	names := make(map[uuid.UUID]string, len(open))
	for _, c := range open {
		names[c.ID] = c.Plan.Name
	}
	refs := make(map[fleet.DeviceID]ui.CampaignRef, len(of))
	for device, id := range of {
		refs[device] = ui.CampaignRef{ID: id.String(), Name: cmp.Or(names[id], id.String())}
	}
	return refs, nil
}
