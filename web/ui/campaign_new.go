package ui

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/forms"
	"fleetd/web/i18n"
)

// A CampaignNewPage is the wizard: release and audience, one line that summarizes the other fields
// and unfolds into them, and the dry run. The foot repeats the dry run in one sentence and has the
// start button. GET [PathCampaignNew] with the plan's fields shows it, and POST [PathCampaigns]
// with the same fields stores it, according to "do": draft or start. For an existing campaign the
// page is its "edit".
type CampaignNewPage struct {
	Form     forms.Plan
	Plan     campaign.Plan      // as in the form
	Campaign *campaign.Campaign // edited campaign; nil for a new one
	Releases []firmware.Release // choices, newest first
	Tools    []fleet.Tool       // of the audience, for the health checks
	Run      *campaign.DryRun   // nil until the plan is complete enough
	Problem  string             // why Run is nil, in the page's language
	Zones    []string           // offered for windows
}

// Steers reports whether only the steering fields of a running campaign can change.
func (v CampaignNewPage) Steers() bool {
	return v.Campaign != nil && (v.Campaign.State == campaign.Running || v.Campaign.State == campaign.Paused)
}

func (v CampaignNewPage) path() string {
	if v.Campaign != nil {
		return CampaignPath(v.Campaign.ID.String(), "edit")
	}
	return PathCampaignNew
}

func (v CampaignNewPage) postPath() string {
	if v.Campaign != nil {
		return v.path()
	}
	return PathCampaigns
}

func (v CampaignNewPage) head(ctx context.Context) head {
	h := head{Title: t(ctx, "campaign.new"), Crumbs: []link{{t(ctx, "campaign.title"), PathCampaigns}}}
	if v.Campaign != nil {
		h.Title = t(ctx, "campaign.edit")
		h.Crumbs = append(h.Crumbs, link{v.Campaign.Plan.Name, CampaignPath(v.Campaign.ID.String())})
	}
	return h
}

// release returns the chosen release.
func (v CampaignNewPage) release() *firmware.Release {
	id := v.Form.Release()
	if i := slices.IndexFunc(v.Releases, func(r firmware.Release) bool { return r.ID == id }); i >= 0 {
		return &v.Releases[i]
	}
	return nil
}

// wrong returns the aria-invalid of a field.
func (v CampaignNewPage) wrong(name string, row int) string {
	return pressed(slices.ContainsFunc(v.Form.Problems,
		func(p forms.Problem) bool { return p.Field == name && p.Row == row }))
}

// windowPresets are the buttons that add a window.
var windowPresets = []struct{ name, key string }{
	{"night", "campaign.win.night"}, {"weekday", "campaign.win.weekday"}, {"weekend", "campaign.win.weekend"},
	{"win", "campaign.win.own"},
}

// An option is a choice of a select element.
type option struct{ value, text string }

func options[T ~string](ctx context.Context, prefix string, values ...T) []option {
	out := make([]option, len(values))
	for i, v := range values {
		out[i] = option{string(v), t(ctx, prefix+string(v))}
	}
	return out
}

func ruleClasses(ctx context.Context) []option {
	all := options(ctx, "campaign.dep.", campaign.DeploymentFailed, campaign.DeploymentTimedOut,
		campaign.DeploymentRolledBack,
		campaign.DeploymentWrongBuild, campaign.DeploymentUnhealthy, campaign.DeploymentRejected)
	return append([]option{{campaign.ClassAny, t(ctx, "campaign.class.any")}}, all...)
}

func checkOps(ctx context.Context) []option {
	return options(ctx, "campaign.op.", "eq", "ne", "lt", "le", "gt", "ge", "matches", "exists", "unchanged")
}

func waveUnits(ctx context.Context) []option {
	return []option{{"percent", t(ctx, "campaign.unit.percent")}, {"count", t(ctx, "campaign.unit.count")},
		{"devices", t(ctx, "campaign.unit.devices")}}
}

// zones returns the choices for a window: each device's own, then by name.
func (v CampaignNewPage) zones(ctx context.Context, chosen string) []option {
	out := []option{{campaign.DeviceZone, t(ctx, "campaign.zone.device")}}
	for _, z := range v.Zones {
		out = append(out, option{z, z})
	}
	if chosen != "" && !slices.Contains(v.Zones, chosen) && chosen != campaign.DeviceZone {
		out = append(out, option{chosen, chosen})
	}
	return out
}

// windowText returns a window's cron expression as text if it contains only days and an hour.
func windowText(ctx context.Context, w campaign.Window) string {
	zone := w.TimeZone
	if zone == campaign.DeviceZone || zone == "" {
		zone = t(ctx, "campaign.zone.device")
	}
	f := strings.Fields(w.Cron)
	days := ""
	if len(f) == 5 && f[2] == "*" && f[3] == "*" {
		days = map[string]string{"*": "campaign.days.all", "1-5": "campaign.days.work", "6,0": "campaign.days.weekend",
			"0,6": "campaign.days.weekend"}[f[4]]
	}
	if days == "" {
		return t(ctx, "campaign.win.cron", "cron", w.Cron, "d", w.Duration, "zone", zone)
	}
	minute, err1 := strconv.Atoi(f[0])
	hour, err2 := strconv.Atoi(f[1])
	if err1 != nil || err2 != nil {
		return t(ctx, "campaign.win.cron", "cron", w.Cron, "d", w.Duration, "zone", zone)
	}
	from := time.Date(2000, 1, 1, hour, minute, 0, 0, time.UTC)
	return t(ctx, "campaign.win.say", "days", t(ctx, days), "from", from.Format("15:04"), "to",
		from.Add(w.Duration).Format("15:04"), "zone", zone)
}

// skipText returns why devices are left out.
func skipText(ctx context.Context, reason firmware.SkipReason) string {
	if reason == firmware.SkipNone {
		return ""
	}
	return t(ctx, "campaign.skip."+string(reason))
}

// planWarnings returns the warnings before the start, for [phrase]: each kind once, with all its
// subjects.
func (v CampaignNewPage) planWarnings(ctx context.Context) []string {
	var codes []string
	details := map[string][]string{}
	for _, w := range v.Run.Warnings {
		if !slices.Contains(codes, w.Code) {
			codes = append(codes, w.Code)
		}
		if w.Detail != "" && !slices.Contains(details[w.Code], w.Detail) {
			details[w.Code] = append(details[w.Code], w.Detail)
		}
	}
	var out []string
	for _, code := range codes {
		about := details[code]
		text := code
		if key := "campaign.warn." + code; i18n.Has(key) {
			text = t(ctx, key, "n", len(about), "detail", mark(strings.Join(about, ", ")))
		} else if len(about) > 0 {
			text = mark(strings.Join(about, ", "))
		}
		out = append(out, text)
	}
	return out
}

// chooses reports whether one of the device filters is set.
func (v CampaignNewPage) chooses() bool {
	for _, name := range []string{"supersede", "downgrade", "continuous", "max_devices"} {
		if v.Form.Get(name) != "" {
			return true
		}
	}
	return false
}

// unfolded reports whether the optional fields are being edited: a row was added or removed, or a
// value is invalid.
func (v CampaignNewPage) unfolded() bool {
	return v.Form.Get("open") != "" || slices.ContainsFunc(v.Form.Problems,
		func(p forms.Problem) bool { return p.Field != "max_devices" })
}

// facts returns the values of the optional fields, in a few words each. The ready-made waves are
// not repeated: their button is pressed.
func (v CampaignNewPage) facts(ctx context.Context) []string {
	f, p := v.Form, v.Plan
	all := []string{t(ctx, "campaign.how.at_once", "n", p.MaxInFlight)}
	if p.MaxPerMinute > 0 {
		all = append(all, t(ctx, "campaign.per_minute_say", "n", p.MaxPerMinute))
	}
	var sizes, soaks []string
	for i, w := range p.Waves {
		sizes = append(sizes, waveText(ctx, w, i == len(p.Waves)-1))
		if soak := duration(ctx, w.Soak); !slices.Contains(soaks, soak) {
			soaks = append(soaks, soak)
		}
	}
	waves := t(ctx, "campaign.how.one_wave")
	if len(sizes) > 1 {
		waves = t(ctx, "campaign.how.waves", "waves", strings.Join(sizes, " → "))
	}
	if f.Preset() == "" {
		all = append(all, waves)
	}
	all = append(all, t(ctx, "campaign.how.soak", "d", strings.Join(soaks, " → ")), v.stopText(ctx))
	if p.Mode != firmware.ModeAuto && p.Mode != "" {
		all = append(all, t(ctx, "campaign.mode."+string(p.Mode)))
	}
	if n := len(p.HealthChecks); n > 0 {
		all = append(all, t(ctx, "campaign.how.checks", "n", n))
	}
	if p.StartAt != nil {
		all = append(all, t(ctx, "campaign.how.starts", "at", *p.StartAt))
	}
	if n := len(p.Windows); n > 0 {
		all = append(all, t(ctx, "campaign.how.windows", "n", n))
	}
	if f.Get("approval") != "" {
		all = append(all, t(ctx, "campaign.how.approval"))
	}
	return all
}

// waveText returns the size of a wave, in a word or two.
func waveText(ctx context.Context, w campaign.WavePlan, last bool) string {
	switch {
	case len(w.Devices) > 0:
		return t(ctx, "fanout.n_devices", "n", len(w.Devices))
	case w.Count > 0:
		return t(ctx, "fanout.n_devices", "n", w.Count)
	case last && w.Percent == 100:
		return t(ctx, "campaign.how.rest")
	}
	return forms.Decimal(w.Percent) + "%"
}

// stopText returns the condition that stops the campaign: the rule about any failure with the
// smallest minimum, or the number of rules.
func (v CampaignNewPage) stopText(ctx context.Context) string {
	var first *campaign.AbortRule
	for _, r := range v.Plan.AbortRules {
		if r.Class == campaign.ClassAny && r.Percent > 0 && (first == nil || r.Percent < first.Percent) {
			first = &r
		}
	}
	switch {
	case first != nil:
		return t(ctx, "campaign.how.stops."+string(first.Action), "p", forms.Decimal(first.Percent))
	case len(v.Plan.AbortRules) > 0:
		return t(ctx, "campaign.how.rules", "n", len(v.Plan.AbortRules))
	}
	return t(ctx, "campaign.how.no_rules")
}

// waves returns the waves with devices.
func (v CampaignNewPage) waves() []campaign.PlannedWave {
	return slices.DeleteFunc(slices.Clone(v.Run.Waves), func(w campaign.PlannedWave) bool { return w.Size == 0 })
}

// waveParts returns the segments of the bar of waves.
func (v CampaignNewPage) waveParts() []barPart {
	var sizes []int
	for _, w := range v.waves() {
		sizes = append(sizes, w.Size)
	}
	return barParts(sizes, make([]string, len(sizes)))
}

// gateText returns what follows a wave that is not the last.
func gateText(ctx context.Context, w campaign.PlannedWave) string {
	if w.Gate == campaign.GateManual {
		return t(ctx, "campaign.then.manual", "d", w.Soak)
	}
	return t(ctx, "campaign.then.auto", "d", w.Soak, "p", forms.Decimal(w.SuccessPercent))
}

// version returns the version of the chosen release.
func (v CampaignNewPage) version() string {
	if r := v.release(); r != nil {
		return shorten(r.Version, 24)
	}
	return ""
}

// boards returns the boards of the chosen release's images.
func (v CampaignNewPage) boards(ctx context.Context) []string {
	var all []string
	for _, img := range v.release().Images {
		if text := boardText(ctx, img.Board); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// saying returns the effect of a start, in one sentence.
func (v CampaignNewPage) saying(ctx context.Context) string {
	args := []any{"n", v.Run.Targets, "version", v.version(), "waves", t(ctx, "campaign.n_waves", "n", len(v.waves()))}
	switch first := v.Run.FirstDispatch; {
	case first == nil:
		return t(ctx, "campaign.bar.never", args...)
	case first.After(page(ctx).Now):
		return t(ctx, "campaign.bar.from", append(args, "at", *first)...)
	}
	return t(ctx, "campaign.bar.now", args...)
}

// carried returns the checked devices, which have no field in the form.
func (v CampaignNewPage) carried() []string { return v.Form.Values["d"] }

// withoutTicked returns the wizard for all devices that match the filter.
func (v CampaignNewPage) withoutTicked() string {
	q := maps.Clone(v.Form.Values)
	q.Del("d")
	return v.path() + "?" + q.Encode()
}

// boardText returns the boards of an image or a count.
func boardText(ctx context.Context, board string) string {
	if board == "" {
		return t(ctx, "campaign.any_board")
	}
	return board
}
