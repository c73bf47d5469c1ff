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

// A CampaignNewPage is the wizard: release, audience, waves, rules and
// schedule on one page, next to what would happen. GET [PathCampaignNew] with
// the plan's fields shows it, and POST [PathCampaigns] with the same fields
// keeps it, as "do" says: draft or start. Of a campaign that is there already
// it is its "edit".
type CampaignNewPage struct {
	Form     forms.Plan
	Campaign *campaign.Campaign // that is edited; nil for a new one
	Releases []firmware.Release // that may be chosen, newest first
	Tools    []fleet.Tool       // of the audience, for the health checks
	Run      *campaign.DryRun   // nil until there is something to plan
	Problem  string             // why Run is nil, in the page's language
	Zones    []string           // offered for windows
}

// Steers reports whether only what steers a campaign under way can change.
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

// release is the chosen one.
func (v CampaignNewPage) release() *firmware.Release {
	id := v.Form.Release()
	if i := slices.IndexFunc(v.Releases, func(r firmware.Release) bool { return r.ID == id }); i >= 0 {
		return &v.Releases[i]
	}
	return nil
}

// wrong is the aria-invalid of a field.
func (v CampaignNewPage) wrong(name string, row int) string {
	return pressed(slices.ContainsFunc(v.Form.Problems,
		func(p forms.Problem) bool { return p.Field == name && p.Row == row }))
}

// wavePresets are the buttons above the waves.
var wavePresets = []struct{ name, key string }{
	{"canary", "campaign.preset.canary"}, {"small", "campaign.preset.small"}, {"all", "campaign.preset.all"},
}

// windowPresets are the buttons that add a window.
var windowPresets = []struct{ name, key string }{
	{"night", "campaign.win.night"}, {"weekday", "campaign.win.weekday"}, {"weekend", "campaign.win.weekend"},
	{"win", "campaign.win.own"},
}

// An option is a choice of a select.
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

// zones are the choices for a window: each device's own, then by name.
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

// windowText reads a window's cron line back in words where it says no more
// than days and an hour.
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

// left is how many devices of the audience are left out.
func left(r campaign.DryRun) (n int) {
	for _, m := range r.Skipped {
		n += m.Count
	}
	return n
}

// skipText says why devices are left out.
func skipText(ctx context.Context, reason firmware.SkipReason) string {
	if reason == firmware.SkipNone {
		return ""
	}
	return t(ctx, "campaign.skip."+string(reason))
}

// warningText is what to think of before the start, for [phrase].
func warningText(ctx context.Context, w campaign.PlanWarning) string {
	if key := "campaign.warn." + w.Code; i18n.Has(key) {
		return t(ctx, key, "detail", mark(w.Detail))
	}
	if w.Detail != "" {
		return mark(w.Detail)
	}
	return w.Code
}

// carried are the devices that were ticked, which have no field of their own.
func (v CampaignNewPage) carried() []string { return v.Form.Values["d"] }

// withoutTicked is the wizard for everybody whom the filter finds.
func (v CampaignNewPage) withoutTicked() string {
	q := maps.Clone(v.Form.Values)
	q.Del("d")
	return v.path() + "?" + q.Encode()
}

// boardText names the boards that an image or a count is for.
func boardText(ctx context.Context, board string) string {
	if board == "" {
		return t(ctx, "campaign.any_board")
	}
	return board
}
