package forms

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet/campaign"
)

// A Plan is the plan of a campaign as fields of a form. The fields are in the address of the
// wizard, so a plan survives a reload and can be sent to a colleague. A plan with errors keeps the
// text as typed.
//
// Fields of a table repeat, with one value for each row: the first wave.size belongs to the first
// wave, the second to the second, and so on.
type Plan struct {
	url.Values
	Problems []Problem
	Zone     *time.Location // zone of the times in the form
}

// A Problem is an unreadable field.
type Problem struct {
	Field string // "wave.size"
	Row   int
	Key   string // message key
}

// filled is the field that distinguishes a submitted form from the first visit to the page: only in
// a submitted form does an unchecked box mean no.
const filled = "f"

// NewPlan returns the form as first shown: [campaign.DefaultPlan] with the fields that the address
// overrides. An address replaces a table as a whole. A submitted form stays unchanged.
func NewPlan(v url.Values, zone *time.Location) Plan {
	if v.Has(filled) {
		return Plan{Values: v, Zone: zone}
	}
	f := FillPlan(campaign.DefaultPlan(), zone)
	for name, table := range planTables {
		if slices.ContainsFunc(table.fields, v.Has) {
			f.clear(name)
		}
	}
	maps.Copy(f.Values, v)
	return f
}

// At returns the value of a table's field in a row.
func (f Plan) At(name string, row int) string {
	if all := f.Values[name]; row < len(all) {
		return all[row]
	}
	return ""
}

// Release returns the chosen release, or the zero UUID.
func (f Plan) Release() uuid.UUID {
	id, err := uuid.Parse(f.Get("release"))
	if err != nil {
		return uuid.Nil // the domain refuses a plan without a release
	}
	return id
}

// A planTable is a table of the form: its fields, the first of which counts the rows, and the
// maximum number of rows.
type planTable struct {
	fields []string
	most   int
}

var planTables = map[string]planTable{
	"wave":  {[]string{"wave.name", "wave.unit", "wave.size", "wave.success", "wave.sample", "wave.soak", "wave.gate"}, 20},
	"rule":  {[]string{"rule.class", "rule.min", "rule.percent", "rule.measure", "rule.scope", "rule.wave", "rule.action"}, 10},
	"check": {[]string{"check.tool", "check.args", "check.path", "check.op", "check.value", "check.retries"}, 20},
	"win":   {[]string{"win.cron", "win.for", "win.zone"}, 10},
}

func (f Plan) addRow(table string, values ...string) {
	for i, name := range planTables[table].fields {
		f.Values[name] = append(f.Values[name], values[i])
	}
}

func (f Plan) clear(table string) {
	for _, name := range planTables[table].fields {
		f.Del(name)
	}
}

func (f Plan) dropRow(table string, row int) {
	for _, name := range planTables[table].fields {
		if all := f.Values[name]; row >= 0 && row < len(all) {
			f.Values[name] = slices.Delete(slices.Clone(all), row, row+1)
		}
	}
}

// rowDefaults are the initial values of a new row.
var rowDefaults = map[string][]string{
	"wave": {"", "percent", "", "95", "5", "2m", "auto"},
	"rule": {campaign.ClassAny, "5", "10", string(campaign.MeasureBound), string(campaign.ScopeCampaign), "",
		string(campaign.AbortPause)},
	"check":   {"", "", "", "eq", "", "2"},
	"win":     {"", "3h", campaign.DeviceZone},
	"night":   {"0 2 * * *", "3h", campaign.DeviceZone},
	"weekday": {"0 12 * * 1-5", "1h", campaign.DeviceZone},
	"weekend": {"0 8 * * 6,0", "10h", campaign.DeviceZone},
}

// Command runs a button that changes the form: preset=NAME, add=TABLE or drop=TABLE.ROW. It reports
// whether one was pressed.
func (f Plan) Command() bool {
	did := false
	if name := f.Get("preset"); name != "" {
		f.preset(name)
		f.Del("preset")
		if f.Get("add") == "" && f.Get("drop") == "" {
			return true // the buttons are above the fold, which stays as it is
		}
		did = true
	}
	if name := f.Get("add"); rowDefaults[name] != nil {
		table := name
		if _, ok := planTables[name]; !ok {
			table = "win"
		}
		if tb := planTables[table]; len(f.Values[tb.fields[0]]) < tb.most {
			f.addRow(table, rowDefaults[name]...)
		}
		did = true
	}
	if table, row, ok := strings.Cut(f.Get("drop"), "."); ok {
		n, err := strconv.Atoi(row)
		if err == nil && planTables[table].most > 0 {
			f.dropRow(table, n)
		}
		did = true
	}
	for _, name := range []string{"preset", "add", "drop"} {
		f.Del(name)
	}
	if did {
		f.Set("open", "1") // the page shows the table that changed
	}
	return did
}

// WavePresets are the names of ready-made waves.
var WavePresets = []string{"canary", "small", "all"}

// Preset returns the name of the ready-made waves that the form has, or "".
func (f Plan) Preset() string {
	for _, name := range WavePresets {
		made := Plan{Values: url.Values{}}
		made.preset(name)
		if !slices.ContainsFunc(planTables["wave"].fields, func(field string) bool {
			return !slices.Equal(made.Values[field], f.Values[field])
		}) {
			return name
		}
	}
	return ""
}

func (f Plan) preset(name string) {
	f.clear("wave")
	switch name {
	case "small":
		f.addRow("wave", campaign.WaveCanary, "count", "1", "100", "1", "10m", "manual")
		f.addRow("wave", campaign.WaveRest, "percent", "100", "95", "5", "2m", "auto")
	case "all":
		f.addRow("wave", campaign.WaveEveryone, "percent", "100", "95", "5", "2m", "auto")
	default:
		f.fillWaves(campaign.DefaultWaves())
	}
}

// parseSpan reads a length of time as people write it: 30s, 10m, 2h, 1d, or two of them, 1h30m. An
// empty text is 0.
func parseSpan(s string) (time.Duration, bool) {
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

// spanText formats a length of time as [parseSpan] reads it.
func spanText(d time.Duration) string {
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
