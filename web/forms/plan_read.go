package forms

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// Read reads the form. An unreadable field becomes a problem, and counts as empty in the plan.
func (f *Plan) Read() campaign.Plan {
	p := campaign.Plan{
		Name: strings.TrimSpace(f.Get("name")), Release: f.Release(), Query: strings.TrimSpace(f.Get("q")),
		Mode: firmware.DispatchMode(f.Get("mode")), PullNow: f.on("pull_now"), Supersede: f.on("supersede"),
		AllowDowngrade: f.on("downgrade"), Continuous: f.on("continuous"), ApprovalRequired: f.on("approval"),
	}
	for _, text := range f.Values["d"] {
		if id, err := fleet.ParseDeviceID(text); err == nil {
			p.Devices = append(p.Devices, id)
		}
	}
	if p.Continuous {
		p.MaxDevices = f.number("max_devices", 0)
	}
	p.Waves = f.waves()
	f.Steer(&p)
	p.HealthChecks = f.checks()
	if tools := splitList(f.Get("forbid")); len(tools) > 0 {
		p.ForbidRemoved = tools
	}
	p.MinHeapPercent, p.MaxReconnects, p.MaxAttempts = f.number("heap", 0), f.number("reconnects", 0),
		f.number("attempts", 0)
	p.StartAt = f.moment("start")
	return p
}

// Steer reads the parts of the plan that may change while a campaign runs: pace, thresholds,
// windows and the end.
func (f *Plan) Steer(p *campaign.Plan) {
	p.MaxInFlight, p.MaxPerMinute = f.number("in_flight", 0), f.number("per_minute", 0)
	p.AbortRules, p.Windows = f.rules(), f.windows()
	p.Jitter = f.span("jitter", 0)
	p.EndAt, p.EndBehavior = f.moment("end"), campaign.EndBehavior(f.Get("end_behavior"))
}

// on reports whether a box is checked.
func (f *Plan) on(name string) bool { return f.Get(name) != "" }

func (f *Plan) problem(field string, row int, key string) {
	f.Problems = append(f.Problems, Problem{field, row, key})
}

func (f *Plan) number(name string, row int) int {
	text := strings.TrimSpace(f.At(name, row))
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		f.problem(name, row, "campaign.bad.number")
		return 0
	}
	return n
}

func (f *Plan) percent(name string, row int) float64 {
	text := strings.TrimSuffix(strings.TrimSpace(f.At(name, row)), "%")
	if text == "" {
		return 0
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n != n || n < 0 || n > 1e9 {
		f.problem(name, row, "campaign.bad.number")
		return 0
	}
	return n
}

func (f *Plan) span(name string, row int) time.Duration {
	d, ok := parseSpan(f.At(name, row))
	if !ok {
		f.problem(name, row, "campaign.bad.span")
	}
	return d
}

// moment reads a time in the viewer's zone.
func (f *Plan) moment(name string) *time.Time {
	at, err := parseTime(f.Get(name), f.Zone)
	if err != nil {
		f.problem(name, 0, "campaign.bad.time")
	}
	return at
}

func (f *Plan) waves() (all []campaign.WavePlan) {
	for i := range f.Values["wave.size"] {
		if strings.TrimSpace(f.At("wave.size", i)+f.At("wave.name", i)) == "" {
			continue // an empty row
		}
		w := campaign.WavePlan{Name: strings.TrimSpace(f.At("wave.name", i)), SuccessPercent: f.percent("wave.success", i),
			MinSample: f.number("wave.sample", i), Soak: f.span("wave.soak", i), Gate: campaign.WaveGate(f.At("wave.gate", i))}
		switch f.At("wave.unit", i) {
		case "count":
			w.Count = f.number("wave.size", i)
		case "devices":
			w.Devices = f.devices("wave.size", i)
		default:
			w.Percent = f.percent("wave.size", i)
		}
		all = append(all, w)
	}
	return all
}

func (f *Plan) devices(name string, row int) (ids []fleet.DeviceID) {
	for _, text := range splitList(f.At(name, row)) {
		id, err := fleet.ParseDeviceID(text)
		if err != nil {
			f.problem(name, row, "campaign.bad.device")
			continue
		}
		ids = append(ids, id)
	}
	return ids
}

func (f *Plan) rules() []campaign.AbortRule {
	rules := []campaign.AbortRule{} // not nil, which would choose the default rules
	for i := range f.Values["rule.class"] {
		measure := campaign.AbortMeasure(f.At("rule.measure", i))
		if measure == campaign.MeasureBound {
			measure = ""
		}
		rules = append(rules, campaign.AbortRule{Class: f.At("rule.class", i), MinExecuted: f.number("rule.min", i),
			Percent: f.percent("rule.percent", i), Measure: measure, Scope: campaign.AbortScope(f.At("rule.scope", i)),
			Wave: f.number("rule.wave", i), Action: campaign.AbortAction(f.At("rule.action", i))})
	}
	return rules
}

func (f *Plan) windows() (all []campaign.Window) {
	for i := range f.Values["win.cron"] {
		cron := strings.Join(strings.Fields(f.At("win.cron", i)), " ")
		if cron == "" {
			continue
		}
		all = append(all, campaign.Window{Cron: cron, Duration: f.span("win.for", i), TimeZone: f.At("win.zone", i)})
	}
	return all
}

// checks joins adjacent rows that call the same tool with the same arguments: each row is one
// assertion about the result.
func (f *Plan) checks() (all []campaign.HealthCheck) {
	for i := range f.Values["check.tool"] {
		c := campaign.HealthCheck{Tool: strings.TrimSpace(f.At("check.tool", i)), Retries: f.number("check.retries", i),
			Arguments: f.json("check.args", i)}
		if c.Tool == "" {
			continue
		}
		if a, ok := f.assertion(i); ok {
			c.Assert = []campaign.Assertion{a}
		}
		if n := len(all) - 1; n >= 0 && all[n].Tool == c.Tool && string(all[n].Arguments) == string(c.Arguments) &&
			all[n].Retries == c.Retries {
			all[n].Assert = append(all[n].Assert, c.Assert...)
			continue
		}
		all = append(all, c)
	}
	return all
}

func (f *Plan) assertion(i int) (campaign.Assertion, bool) {
	a := campaign.Assertion{Path: strings.TrimSpace(f.At("check.path", i)), Op: f.At("check.op", i)}
	if a.Path == "" {
		return a, false
	}
	if a.Op != "exists" && a.Op != "unchanged" {
		a.Value = looseJSON(f.At("check.value", i))
	}
	return a, true
}

// looseJSON returns text unchanged if it is valid JSON, else as a JSON string.
func looseJSON(text string) json.RawMessage {
	text = strings.TrimSpace(text)
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	b, _ := json.Marshal(text) // strings always marshal
	return b
}

func (f *Plan) json(name string, row int) json.RawMessage {
	text := strings.TrimSpace(f.At(name, row))
	if text == "" || text == "{}" {
		return nil
	}
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &object) != nil {
		f.problem(name, row, "campaign.bad.json")
		return nil
	}
	return json.RawMessage(text)
}
