package ui

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// Plan reads the form. What cannot be read is a problem of its field, and in
// the plan as if it had been left empty.
func (f *PlanForm) Plan() campaign.Plan {
	p := campaign.Plan{
		Name: strings.TrimSpace(f.val("name")), Query: strings.TrimSpace(f.val("q")),
		Mode: firmware.DispatchMode(f.val("mode")), PullNow: f.on("pull_now"), Supersede: f.on("supersede"),
		AllowDowngrade: f.on("downgrade"), Continuous: f.on("continuous"), ApprovalRequired: f.on("approval"),
	}
	p.Release, _ = uuid.Parse(f.val("release")) // none is the domain's to complain about
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
	if tools := strings.FieldsFunc(f.val("forbid"), func(r rune) bool {
		return r == ',' || r == ' ' || r == '\n' ||
			r == '\r'
	}); len(tools) > 0 {
		p.ForbidRemoved = tools
	}
	p.MinHeapPercent, p.MaxReconnects, p.MaxAttempts = f.number("heap", 0), f.number("reconnects", 0),
		f.number("attempts", 0)
	p.StartAt = f.moment("start")
	return p
}

// Steer reads what may change of a campaign that runs: pace, thresholds,
// windows and the end.
func (f *PlanForm) Steer(p *campaign.Plan) {
	p.MaxInFlight, p.MaxPerMinute = f.number("in_flight", 0), f.number("per_minute", 0)
	p.AbortRules, p.Windows = f.rules(), f.windows()
	p.Jitter = f.span("jitter", 0)
	p.EndAt, p.EndBehavior = f.moment("end"), campaign.EndBehavior(f.val("end_behavior"))
}

func (f *PlanForm) problem(field string, row int, key string) {
	f.Problems = append(f.Problems, PlanProblem{field, row, key})
}

func (f *PlanForm) number(name string, row int) int {
	text := strings.TrimSpace(f.at(name, row))
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		f.problem(name, row, "campaign.bad.number")
	}
	return n
}

func (f *PlanForm) percent(name string, row int) float64 {
	return f.float(name, row, strings.TrimSuffix(strings.TrimSpace(f.at(name, row)), "%"))
}

func (f *PlanForm) float(name string, row int, text string) float64 {
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

func (f *PlanForm) span(name string, row int) time.Duration {
	d, ok := ParseSpan(f.at(name, row))
	if !ok {
		f.problem(name, row, "campaign.bad.span")
	}
	return d
}

// moment reads a time of day in the viewer's zone.
func (f *PlanForm) moment(name string) *time.Time {
	text := f.val(name)
	if text == "" {
		return nil
	}
	at, err := time.ParseInLocation(localTime, text[:min(len(text), len(localTime))], f.zone())
	if err != nil {
		f.problem(name, 0, "campaign.bad.time")
		return nil
	}
	at = at.UTC()
	return &at
}

// localTime is what browsers send from a field for date and time.
const localTime = "2006-01-02T15:04"

func (f PlanForm) zone() *time.Location {
	if f.Zone == nil {
		return time.UTC
	}
	return f.Zone
}

func (f *PlanForm) waves() (all []campaign.WavePlan) {
	for i := range f.Values["wave.size"] {
		if strings.TrimSpace(f.at("wave.size", i)+f.at("wave.name", i)) == "" {
			continue // a row that was never filled in
		}
		w := campaign.WavePlan{Name: strings.TrimSpace(f.at("wave.name", i)), SuccessPercent: f.percent("wave.success", i),
			MinSample: f.number("wave.sample", i), Soak: f.span("wave.soak", i), Gate: campaign.WaveGate(f.at("wave.gate", i))}
		switch f.at("wave.unit", i) {
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

func (f *PlanForm) devices(name string, row int) (ids []fleet.DeviceID) {
	for _, text := range strings.FieldsFunc(f.at(name, row), func(r rune) bool { return r == ',' || r == ' ' }) {
		id, err := fleet.ParseDeviceID(text)
		if err != nil {
			f.problem(name, row, "campaign.bad.device")
			continue
		}
		ids = append(ids, id)
	}
	return ids
}

func (f *PlanForm) rules() []campaign.AbortRule {
	rules := []campaign.AbortRule{} // none was chosen, which is no reason for the usual ones
	for i := range f.Values["rule.class"] {
		rules = append(rules, campaign.AbortRule{Class: f.at("rule.class", i), MinExecuted: f.number("rule.min", i),
			Percent: f.percent("rule.percent", i),
			Scope:   campaign.AbortScope(f.at("rule.scope", i)), Wave: f.number("rule.wave", i), Action: campaign.AbortAction(
				f.at("rule.action", i))})
	}
	return rules
}

func (f *PlanForm) windows() (all []campaign.Window) {
	for i := range f.Values["win.cron"] {
		cron := strings.Join(strings.Fields(f.at("win.cron", i)), " ")
		if cron == "" {
			continue
		}
		all = append(all, campaign.Window{Cron: cron, Duration: f.span("win.for", i), TimeZone: f.at("win.zone", i)})
	}
	return all
}

// checks joins rows that follow one another and call the same tool alike:
// each is one assertion about its answer.
func (f *PlanForm) checks() (all []campaign.HealthCheck) {
	for i := range f.Values["check.tool"] {
		c := campaign.HealthCheck{Tool: strings.TrimSpace(f.at("check.tool", i)), Retries: f.number("check.retries", i),
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

func (f *PlanForm) assertion(i int) (campaign.Assertion, bool) {
	a := campaign.Assertion{Path: strings.TrimSpace(f.at("check.path", i)), Op: f.at("check.op", i)}
	if a.Path == "" {
		return a, false
	}
	if a.Op != "exists" && a.Op != "unchanged" {
		a.Value = looseJSON(f.at("check.value", i))
	}
	return a, true
}

// looseJSON takes what was typed as JSON if it is, else as a string.
func looseJSON(text string) json.RawMessage {
	text = strings.TrimSpace(text)
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	b, _ := json.Marshal(text) // strings always marshal
	return b
}

func (f *PlanForm) json(name string, row int) json.RawMessage {
	text := strings.TrimSpace(f.at(name, row))
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
