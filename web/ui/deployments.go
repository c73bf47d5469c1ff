package ui

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// A DeploymentsPage lists the devices of a campaign: GET the campaign's
// "devices" with state, class, board, wave, skip, device.
type DeploymentsPage struct {
	Campaign campaign.Campaign
	List     ListURL
	Rows     []DeploymentRow
	Next     string
	Waves    []campaign.Wave
	Boards   []string
	CanAct   bool
}

// A DeploymentRow is one device's part in a list. A live stream sends it as a patch.
type DeploymentRow struct {
	Deployment  campaign.Deployment
	Name        string               // of the device
	BlockReason campaign.BlockReason // why it is not dispatched now
	Mode        firmware.DispatchMode
}

// A deploymentGroup is a choice of the state filter that covers several states.
type deploymentGroup struct {
	name, key string
	in        func(campaign.DeploymentState) bool
}

var deploymentGroups = []deploymentGroup{
	{"active", "campaign.group.active", campaign.DeploymentState.Active},
	{"in_flight", "campaign.group.in_flight", campaign.DeploymentState.InFlight},
	{"waiting", "campaign.group.waiting", campaign.DeploymentState.Waiting},
	{"failed_any", "campaign.group.failed_any", campaign.DeploymentState.Failed},
	{"other", "campaign.group.other", func(s campaign.DeploymentState) bool {
		return s.Final() && !s.Verdict() && s != campaign.DeploymentSkipped
	}},
}

// DeploymentStates reads the state parameter: a group, or one state.
func DeploymentStates(param string) (states []campaign.DeploymentState) {
	for _, g := range deploymentGroups {
		if g.name != param {
			continue
		}
		for _, s := range campaign.DeploymentStates {
			if g.in(s) {
				states = append(states, s)
			}
		}
		return states
	}
	for _, s := range campaign.DeploymentStates {
		if string(s) == param {
			return []campaign.DeploymentState{s}
		}
	}
	return nil
}

func stateOptions(ctx context.Context) []option {
	out := []option{{"", t(ctx, "calls.any_state")}}
	for _, g := range deploymentGroups {
		out = append(out, option{g.name, t(ctx, g.key)})
	}
	return append(out, options(ctx, "campaign.dep.", campaign.DeploymentStates...)...)
}

func classOptions(ctx context.Context) []option {
	return append([]option{{"", t(ctx, "campaign.any")}}, options(ctx, "campaign.fail.", campaign.FailureClasses...)...)
}

func (v DeploymentsPage) boardOptions(ctx context.Context) []option {
	out := []option{{"", t(ctx, "campaign.any")}}
	for _, b := range v.Boards {
		if b != "" {
			out = append(out, option{b, b})
		}
	}
	return out
}

func (v DeploymentsPage) waveOptions(ctx context.Context) []option {
	out := []option{{"", t(ctx, "campaign.any")}}
	for _, w := range v.Waves {
		out = append(out, option{strconv.Itoa(w.Number + 1), t(ctx, "campaign.wave_named", "i", w.Number+1, "name",
			waveName(ctx, w.Plan.Name))})
	}
	return out
}

func (v DeploymentsPage) eventsURL() string {
	q := url.Values{"id": {v.Campaign.ID.String()}}
	for k, vals := range v.List.Values {
		q[k] = vals
	}
	return EventsURL(ViewDeployments, q)
}

func (r DeploymentRow) path() string {
	return CampaignPath(r.Deployment.Campaign.String(), "devices", string(r.Deployment.Device))
}

// detail returns the line with details of the state, for [phrase].
func (r DeploymentRow) detail(ctx context.Context) string {
	d := r.Deployment
	switch {
	case d.State == campaign.DeploymentSkipped:
		return skipText(ctx, d.Skip)
	case d.State == campaign.DeploymentDownloading:
		return downloadText(ctx, d.BytesSent, d.ImageSize, d.Percent)
	case d.State == campaign.DeploymentSucceeded:
		return ""
	case d.Class != "" && d.Reason.Is(""):
		return t(ctx, "campaign.fail."+string(d.Class))
	case d.Reason.Is("") && r.BlockReason != "":
		return blockText(ctx, r.BlockReason, r.Mode)
	}
	return reasonText(ctx, d.Reason)
}

// downloadText returns the sent bytes, and the progress that the device reports, if any.
func downloadText(ctx context.Context, sent, total int64, percent *int) string {
	text := t(ctx, "campaign.bytes_of", "sent", bytesText(ctx, sent), "total", bytesText(ctx, total), "p",
		percentText(ctx, ratio(int(sent), int(total))))
	if percent == nil {
		return text
	}
	return text + " · " + t(ctx, "campaign.device_percent", "p", percentText(ctx, float64(*percent)/100))
}

// downloaded returns the known share of an image that the device has.
func downloaded(sent, total int64, percent *int) float64 {
	if percent != nil {
		return float64(*percent) / 100
	}
	return ratio(int(sent), int(total))
}

// A DeploymentPage is one device's part in a campaign, with all its events: GET the campaign's
// "devices" and the device.
type DeploymentPage struct {
	View   DeploymentView
	CanAct bool
}

// A DeploymentView is the changing part of the page; a live stream sends it as a patch.
type DeploymentView struct {
	Campaign    campaign.Campaign
	Deployment  campaign.Deployment
	Name        string // of the device
	Events      []campaign.DeploymentEvent
	BlockReason campaign.BlockReason // why it is not dispatched now
	Until       *time.Time           // when that ends automatically
	Quarantine  *campaign.Quarantine
	CanAct      bool
}

func (v DeploymentView) path(parts ...string) string {
	return CampaignPath(v.Campaign.ID.String(), append([]string{"devices", string(v.Deployment.Device)}, parts...)...)
}

func (v DeploymentPage) eventsURL() string {
	d := v.View.Deployment
	return EventsURL(ViewDeployment, url.Values{"id": {d.Campaign.String()}, "device": {string(d.Device)}})
}

// verdict returns the outcome for the device, in a sentence.
func (v DeploymentView) verdict(ctx context.Context) string {
	d := v.Deployment
	args := []any{"version", d.ToVersion, "from", d.FromVersion, "n", d.Attempt, "i", d.Wave + 1}
	switch {
	case d.Late && d.State == campaign.DeploymentSucceeded:
		return t(ctx, "campaign.verdict.late", args...)
	case d.State == campaign.DeploymentSkipped:
		return t(ctx, "campaign.verdict.skipped", "why", skipText(ctx, d.Skip))
	case d.State == campaign.DeploymentQueued && d.Attempt > 0:
		return t(ctx, "campaign.verdict.retry", args...)
	case d.State == campaign.DeploymentFailed && d.Class != "":
		return t(ctx, "campaign.verdict.class."+string(d.Class), args...)
	}
	return t(ctx, "campaign.verdict."+string(d.State), args...)
}

// blockName returns what blocks a dispatch, as part of a message's key. The engine says that a device awaits its boot
// poll also if the plan leaves the mode open; such a device is notified when it connects, too.
func blockName(reason campaign.BlockReason, mode firmware.DispatchMode) string {
	if reason == campaign.BlockAwaitsPoll && mode == firmware.ModeAuto {
		return "awaits_device"
	}
	return string(reason)
}

// blockText returns why a device has not been notified yet, or "".
func blockText(ctx context.Context, reason campaign.BlockReason, mode firmware.DispatchMode) string {
	if key := "campaign.hinder." + blockName(reason, mode); reason != "" && i18n.Has(key) {
		return t(ctx, key)
	}
	return ""
}

// waits returns the reason why the device has not been notified yet.
func (v DeploymentView) waits(ctx context.Context) string {
	return blockText(ctx, v.BlockReason, v.Campaign.Plan.Mode)
}

// advice returns what an operator can do about a device that is not being updated, or "".
func (v DeploymentView) advice(ctx context.Context) string {
	key := ""
	switch d := v.Deployment; {
	case d.State == campaign.DeploymentSkipped:
		key = "campaign.advice.skip." + string(d.Skip)
	case d.State.Failed():
		key = "campaign.advice.class." + string(d.Class)
	case !d.State.Final():
		key = "campaign.advice.hinder." + blockName(v.BlockReason, v.Campaign.Plan.Mode)
	}
	if !v.CanAct || !i18n.Has(key) {
		return ""
	}
	return t(ctx, key)
}

// A deploymentStep is one entry of the timeline.
type deploymentStep struct {
	event   campaign.DeploymentEvent
	after   time.Duration // since the previous entry
	attempt bool          // the first of its attempt
	day     bool          // the first of its day
}

func (v DeploymentView) steps(zone *time.Location) []deploymentStep {
	steps := make([]deploymentStep, len(v.Events))
	last := ""
	for i, e := range v.Events {
		steps[i] = deploymentStep{event: e, attempt: e.Attempt > 0 && (i == 0 || v.Events[i-1].Attempt != e.Attempt)}
		if i > 0 {
			steps[i].after = e.At.Sub(v.Events[i-1].At)
		}
		if day := e.At.In(zone).Format(time.DateOnly); day != last {
			steps[i].day, last = true, day
		}
	}
	return steps
}

// evidenceText returns an event as text. The end of the soak time is an expiry too, but a good one.
func evidenceText(ctx context.Context, e campaign.DeploymentEvent) string {
	if e.Kind == fleet.EvidenceTimer && e.To == campaign.DeploymentSucceeded {
		return t(ctx, "campaign.ev_soaked")
	}
	if key := "campaign.ev." + string(e.Kind); i18n.Has(key) {
		return t(ctx, key)
	}
	return string(e.Kind)
}

// callsURL returns the list of the calls that notified the device.
func (v DeploymentView) callsURL() string {
	return PathCalls + "?" + url.Values{"device": {string(v.Deployment.Device)},
		"tool": {fleet.ToolUpgradeFirmware}}.Encode()
}
