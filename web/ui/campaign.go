package ui

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/forms"
)

// A CampaignBoard is one campaign with its progress: GET [CampaignPath]. A live stream sends the
// changed parts; see [CampaignBoard.Parts].
type CampaignBoard struct {
	Campaign  campaign.Campaign
	Release   *firmware.Release // nil for a rollback
	Waves     []campaign.Wave
	Progress  campaign.Progress
	Downloads []Download // some of the open transfers
	Compare   Comparison // of failed and updated devices
	Viewer    fleet.Principal
	CanAct    bool
	Rollback  campaign.State // of the campaign that reverts this one; "" without one
	From, To  time.Time      // of the chart
}

// A Download is an open transfer.
type Download struct {
	Device      fleet.DeviceID
	Sent, Total int64
	Percent     *int // as the device reports it; nil if it does not report progress
	Since       *time.Time
}

func (b CampaignBoard) id() string { return b.Campaign.ID.String() }

func (b CampaignBoard) path(parts ...string) string { return CampaignPath(b.id(), parts...) }

func (b CampaignBoard) eventsURL() string {
	return EventsURL(ViewCampaign, url.Values{"id": {b.id()}})
}

func (b CampaignBoard) version() string {
	if b.Release == nil {
		return ""
	}
	return b.Release.Version
}

func (b CampaignBoard) tally() CampaignTally { return NewCampaignTally(b.Progress.ByState) }

// started reports whether there is any progress to show.
func (b CampaignBoard) started() bool { return b.Campaign.StartedAt != nil }

// Parts returns the live parts of the board by name; each has its own id.
func (b CampaignBoard) Parts() map[string]templ.Component {
	all := map[string]templ.Component{"head": b.Head(), "acts": b.Actions(), "skips": b.Skips()}
	for _, i := range b.shownWaves() {
		all["wave "+strconv.Itoa(i)] = b.Wave(i)
	}
	if b.started() {
		all["funnel"], all["rate"], all["failures"], all["boards"] = b.Funnel(), b.Rate(), b.Failures(), b.Boards()
		all["downloads"], all["rules"] = b.DownloadList(), b.Rules()
	}
	return all
}

// Shape changes when parts come or go: then the whole body must be sent again.
func (b CampaignBoard) Shape() string {
	c := b.Campaign
	waits := c.State == campaign.AwaitingApproval
	return strings.Join([]string{strconv.FormatBool(b.started()), strconv.FormatBool(waits), c.Digest, c.EditedAt.String(),
		fmt.Sprint(b.shownWaves())}, " ")
}

// shownWaves returns the waves with devices, or all waves while none has any.
func (b CampaignBoard) shownWaves() (shown []int) {
	for i, w := range b.Waves {
		if w.Size > 0 || b.Campaign.Targets == 0 {
			shown = append(shown, i)
		}
	}
	return shown
}

// lastWave returns the number, from 1, of the last wave with devices.
func (b CampaignBoard) lastWave() int {
	shown := b.shownWaves()
	if b.Campaign.Plan.Continuous || len(shown) == 0 {
		return len(b.Waves)
	}
	return max(shown[len(shown)-1], b.Campaign.Wave) + 1
}

// acts are the acts that the state offers.
type acts struct {
	pause, resume, advance, start, abort, retry, rollback, pullNow, approve, edit, discard bool
}

func (b CampaignBoard) acts() (a acts) {
	c, tally := b.Campaign, b.tally()
	a.edit = c.RollbackOf == uuid.Nil
	switch c.State {
	case campaign.Draft:
		a.start, a.discard = true, true
	case campaign.Denied:
		a.discard = true
	case campaign.AwaitingApproval:
		a.approve, a.discard = true, true
	case campaign.Scheduled:
		a.abort = true
	case campaign.Running:
		a.pause, a.abort = true, true
		a.pullNow = c.Plan.Mode != firmware.ModePush && !c.Plan.PullNow
		a.advance = c.Wave+1 < b.lastWave()
	case campaign.Paused:
		a.abort = true
		a.pause = c.PauseReason == campaign.PausedByWindow // the window would resume it automatically
		a.advance = c.PauseReason == campaign.PausedByGate && c.Wave+1 < b.lastWave()
		a.resume = c.PauseReason != campaign.PausedByGate // only passing the gate continues it
	default:
		a.edit = false
	}
	b.after(&a, tally)
	return a
}

// after adds the acts that are possible after the first outcomes.
func (b CampaignBoard) after(a *acts, tally CampaignTally) {
	switch b.Campaign.State {
	case campaign.Running, campaign.Paused, campaign.Completed, campaign.CompletedWithErrors:
		a.retry = b.started() && tally.Failed > 0
	}
	c := b.Campaign
	still := c.State == campaign.Paused || c.State.Final()
	a.rollback = b.started() && still && tally.Succeeded+tally.InFlight+tally.Verifying > 0 &&
		(c.RollbackWith == uuid.Nil || b.Rollback.WayBackOpen()) && c.RollbackOf == uuid.Nil
}

// own reports whether the viewer created or edited the plan, and therefore cannot be the second
// operator that its approval requires.
func (b CampaignBoard) own() bool {
	c := b.Campaign
	return c.CreatedBy.Same(b.Viewer) || c.EditedBy.Same(b.Viewer)
}

// saying returns the sentence at the head of the board: the state, and its reason.
func (b CampaignBoard) saying(ctx context.Context) string {
	c := b.Campaign
	switch {
	case c.State == campaign.Paused && c.PauseReason != "":
		return t(ctx, "campaign.say.paused."+string(c.PauseReason), "i", c.Wave+1, "n", b.lastWave())
	case c.State == campaign.Scheduled && c.Plan.StartAt != nil:
		return t(ctx, "campaign.say.scheduled_at", "at", *c.Plan.StartAt)
	case c.State == campaign.Running:
		return t(ctx, "campaign.say.running", "i", c.Wave+1, "n", b.lastWave())
	}
	return t(ctx, "campaign.say."+string(c.State), "n", c.Targets)
}

// hopeless reports whether the open wave can no longer reach its success rate.
func (b CampaignBoard) hopeless() bool {
	i := b.Campaign.Wave
	return i < len(b.Waves) && b.Waves[i].State == campaign.WaveFailed
}

// resumeSaying returns the sentence before a resume about its effect in spite of the failures; ""
// if it overrules nothing.
func (b CampaignBoard) resumeSaying(ctx context.Context) string {
	c := b.Campaign
	if c.State != campaign.Paused || c.PauseReason != campaign.PausedByThreshold || c.Wave >= len(b.Waves) {
		return ""
	}
	w, tally := b.Waves[c.Wave], b.waveTally(c.Wave)
	key := "campaign.resume_say"
	left := tally.Waiting + tally.InFlight + tally.Verifying
	switch {
	case left == 0 && b.hopeless():
		key = "campaign.resume_say.hopeless_done"
	case b.hopeless():
		key = "campaign.resume_say.hopeless"
	case left == 0:
		key = "campaign.resume_say.done"
	}
	return t(ctx, key, "n", left, "i", c.Wave+1, "need", forms.Decimal(w.Plan.SuccessPercent))
}

// A funnelStep is one bar of the funnel.
type funnelStep struct {
	step  campaign.FunnelStep
	count int     // devices that reached this step or a later one
	here  int     // of those, in progress at this step
	lost  int     // of those, neither in progress here nor further
	share float64 // of the first step
}

// stepOf is the step that a deployment in progress has reached.
var stepOf = map[campaign.DeploymentState]campaign.FunnelStep{
	campaign.DeploymentDispatching: campaign.FunnelPlanned, campaign.DeploymentPending: campaign.FunnelPlanned,
	campaign.DeploymentQueued: campaign.FunnelPlanned,
	campaign.DeploymentSent:   campaign.FunnelNotified, campaign.DeploymentOffered: campaign.FunnelNotified,
	campaign.DeploymentAmbiguous:   campaign.FunnelNotified,
	campaign.DeploymentDownloading: campaign.FunnelGet, campaign.DeploymentDownloaded: campaign.FunnelDownloaded,
	campaign.DeploymentRebooting: campaign.FunnelGoodbye,
	campaign.DeploymentBooted:    campaign.FunnelBootPoll, campaign.DeploymentVerifying: campaign.FunnelInitialize,
}

// funnel counts the steps that deployments have reached by evidence. Steps can be skipped: a device
// that polls with the new build has downloaded it.
func (b CampaignBoard) funnel() []funnelStep {
	here := map[campaign.FunnelStep]int{}
	for s, n := range b.Progress.ByState {
		if step, ok := stepOf[s]; ok {
			here[step] += n
		}
	}
	var steps []funnelStep
	for i, step := range campaign.FunnelSteps {
		s := funnelStep{step: step, count: b.Progress.Reached[step], share: ratio(b.Progress.Reached[step],
			b.Progress.Reached[campaign.FunnelPlanned])}
		if i+1 < len(campaign.FunnelSteps) { // the last step is the goal
			at := max(0, s.count-b.Progress.Reached[campaign.FunnelSteps[i+1]])
			s.here = min(here[step], at)
			s.lost = at - s.here
		}
		steps = append(steps, s)
	}
	return steps
}

func ratio(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// z95 is the quantile of the normal distribution for an interval of 95 %.
const z95 = 1.959964

// A boardShare is the outcome of the image on one board.
type boardShare struct {
	board  string
	tally  CampaignTally
	lo, hi float64
}

const mostBoards = 20

// shares returns the boards with a verdict, most devices first.
func (b CampaignBoard) shares() []boardShare {
	var all []boardShare
	for board, states := range b.Progress.ByBoard {
		s := boardShare{board: board, tally: NewCampaignTally(states)}
		if s.tally.total() == 0 {
			continue
		}
		s.lo, s.hi = campaign.Wilson(s.tally.Succeeded, s.tally.verdicts(), z95)
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y boardShare) int {
		if d := y.tally.total() - x.tally.total(); d != 0 {
			return d
		}
		return strings.Compare(x.board, y.board)
	})
	return all[:min(len(all), mostBoards)]
}

// devicesURL lists deployments, filtered by pairs of name and value.
func (b CampaignBoard) devicesURL(pairs ...string) string { return deploymentsURL(b.id(), pairs...) }

func deploymentsURL(campaign string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	path := CampaignPath(campaign, "devices")
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return path
}

// rateStack draws the outcomes by minute.
func (b CampaignBoard) rateStack(ctx context.Context) stackChart {
	c := stackChart{id: "campaign-rate-chart", title: t(ctx, "campaign.rate"), span: timeSpan{b.From, b.To}, step: time.Minute,
		layers: []stackLayer{{class: "fill-good", label: t(ctx, "chart.succeeded")},
			{class: "fill-bad", label: t(ctx, "chart.failed")}}}
	known := make(map[int64]campaign.RateBucket, len(b.Progress.Rate))
	for _, r := range b.Progress.Rate {
		known[r.At.Unix()] = r
	}
	for at := b.From; at.Before(b.To); at = at.Add(time.Minute) {
		r := known[at.Unix()]
		c.times = append(c.times, at)
		c.layers[0].counts = append(c.layers[0].counts, r.Succeeded)
		c.layers[1].counts = append(c.layers[1].counts, r.Failed)
	}
	return c
}

// width returns a share as the width of a bar of 100.
func width(share float64) string { return strconv.FormatFloat(100*share, 'f', 1, 64) }

// finePercent formats a share to a tenth of a percent.
func finePercent(share float64) string {
	return strconv.FormatFloat(100*share, 'f', 1, 64) + "%"
}

// verdict returns the engine's reason for the state of a wave if the numbers do not explain it. The
// reason that a goal had become unreachable contains the numbers of that moment, which devices in
// progress have changed since.
func (b CampaignBoard) verdict(w campaign.Wave) fleet.Reason {
	c := b.waveTally(w.Number)
	over := w.State == campaign.WaveFailed || w.State == campaign.WaveFinished
	if over && 100*ratio(c.Succeeded, c.verdicts()) < w.Plan.SuccessPercent && !w.Verdict.Is(campaign.ReasonWaveHopeless) {
		return w.Verdict
	}
	return fleet.Reason{}
}

// waveTally returns the tally of a wave's deployments.
func (b CampaignBoard) waveTally(number int) CampaignTally {
	if number < len(b.Progress.ByWave) {
		return NewCampaignTally(b.Progress.ByWave[number])
	}
	return CampaignTally{}
}

// soakUntil returns when the last device of a wave has completed its soak time, or zero if the wave
// does not soak.
func (b CampaignBoard) soakUntil(w campaign.Wave) time.Time {
	if w.State != campaign.WaveSoaking || w.Number >= len(b.Progress.SoakUntil) {
		return time.Time{}
	}
	return b.Progress.SoakUntil[w.Number]
}

// stands reports whether a wave that has begun is stopped, because its campaign is paused.
func (b CampaignBoard) stands(w campaign.Wave) bool {
	return b.Campaign.State == campaign.Paused && (w.State == campaign.WaveRunning || w.State == campaign.WaveSoaking)
}

// waveSaying returns the sentence about the state of a wave.
func (b CampaignBoard) waveSaying(ctx context.Context, w campaign.Wave) string {
	c := b.waveTally(w.Number)
	need := forms.Decimal(w.Plan.SuccessPercent)
	if b.stands(w) {
		return t(ctx, "campaign.wave_say.paused", "v", c.verdicts(), "n", w.Size, "need", need, "open",
			c.InFlight+c.Verifying)
	}
	switch w.State {
	case campaign.WavePending:
		return b.waveOpens(ctx, w)
	case campaign.WaveRunning:
		return t(ctx, "campaign.wave_say.running", "v", c.verdicts(), "n", w.Size, "need", need, "sample",
			min(w.Plan.MinSample, w.Size))
	case campaign.WaveSoaking:
		return t(ctx, "campaign.wave_say.soaking", "n", c.Verifying, "d", w.Plan.Soak)
	}
	return t(ctx, "campaign.wave_say."+string(w.State), "ok", c.Succeeded, "n", c.verdicts(), "need", need)
}

// waveOpens returns the condition for the opening of a wave.
func (b CampaignBoard) waveOpens(ctx context.Context, w campaign.Wave) string {
	switch {
	case w.Number == 0:
		return t(ctx, "campaign.wave_say.first")
	case w.Number <= len(b.Waves) && b.Waves[w.Number-1].Plan.Gate == campaign.GateManual:
		return t(ctx, "campaign.wave_say.after_gate", "i", w.Number)
	}
	return t(ctx, "campaign.wave_say.after", "i", w.Number)
}

// rules returns the present figure of each abort rule, in the same way as the engine computes it.
func (b CampaignBoard) rules() []campaign.AbortFigure {
	e := campaign.AbortEvidence{Cohorts: b.Progress.Cohorts, OverruledAt: b.Campaign.OverruledAt}
	for _, w := range b.Waves {
		e.WaveNames = append(e.WaveNames, w.Plan.Name)
	}
	return campaign.AbortFigures(b.Campaign.Plan.AbortRules, e)
}

// figureText returns the present figure of a rule as text.
func figureText(ctx context.Context, f campaign.AbortFigure) string {
	args := []any{"n", f.Counted, "of", f.Of, "p", oneDecimal(f.Share), "bound", oneDecimal(f.Bound)}
	switch {
	case f.Rule.Percent == 0 || f.Counted == 0:
		return t(ctx, "campaign.rule.now", args...)
	case f.Rule.Measure == campaign.MeasureShare:
		return t(ctx, "campaign.rule.now_share", args...)
	}
	return t(ctx, "campaign.rule.now_bound", args...)
}

// figureScope returns the wave or board of a figure; "" for the whole campaign.
func figureScope(ctx context.Context, f campaign.AbortFigure) string {
	if f.Scope.Is(campaign.ReasonScopeOfAll) {
		return ""
	}
	return reasonText(ctx, f.Scope)
}

func oneDecimal(percent float64) string { return forms.Decimal(math.Round(10*percent) / 10) }

// BoardNames returns the boards of a campaign, by name.
func BoardNames(p campaign.Progress) []string { return slices.Sorted(maps.Keys(p.ByBoard)) }

// ruleText returns a rule as a sentence.
func ruleText(ctx context.Context, r campaign.AbortRule) string {
	what := t(ctx, "campaign.class.any")
	if r.Class != campaign.ClassAny {
		what = t(ctx, "campaign.dep."+r.Class)
	}
	where := t(ctx, "campaign.scope."+string(r.Scope))
	if r.Wave > 0 {
		where = t(ctx, "campaign.wave_n", "i", r.Wave)
	}
	args := []any{"what", what, "p", forms.Decimal(r.Percent), "min", r.MinExecuted, "where", where, "do",
		t(ctx, "campaign.action."+string(r.Action))}
	switch {
	case r.Percent == 0:
		return t(ctx, "campaign.rule.say_any", args...)
	case r.Measure == campaign.MeasureShare:
		return t(ctx, "campaign.rule.say_share", args...)
	}
	return t(ctx, "campaign.rule.say", args...)
}

// waveName returns the name of a wave: in the viewer's language if the program chose it, else as
// its author wrote it.
func waveName(ctx context.Context, name string) string {
	switch name {
	case campaign.WaveCanary:
		return t(ctx, "campaign.wave.canary")
	case campaign.WaveEarly:
		return t(ctx, "campaign.wave.early")
	case campaign.WaveRest:
		return t(ctx, "campaign.wave.rest")
	case campaign.WaveEveryone:
		return t(ctx, "campaign.wave.everyone")
	}
	return name
}

// copyURL returns the wizard with a copy of this plan, for another campaign.
func (b CampaignBoard) copyURL(ctx context.Context) string {
	p := b.Campaign.Plan
	p.StartAt, p.EndAt = nil, nil
	return PathCampaignNew + "?" + forms.FillPlan(p, page(ctx).Zone).Values.Encode()
}
