package forms

import (
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/ui"
)

// Rule reads the form of an enrolment rule, its times in the zone of the viewer.
func Rule(f ui.RuleForm, zone *time.Location) (r enrolment.Rule, err error) {
	r = enrolment.Rule{Name: f.Name, Action: enrolment.RuleAction(f.Action), Enabled: f.Enabled,
		Boards: fieldsOf(f.Boards), Tags: fieldsOf(f.Tags)}
	if r.Networks, err = enrolment.ParseNetworks(f.Networks); err != nil {
		return r, err
	}
	if r.Devices, err = enrolment.ParseDeviceList(f.Devices); err != nil {
		return r, err
	}
	for text, to := range map[string]**time.Time{f.From: &r.From, f.Until: &r.Until} {
		if text == "" {
			continue
		}
		at, err := time.ParseInLocation(ui.FormTime, text[:min(len(text), len(ui.FormTime))], zone)
		if err != nil {
			return r, fleet.Refuse(fleet.ErrInvalid, "invalid_window.time", "value", fleet.CleanText(text, 40))
		}
		*to = new(at.UTC())
	}
	if f.From != "" && f.From == f.Until {
		return r, fleet.Refuse(fleet.ErrInvalid, "invalid_window.order")
	}
	if f.Max != "" {
		if r.MaxDevices, err = strconv.Atoi(f.Max); err != nil {
			return r, fleet.Refuse(fleet.ErrInvalid, "invalid_max_devices.number", "value", fleet.CleanText(f.Max, 40))
		}
	}
	return r, nil
}

func fieldsOf(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\r\n,，、", r) })
}
