package ui

import (
	"context"
	"net/url"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// PathCampaigns lists campaigns; PathCampaignNew is the wizard.
const (
	PathCampaigns   = "/campaigns"     // GET state, limit, cursor; POST creates
	PathCampaignNew = "/campaigns/new" // GET with the plan's fields
)

// CampaignPath is the board of a campaign, or one of its parts: "edit",
// "devices", an act, or "devices" and a device.
func CampaignPath(id string, parts ...string) string {
	path := PathCampaigns + "/" + url.PathEscape(id)
	for _, p := range parts {
		path += "/" + url.PathEscape(p)
	}
	return path
}

// A CampaignsPage lists campaigns: GET [PathCampaigns].
type CampaignsPage struct {
	List   ListURL // with state
	Rows   []CampaignRow
	Next   string
	CanAct bool
}

// A CampaignRow is one campaign in a list. A live stream sends it as a patch.
type CampaignRow struct {
	Campaign campaign.Campaign
	Version  string // of the release; "" for a rollback
	Waves    int
	Tally    CampaignTally
}

func (r CampaignRow) id() string { return r.Campaign.ID.String() }

// campaignFilters are the groups of states that a filter link selects, with their names in the
// state parameter.
var campaignFilters = []struct {
	name, key string
	states    []campaign.State
}{
	{"", "campaign.filter.all", nil},
	{"open", "campaign.filter.open", []campaign.State{campaign.Scheduled, campaign.Running, campaign.Paused,
		campaign.Stopping}},
	{"awaiting_approval", "campaign.filter.awaiting_approval", []campaign.State{campaign.AwaitingApproval}},
	{"paused", "campaign.filter.paused", []campaign.State{campaign.Paused}},
	{"draft", "campaign.filter.draft", []campaign.State{campaign.Draft, campaign.Denied}},
	{"done", "campaign.filter.done", []campaign.State{campaign.Completed, campaign.CompletedWithErrors,
		campaign.Aborted, campaign.Expired, campaign.Discarded}},
}

// CampaignStates reads the state parameter of the list: the name of a group, or states separated by
// commas. It ignores other values.
func CampaignStates(param string) []campaign.State {
	for _, f := range campaignFilters {
		if f.name == param {
			return f.states
		}
	}
	var states []campaign.State
	for _, name := range strings.Split(param, ",") {
		for _, s := range campaign.States {
			if string(s) == name {
				states = append(states, s)
			}
		}
	}
	return states
}

func (v CampaignsPage) filters(ctx context.Context) []filterChip {
	var chips []filterChip
	for _, f := range campaignFilters {
		chips = append(chips, filterChip{Text: t(ctx, f.key), URL: v.List.With("state", f.name),
			On: v.List.Get("state") == f.name})
	}
	return chips
}

func (v CampaignsPage) eventsURL() string { return EventsURL(ViewCampaigns, v.List.Values) }

// A CampaignTally counts the deployments of a campaign, or of a part of it, in four numbers.
type CampaignTally struct {
	Succeeded, Failed, Waiting int
	InFlight                   int // as the plan's limit counts them
	Verifying                  int // run the image, and soak
	Other                      int // ended without a verdict: canceled, expired, aborted, removed
}

// NewCampaignTally counts deployments by state. It ignores skipped ones.
func NewCampaignTally(byState map[campaign.DeploymentState]int) (c CampaignTally) {
	for s, n := range byState {
		switch {
		case s == campaign.DeploymentSkipped:
		case s == campaign.DeploymentSucceeded:
			c.Succeeded += n
		case s.Failed():
			c.Failed += n
		case s.InFlight():
			c.InFlight += n
		case s.Active():
			c.Verifying += n
		case s.Waiting():
			c.Waiting += n
		default:
			c.Other += n
		}
	}
	return c
}

func (c CampaignTally) total() int {
	return c.Succeeded + c.Failed + c.InFlight + c.Verifying + c.Waiting + c.Other
}

// verdicts returns the number of deployments with a verdict on the image.
func (c CampaignTally) verdicts() int { return c.Succeeded + c.Failed }

// ended returns the number of ended deployments.
func (c CampaignTally) ended() int { return c.Succeeded + c.Failed + c.Other }

func (c CampaignTally) parts() []part {
	var out []part
	from := 0
	for _, p := range []struct {
		tone tone
		n    int
	}{{toneGood, c.Succeeded}, {toneBad, c.Failed}, {toneNone, c.Other}, {toneBusy, c.Verifying + c.InFlight}} {
		if p.n > 0 {
			out = append(out, part{p.tone, from, p.n})
			from += p.n
		}
	}
	return out
}

// A tallyEntry is one of the numbers under a progress bar.
type tallyEntry struct {
	key   string
	tone  tone
	count int
	group string // group of deployment states, for the linked list
}

func (c CampaignTally) entries() []tallyEntry {
	all := []tallyEntry{
		{"campaign.tally.succeeded", toneGood, c.Succeeded, "succeeded"},
		{"campaign.tally.failed", toneBad, c.Failed, "failed_any"},
		{"campaign.tally.in_flight", toneBusy, c.InFlight, "in_flight"},
		{"campaign.tally.verifying", toneBusy, c.Verifying, "verifying"},
		{"campaign.tally.waiting", toneNone, c.Waiting, "waiting"},
	}
	if c.Other > 0 {
		all = append(all, tallyEntry{"campaign.tally.other", toneNone, c.Other, "other"})
	}
	return all
}

var campaignTones = map[campaign.State]tone{
	campaign.AwaitingApproval: toneWarn, campaign.Denied: toneBad, campaign.Scheduled: toneBusy,
	campaign.Running: toneBusy, campaign.Paused: toneWarn, campaign.Stopping: toneWarn,
	campaign.Completed: toneGood, campaign.CompletedWithErrors: toneBad, campaign.Aborted: toneBad,
	campaign.Expired: toneWarn,
}

func campaignTone(s campaign.State) tone {
	if tn, ok := campaignTones[s]; ok {
		return tn
	}
	return toneNone
}

// deploymentTone returns the meaning of a deployment's state for an operator on call.
func deploymentTone(s campaign.DeploymentState) tone {
	switch {
	case s == campaign.DeploymentSucceeded:
		return toneGood
	case s.Failed():
		return toneBad
	case s == campaign.DeploymentAmbiguous:
		return toneWarn
	case s.Active():
		return toneBusy
	}
	return toneNone
}

var waveTones = map[campaign.WaveState]tone{
	campaign.WaveRunning: toneBusy, campaign.WaveSoaking: toneBusy, campaign.WaveGated: toneWarn,
	campaign.WaveFinished: toneGood, campaign.WaveFailed: toneBad, campaign.WavePending: toneNone,
}

// versionText returns the version that a campaign installs, or that it restores each device's
// earlier build.
func versionText(ctx context.Context, c campaign.Campaign, version string) string {
	if version == "" {
		return t(ctx, "campaign.earlier_build")
	}
	return version
}

// waveText returns the number of the open wave, and of all waves.
func (r CampaignRow) waveText(ctx context.Context) string {
	if r.Waves == 0 {
		return ""
	}
	return t(ctx, "campaign.wave_of", "i", min(r.Campaign.Wave+1, r.Waves), "n", r.Waves)
}

// since returns when the campaign was started or created, and by whom.
func (r CampaignRow) since() (key string, at time.Time, by fleet.Principal) {
	c := r.Campaign
	if c.StartedAt != nil && c.StartedBy != nil {
		return "campaign.started_by", *c.StartedAt, *c.StartedBy
	}
	return "campaign.created_by", c.CreatedAt, c.CreatedBy
}

// say returns the progress bar's numbers as text.
func (r CampaignRow) say(ctx context.Context) string {
	c := r.Tally
	if r.Campaign.StartedAt == nil {
		return t(ctx, "campaign.targets", "n", r.Campaign.Targets)
	}
	return c.say(ctx)
}

// say returns the numbers as text, without those that are zero.
func (c CampaignTally) say(ctx context.Context) string {
	var parts []string
	for _, p := range []struct {
		key string
		n   int
	}{{"succeeded", c.Succeeded}, {"failed", c.Failed}, {"in_flight", c.InFlight}, {"verifying", c.Verifying},
		{"waiting", c.Waiting}} {
		if p.n > 0 {
			parts = append(parts, t(ctx, "campaign.n."+p.key, "n", p.n))
		}
	}
	return strings.Join(parts, " · ")
}

// unusual reports whether the state has to be named with the progress.
func (r CampaignRow) unusual() bool { return r.Campaign.State != campaign.Running }
