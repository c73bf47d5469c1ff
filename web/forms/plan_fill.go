package forms

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet/campaign"
)

// FillPlan returns the form of an existing plan; [Plan.Read] reads the same plan back.
func FillPlan(p campaign.Plan, zone *time.Location) Plan {
	f := Plan{Values: url.Values{filled: {"1"}}, Zone: zone}
	f.fill("name", p.Name)
	f.fill("q", p.Query)
	if p.Release != uuid.Nil {
		f.fill("release", p.Release.String())
	}
	for _, id := range p.Devices {
		f.Add("d", string(id))
	}
	f.fill("mode", string(p.Mode))
	f.fill("end_behavior", string(p.EndBehavior))
	for name, on := range map[string]bool{"pull_now": p.PullNow, "supersede": p.Supersede, "downgrade": p.AllowDowngrade,
		"continuous": p.Continuous, "approval": p.ApprovalRequired} {
		if on {
			f.fill(name, "1")
		}
	}
	for name, n := range map[string]int{"max_devices": p.MaxDevices, "in_flight": p.MaxInFlight,
		"per_minute": p.MaxPerMinute, "heap": p.MinHeapPercent, "reconnects": p.MaxReconnects, "attempts": p.MaxAttempts} {
		if n != 0 || name == "heap" || name == "reconnects" {
			f.fill(name, strconv.Itoa(n))
		}
	}
	f.fill("forbid", strings.Join(p.ForbidRemoved, " "))
	if p.Jitter > 0 {
		f.fill("jitter", spanText(p.Jitter))
	}
	f.fillTime("start", p.StartAt)
	f.fillTime("end", p.EndAt)
	f.fillTables(p)
	return f
}

func (f Plan) fill(name, value string) {
	if value != "" {
		f.Set(name, value)
	}
}

func (f Plan) fillTime(name string, at *time.Time) {
	if at != nil {
		f.fill(name, at.In(f.Zone).Format(localTime))
	}
}

func (f Plan) fillTables(p campaign.Plan) {
	f.fillWaves(p.Waves)
	for _, r := range p.AbortRules {
		wave := ""
		if r.Wave > 0 {
			wave = strconv.Itoa(r.Wave)
		}
		f.addRow("rule", r.Class, strconv.Itoa(r.MinExecuted), Decimal(r.Percent),
			cmp.Or(string(r.Measure), string(campaign.MeasureBound)), string(r.Scope), wave, string(r.Action))
	}
	for _, w := range p.Windows {
		f.addRow("win", w.Cron, spanText(w.Duration), w.TimeZone)
	}
	for _, c := range p.HealthChecks {
		if len(c.Assert) == 0 {
			f.addRow("check", c.Tool, string(c.Arguments), "", "eq", "", strconv.Itoa(c.Retries))
		}
		for _, a := range c.Assert {
			f.addRow("check", c.Tool, string(c.Arguments), a.Path, a.Op, valueText(a.Value), strconv.Itoa(c.Retries))
		}
	}
}

// Decimal formats a percentage without needless digits.
func Decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func waveSize(w campaign.WavePlan) (unit, size string) {
	switch {
	case len(w.Devices) > 0:
		ids := make([]string, len(w.Devices))
		for i, id := range w.Devices {
			ids[i] = string(id)
		}
		return "devices", strings.Join(ids, " ")
	case w.Count > 0:
		return "count", strconv.Itoa(w.Count)
	}
	return "percent", Decimal(w.Percent)
}

// valueText formats an assertion's value as [looseJSON] reads it: a string without its quotes,
// unless it would then be read as another type.
func valueText(raw json.RawMessage) string {
	var s string
	if bytes.HasPrefix(raw, []byte(`"`)) && json.Unmarshal(raw, &s) == nil && !json.Valid([]byte(s)) &&
		strings.TrimSpace(s) == s {
		return s
	}
	return string(raw)
}

func (f Plan) fillWaves(all []campaign.WavePlan) {
	for _, w := range all {
		unit, size := waveSize(w)
		f.addRow("wave", w.Name, unit, size, Decimal(w.SuccessPercent), strconv.Itoa(w.MinSample), spanText(w.Soak),
			string(w.Gate))
	}
}
