package ui

import (
	"context"
	"strconv"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/forms"
)

// DeviceActs are the most frequent acts on a device, as far as its inventory and the viewer's role
// allow. Each form posts to the tool's address, and the outcome is shown below: GET DevicePath(id)
// with call = the call's id.
type DeviceActs struct {
	Device  fleet.DeviceID
	Title   string // of the device, for the name of a campaign
	Offline bool   // a call would end offline
	Snap    bool   // it can take a snapshot of its screen
	Reboot  bool
	Volume  *VolumeAct // nil: its volume cannot be set
	Log     bool
	Update  bool              // the viewer may start a campaign
	Newer   *firmware.Release // nil: none is newer than its own
	Battery *int64            // percent, as last reported; nil if never reported
	Last    *CallView         // the call in the address
}

// A VolumeAct is the form that sets the volume.
type VolumeAct struct {
	Value    *int64 // as last reported or set; nil if not recorded
	At       time.Time
	Min, Max int64
}

// Any reports whether there is any act.
func (a DeviceActs) Any() bool {
	return a.Snap || a.Reboot || a.Volume != nil || a.Log || a.Update
}

// updateURL returns the wizard with a plan for this device alone.
func (a DeviceActs) updateURL(ctx context.Context) string {
	p := campaign.DefaultPlan()
	p.Devices = []fleet.DeviceID{a.Device}
	wave := p.Waves[len(p.Waves)-1]
	wave.Name = campaign.WaveEveryone
	p.Waves = []campaign.WavePlan{wave}
	p.Name = t(ctx, "acts.update_any", "device", a.Title)
	if a.Newer != nil {
		p.Release = a.Newer.ID
		p.Name = t(ctx, "acts.update_name", "device", a.Title, "version", a.Newer.Version)
	}
	return PathCampaignNew + "?" + forms.FillPlan(p, page(ctx).Zone).Values.Encode()
}

func (a DeviceActs) updateText(ctx context.Context) string {
	if a.Newer != nil {
		return t(ctx, "acts.update_to", "version", shorten(a.Newer.Version, 24))
	}
	return t(ctx, "acts.update")
}

func (v VolumeAct) text() string {
	if v.Value == nil {
		return ""
	}
	return strconv.FormatInt(*v.Value, 10)
}

// slider returns the position of the slider; if the value is unknown, the number stays empty.
func (v VolumeAct) slider() string {
	if v.Value == nil {
		return strconv.FormatInt(v.Min, 10)
	}
	return v.text()
}

// snapped reports whether the call took the snapshot, which the page shows anyway.
func (v CallView) snapped() bool { return v.Call.Tool == fleet.ToolSnapshot }
