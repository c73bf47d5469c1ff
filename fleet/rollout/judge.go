package rollout

import (
	"context"
	"slices"
	"strconv"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// verdictEvery bounds how often the numbers in a wave's verdict are stored while the wave's
// state remains the same.
const verdictEvery = time.Second

// judgeRules applies the abort rules to the rows after every failure. A rule that an operator
// overruled by resuming applies again after the next failure.
func (l *loop) judgeRules(ctx context.Context, c *openCampaign) error {
	if !c.rulesDue || len(c.Plan.AbortRules) == 0 || c.failures() == 0 {
		return nil
	}
	cohorts, err := l.o.Store.Cohorts(ctx, c.ID)
	if err != nil {
		return err
	}
	evidence := campaign.AbortEvidence{Cohorts: cohorts, OverruledAt: c.OverruledAt}
	for _, w := range c.waves {
		evidence.WaveNames = append(evidence.WaveNames, w.Plan.Name)
	}
	c.short = slices.ContainsFunc(campaign.AbortFigures(c.Plan.AbortRules, evidence),
		func(f campaign.AbortFigure) bool { return f.Short && f.Counted > 0 })
	f := campaign.JudgeAbort(c.Plan.AbortRules, evidence)
	switch {
	case f == nil:
	case f.Rule.Action != campaign.AbortPause:
		err = l.abort(ctx, c, f)
	case c.State == campaign.Paused && c.PauseReason != campaign.PausedByWindow && c.PauseReason != campaign.PausedByGate:
		// already paused
	default:
		err = l.pause(ctx, c, campaign.PausedByThreshold, f.Reason())
	}
	c.rulesDue = c.rulesDue && err != nil
	return err
}

// abort applies the action of an abort rule: it ends the campaign.
func (l *loop) abort(ctx context.Context, c *openCampaign, f *campaign.AbortFigure) error {
	reason := f.Reason()
	l.o.Log.Warn("campaign aborted by its rule", "campaign", c.ID, "name", c.Plan.Name, "reason", reason)
	return l.change(ctx, c, "campaign.abort", func(row *campaign.Campaign) {
		row.State, row.PauseReason, row.Reason = campaign.Stopping, "", reason
		row.RollbackWanted = f.Rule.Action == campaign.AbortAndRollback
	})
}

// judgeWave applies the rules to a wave and returns the verdict.
func (l *loop) judgeWave(c *openCampaign, w campaign.Wave) campaign.WaveVerdict {
	return campaign.JudgeWave(w.Plan, w.Size, c.tallies.ByWave[w.Number], c.stuck[w.Number])
}

// followWave judges the open wave, and opens the next one.
func (l *loop) followWave(ctx context.Context, c *openCampaign) error {
	w := c.wave()
	switch {
	case w == nil:
		return nil
	case c.Advance && (c.State == campaign.Running || c.PauseReason == campaign.PausedByGate):
		return l.openNext(ctx, c, fleet.Because(campaign.ReasonWaveByHand))
	case c.State != campaign.Running:
		return l.watchWave(ctx, c)
	case w.State == campaign.WavePending:
		if err := l.saveWave(ctx, c, campaign.WaveRunning, fleet.Reason{}); err != nil {
			return err
		}
		fallthrough
	case c.tallies.ByWave[c.Wave][campaign.DeploymentPending] > 0 && !l.ended(c):
		return l.fillWave(ctx, c)
	case c.judged:
		return nil
	}
	return l.applyVerdict(ctx, c, l.judgeWave(c, *w))
}

// watchWave updates the verdict on a wave while nothing is dispatched. If a rule stopped a wave
// before its verdict and the wave can no longer reach its goal, the wave has failed: an
// operator who then resumes overrules both at once.
func (l *loop) watchWave(ctx context.Context, c *openCampaign) error {
	w := c.wave()
	if c.judged || w.State != campaign.WaveRunning && w.State != campaign.WaveSoaking {
		return nil
	}
	c.judged = true
	switch v := l.judgeWave(c, *w); v.State {
	case campaign.WaveRunning, campaign.WaveSoaking:
		return l.saveWave(ctx, c, v.State, v.Reason)
	case campaign.WaveFailed:
		if c.PauseReason == campaign.PausedByThreshold {
			return l.saveWave(ctx, c, v.State, v.Reason)
		}
	}
	return nil
}

func (l *loop) applyVerdict(ctx context.Context, c *openCampaign, v campaign.WaveVerdict) error {
	w := c.wave()
	overruled := w.State == campaign.WaveFailed // an operator resumed it nevertheless
	switch v.State {
	case campaign.WaveFinished:
		return l.passWave(ctx, c, v)
	case campaign.WaveFailed:
		return l.failWave(ctx, c, v, overruled)
	}
	c.judged = true
	if overruled {
		return nil
	}
	return l.saveWave(ctx, c, v.State, v.Reason)
}

// passWave proceeds after a good verdict on a wave.
func (l *loop) passWave(ctx context.Context, c *openCampaign, v campaign.WaveVerdict) error {
	w := c.wave()
	switch {
	case c.lastWave():
		c.judged = true
		return l.saveWave(ctx, c, campaign.WaveFinished, v.Reason)
	case w.Plan.Gate == campaign.GateManual && w.Size > 0 && c.more():
		if err := l.saveWave(ctx, c, campaign.WaveGated, v.Reason); err != nil {
			return err
		}
		return l.pause(ctx, c, campaign.PausedByGate, fleet.Because(campaign.ReasonWavePassed,
			"name", label(*w), "verdict", v.Reason))
	}
	if err := l.saveWave(ctx, c, campaign.WaveFinished, v.Reason); err != nil {
		return err
	}
	return l.openNext(ctx, c, v.Reason)
}

// failWave stops after a bad verdict on a wave. If an operator resumed the wave nevertheless,
// its devices still get their turn, and after that only an operator opens the next wave.
func (l *loop) failWave(ctx context.Context, c *openCampaign, v campaign.WaveVerdict, overruled bool) error {
	done := v.Waiting+v.Active-v.Stuck == 0
	switch {
	case !overruled:
		if err := l.saveWave(ctx, c, campaign.WaveFailed, v.Reason); err != nil || c.lastWave() && c.open() == 0 {
			return err
		}
		return l.pause(ctx, c, campaign.PausedByThreshold, fleet.Because(campaign.ReasonWaveIsBad,
			"name", label(*c.wave()), "verdict", v.Reason))
	case done && !c.lastWave():
		return l.pause(ctx, c, campaign.PausedByGate, fleet.Because(campaign.ReasonWaveIsBadGate,
			"name", label(*c.wave()), "verdict", v.Reason))
	}
	c.judged = true
	return nil
}

func label(w campaign.Wave) string {
	if w.Plan.Name != "" {
		return w.Plan.Name
	}
	return strconv.Itoa(w.Number + 1)
}

// openNext closes the open wave and opens the one after it.
func (l *loop) openNext(ctx context.Context, c *openCampaign, verdict fleet.Reason) error {
	if c.lastWave() {
		return l.change(ctx, c, "", func(row *campaign.Campaign) { row.Advance = false })
	}
	if w := c.wave(); w.State != campaign.WaveFailed {
		if err := l.saveWave(ctx, c, campaign.WaveFinished, verdict); err != nil {
			return err
		}
	}
	return l.change(ctx, c, "", func(row *campaign.Campaign) {
		row.Wave, row.Advance = c.Wave+1, false
		row.State, row.PauseReason, row.Reason = campaign.Running, "", fleet.Reason{}
	})
}

// fillWave queues the devices of the open wave.
func (l *loop) fillWave(ctx context.Context, c *openCampaign) error {
	c.planChecked = false
	if err := l.checkPlan(ctx, c); err != nil || c.State != campaign.Running {
		return err
	}
	if err := l.leaveOutside(ctx, c); err != nil {
		return err
	}
	rows, err := l.o.Store.OpenWave(ctx, &c.Campaign, c.Wave, l.now)
	if err != nil {
		return err
	}
	if c.Plan.Supersede {
		l.reloadOthers(c)
	}
	l.o.Log.Info("wave opened", "campaign", c.ID, "name", c.Plan.Name, "wave", c.Wave+1, "devices", len(rows))
	l.again = true
	c.events.pending = true
	if err := l.recount(ctx, c); err != nil {
		return err
	}
	return l.enqueue(ctx, c, rows)
}

// reloadOthers makes the engine re-read the campaigns that lost devices to this one.
func (l *loop) reloadOthers(c *openCampaign) {
	l.reload = true
	for _, other := range l.order {
		other.stale = other.stale || other != c
	}
}

// saveWave stores the state of the open wave, if it changed.
func (l *loop) saveWave(ctx context.Context, c *openCampaign, state campaign.WaveState, verdict fleet.Reason) error {
	w, now := *c.wave(), l.now
	if w.State == state && (w.Verdict.Equal(verdict) || w.FinishedAt == nil && now.Sub(c.verdictAt) < verdictEvery) {
		return nil
	}
	if w.StartedAt == nil {
		w.StartedAt = &now
	}
	w.State, w.Verdict, w.FinishedAt = state, verdict, nil
	if state == campaign.WaveFinished || state == campaign.WaveFailed {
		w.FinishedAt = &now
	}
	if err := l.o.Store.SaveWave(ctx, w); err != nil {
		return err
	}
	c.waves[c.Wave], c.verdictAt = w, now
	c.events.pending = true
	return nil
}
