package campaign_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

func TestNormalizeDefaults(t *testing.T) {
	p := campaign.Plan{Name: "  July  ", Release: uuid.Max, Query: " board:a "}
	if err := p.Normalize(noon); err != nil {
		t.Fatal(err)
	}
	want := campaign.Plan{
		Name: "July", Release: uuid.Max, Query: "board:a", Mode: firmware.ModeAuto,
		Waves: []campaign.WavePlan{
			{Name: "canary", Percent: 1, SuccessPercent: 90, MinSample: 1, Soak: 10 * time.Minute, Gate: campaign.GateAuto},
			{Name: "early", Percent: 10, SuccessPercent: 90, MinSample: 1, Soak: 2 * time.Minute, Gate: campaign.GateAuto},
			{Name: "rest", Percent: 100, SuccessPercent: 90, MinSample: 1, Soak: 2 * time.Minute, Gate: campaign.GateAuto},
		},
		AbortRules: []campaign.AbortRule{
			{Class: "rolled_back", MinExecuted: 1, Scope: campaign.ScopeWave, Wave: 1, Action: campaign.AbortPause},
			{Class: "any", MinExecuted: 5, Percent: 10, Scope: campaign.ScopeCampaign, Action: campaign.AbortPause},
		},
		MaxInFlight: 10, MaxAttempts: 3, MaxReconnects: 3, EndBehavior: campaign.EndStopRollout,
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	if err := p.Normalize(noon); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("a second time changes the plan, and with it its digest: %s", diff)
	}
}

// TestNormalizeKeeps: explicit values are kept. An empty list of rules means no rules, and a soak
// of zero means no soak.
func TestNormalizeKeeps(t *testing.T) {
	p := campaign.Plan{Name: "x", Waves: []campaign.WavePlan{{Count: 3}, {Percent: 100, Soak: time.Hour,
		Gate: campaign.GateManual}}, AbortRules: []campaign.AbortRule{},
		Windows: []campaign.Window{{Cron: " 0  2 * * * ", Duration: time.Hour}}}
	if err := p.Normalize(noon); err != nil {
		t.Fatal(err)
	}
	if len(p.AbortRules) != 0 || p.Waves[0].Soak != 0 || p.Waves[0].Name != "wave 1" ||
		p.Waves[1].Gate != campaign.GateManual ||
		p.Windows[0] != (campaign.Window{Cron: "0 2 * * *", Duration: time.Hour, TimeZone: campaign.DeviceZone}) {
		t.Errorf("%+v", p)
	}
}

func TestNormalizeRefuses(t *testing.T) {
	type P = campaign.Plan
	past, soon, later := noon.Add(-time.Hour), noon.Add(time.Hour), noon.Add(48*time.Hour)
	far := noon.AddDate(2, 0, 0)
	window := func(cron string, d time.Duration, zone string) []campaign.Window {
		return []campaign.Window{{Cron: cron, Duration: d, TimeZone: zone}}
	}
	check := func(op, path, value string) []campaign.HealthCheck {
		return []campaign.HealthCheck{{Tool: "self.get_device_status", Assert: []campaign.Assertion{{Path: path, Op: op,
			Value: json.RawMessage(value)}}}}
	}
	rule := func(r campaign.AbortRule) func(*P) { return func(p *P) { p.AbortRules = []campaign.AbortRule{r} } }
	waves := func(ws ...campaign.WavePlan) func(*P) { return func(p *P) { p.Waves = ws } }
	tests := []struct {
		name   string
		change func(p *P)
		code   string
		field  string
	}{
		{"no name", func(p *P) { p.Name = "  " }, "invalid_name", "name"},
		{"long name", func(p *P) { p.Name = strings.Repeat("n", 121) }, "invalid_name", "name"},
		{"two lines", func(p *P) { p.Name = "a\nb" }, "invalid_name", "name"},
		{"query", func(p *P) { p.Query = "colour:red" }, "invalid_query", "q"},
		{"long query", func(p *P) { p.Query = strings.Repeat("q", 5000) }, "invalid_query", "q"},
		{"device", func(p *P) { p.Devices = []fleet.DeviceID{"a085e3112233", "../x"} }, "invalid_device_id", "devices[1]"},
		{"mode", func(p *P) { p.Mode = "carrier pigeon" }, "invalid_mode", "mode"},
		{"push now", func(p *P) { p.Mode, p.PullNow = "push", true }, "invalid_pull_now", "pull_now"},
		{"in flight", func(p *P) { p.MaxInFlight = 2001 }, "invalid_max_in_flight", "max_in_flight"},
		{"negative in flight", func(p *P) { p.MaxInFlight = -1 }, "invalid_max_in_flight", "max_in_flight"},
		{"per minute", func(p *P) { p.MaxPerMinute = -1 }, "invalid_max_per_minute", "max_per_minute"},
		{"attempts", func(p *P) { p.MaxAttempts = 11 }, "invalid_max_attempts", "max_attempts"},
		{"jitter", func(p *P) { p.Jitter = -1 }, "invalid_jitter_ms", "jitter_ms"},
		{"heap", func(p *P) { p.MinHeapPercent = 101 }, "invalid_min_heap_percent", "min_heap_percent"},
		{"reconnects", func(p *P) { p.MaxReconnects = -1 }, "invalid_max_reconnects", "max_reconnects"},

		{"21 waves", func(p *P) { p.Waves = make([]campaign.WavePlan, 21) }, "too_many_waves", "waves"},
		{"wave without size", waves(campaign.WavePlan{Name: "x"}), "invalid_wave_size", "waves[0]"},
		{"wave of two sizes", waves(campaign.WavePlan{Percent: 1, Count: 1}), "invalid_wave_size", "waves[0]"},
		{"percent above all", waves(campaign.WavePlan{Percent: 101}), "invalid_percent", "waves[0].percent"},
		{"negative count", waves(campaign.WavePlan{Count: -1}), "invalid_count", "waves[0].count"},
		{"descending", waves(campaign.WavePlan{Percent: 50}, campaign.WavePlan{Percent: 50}), "invalid_waves",
			"waves[1].percent"},
		{"not all", waves(campaign.WavePlan{Percent: 50}), "waves_do_not_cover", "waves"},
		{"named twice", waves(campaign.WavePlan{Devices: []fleet.DeviceID{"a085e3112233"}},
			campaign.WavePlan{Devices: []fleet.DeviceID{"A0:85:E3:11:22:33"}}), "device_in_two_waves", "waves[1].devices"},
		{"named badly", waves(campaign.WavePlan{Devices: []fleet.DeviceID{""}}), "invalid_device_id", "waves[0].devices[0]"},
		{"success", waves(campaign.WavePlan{Percent: 100, SuccessPercent: 120}), "invalid_success_percent",
			"waves[0].success_percent"},
		{"success is no number", waves(campaign.WavePlan{Percent: 100, SuccessPercent: math.NaN()}),
			"invalid_success_percent", "waves[0].success_percent"},
		{"sample", waves(campaign.WavePlan{Percent: 100, MinSample: -2}), "invalid_min_sample", "waves[0].min_sample"},
		{"negative soak", waves(campaign.WavePlan{Percent: 100, Soak: -1}), "invalid_soak_ms", "waves[0].soak_ms"},
		{"long soak", waves(campaign.WavePlan{Percent: 100, Soak: 8 * 24 * time.Hour}), "invalid_soak_ms",
			"waves[0].soak_ms"},
		{"gate", waves(campaign.WavePlan{Percent: 100, Gate: "ajar"}), "invalid_gate", "waves[0].gate"},
		{"wave name", waves(campaign.WavePlan{Percent: 100, Name: strings.Repeat("x", 61)}), "invalid_name", "waves[0].name"},

		{"21 rules", func(p *P) { p.AbortRules = make([]campaign.AbortRule, 21) }, "too_many_rules", "abort_rules"},
		{"class", rule(campaign.AbortRule{Class: "sad"}), "invalid_class", "abort_rules[0].class"},
		{"class that is no failure", rule(campaign.AbortRule{Class: "skipped"}), "invalid_class", "abort_rules[0].class"},
		{"scope", rule(campaign.AbortRule{Scope: "galaxy"}), "invalid_scope", "abort_rules[0].scope"},
		{"action", rule(campaign.AbortRule{Action: "panic"}), "invalid_action", "abort_rules[0].action"},
		{"rule percent", rule(campaign.AbortRule{Percent: -1}), "invalid_percent", "abort_rules[0].percent"},
		{"wave that is not", rule(campaign.AbortRule{Scope: "wave", Wave: 4}), "invalid_wave", "abort_rules[0].wave"},
		{"wave of a campaign rule", rule(campaign.AbortRule{Wave: 1}), "invalid_wave", "abort_rules[0].wave"},
		{"sample of a rule", rule(campaign.AbortRule{MinExecuted: -1}), "invalid_min_executed",
			"abort_rules[0].min_executed"},

		{"end behaviour", func(p *P) { p.EndBehavior = "explode" }, "invalid_end_behavior", "end_behavior"},
		{"end in the past", func(p *P) { p.EndAt = &past }, "end_in_past", "end_at"},
		{"end before start", func(p *P) { p.StartAt, p.EndAt = &later, &soon }, "end_before_start", "end_at"},
		{"start in two years", func(p *P) { p.StartAt = &far }, "start_too_far", "start_at"},
		{"end in two years", func(p *P) { p.EndAt = &far }, "end_too_far", "end_at"},
		{"continuous without end", func(p *P) { p.Continuous, p.MaxDevices = true, 10 }, "end_required", "end_at"},
		{"continuous without cap", func(p *P) { p.Continuous, p.EndAt = true, &later }, "max_devices_required",
			"max_devices"},
		{"cap of a snapshot", func(p *P) { p.MaxDevices = 10 }, "invalid_max_devices", "max_devices"},

		{"21 windows", func(p *P) { p.Windows = make([]campaign.Window, 21) }, "too_many_windows", "windows"},
		{"four fields", func(p *P) { p.Windows = window("0 2 * *", time.Hour, "UTC") }, "invalid_cron", "windows[0].cron"},
		{"hour 25", func(p *P) { p.Windows = window("0 25 * * *", time.Hour, "UTC") }, "invalid_cron", "windows[0].cron"},
		{"step of zero", func(p *P) { p.Windows = window("*/0 2 * * *", time.Hour, "UTC") }, "invalid_cron",
			"windows[0].cron"},
		{"zone in the time table", func(p *P) { p.Windows = window("TZ=UTC 2 * * *", time.Hour, "UTC") }, "invalid_cron",
			"windows[0].cron"},
		{"daily", func(p *P) { p.Windows = window("@daily", time.Hour, "UTC") }, "invalid_cron", "windows[0].cron"},
		{"zone", func(p *P) { p.Windows = window("0 2 * * *", time.Hour, "Mars/Olympus") }, "unknown_time_zone",
			"windows[0].time_zone"},
		{"zone of the server", func(p *P) { p.Windows = window("0 2 * * *", time.Hour, "Local") }, "unknown_time_zone",
			"windows[0].time_zone"},
		{"zone from the disk", func(p *P) { p.Windows = window("0 2 * * *", time.Hour, "../../etc/passwd") },
			"unknown_time_zone", "windows[0].time_zone"},
		{"short window", func(p *P) { p.Windows = window("0 2 * * *", time.Minute, "UTC") }, "invalid_duration_ms",
			"windows[0].duration_ms"},
		{"long window", func(p *P) { p.Windows = window("0 2 * * *", 8*24*time.Hour, "UTC") }, "invalid_duration_ms",
			"windows[0].duration_ms"},
		{"30 February", func(p *P) { p.Windows = window("0 2 30 2 *", time.Hour, "UTC") }, "window_never_opens", "windows"},
		{"after the end", func(p *P) { p.EndAt, p.Windows = &soon, window("0 2 * * *", time.Hour, "UTC") },
			"window_never_opens", "windows"},
		{"after a week", func(p *P) { p.Windows = window("0 2 20 * *", time.Hour, campaign.DeviceZone) },
			"window_never_opens", "windows"},

		{"11 checks", func(p *P) { p.HealthChecks = make([]campaign.HealthCheck, 11) }, "too_many_checks", "health_checks"},
		{"no tool", func(p *P) { p.HealthChecks = make([]campaign.HealthCheck, 1) }, "invalid_tool", "health_checks[0].tool"},
		{"reboot as a check", func(p *P) { p.HealthChecks = []campaign.HealthCheck{{Tool: "self.reboot"}} }, "invalid_tool",
			"health_checks[0].tool"},
		{"arguments", func(p *P) { p.HealthChecks = []campaign.HealthCheck{{Tool: "x", Arguments: json.RawMessage(`[1]`)}} },
			"invalid_arguments", "health_checks[0].arguments"},
		{"null arguments", func(p *P) {
			p.HealthChecks = []campaign.HealthCheck{{Tool: "x", Arguments: json.RawMessage(
				`null`)}}
		}, "invalid_arguments", "health_checks[0].arguments"},
		{"retries", func(p *P) { p.HealthChecks = []campaign.HealthCheck{{Tool: "x", Retries: 99}} }, "invalid_retries",
			"health_checks[0].retries"},
		{"op", func(p *P) { p.HealthChecks = check("about", "$.a", "1") }, "invalid_op", "health_checks[0].assert[0].op"},
		{"path that finds too much", func(p *P) { p.HealthChecks = check("exists", "$..*..*..*", "") }, "invalid_path",
			"health_checks[0].assert[0].path"},
		{"path", func(p *P) { p.HealthChecks = check("eq", "$.a[", "1") }, "invalid_path", "health_checks[0].assert[0].path"},
		{"no path", func(p *P) { p.HealthChecks = check("eq", "", "1") }, "invalid_path", "health_checks[0].assert[0].path"},
		{"no value", func(p *P) { p.HealthChecks = check("eq", "$.a", "") }, "value_required",
			"health_checks[0].assert[0].value"},
		{"value that is not wanted", func(p *P) { p.HealthChecks = check("exists", "$.a", "1") }, "unexpected_value",
			"health_checks[0].assert[0].value"},
		{"pattern", func(p *P) { p.HealthChecks = check("matches", "$.a", `"("`) }, "invalid_pattern",
			"health_checks[0].assert[0].value"},
		{"pattern that repeats", func(p *P) { p.HealthChecks = check("matches", "$.a", `"((x?){100}){10}"`) }, "invalid_pattern",
			"health_checks[0].assert[0].value"},
		{"pattern that is a number", func(p *P) { p.HealthChecks = check("matches", "$.a", `1`) }, "invalid_pattern",
			"health_checks[0].assert[0].value"},
		{"above a word", func(p *P) { p.HealthChecks = check("gt", "$.a", `"high"`) }, "invalid_value",
			"health_checks[0].assert[0].value"},
		{"forbidden tool", func(p *P) { p.ForbidRemoved = []string{""} }, "invalid_tool", "forbid_removed[0]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := P{Name: "x"}
			tt.change(&p)
			err := p.Normalize(noon)
			var e *fleet.Error
			if !errors.As(err, &e) || !errors.Is(err, fleet.ErrInvalid) || e.Code != tt.code || e.Field != tt.field ||
				len(i18n.ErrorDetail(e)) < 10 || i18n.ErrorDetail(e) == e.Code {
				t.Errorf("%#v, want code %s, field %s", err, tt.code, tt.field)
			}
		})
	}
}

// TestNormalizeTakesDeviceZones: a window at two at night opens for every device within a day,
// though it does not open in UTC before the end.
func TestNormalizeTakesDeviceZones(t *testing.T) {
	soon := noon.Add(2 * time.Hour)
	p := campaign.Plan{Name: "x", EndAt: &soon, Windows: []campaign.Window{{Cron: "0 2 * * *", Duration: time.Hour}}}
	if err := p.Normalize(noon); err != nil {
		t.Error(err)
	}
}

// TestNormalizeOpenWindow: a window that is open at the start and does not open again before the
// end is valid.
func TestNormalizeOpenWindow(t *testing.T) {
	soon := noon.Add(2 * time.Hour)
	p := campaign.Plan{Name: "x", EndAt: &soon, Windows: []campaign.Window{{Cron: "0 11 * * *", Duration: 3 * time.Hour,
		TimeZone: "UTC"}}}
	if err := p.Normalize(noon); err != nil {
		t.Error(err)
	}
}
