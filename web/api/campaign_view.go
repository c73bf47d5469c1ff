package api

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// CampaignHead is the part of a campaign in every response.
type CampaignHead struct {
	ID               uuid.UUID             `json:"id" format:"uuid"`
	Name             string                `json:"name"`
	State            campaign.State        `json:"state" enum:"draft,awaiting_approval,denied,discarded,scheduled,running,paused,stopping,completed,completed_with_errors,aborted,expired"`
	PauseReason      *campaign.PauseReason `json:"pause_reason" enum:"operator,window,threshold,gate,system" doc:"Who or what paused it; null unless it is paused"`
	Reason           string                `json:"reason" doc:"Why it is paused, denied or aborted"`
	ReasonCode       string                `json:"reason_code" doc:"Reason code of reason; empty if there is none" example:"next_window"`
	ReasonParams     map[string]any        `json:"reason_params" doc:"Parameters of the code: text, whole numbers, or a code with its own. Names end in _ms, _bytes and _at"`
	ReleaseID        *uuid.UUID            `json:"release_id" format:"uuid" nullable:"true" doc:"null for a rollback: each device gets its earlier image"`
	Query            string                `json:"q" doc:"The filter as written; empty when the devices were named"`
	Within           string                `json:"within" doc:"The filter of the plan's creator: of the devices that q matches, the plan includes only those that this filter matches, even while it runs. Empty: no limit"`
	Mode             firmware.DispatchMode `json:"mode" enum:"auto,push,pull"`
	PullNow          bool                  `json:"pull_now"`
	Supersede        bool                  `json:"supersede"`
	AllowDowngrade   bool                  `json:"allow_downgrade"`
	Continuous       bool                  `json:"continuous"`
	MaxDevices       int                   `json:"max_devices"`
	MaxInFlight      int                   `json:"max_in_flight"`
	MaxPerMinute     int                   `json:"max_per_minute"`
	AbortRules       []AbortRuleView       `json:"abort_rules" nullable:"false"`
	Windows          []WindowView          `json:"windows" nullable:"false"`
	JitterMs         int64                 `json:"jitter_ms"`
	StartAt          *time.Time            `json:"start_at"`
	EndAt            *time.Time            `json:"end_at"`
	EndBehavior      campaign.EndBehavior  `json:"end_behavior" enum:"stop_rollout,cancel_queued,abort_in_flight"`
	HealthChecks     []HealthCheckView     `json:"health_checks" nullable:"false"`
	ForbidRemoved    []string              `json:"forbid_removed" nullable:"false"`
	MinHeapPercent   int                   `json:"min_heap_percent"`
	MaxReconnects    int                   `json:"max_reconnects"`
	ApprovalRequired bool                  `json:"approval_required"`
	MaxAttempts      int                   `json:"max_attempts"`
	Wave             int                   `json:"wave" doc:"The open wave, counted from 0"`
	Digest           string                `json:"digest" doc:"Names the plan, its images and its devices; an approval is for one digest"`
	Approval         *approvalView         `json:"approval"`
	Targets          int                   `json:"targets" doc:"Devices that get an image"`
	Skipped          int                   `json:"skipped" doc:"Devices that matched but were left out"`
	RollbackOf       *uuid.UUID            `json:"rollback_of" format:"uuid" nullable:"true" doc:"The campaign that this one rolls back"`
	RollbackWith     *uuid.UUID            `json:"rollback_with" format:"uuid" nullable:"true" doc:"The campaign that rolls this one back"`
	NoRollback       string                `json:"no_rollback" doc:"Why the rollback requested with the abort was not started, or not for all devices; empty if it was"`
	NoRollbackCode   string                `json:"no_rollback_code" doc:"Reason code of no_rollback; empty if there is none" example:"actor_gone"`
	NoRollbackParams map[string]any        `json:"no_rollback_params" doc:"Parameters of the code"`
	CreatedBy        actorView             `json:"created_by"`
	CreatedAt        time.Time             `json:"created_at"`
	EditedBy         actorView             `json:"edited_by"`
	EditedAt         time.Time             `json:"edited_at"`
	StartedBy        *actorView            `json:"started_by"`
	TakenOverBy      *actorView            `json:"taken_over_by" doc:"The principal in whose name it continues, because its creator or starter is no longer allowed to act; null if they are"`
	StartedAt        *time.Time            `json:"started_at"`
	EndsAt           *time.Time            `json:"ends_at" doc:"When it ends, whatever the state of its devices"`
	FinishedAt       *time.Time            `json:"finished_at"`
	Revision         int64                 `json:"revision" doc:"Grows with every change"`
}

type approvalView struct {
	By       actorView  `json:"by"`
	At       time.Time  `json:"at"`
	Digest   string     `json:"digest"`
	Rollback bool       `json:"rollback" doc:"A rule of the plan aborts and rolls back: the way back is approved, too"`
	Of       *uuid.UUID `json:"of" format:"uuid" nullable:"true" doc:"Of a rollback: the campaign whose approval covers it; else null"`
}

func campaignHead(c campaign.Campaign) CampaignHead {
	p := c.Plan
	h := CampaignHead{ID: c.ID, Name: p.Name, State: c.State, PauseReason: orNil(c.PauseReason), Reason: because(c.Reason),
		ReasonCode: c.Reason.Code, ReasonParams: paramsOf(c.Reason),
		ReleaseID: orNil(p.Release),
		Query:     p.Query, Within: p.Within, Mode: p.Mode, PullNow: p.PullNow, Supersede: p.Supersede,
		AllowDowngrade: p.AllowDowngrade,
		Continuous:     p.Continuous, MaxDevices: p.MaxDevices, MaxInFlight: p.MaxInFlight, MaxPerMinute: p.MaxPerMinute,
		AbortRules: viewed(p.AbortRules, abortRule),
		Windows:    viewed(p.Windows, window), JitterMs: p.Jitter.Milliseconds(), StartAt: utcOrNil(p.StartAt),
		EndAt:       utcOrNil(p.EndAt),
		EndBehavior: p.EndBehavior, HealthChecks: viewed(p.HealthChecks, healthCheck),
		ForbidRemoved:  orEmpty(p.ForbidRemoved),
		MinHeapPercent: p.MinHeapPercent, MaxReconnects: p.MaxReconnects, ApprovalRequired: p.ApprovalRequired,
		MaxAttempts: p.MaxAttempts,
		Wave:        c.Wave, Digest: c.Digest, Targets: c.Targets, Skipped: c.Skipped, RollbackOf: orNil(c.RollbackOf),
		RollbackWith: orNil(c.RollbackWith), NoRollback: because(c.RollbackReason),
		NoRollbackCode: c.RollbackReason.Code, NoRollbackParams: paramsOf(c.RollbackReason),
		CreatedBy: actor(c.CreatedBy), CreatedAt: utc(c.CreatedAt), EditedBy: actor(c.EditedBy), EditedAt: utc(c.EditedAt),
		StartedAt: utcOrNil(c.StartedAt), FinishedAt: utcOrNil(c.FinishedAt), Revision: c.Revision}
	if c.StartedBy != nil {
		h.StartedBy = ptr(actor(*c.StartedBy))
	}
	if c.TakenOverBy != nil {
		h.TakenOverBy = ptr(actor(*c.TakenOverBy))
	}
	if c.Approval != nil {
		h.Approval = &approvalView{actor(c.Approval.By), utc(c.Approval.At), c.Approval.Digest, c.Approval.Rollback,
			orNil(c.Approval.Of)}
	}
	if ends, ok := c.Ends(); ok {
		h.EndsAt = ptr(utc(ends))
	}
	return h
}

// orNil returns nil for the zero value.
func orNil[T comparable](v T) *T {
	var none T
	if v == none {
		return nil
	}
	return &v
}

// CampaignItem is a campaign as in lists.
type CampaignItem struct {
	CampaignHead
	Waves []WavePlanView `json:"waves" nullable:"false"`
}

// TransformSchema marks the objects that may be null.
func (CampaignItem) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "approval", "started_by", "taken_over_by")
}

func campaignItem(c campaign.Campaign) CampaignItem {
	return CampaignItem{campaignHead(c), viewed(c.Plan.Waves, wavePlan)}
}

// CampaignView is a campaign with its progress.
type CampaignView struct {
	CampaignHead
	Devices  []fleet.DeviceID `json:"devices" nullable:"false" doc:"The devices that were named instead of a filter"`
	Waves    []waveView       `json:"waves" nullable:"false"`
	Counts   stateCounts      `json:"counts"`
	Progress progressView     `json:"progress"`
}

// TransformSchema marks the objects that may be null.
func (CampaignView) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	return CampaignItem{}.TransformSchema(r, s)
}

func newCampaignView(c campaign.Campaign, waves []campaign.Wave, p campaign.Progress) CampaignView {
	v := CampaignView{CampaignHead: campaignHead(c), Devices: orEmpty(c.Plan.Devices), Waves: []waveView{},
		Counts: stateCounts(p.ByState), Progress: progress(p)}
	for i, w := range waves {
		var counts stateCounts
		if i < len(p.ByWave) {
			counts = p.ByWave[i]
		}
		v.Waves = append(v.Waves, wave(w, counts))
	}
	return v
}

// waveView is a step of a campaign with its progress.
type waveView struct {
	Number int `json:"number" doc:"Counted from 0"`
	WavePlanView
	Size          int                `json:"size" doc:"Devices planned"`
	State         campaign.WaveState `json:"state" enum:"pending,running,soaking,gate,finished,failed"`
	Verdict       string             `json:"verdict" doc:"Reason for the verdict"`
	VerdictCode   string             `json:"verdict_code" doc:"Reason code of verdict; empty if there is none" example:"wave_rate"`
	VerdictParams map[string]any     `json:"verdict_params" doc:"Parameters of the code"`
	StartedAt     *time.Time         `json:"started_at"`
	FinishedAt    *time.Time         `json:"finished_at"`
	Counts        stateCounts        `json:"counts"`
}

func wave(w campaign.Wave, counts stateCounts) waveView {
	return waveView{Number: w.Number, WavePlanView: wavePlan(w.Plan), Size: w.Size, State: w.State,
		Verdict:     because(w.Verdict),
		VerdictCode: w.Verdict.Code, VerdictParams: paramsOf(w.Verdict),
		StartedAt: utcOrNil(w.StartedAt), FinishedAt: utcOrNil(w.FinishedAt), Counts: counts}
}
