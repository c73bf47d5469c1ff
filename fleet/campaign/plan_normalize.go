package campaign

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ohler55/ojg/jp"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// Limits of a [Plan].
const (
	maxPlanName      = 120 // bytes
	maxPlanInFlight  = 2000
	maxPlanPerMinute = 60_000
	maxPlanDevices   = 100_000
	maxPlanJitter    = 24 * time.Hour
	maxPlanAttempts  = 10
	maxPlanFlaps     = 100
	maxPlanForbidden = 100
	maxToolName      = 128
	maxPlanHorizon   = windowHorizon
	planLife         = 7 * 24 * time.Hour // of a plan that names no end
)

// Normalize fills in the defaults of a plan and refuses what makes no sense,
// as an [fleet.Error] of kind [fleet.ErrInvalid] that names the field. It does nothing to
// a plan that it has seen before.
func (p *Plan) Normalize(now time.Time) error {
	for _, step := range []func() error{
		p.normalizeIdentity, p.normalizeDevices, p.normalizeMode, p.normalizePace, p.normalizeWaves, p.normalizeRules,
		p.normalizeHealth, func() error { return p.normalizeTimes(now) }, p.normalizeContinuous,
		p.normalizeWindows, func() error { return p.checkOpening(now) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// planError refuses a field of a plan.
func planError(code, field, format string, args ...any) error {
	return &fleet.Error{Kind: fleet.ErrInvalid, Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// An allowed range of a number, with the default that stands for zero.
type allowed struct {
	field            string
	least, most, def int
}

func (r allowed) check(n *int) error {
	if *n == 0 {
		*n = r.def
	}
	if *n < r.least || *n > r.most {
		return planError("invalid_"+lastPart(r.field), r.field, "%s is %d; it must be from %d to %d", r.field, *n, r.least,
			r.most)
	}
	return nil
}

// lastPart of "waves[0].percent" is "percent".
func lastPart(field string) string { return field[strings.LastIndexByte(field, '.')+1:] }

func checkPercent(field string, percent float64) error {
	if percent >= 0 && percent <= 100 && !math.IsNaN(percent) {
		return nil
	}
	return planError("invalid_"+lastPart(field), field, "%s is %g; it must be from 0 to 100", field, percent)
}

func checkSpan(field string, d, least, most time.Duration) error {
	if d >= least && d <= most {
		return nil
	}
	return planError("invalid_"+lastPart(field), field, "%s is %v; it must be from %v to %v", field, d, least, most)
}

func (p *Plan) normalizeIdentity() error {
	name, err := fleet.CleanLine("name", p.Name, maxPlanName)
	if err != nil {
		return err
	}
	if name == "" {
		return planError("invalid_name", "name", "a campaign needs a name of 1 to %d bytes", maxPlanName)
	}
	p.Name, p.Query = name, strings.TrimSpace(p.Query)
	if _, err := fleet.ParseQuery(p.Query); err != nil {
		return planError("invalid_query", "q", "%s", err)
	}
	return nil
}

func (p *Plan) normalizeDevices() error {
	if len(p.Devices) > maxPlanDevices {
		return planError("too_many_devices", "devices", "the plan names %d devices, at most %d are taken; use a query",
			len(p.Devices), maxPlanDevices)
	}
	for i, id := range p.Devices {
		parsed, err := fleet.ParseDeviceID(string(id))
		if err != nil {
			return planError("invalid_device_id", fmt.Sprintf("devices[%d]", i), "%s", err)
		}
		p.Devices[i] = parsed
	}
	return nil
}

func (p *Plan) normalizeMode() error {
	if p.Mode == "" {
		p.Mode = firmware.ModeAuto
	}
	if !slices.Contains([]firmware.DispatchMode{firmware.ModeAuto, firmware.ModePush, firmware.ModePull}, p.Mode) {
		return planError("invalid_mode", "mode", "%.40q is not a mode; write auto, push or pull", string(p.Mode))
	}
	if p.PullNow && p.Mode == firmware.ModePush {
		return planError("invalid_pull_now", "pull_now",
			"pull now restarts devices so that they poll; it needs mode pull or auto")
	}
	return nil
}

func (p *Plan) normalizePace() error {
	if err := (allowed{"max_in_flight", 1, maxPlanInFlight, 10}).check(&p.MaxInFlight); err != nil {
		return err
	}
	if err := (allowed{"max_per_minute", 0, maxPlanPerMinute, 0}).check(&p.MaxPerMinute); err != nil {
		return err
	}
	if err := (allowed{"max_attempts", 1, maxPlanAttempts, 3}).check(&p.MaxAttempts); err != nil {
		return err
	}
	return checkSpan("jitter_ms", p.Jitter, 0, maxPlanJitter)
}

const (
	maxWaves    = 20
	maxWaveName = 60 // bytes
	maxSoak     = 7 * 24 * time.Hour
)

// DefaultWaves are those of a plan that names none.
func DefaultWaves() []WavePlan {
	return []WavePlan{
		{Name: "canary", Percent: 1, Soak: 10 * time.Minute},
		{Name: "early", Percent: 10, Soak: 2 * time.Minute},
		{Name: "rest", Percent: 100, Soak: 2 * time.Minute},
	}
}

// normalizeWaves leaves a soak of zero: a device may be done as soon as its
// checks are.
func (p *Plan) normalizeWaves() error {
	if len(p.Waves) == 0 {
		p.Waves = DefaultWaves()
	}
	if len(p.Waves) > maxWaves {
		return planError("too_many_waves", "waves", "the plan has %d waves, at most %d are taken", len(p.Waves), maxWaves)
	}
	for i := range p.Waves {
		if err := p.Waves[i].normalize(i); err != nil {
			return err
		}
	}
	if err := p.checkNamedOnce(); err != nil {
		return err
	}
	return p.checkCover()
}

func (w *WavePlan) normalize(number int) error {
	field := fmt.Sprintf("waves[%d]", number)
	name, err := fleet.CleanLine("name", w.Name, maxWaveName)
	if err != nil {
		return planError("invalid_name", field+".name", "%s", err)
	}
	if w.Name = name; name == "" {
		w.Name = fmt.Sprintf("wave %d", number+1)
	}
	if w.SuccessPercent == 0 {
		w.SuccessPercent = 90
	}
	if w.Gate == "" {
		w.Gate = GateAuto
	}
	if w.Gate != GateAuto && w.Gate != GateManual {
		return planError("invalid_gate", field+".gate", "%.40q is not a gate; write auto or manual", string(w.Gate))
	}
	if err := w.normalizeSize(field); err != nil {
		return err
	}
	if err := checkPercent(field+".success_percent", w.SuccessPercent); err != nil {
		return err
	}
	if err := (allowed{field + ".min_sample", 1, maxPlanDevices, 1}).check(&w.MinSample); err != nil {
		return err
	}
	return checkSpan(field+".soak_ms", w.Soak, 0, maxSoak)
}

// normalizeSize wants exactly one way to say how large the wave is.
func (w *WavePlan) normalizeSize(field string) error {
	ways := 0
	for _, used := range []bool{w.Percent != 0, w.Count != 0, len(w.Devices) > 0} {
		if used {
			ways++
		}
	}
	if ways != 1 {
		return planError("invalid_wave_size", field, "%s must say its size in exactly one way: percent, count or devices",
			field)
	}
	if err := checkPercent(field+".percent", w.Percent); err != nil {
		return err
	}
	if err := (allowed{field + ".count", 0, maxPlanDevices, 0}).check(&w.Count); err != nil {
		return err
	}
	if len(w.Devices) > maxPlanDevices {
		return planError("too_many_devices", field+".devices", "%s names %d devices, at most %d are taken", field,
			len(w.Devices), maxPlanDevices)
	}
	for i, id := range w.Devices {
		parsed, err := fleet.ParseDeviceID(string(id))
		if err != nil {
			return planError("invalid_device_id", fmt.Sprintf("%s.devices[%d]", field, i), "%s", err)
		}
		w.Devices[i] = parsed
	}
	return nil
}

func (p *Plan) checkNamedOnce() error {
	seen := make(map[fleet.DeviceID]int)
	for number, w := range p.Waves {
		for _, id := range w.Devices {
			if other, twice := seen[id]; twice {
				return planError("device_in_two_waves", fmt.Sprintf("waves[%d].devices", number),
					"device %s is named in wave %d and again in wave %d", id, other+1, number+1)
			}
			seen[id] = number
		}
	}
	return nil
}

// checkCover wants ascending percents, and sees that waves which only count in
// percent end at all of the audience. Whether counts suffice shows when the
// audience is known.
func (p *Plan) checkCover() error {
	last, percents := 0.0, 0
	for i, w := range p.Waves {
		if w.Percent == 0 {
			continue
		}
		percents++
		if w.Percent <= last {
			return planError("invalid_waves", fmt.Sprintf("waves[%d].percent", i),
				"wave %d ends at %g %% of the audience, which an earlier one reached (%g %%): percents count from the start of the campaign", i+1, w.Percent, last)
		}
		last = w.Percent
	}
	counts := slices.ContainsFunc(p.Waves, func(w WavePlan) bool { return w.Count > 0 })
	if percents > 0 && last < 100 && !counts {
		return planError("waves_do_not_cover", "waves", "the waves end at %g %% of the audience; the last must end at 100",
			last)
	}
	return nil
}

const maxAbortRules = 20

// AbortClasses lists what an [AbortRule] can count.
var AbortClasses = []string{ClassAny, string(DeploymentFailed), string(DeploymentTimedOut),
	string(DeploymentRolledBack),
	string(DeploymentWrongBuild), string(DeploymentUnhealthy), string(DeploymentRejected)}

// normalizeRules gives a plan without rules the default ones; an empty list
// means none.
func (p *Plan) normalizeRules() error {
	if p.AbortRules == nil {
		p.AbortRules = DefaultAbortRules()
	}
	if len(p.AbortRules) > maxAbortRules {
		return planError("too_many_rules", "abort_rules", "the plan has %d abort rules, at most %d are taken",
			len(p.AbortRules), maxAbortRules)
	}
	for i := range p.AbortRules {
		if err := p.AbortRules[i].normalize(fmt.Sprintf("abort_rules[%d]", i), len(p.Waves)); err != nil {
			return err
		}
	}
	return nil
}

func (r *AbortRule) normalize(field string, waves int) error {
	r.Class, r.Scope, r.Action = cmp.Or(r.Class, ClassAny), AbortScope(cmp.Or(string(r.Scope), string(ScopeCampaign))),
		AbortAction(cmp.Or(string(r.Action), string(AbortPause)))
	if !slices.Contains(AbortClasses, r.Class) {
		return planError("invalid_class", field+".class", "%.40q is no outcome that a rule can count; write one of %v",
			r.Class, AbortClasses)
	}
	if !slices.Contains([]AbortScope{ScopeWave, ScopeCampaign, ScopeBoard}, r.Scope) {
		return planError("invalid_scope", field+".scope", "%.40q is not a scope; write wave, campaign or board",
			string(r.Scope))
	}
	if severity(r.Action) < 0 {
		return planError("invalid_action", field+".action",
			"%.40q is not an action; write pause, abort or abort_and_rollback", string(r.Action))
	}
	if err := checkPercent(field+".percent", r.Percent); err != nil {
		return err
	}
	if err := (allowed{field + ".min_executed", 1, maxPlanDevices, 1}).check(&r.MinExecuted); err != nil {
		return err
	}
	if r.Wave != 0 && r.Scope != ScopeWave {
		return planError("invalid_wave", field+".wave", "%s names a wave, but its scope is %s", field, r.Scope)
	}
	return allowed{field + ".wave", 0, waves, 0}.check(&r.Wave)
}

const (
	maxWindows  = 20
	maxCronText = 100 // bytes
	minWindow   = 5 * time.Minute
	maxWindow   = 7 * 24 * time.Hour
	// widestZone is how far a device's clock can be from UTC, either way.
	widestZone = 14 * time.Hour
)

func (p *Plan) normalizeTimes(now time.Time) error {
	p.StartAt, p.EndAt = inUTC(p.StartAt), inUTC(p.EndAt)
	p.EndBehavior = EndBehavior(cmp.Or(string(p.EndBehavior), string(EndStopRollout)))
	if !slices.Contains(endBehaviors, p.EndBehavior) {
		return planError("invalid_end_behavior", "end_behavior", "%.40q is not an end behaviour; write one of %v",
			string(p.EndBehavior), endBehaviors)
	}
	start, end := p.span(now)
	switch horizon := now.Add(maxPlanHorizon); {
	case start.After(horizon):
		return planError("start_too_far", "start_at", "the campaign would start at %s; plan at most 400 days ahead",
			start.Format(time.RFC3339))
	case p.EndAt != nil && !end.After(now):
		return planError("end_in_past", "end_at", "the campaign would end at %s, which has passed", end.Format(time.RFC3339))
	case !end.After(start):
		return planError("end_before_start", "end_at", "the campaign would end at %s, before it starts at %s",
			end.Format(time.RFC3339), start.Format(time.RFC3339))
	case end.After(horizon.Add(planLife)):
		return planError("end_too_far", "end_at", "the campaign would end at %s; plan at most 400 days ahead",
			end.Format(time.RFC3339))
	}
	return nil
}

// endBehaviors are ordered from the most patient to the least.
var endBehaviors = []EndBehavior{EndStopRollout, EndCancelQueued, EndAbortInFlight}

// span is when the campaign can dispatch.
func (p *Plan) span(now time.Time) (start, end time.Time) {
	start = now
	if p.StartAt != nil && p.StartAt.After(now) {
		start = *p.StartAt
	}
	if p.EndAt != nil {
		return start, *p.EndAt
	}
	return start, start.Add(planLife)
}

func (p *Plan) normalizeContinuous() error {
	if !p.Continuous {
		if p.MaxDevices != 0 {
			return planError("invalid_max_devices", "max_devices",
				"max_devices bounds a continuous campaign; this one takes the devices that match at its start")
		}
		return nil
	}
	if p.EndAt == nil {
		return planError("end_required", "end_at", "a continuous campaign takes in devices until it ends; say when")
	}
	if p.MaxDevices < 1 || p.MaxDevices > maxPlanDevices {
		return planError("max_devices_required", "max_devices", "a continuous campaign needs a cap: max_devices from 1 to %d",
			maxPlanDevices)
	}
	return nil
}

func (p *Plan) normalizeWindows() error {
	if len(p.Windows) > maxWindows {
		return planError("too_many_windows", "windows", "the plan has %d windows, at most %d are taken", len(p.Windows),
			maxWindows)
	}
	for i := range p.Windows {
		if err := p.Windows[i].normalize(fmt.Sprintf("windows[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func (w *Window) normalize(field string) error {
	w.Cron = strings.Join(strings.Fields(w.Cron), " ")
	if len(w.Cron) > maxCronText || len(strings.Fields(w.Cron)) != 5 {
		return planError("invalid_cron", field+".cron",
			"%.100q is not a time table; write five fields, such as \"0 2 * * *\" for two at night", w.Cron)
	}
	if _, err := parseCron(w.Cron); err != nil {
		return planError("invalid_cron", field+".cron", "%.100q is not a time table: %v", w.Cron, err)
	}
	if w.TimeZone == "" {
		w.TimeZone = DeviceZone
	}
	if w.TimeZone != DeviceZone {
		if _, err := loadZone(w.TimeZone); err != nil {
			return planError("unknown_time_zone", field+".time_zone", "%s", err)
		}
	}
	return checkSpan(field+".duration_ms", w.Duration, minWindow, maxWindow)
}

// checkOpening refuses windows that all stay shut while the campaign runs.
// Devices may be in any zone: theirs get the benefit of the doubt.
func (p *Plan) checkOpening(now time.Time) error {
	start, end := p.span(now)
	for _, w := range p.Windows {
		from, to := start, end
		if w.TimeZone == DeviceZone {
			from, to = from.Add(-widestZone), to.Add(widestZone)
		}
		if at, ok := NextWindow([]Window{w}, time.UTC, from, 0); ok && at.Before(to) {
			return nil
		}
	}
	if len(p.Windows) == 0 {
		return nil
	}
	hint := ""
	if p.EndAt == nil {
		hint = "; without end_at a campaign ends after a week"
	}
	return planError("window_never_opens", "windows", "no window opens between %s and %s%s", start.Format(time.RFC3339),
		end.Format(time.RFC3339), hint)
}

const (
	maxHealthChecks  = 10
	maxAssertions    = 20
	maxCheckRetries  = 10
	maxCheckArgs     = 8 << 10 // bytes
	maxPath          = 200
	maxAssertedValue = 1000
)

func (p *Plan) normalizeHealth() error {
	if err := (allowed{"min_heap_percent", 0, 100, 0}).check(&p.MinHeapPercent); err != nil {
		return err
	}
	if err := (allowed{"max_reconnects", 1, maxPlanFlaps, 3}).check(&p.MaxReconnects); err != nil {
		return err
	}
	if len(p.ForbidRemoved) > maxPlanForbidden {
		return planError("too_many_tools", "forbid_removed", "forbid_removed names %d tools, at most %d are taken",
			len(p.ForbidRemoved), maxPlanForbidden)
	}
	for i, name := range p.ForbidRemoved {
		if err := checkToolName(fmt.Sprintf("forbid_removed[%d]", i), name); err != nil {
			return err
		}
	}
	if len(p.HealthChecks) > maxHealthChecks {
		return planError("too_many_checks", "health_checks", "the plan has %d health checks, at most %d are taken",
			len(p.HealthChecks), maxHealthChecks)
	}
	for i := range p.HealthChecks {
		if err := p.HealthChecks[i].normalize(fmt.Sprintf("health_checks[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func checkToolName(field, name string) error {
	if name == "" || len(name) > maxToolName || fleet.CleanText(name, maxToolName) != name {
		return planError("invalid_tool", field, "%s is not the name of a tool: 1 to %d bytes on one line", field, maxToolName)
	}
	return nil
}

func (c *HealthCheck) normalize(field string) error {
	if err := checkToolName(field+".tool", c.Tool); err != nil {
		return err
	}
	if fleet.EffectOf(c.Tool) != fleet.EffectNone {
		return planError("invalid_tool", field+".tool", "%s takes the device away: that is no health check", c.Tool)
	}
	if len(c.Arguments) > 0 {
		var object map[string]any
		if len(c.Arguments) > maxCheckArgs || json.Unmarshal(c.Arguments, &object) != nil || object == nil {
			return planError("invalid_arguments", field+".arguments", "%s.arguments is not a JSON object of at most %d bytes",
				field, maxCheckArgs)
		}
	}
	if err := (allowed{field + ".retries", 0, maxCheckRetries, 0}).check(&c.Retries); err != nil {
		return err
	}
	if len(c.Assert) > maxAssertions {
		return planError("too_many_assertions", field+".assert", "%s has %d assertions, at most %d are taken", field,
			len(c.Assert), maxAssertions)
	}
	for i, a := range c.Assert {
		if err := a.validate(fmt.Sprintf("%s.assert[%d]", field, i)); err != nil {
			return err
		}
	}
	return nil
}

func (a Assertion) validate(field string) error {
	if !slices.Contains(AssertionOps, a.Op) {
		return planError("invalid_op", field+".op", "%.40q is not a comparison; write one of %v", a.Op, AssertionOps)
	}
	if err := checkPath(field+".path", a.Path); err != nil {
		return err
	}
	if a.Op == "exists" || a.Op == "unchanged" {
		if len(a.Value) > 0 && string(a.Value) != "null" {
			return planError("unexpected_value", field+".value", "%s compares with nothing; leave value out", a.Op)
		}
		return nil
	}
	return a.validateValue(field + ".value")
}

func checkPath(field, path string) error {
	if path == "" || len(path) > maxPath {
		return planError("invalid_path", field, "%s is a JSON path of 1 to %d bytes, such as $.battery.level", field, maxPath)
	}
	if _, err := jp.ParseString(path); err != nil {
		return planError("invalid_path", field, "%.80q is not a JSON path: %v", path, err)
	}
	if strings.Count(path, "..") > maxDescents {
		return planError("invalid_path", field, "%.80q looks into everything below (..) more than %d times", path,
			maxDescents)
	}
	return nil
}

func (a Assertion) validateValue(field string) error {
	var v any
	if len(a.Value) == 0 || len(a.Value) > maxAssertedValue || json.Unmarshal(a.Value, &v) != nil {
		return planError("value_required", field, "%s needs a JSON value of at most %d bytes to compare with", a.Op,
			maxAssertedValue)
	}
	switch a.Op {
	case "matches":
		pattern, ok := v.(string)
		if _, err := regexp.Compile(pattern); err != nil || !ok {
			return planError("invalid_pattern", field, "%.80s is not a regular expression in quotes", a.Value)
		}
	case "lt", "le", "gt", "ge":
		if _, ok := v.(float64); !ok {
			return planError("invalid_value", field, "%s compares with a number, not with %.80s", a.Op, a.Value)
		}
	}
	return nil
}

// editableWhileRunning are the fields, by their JSON names, that do not touch
// what is installed where.
var editableWhileRunning = []string{"max_in_flight", "max_per_minute", "abort_rules", "windows", "jitter_ns", "end_at",
	"end_behavior"}

// RunningEdit refuses a change to a running campaign's plan that reaches
// further than pace, windows, abort rules, jitter and end.
func RunningEdit(before, after Plan) error {
	old, new := planFields(before), planFields(after)
	names := make(map[string]bool)
	for name := range old {
		names[name] = true
	}
	for name := range new {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if slices.Contains(editableWhileRunning, name) || string(old[name]) == string(new[name]) {
			continue
		}
		return &fleet.Error{Kind: fleet.ErrConflict, Code: "campaign_running", Field: name,
			Message: name + " cannot change once a campaign has started; pace, windows, abort rules, jitter and end can"}
	}
	return nil
}

func planFields(p Plan) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(canonicalPlan(p), &fields) != nil {
		return nil
	}
	return fields
}

// Loosens reports whether a change that [RunningEdit] allows lets a campaign
// run faster, longer, at more times or through more failures than before: that
// needs a new approval, tightening does not.
func Loosens(before, after Plan) bool {
	return after.MaxInFlight > before.MaxInFlight ||
		raisesLimit(before.MaxPerMinute, after.MaxPerMinute) ||
		after.Jitter < before.Jitter ||
		endsLater(before.EndAt, after.EndAt) ||
		slices.Index(endBehaviors, after.EndBehavior) < slices.Index(endBehaviors, before.EndBehavior) ||
		loosensRules(before.AbortRules, after.AbortRules) ||
		loosensWindows(before.Windows, after.Windows)
}

// raisesLimit compares limits of which 0 is none.
func raisesLimit(before, after int) bool {
	return before != 0 && (after == 0 || after > before)
}

// endsLater takes a change from or to the default end as later: it depends on
// a start that plans do not know.
func endsLater(before, after *time.Time) bool {
	if before == nil || after == nil {
		return before != after
	}
	return after.After(*before)
}

// loosensRules wants for every rule one that fires no later and does no less.
func loosensRules(before, after []AbortRule) bool {
	return slices.ContainsFunc(before, func(old AbortRule) bool {
		return !slices.ContainsFunc(after, old.coveredBy)
	})
}

func (r AbortRule) coveredBy(other AbortRule) bool {
	return (other.Class == r.Class || other.Class == ClassAny) && other.Scope == r.Scope &&
		(other.Wave == r.Wave || other.Wave == 0) &&
		other.MinExecuted <= r.MinExecuted && other.Percent <= r.Percent && severity(other.Action) >= severity(r.Action)
}

// loosensWindows wants every window inside one that was there.
func loosensWindows(before, after []Window) bool {
	if len(before) == 0 {
		return false
	}
	return len(after) == 0 || slices.ContainsFunc(after, func(w Window) bool {
		return !slices.ContainsFunc(before, func(old Window) bool {
			return w.Cron == old.Cron && w.TimeZone == old.TimeZone && w.Duration <= old.Duration
		})
	})
}
