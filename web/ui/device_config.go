package ui

import (
	"context"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
	"fleetd/web/forms"
)

// configTrial is how long the included firmware keeps a configuration on trial.
const configTrial = 2 * time.Minute

// DeviceConfigView is the configuration that a device reported, with the form to change it; a live
// stream sends it as a patch. POST DevicePath(id, "config") with base and the "v." fields applies
// it, "config/read" requests it from the device.
type DeviceConfigView struct {
	Device  fleet.DeviceID
	Config  *telemetry.Config // nil if it never reported one
	Fields  []forms.ConfigField
	Running *int64 // the version in a later heartbeat, if it differs
	Offers  bool   // the device has the tools
	CanAct  bool
	Offline bool
	Last    *ConfigCall
	Problem string // why the form was rejected, in the page's language
}

// A ConfigCall is the outcome of the last attempt to read or change a configuration from this page.
type ConfigCall struct {
	Call fleet.Call
}

func (v DeviceConfigView) path(parts ...string) string {
	return DevicePath(v.Device, append([]string{"config"}, parts...)...)
}

// trialEnds returns the latest time at which the device decides.
func (v DeviceConfigView) trialEnds() time.Time { return v.Config.At.Add(configTrial) }

// editable returns the fields that the form can change.
func (v DeviceConfigView) editable() (all []forms.ConfigField) {
	for _, f := range v.Fields {
		if f.Kind != forms.ConfigOther {
			all = append(all, f)
		}
	}
	return all
}

// said returns the key of the message about the last call's outcome, and whether it is a failure.
func (c ConfigCall) said() (key string, bad bool) {
	set := c.Call.Tool == fleet.ToolConfigSet
	switch state := c.Call.State; {
	case !state.Final():
		return "config.call.pending", false
	case state == fleet.CallSucceeded && set:
		return "config.call.applied", false
	case state == fleet.CallSucceeded:
		return "config.call.read", false
	case state == fleet.CallToolError && set:
		return "config.call.refused", true
	case state == fleet.CallOffline:
		return "config.call.offline", true
	}
	return "config.call.failed", true
}

// configTexts are the messages about settings of the included firmware. Other settings are labelled
// with their names.
var configTexts = map[string]struct{ label, help string }{
	"heartbeat_s": {"config.heartbeat", "config.heartbeat_help"},
	"telemetry":   {"config.telemetry", "config.telemetry_help"},
	"log_level":   {"config.log_level", "config.log_level_help"},
	"url_hosts":   {"config.url_hosts", "config.url_hosts_help"},
	"allow_http":  {"config.allow_http", "config.allow_http_help"},
}

// configLabel returns a field's label: the console's text for a known setting, else the device's
// name.
func configLabel(ctx context.Context, f forms.ConfigField) (text string, ours bool) {
	if text, ours := configTexts[f.Key]; ours && f.Setting() != nil {
		return t(ctx, text.label), true
	}
	return shorten(f.Key, 64), false
}

// configChoices returns the choices of the setting, including the device's present value.
func configChoices(f forms.ConfigField) []string {
	all := f.Setting().Choices
	if slices.Contains(all, f.Value) {
		return all
	}
	return append([]string{f.Value}, all...)
}
