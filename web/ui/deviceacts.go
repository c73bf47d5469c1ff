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

// DeviceActs are what people do most with a device, as far as its inventory and
// the viewer's role allow. Each form posts to the tool's address, and what came
// of it is shown below: GET DevicePath(id) with call = the call's id.
type DeviceActs struct {
	Device  fleet.DeviceID
	Title   string // of the device, for the name of a campaign
	Offline bool   // a call would end offline
	Snap    bool   // its screen can be photographed
	Reboot  bool
	Volume  *VolumeAct // nil: its volume cannot be set
	Log     bool
	Update  bool              // the viewer may start a campaign
	Newer   *firmware.Release // nil: none is newer than what it runs
	Battery *int64            // percent, as it last said; nil if it did not
	Last    *CallView         // the call that the address names
}

// A VolumeAct is the form that sets the volume.
type VolumeAct struct {
	Value    *int64 // as the device last said, or was last set to; nil if that is not on record
	At       time.Time
	Min, Max int64
}

// Any reports whether there is anything to be done.
func (a DeviceActs) Any() bool {
	return a.Snap || a.Reboot || a.Volume != nil || a.Log || a.Update
}

// updateURL opens the wizard with a plan for this device alone.
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

// slider is where the slider lies; without a known value the number stays empty.
func (v VolumeAct) slider() string {
	if v.Value == nil {
		return strconv.FormatInt(v.Min, 10)
	}
	return v.text()
}

// snapped reports whether the call took the picture that the page shows anyway.
func (v CallView) snapped() bool { return v.Call.Tool == fleet.ToolSnapshot }
