package ui

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// A PlanForm is the plan of a campaign as fields of a form. The fields are the
// address of the wizard, so that a plan survives a reload and can be sent to a
// colleague; a plan that was typed wrong stays as it was typed.
//
// Fields of a table repeat, one value for each of its rows: wave.size is that
// of the first wave, then of the second, and so on.
type PlanForm struct {
	Values   url.Values
	Problems []PlanProblem
	Zone     *time.Location // of the times in it
}

// A PlanProblem is a field that cannot be read.
type PlanProblem struct {
	Field string // "wave.size"
	Row   int
	Key   string // of the message
}

// filled is the field that distinguishes a submitted form from the first visit
// to the page: only in a submitted form does a box without a tick mean no.
const filled = "f"

// Filled reports whether the form was filled in.
func (f PlanForm) Filled() bool { return f.Values.Has(filled) }

func (f PlanForm) val(name string) string { return f.Values.Get(name) }

func (f PlanForm) on(name string) bool { return f.Values.Get(name) != "" }

// at is the value of a table's field in a row.
func (f PlanForm) at(name string, row int) string {
	if all := f.Values[name]; row < len(all) {
		return all[row]
	}
	return ""
}

func (f PlanForm) rows(name string) []int {
	rows := make([]int, len(f.Values[name]))
	for i := range rows {
		rows[i] = i
	}
	return rows
}

// wrong is the aria-invalid of a field.
func (f PlanForm) wrong(name string, row int) string {
	for _, p := range f.Problems {
		if p.Field == name && p.Row == row {
			return "true"
		}
	}
	return "false"
}

// A planTable is a table of the form: its fields, of which the first counts
// the rows, and how many rows one may add.
type planTable struct {
	fields []string
	most   int
}

var planTables = map[string]planTable{
	"wave": {[]string{"wave.name", "wave.unit", "wave.size", "wave.success", "wave.sample", "wave.soak", "wave.gate"},
		20},
	"rule":  {[]string{"rule.class", "rule.min", "rule.percent", "rule.scope", "rule.wave", "rule.action"}, 10},
	"check": {[]string{"check.tool", "check.args", "check.path", "check.op", "check.value", "check.retries"}, 20},
	"win":   {[]string{"win.cron", "win.for", "win.zone"}, 10},
}

func (f PlanForm) addRow(table string, values ...string) {
	for i, name := range planTables[table].fields {
		f.Values[name] = append(f.Values[name], values[i])
	}
}

func (f PlanForm) clear(table string) {
	for _, name := range planTables[table].fields {
		f.Values.Del(name)
	}
}

func (f PlanForm) dropRow(table string, row int) {
	for _, name := range planTables[table].fields {
		if all := f.Values[name]; row >= 0 && row < len(all) {
			f.Values[name] = slices.Delete(slices.Clone(all), row, row+1)
		}
	}
}

// rowDefaults are what a row that is added starts with.
var rowDefaults = map[string][]string{
	"wave":    {"", "percent", "", "95", "5", "2m", "auto"},
	"rule":    {campaign.ClassAny, "5", "10", string(campaign.ScopeCampaign), "", string(campaign.AbortPause)},
	"check":   {"", "", "", "eq", "", "2"},
	"win":     {"", "3h", campaign.DeviceZone},
	"night":   {"0 2 * * *", "3h", campaign.DeviceZone},
	"weekday": {"0 12 * * 1-5", "1h", campaign.DeviceZone},
	"weekend": {"0 8 * * 6,0", "10h", campaign.DeviceZone},
}

// windowPresets are the buttons that add a window.
var windowPresets = []struct{ name, key string }{
	{"night", "campaign.win.night"}, {"weekday", "campaign.win.weekday"}, {"weekend", "campaign.win.weekend"},
	{"win", "campaign.win.own"},
}

// Command carries out a button that changes the form itself: preset=NAME,
// add=TABLE or drop=TABLE.ROW. It reports whether there was one.
func (f PlanForm) Command(ctx context.Context) bool {
	did := false
	if name := f.val("preset"); name != "" {
		f.preset(ctx, name)
		did = true
	}
	if name := f.val("add"); rowDefaults[name] != nil {
		table := name
		if _, ok := planTables[name]; !ok {
			table = "win"
		}
		if tb := planTables[table]; len(f.Values[tb.fields[0]]) < tb.most {
			f.addRow(table, rowDefaults[name]...)
		}
		did = true
	}
	if table, row, ok := strings.Cut(f.val("drop"), "."); ok {
		n, err := strconv.Atoi(row)
		if err == nil && planTables[table].most > 0 {
			f.dropRow(table, n)
		}
		did = true
	}
	for _, name := range []string{"preset", "add", "drop"} {
		f.Values.Del(name)
	}
	return did
}

// wavePresets are the buttons above the waves.
var wavePresets = []struct{ name, key string }{
	{"canary", "campaign.preset.canary"}, {"small", "campaign.preset.small"}, {"all", "campaign.preset.all"},
}

func (f PlanForm) preset(ctx context.Context, name string) {
	first, early, all := t(ctx, "campaign.wave.canary"), t(ctx, "campaign.wave.early"), t(ctx, "campaign.wave.everyone")
	f.clear("wave")
	switch name {
	case "small":
		f.addRow("wave", first, "count", "1", "100", "1", "10m", "manual")
		f.addRow("wave", all, "percent", "100", "95", "5", "2m", "auto")
	case "all":
		f.addRow("wave", all, "percent", "100", "95", "5", "2m", "auto")
	default:
		f.addRow("wave", first, "percent", "1", "100", "1", "10m", "manual")
		f.addRow("wave", early, "percent", "10", "98", "5", "2m", "auto")
		f.addRow("wave", all, "percent", "100", "95", "10", "2m", "auto")
	}
}

// NewPlanForm is the form as it is first shown; what the address names stays.
func NewPlanForm(ctx context.Context, v url.Values, zone *time.Location) PlanForm {
	f := PlanForm{Values: v, Zone: zone}
	if f.Filled() {
		return f
	}
	f.Values.Set(filled, "1")
	for name, value := range map[string]string{"mode": string(firmware.ModeAuto), "in_flight": "10", "attempts": "3",
		"heap": "50", "reconnects": "3", "end_behavior": string(campaign.EndStopRollout)} {
		if !f.Values.Has(name) {
			f.Values.Set(name, value)
		}
	}
	f.preset(ctx, "canary")
	f.addRow("rule", string(campaign.DeploymentRolledBack), "1", "0", string(campaign.ScopeWave), "1",
		string(campaign.AbortPause))
	f.addRow("rule", campaign.ClassAny, "5", "10", string(campaign.ScopeCampaign), "", string(campaign.AbortPause))
	return f
}

// ParseSpan reads a length of time as people write it: 30s, 10m, 2h, 1d, or
// two of them, 1h30m. Nothing is 0.
func ParseSpan(s string) (time.Duration, bool) {
	s = strings.ReplaceAll(strings.TrimSpace(s), " ", "")
	if s == "" || s == "0" {
		return 0, true
	}
	var days time.Duration
	if n, rest, ok := strings.Cut(s, "d"); ok {
		d, err := strconv.Atoi(n)
		if err != nil || d < 0 || d > 3650 {
			return 0, false
		}
		if days, s = time.Duration(d)*24*time.Hour, rest; s == "" {
			return days, true
		}
	}
	d, err := time.ParseDuration(s)
	return days + d, err == nil && d >= 0
}

// SpanText writes a length of time as [ParseSpan] reads it.
func SpanText(d time.Duration) string {
	switch {
	case d <= 0:
		return "0"
	case d%(24*time.Hour) == 0:
		return strconv.Itoa(int(d/(24*time.Hour))) + "d"
	}
	text := d.String() // "1h30m0s"
	text = strings.TrimSuffix(text, "m0s") + map[bool]string{true: "m"}[strings.HasSuffix(text, "m0s")]
	return strings.TrimSuffix(text, "h0m") + map[bool]string{true: "h"}[strings.HasSuffix(text, "h0m")]
}
