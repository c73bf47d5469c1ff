package api

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// stateCounts counts deployments by state.
type stateCounts map[campaign.DeploymentState]int

// Schema lists the states: each is always present, so programs need not check.
func (stateCounts) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeObject, Properties: map[string]*huma.Schema{}, AdditionalProperties: false}
	for _, state := range campaign.DeploymentStates {
		s.Properties[string(state)] = &huma.Schema{Type: huma.TypeInteger}
		s.Required = append(s.Required, string(state))
	}
	return s
}

// MarshalJSON adds the states without deployments.
func (n stateCounts) MarshalJSON() ([]byte, error) {
	all := make(map[campaign.DeploymentState]int, len(campaign.DeploymentStates))
	for _, state := range campaign.DeploymentStates {
		all[state] = n[state]
	}
	return json.Marshal(all)
}

// progressView is the number of a campaign's devices in each state.
type progressView struct {
	Funnel   []funnelView   `json:"funnel" nullable:"false" doc:"Devices by the evidence there is, step by step; each counts in every step up to its furthest"`
	ByBoard  []boardView    `json:"by_board" nullable:"false"`
	Failures []failuresView `json:"failures" nullable:"false" doc:"Devices by how they failed, most first"`
	Skipped  []skippedView  `json:"skipped" nullable:"false" doc:"Devices that were left out, by reason and board; the reason of most of them first"`
	Late     int            `json:"late" doc:"Devices that succeeded after the campaign had given up on them"`
	Rate     []callBucket   `json:"rate" nullable:"false" doc:"Outcomes per minute, last hour"`
}

func progress(p campaign.Progress) progressView {
	return progressView{Funnel: funnel(p.Reached), ByBoard: byBoard(p.ByBoard), Failures: viewed(p.Failures, failures),
		Skipped: viewed(p.Skipped, skipped), Late: p.Late,
		Rate: viewed(p.Rate, func(b campaign.RateBucket) callBucket { return callBucket{utc(b.At), b.Succeeded, b.Failed} })}
}

type funnelView struct {
	Step  campaign.FunnelStep `json:"step" enum:"planned,told,get,downloaded,goodbye,boot_poll,initialize,succeeded"`
	Count int                 `json:"count"`
}

// funnel returns the steps in order; the store counts a device in every earlier step too.
func funnel(reached map[campaign.FunnelStep]int) []funnelView {
	return viewed(campaign.FunnelSteps, func(step campaign.FunnelStep) funnelView {
		return funnelView{step,
			reached[step]}
	})
}

type boardView struct {
	Board     string      `json:"board"`
	Succeeded int         `json:"succeeded"`
	Failed    int         `json:"failed"`
	Counts    stateCounts `json:"counts"`
}

func byBoard(boards map[string]map[campaign.DeploymentState]int) []boardView {
	all := []boardView{}
	for board, counts := range boards {
		v := boardView{Board: board, Succeeded: counts[campaign.DeploymentSucceeded], Counts: counts}
		for state, n := range counts {
			if state.Failed() {
				v.Failed += n
			}
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b boardView) int { return strings.Compare(a.Board, b.Board) })
	return all
}

type failuresView struct {
	State        campaign.DeploymentState `json:"state"`
	Class        *campaign.FailureClass   `json:"class" enum:"download,timeout,busy,image,rejected,rolled_back,wrong_build,unhealthy"`
	Reason       string                   `json:"reason" doc:"Of one of them"`
	ReasonCode   string                   `json:"reason_code" doc:"Reason code of reason"`
	ReasonParams map[string]any           `json:"reason_params" doc:"Parameters of the code"`
	Count        int                      `json:"count"`
	Sample       []fleet.DeviceID         `json:"sample" nullable:"false" doc:"Some of the devices"`
}

func failures(g campaign.FailureGroup) failuresView {
	return failuresView{State: g.State, Class: orNil(g.Class), Reason: because(g.Reason), ReasonCode: g.Reason.Code,
		ReasonParams: paramsOf(g.Reason), Count: g.Count, Sample: orEmpty(g.Sample)}
}

type skippedView struct {
	Reason firmware.SkipReason `json:"reason" example:"no_image"`
	Board  string              `json:"board" doc:"Time zone of the devices; empty if they have none"`
	Count  int                 `json:"count"`
}

func skipped(m firmware.Misfits) skippedView { return skippedView{m.Reason, m.Board, m.Count} }

// dryRunView is the predicted outcome of a campaign.
type dryRunView struct {
	Within        string             `json:"within" doc:"Your filter, which limits the plan; empty: no limit"`
	Matched       int                `json:"matched"`
	Targets       int                `json:"targets" doc:"Devices that would get an image"`
	Offline       int                `json:"offline" doc:"Of these, not connected now"`
	Waves         []plannedWaveView  `json:"waves" nullable:"false"`
	Images        []plannedImageView `json:"images" nullable:"false"`
	Skipped       []misfitsView      `json:"skipped" nullable:"false" doc:"Devices that match but would be left out, by reason and board; the reason of most of them first"`
	Conflicts     []conflictView     `json:"conflicts" nullable:"false" doc:"Other campaigns that have part of the audience"`
	Warnings      []warningView      `json:"warnings" nullable:"false" doc:"Warnings to consider before the start"`
	Digest        string             `json:"digest"`
	FirstDispatch *time.Time         `json:"first_dispatch" doc:"When the first device could be notified; null if no window opens before the end"`
	EstimateMs    int64              `json:"estimate_ms" doc:"Estimate for the whole campaign if every device were online; 0 if unknown"`
}

type plannedWaveView struct {
	WavePlanView
	Size    int              `json:"size"`
	ByBoard []countView      `json:"by_board" nullable:"false"`
	Sample  []fleet.DeviceID `json:"sample" nullable:"false" doc:"Some of the devices"`
}

type plannedImageView struct {
	Image imageView `json:"image"`
	Count int       `json:"count" doc:"Devices that would get it"`
}

type conflictView struct {
	CampaignID uuid.UUID        `json:"campaign_id" format:"uuid"`
	Name       string           `json:"name"`
	Waiting    int              `json:"waiting" doc:"Devices that can be taken over, with supersede"`
	Active     int              `json:"active" doc:"Devices that cannot"`
	Sample     []fleet.DeviceID `json:"sample" nullable:"false"`
}

type warningView struct {
	Code   string `json:"code" example:"single_wave"`
	Detail string `json:"detail"`
}

func dryRun(d campaign.DryRun) dryRunView {
	return dryRunView{Within: d.Within, Matched: d.Matched, Targets: d.Targets, Offline: d.Offline,
		Waves: viewed(d.Waves, func(w campaign.PlannedWave) plannedWaveView {
			return plannedWaveView{wavePlan(w.WavePlan), w.Size,
				viewed(w.ByBoard, func(c fleet.DeviceCount) countView { return countView(c) }), orEmpty(w.Sample)}
		}),
		Images: viewed(d.Images, func(i campaign.PlannedImage) plannedImageView {
			return plannedImageView{newImageView(i.Image, fleet.Reason{}), i.Count}
		}),
		Conflicts: viewed(d.Conflicts, func(c campaign.PlannedConflict) conflictView {
			return conflictView{c.Campaign, c.Name, c.Waiting, c.Active, orEmpty(c.Sample)}
		}),
		Warnings: viewed(d.Warnings, func(w campaign.PlanWarning) warningView { return warningView(w) }),
		Skipped:  viewed(d.Skipped, misfits), Digest: d.Digest, FirstDispatch: utcOrNil(d.FirstDispatch),
		EstimateMs: d.Estimate.Milliseconds()}
}
