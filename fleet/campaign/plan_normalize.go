package campaign

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ohler55/ojg/jp"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// Limits of a [Plan].
const (
	maxPlanName      = 120 // characters
	maxPlanInFlight  = 2000
	maxPlanPerMinute = 60_000
	maxPlanDevices   = 100_000
	maxPlanJitter    = 24 * time.Hour
	maxPlanAttempts  = 10
	maxPlanFlaps     = 100
	maxPlanForbidden = 100
	maxToolName      = 128
	maxPlanHorizon   = fleet.WindowHorizon
	planLife         = 7 * 24 * time.Hour // of a plan without an end
)

// Normalize applies the defaults of a plan and refuses invalid values with a [fleet.Error] of
// kind [fleet.ErrInvalid] that names the field. It does not change a normalized plan.
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

// An allowed is the range of a number and the default that replaces zero.
type allowed struct {
	field            string
	least, most, def int
}

func (r allowed) check(n *int) error {
	if *n == 0 {
		*n = r.def
	}
	if *n < r.least || *n > r.most {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_"+lastPart(r.field)+".range", "field", r.field, "value", *n,
			"least", r.least, "most", r.most).At(r.field)
	}
	return nil
}

// lastPart returns the part after the last full stop: "percent" of "waves[0].percent".
func lastPart(field string) string { return field[strings.LastIndexByte(field, '.')+1:] }

func checkPercent(field string, percent float64) error {
	if percent >= 0 && percent <= 100 && !math.IsNaN(percent) {
		return nil
	}
	return fleet.Refuse(fleet.ErrInvalid, "invalid_"+lastPart(field)+".range", "field", field, "value", percent,
		"least", 0, "most", 100).At(field)
}

func checkSpan(field string, d, least, most time.Duration) error {
	if d >= least && d <= most {
		return nil
	}
	return fleet.Refuse(fleet.ErrInvalid, "invalid_"+lastPart(field)+".span", "field", field, "given_ms", d,
		"least_ms", least, "most_ms", most).At(field)
}

func (p *Plan) normalizeIdentity() error {
	name, err := fleet.CleanLine("name", p.Name, maxPlanName)
	if err != nil {
		return err
	}
	if name == "" {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_name.campaign", "limit", maxPlanName).At("name")
	}
	p.Name, p.Query = name, strings.TrimSpace(p.Query)
	if _, err := fleet.ParseQuery(p.Query); err != nil {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_query.cause", "cause", fleet.CauseOf(err)).At("q")
	}
	return nil
}

func (p *Plan) normalizeDevices() error {
	if len(p.Devices) > maxPlanDevices {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_devices.plan", "n", len(p.Devices),
			"max", maxPlanDevices).At("devices")
	}
	for i, id := range p.Devices {
		parsed, err := fleet.ParseDeviceID(string(id))
		if err != nil {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_device_id.cause",
				"cause", fleet.CauseOf(err)).At(fmt.Sprintf("devices[%d]", i))
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
		return fleet.Refuse(fleet.ErrInvalid, "invalid_mode.campaign",
			"value", string(p.Mode)).At("mode")
	}
	if p.PullNow && p.Mode == firmware.ModePush {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_pull_now").At("pull_now")
	}
	return nil
}

func (p *Plan) normalizePace() error {
	if err := (allowed{"max_in_flight", 1, maxPlanInFlight, defaultInFlight}).check(&p.MaxInFlight); err != nil {
		return err
	}
	if err := (allowed{"max_per_minute", 0, maxPlanPerMinute, 0}).check(&p.MaxPerMinute); err != nil {
		return err
	}
	if err := (allowed{"max_attempts", 1, maxPlanAttempts, defaultAttempts}).check(&p.MaxAttempts); err != nil {
		return err
	}
	return checkSpan("jitter_ms", p.Jitter, 0, maxPlanJitter)
}

const (
	maxWaves    = 20
	maxWaveName = 60 // characters
	maxSoak     = 7 * 24 * time.Hour
)

// normalizeWaves leaves a soak of zero unchanged: a device may be done as soon as its checks are.
func (p *Plan) normalizeWaves() error {
	if len(p.Waves) == 0 {
		p.Waves = DefaultWaves()
	}
	if len(p.Waves) > maxWaves {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_waves", "n", len(p.Waves), "max", maxWaves).At("waves")
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
		return fleet.Refuse(fleet.ErrInvalid, "invalid_name.cause", "cause", fleet.CauseOf(err)).At(field + ".name")
	}
	if w.Name = name; name == "" {
		w.Name = fmt.Sprintf("wave %d", number+1)
	}
	if w.SuccessPercent == 0 {
		w.SuccessPercent = defaultSuccess
	}
	if w.Gate == "" {
		w.Gate = GateAuto
	}
	if w.Gate != GateAuto && w.Gate != GateManual {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_gate",
			"value", string(w.Gate)).At(field + ".gate")
	}
	if err := w.normalizeSize(field); err != nil {
		return err
	}
	if err := checkPercent(field+".success_percent", w.SuccessPercent); err != nil {
		return err
	}
	if err := (allowed{field + ".min_sample", 1, maxPlanDevices, defaultSample}).check(&w.MinSample); err != nil {
		return err
	}
	return checkSpan(field+".soak_ms", w.Soak, 0, maxSoak)
}

// normalizeSize requires exactly one way to give the size of the wave.
func (w *WavePlan) normalizeSize(field string) error {
	ways := 0
	for _, used := range []bool{w.Percent != 0, w.Count != 0, len(w.Devices) > 0} {
		if used {
			ways++
		}
	}
	if ways != 1 {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_wave_size", "field", field).At(field)
	}
	if err := checkPercent(field+".percent", w.Percent); err != nil {
		return err
	}
	if err := (allowed{field + ".count", 0, maxPlanDevices, 0}).check(&w.Count); err != nil {
		return err
	}
	if len(w.Devices) > maxPlanDevices {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_devices.wave", "field", field, "n", len(w.Devices),
			"max", maxPlanDevices).At(field + ".devices")
	}
	for i, id := range w.Devices {
		parsed, err := fleet.ParseDeviceID(string(id))
		if err != nil {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_device_id.cause",
				"cause", fleet.CauseOf(err)).At(fmt.Sprintf("%s.devices[%d]", field, i))
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
				return fleet.Refuse(fleet.ErrInvalid, "device_in_two_waves", "device", id, "wave", other+1,
					"again", number+1).At(fmt.Sprintf("waves[%d].devices", number))
			}
			seen[id] = number
		}
	}
	return nil
}

// checkCover requires ascending percents, and 100 at the end if all waves use percents. Whether
// counts cover the audience can be checked only when the audience is known.
func (p *Plan) checkCover() error {
	last, percents := 0.0, 0
	for i, w := range p.Waves {
		if w.Percent == 0 {
			continue
		}
		percents++
		if w.Percent <= last {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_waves.reached", "wave", i+1, "percent", w.Percent,
				"last", last).At(fmt.Sprintf("waves[%d].percent", i))
		}
		last = w.Percent
	}
	counts := slices.ContainsFunc(p.Waves, func(w WavePlan) bool { return w.Count > 0 })
	if percents > 0 && last < 100 && !counts {
		return fleet.Refuse(fleet.ErrInvalid, "waves_do_not_cover.percent", "percent", last).At("waves")
	}
	return nil
}

const maxAbortRules = 20

// AbortClasses lists the classes that an [AbortRule] can count.
var AbortClasses = []string{ClassAny, string(DeploymentFailed), string(DeploymentTimedOut),
	string(DeploymentRolledBack),
	string(DeploymentWrongBuild), string(DeploymentUnhealthy), string(DeploymentRejected)}

// normalizeRules gives a plan without rules the default ones. An empty list means no rules.
func (p *Plan) normalizeRules() error {
	if p.AbortRules == nil {
		p.AbortRules = DefaultAbortRules()
	}
	if len(p.AbortRules) > maxAbortRules {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_rules.abort", "n", len(p.AbortRules),
			"max", maxAbortRules).At("abort_rules")
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
		return fleet.Refuse(fleet.ErrInvalid, "invalid_class", "value", string(r.Class),
			"choices", AbortClasses).At(field + ".class")
	}
	if !slices.Contains([]AbortScope{ScopeWave, ScopeCampaign, ScopeBoard}, r.Scope) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_scope",
			"value", string(r.Scope)).At(field + ".scope")
	}
	if r.Measure == MeasureBound {
		r.Measure = ""
	}
	if r.Measure != "" && r.Measure != MeasureShare {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_measure",
			"value", string(r.Measure)).At(field + ".measure")
	}
	if severity(r.Action) < 0 {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_action",
			"value", string(r.Action)).At(field + ".action")
	}
	if err := checkPercent(field+".percent", r.Percent); err != nil {
		return err
	}
	if err := (allowed{field + ".min_executed", 1, maxPlanDevices, 1}).check(&r.MinExecuted); err != nil {
		return err
	}
	if r.Wave != 0 && r.Scope != ScopeWave {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_wave.scope", "field", field, "scope", r.Scope).At(field + ".wave")
	}
	return allowed{field + ".wave", 0, waves, 0}.check(&r.Wave)
}

const (
	maxWindows = 20
	// widestZone is the largest offset of a device's clock from UTC in either direction.
	widestZone = 14 * time.Hour
)

func (p *Plan) normalizeTimes(now time.Time) error {
	p.StartAt, p.EndAt = inUTC(p.StartAt), inUTC(p.EndAt)
	p.EndBehavior = EndBehavior(cmp.Or(string(p.EndBehavior), string(EndStopRollout)))
	if !slices.Contains(endBehaviors, p.EndBehavior) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_end_behavior", "value", string(p.EndBehavior),
			"choices", endBehaviors).At("end_behavior")
	}
	start, end := p.span(now)
	switch horizon := now.Add(maxPlanHorizon); {
	case start.After(horizon):
		return fleet.Refuse(fleet.ErrInvalid, "start_too_far", "start_at", start).At("start_at")
	case p.EndAt != nil && !end.After(now):
		return fleet.Refuse(fleet.ErrInvalid, "end_in_past", "end_at", end).At("end_at")
	case !end.After(start):
		return fleet.Refuse(fleet.ErrInvalid, "end_before_start", "end_at", end, "start_at", start).At("end_at")
	case end.After(horizon.Add(planLife)):
		return fleet.Refuse(fleet.ErrInvalid, "end_too_far", "end_at", end).At("end_at")
	}
	return nil
}

// endBehaviors are ordered from the mildest to the strictest.
var endBehaviors = []EndBehavior{EndStopRollout, EndCancelQueued, EndAbortInFlight}

// span returns the time span in which the campaign can dispatch.
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
			return fleet.Refuse(fleet.ErrInvalid, "invalid_max_devices.fixed").At("max_devices")
		}
		return nil
	}
	if p.EndAt == nil {
		return fleet.Refuse(fleet.ErrInvalid, "end_required").At("end_at")
	}
	if p.MaxDevices < 1 || p.MaxDevices > maxPlanDevices {
		return fleet.Refuse(fleet.ErrInvalid, "max_devices_required", "max", maxPlanDevices).At("max_devices")
	}
	return nil
}

func (p *Plan) normalizeWindows() error {
	if len(p.Windows) > maxWindows {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_windows", "n", len(p.Windows), "max", maxWindows).At("windows")
	}
	for i := range p.Windows {
		if err := normalizeWindow(&p.Windows[i], fmt.Sprintf("windows[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func normalizeWindow(w *Window, field string) error {
	if w.TimeZone == "" {
		w.TimeZone = DeviceZone
	}
	if err := w.CheckTimes(field); err != nil {
		return err
	}
	return checkSpan(field+".duration_ms", w.Duration, fleet.MinWindow, fleet.MaxWindow)
}

// checkOpening refuses windows that all stay closed while the campaign runs. Windows in the
// devices' zones are accepted if they could open in any zone.
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
	if p.EndAt == nil {
		return fleet.Refuse(fleet.ErrInvalid, "window_never_opens.week", "start_at", start, "end_at", end).At("windows")
	}
	return fleet.Refuse(fleet.ErrInvalid, "window_never_opens.end", "start_at", start, "end_at", end).At("windows")
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
	if err := (allowed{"max_reconnects", 1, maxPlanFlaps, defaultReconnects}).check(&p.MaxReconnects); err != nil {
		return err
	}
	if len(p.ForbidRemoved) > maxPlanForbidden {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_tools", "n", len(p.ForbidRemoved),
			"max", maxPlanForbidden).At("forbid_removed")
	}
	for i, name := range p.ForbidRemoved {
		if err := checkToolName(fmt.Sprintf("forbid_removed[%d]", i), name); err != nil {
			return err
		}
	}
	if len(p.HealthChecks) > maxHealthChecks {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_checks", "n", len(p.HealthChecks),
			"max", maxHealthChecks).At("health_checks")
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
		return fleet.Refuse(fleet.ErrInvalid, "invalid_tool.name", "field", field, "limit", maxToolName).At(field)
	}
	return nil
}

func (c *HealthCheck) normalize(field string) error {
	if err := checkToolName(field+".tool", c.Tool); err != nil {
		return err
	}
	if fleet.EffectOf(c.Tool) != fleet.EffectNone {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_tool.leaves", "tool", c.Tool).At(field + ".tool")
	}
	if len(c.Arguments) > 0 {
		var object map[string]any
		if len(c.Arguments) > maxCheckArgs || json.Unmarshal(c.Arguments, &object) != nil || object == nil {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_arguments.check", "field", field,
				"limit", maxCheckArgs).At(field + ".arguments")
		}
	}
	if err := (allowed{field + ".retries", 0, maxCheckRetries, 0}).check(&c.Retries); err != nil {
		return err
	}
	if len(c.Assert) > maxAssertions {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_assertions", "field", field, "n", len(c.Assert),
			"max", maxAssertions).At(field + ".assert")
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
		return fleet.Refuse(fleet.ErrInvalid, "invalid_op", "value", string(a.Op),
			"choices", AssertionOps).At(field + ".op")
	}
	if err := checkPath(field+".path", a.Path); err != nil {
		return err
	}
	if a.Op == "exists" || a.Op == "unchanged" {
		if len(a.Value) > 0 && string(a.Value) != "null" {
			return fleet.Refuse(fleet.ErrInvalid, "unexpected_value", "op", a.Op).At(field + ".value")
		}
		return nil
	}
	return a.validateValue(field + ".value")
}

func checkPath(field, path string) error {
	if path == "" || len(path) > maxPath {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_path.length", "field", field, "limit", maxPath).At(field)
	}
	if _, err := jp.ParseString(path); err != nil {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_path.syntax", "value", path,
			"detail", err.Error()).At(field)
	}
	if strings.Count(path, "..") > maxDescents {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_path.descents", "value", path,
			"limit", maxDescents).At(field)
	}
	return nil
}

func (a Assertion) validateValue(field string) error {
	var v any
	if len(a.Value) == 0 || len(a.Value) > maxAssertedValue || json.Unmarshal(a.Value, &v) != nil {
		return fleet.Refuse(fleet.ErrInvalid, "value_required", "op", a.Op, "limit", maxAssertedValue).At(field)
	}
	switch a.Op {
	case "matches":
		pattern, ok := v.(string)
		_, err := compilePattern(pattern)
		if errors.Is(err, errLargePattern) {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_pattern.large", "limit", maxPatternSteps).At(field)
		}
		if err != nil || !ok {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_pattern", "value", string(a.Value)).At(field)
		}
	case "lt", "le", "gt", "ge":
		if _, ok := v.(float64); !ok {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_value", "op", a.Op,
				"value", string(a.Value)).At(field)
		}
	}
	return nil
}

// editableWhileRunning are the JSON names of the fields that do not affect what is installed where.
var editableWhileRunning = []string{"max_in_flight", "max_per_minute", "abort_rules", "windows", "jitter_ns", "end_at",
	"end_behavior"}

// RunningEdit refuses a change to a running campaign's plan of anything but pace, windows,
// abort rules, jitter and end.
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
		return fleet.Refuse(fleet.ErrConflict, "campaign_running.field", "field", name).At(name)
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

// Loosens reports whether a change that [RunningEdit] allows lets a campaign run faster, longer, at
// more times or through more failures than before. Loosening needs a new approval; tightening does not.
func Loosens(before, after Plan) bool {
	return after.MaxInFlight > before.MaxInFlight ||
		raisesLimit(before.MaxPerMinute, after.MaxPerMinute) ||
		after.Jitter < before.Jitter ||
		endsLater(before.EndAt, after.EndAt) ||
		slices.Index(endBehaviors, after.EndBehavior) < slices.Index(endBehaviors, before.EndBehavior) ||
		loosensRules(before.AbortRules, after.AbortRules) ||
		loosensWindows(before.Windows, after.Windows)
}

// raisesLimit compares limits; 0 is unlimited.
func raisesLimit(before, after int) bool {
	return before != 0 && (after == 0 || after > before)
}

// endsLater treats a change from or to the default end as later, because the default depends on
// the start, which the plan does not contain.
func endsLater(before, after *time.Time) bool {
	if before == nil || after == nil {
		return before != after
	}
	return after.After(*before)
}

// loosensRules reports whether an old rule has no new rule that fires as early and does as much.
func loosensRules(before, after []AbortRule) bool {
	return slices.ContainsFunc(before, func(old AbortRule) bool {
		return !slices.ContainsFunc(after, old.coveredBy)
	})
}

func (r AbortRule) coveredBy(other AbortRule) bool {
	return (other.Class == r.Class || other.Class == ClassAny) && other.Scope == r.Scope &&
		(other.Wave == r.Wave || other.Wave == 0) &&
		other.MinExecuted <= r.MinExecuted && (other.Measure == r.Measure || other.byShare() || other.Percent == 0) &&
		other.Percent <= r.Percent && severity(other.Action) >= severity(r.Action)
}

// loosensWindows reports whether a new window is not inside an old one.
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
