package forms

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// A Rule is a rule of enrolment as typed: the fields name, action, boards, networks, devices (text)
// and list (a file), from, until, max_devices, tags, transport, enabled.
type Rule struct {
	Name, Action, Boards, Networks, Devices string
	From, Until, Max, Tags, Transport       string
	Enabled                                 bool
}

// FillRule returns the form of a rule, with times in the viewer's zone.
func FillRule(r enrolment.Rule, zone *time.Location) Rule {
	f := Rule{Name: r.Name, Action: string(r.Action), Boards: strings.Join(r.Boards, ", "),
		Tags: strings.Join(r.Tags, ", "), Transport: string(r.Transport), Enabled: r.Enabled}
	lines := make([]string, 0, len(r.Devices))
	for _, id := range r.Devices {
		lines = append(lines, id.MAC())
	}
	f.Devices = strings.Join(lines, "\n")
	lines = lines[:0]
	for _, p := range r.Networks {
		lines = append(lines, p.String())
	}
	f.Networks = strings.Join(lines, "\n")
	if r.From != nil {
		f.From = r.From.In(zone).Format(localTime)
	}
	if r.Until != nil {
		f.Until = r.Until.In(zone).Format(localTime)
	}
	if r.MaxDevices > 0 {
		f.Max = strconv.Itoa(r.MaxDevices)
	}
	return f
}

// PostedRule returns the form as posted, without its file.
func PostedRule(v url.Values) Rule {
	return Rule{Name: v.Get("name"), Action: v.Get("action"), Boards: v.Get("boards"), Networks: v.Get("networks"),
		Devices: v.Get("devices"), From: v.Get("from"), Until: v.Get("until"), Max: v.Get("max_devices"),
		Tags: v.Get("tags"), Transport: v.Get("transport"), Enabled: v.Get("enabled") != ""}
}

// Values returns the fields of the form as it is shown.
func (f Rule) Values() url.Values {
	v := url.Values{"name": {f.Name}, "action": {cmp.Or(f.Action, string(enrolment.RuleAccept))}, "boards": {f.Boards},
		"networks": {f.Networks},
		"devices":  {f.Devices}, "from": {f.From}, "until": {f.Until}, "max_devices": {f.Max}, "tags": {f.Tags},
		"transport": {f.Transport}}
	check(v, "enabled", f.Enabled)
	return v
}

// Read reads the form, with times in the viewer's zone.
func (f Rule) Read(zone *time.Location) (r enrolment.Rule, err error) {
	r = enrolment.Rule{Name: f.Name, Action: enrolment.RuleAction(f.Action), Enabled: f.Enabled,
		Boards: splitList(f.Boards), Tags: splitList(f.Tags), Transport: fleet.Transport(f.Transport)}
	if r.Networks, err = enrolment.ParseNetworks(f.Networks); err != nil {
		return r, err
	}
	if r.Devices, err = enrolment.ParseDeviceList(f.Devices); err != nil {
		return r, err
	}
	for text, to := range map[string]**time.Time{f.From: &r.From, f.Until: &r.Until} {
		if *to, err = parseTime(text, zone); err != nil {
			return r, fleet.Refuse(fleet.ErrInvalid, "invalid_window.time", "value", text)
		}
	}
	if f.From != "" && f.From == f.Until {
		return r, fleet.Refuse(fleet.ErrInvalid, "invalid_window.order")
	}
	if f.Max != "" {
		if r.MaxDevices, err = strconv.Atoi(f.Max); err != nil {
			return r, fleet.Refuse(fleet.ErrInvalid, "invalid_max_devices.number", "value", f.Max)
		}
	}
	return r, nil
}
