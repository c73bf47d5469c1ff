package api

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// CampaignFields are the optional parts of a plan. For an omitted field a new campaign uses
// [campaign.DefaultPlan], and a changed campaign keeps its value.
type CampaignFields struct {
	Query            *string                `json:"q,omitempty" maxLength:"1024" doc:"Filter that picks the devices; empty: every device"`
	Devices          *[]string              `json:"devices,omitempty" nullable:"false" minItems:"1" doc:"Device ids, instead of q"`
	Mode             *firmware.DispatchMode `json:"mode,omitempty" enum:"auto,push,pull" doc:"push calls a tool of the device, pull offers the image at the device's next boot, auto prefers push. Default: auto"`
	PullNow          *bool                  `json:"pull_now,omitempty" doc:"With pull: restart online devices so that they poll"`
	Waves            *[]WavePlanView        `json:"waves,omitempty" nullable:"false" minItems:"1" maxItems:"100" doc:"Steps, each judged before the next. Default: canary 1 % (soak 10 min), early 10 %, rest 100 % (soak 2 min each)"`
	Supersede        *bool                  `json:"supersede,omitempty" doc:"Take over devices that wait in other campaigns"`
	AllowDowngrade   *bool                  `json:"allow_downgrade,omitempty" doc:"Include devices that run a newer version or another build of the same version"`
	Continuous       *bool                  `json:"continuous,omitempty" doc:"Add devices that match later; requires max_devices and end_at"`
	MaxDevices       *int                   `json:"max_devices,omitempty" minimum:"0" maximum:"10000000"`
	MaxInFlight      *int                   `json:"max_in_flight,omitempty" minimum:"0" maximum:"1000000" doc:"Maximum devices in flight at once. Default: 10"`
	MaxPerMinute     *int                   `json:"max_per_minute,omitempty" minimum:"0" maximum:"1000000" doc:"Maximum devices notified a minute; 0: no limit"`
	AbortRules       *[]AbortRuleView       `json:"abort_rules,omitempty" nullable:"false" maxItems:"50" doc:"When to stop automatically. Default: pause at the first rolled_back of wave 1, or when at least 10 % of the first devices dispatched fail, with 99 % confidence; [] is no rule"`
	Windows          *[]WindowView          `json:"windows,omitempty" nullable:"false" maxItems:"50" doc:"Times in which devices may be notified; an empty list means always"`
	JitterMs         *int64                 `json:"jitter_ms,omitempty" minimum:"0" maximum:"31536000000" doc:"Spreads the devices over this time from the opening of a window or wave"`
	StartAt          maybeTime              `json:"start_at,omitempty" doc:"Earliest start; null: on request"`
	EndAt            maybeTime              `json:"end_at,omitempty" doc:"null: a week after the start"`
	EndBehavior      *campaign.EndBehavior  `json:"end_behavior,omitempty" enum:"stop_rollout,cancel_queued,abort_in_flight" doc:"Handling of devices that are not done at the end. Default: stop_rollout"`
	HealthChecks     *[]HealthCheckView     `json:"health_checks,omitempty" nullable:"false" maxItems:"50" doc:"Calls that must succeed after the upgrade; each is also made before it, as a baseline"`
	ForbidRemoved    *[]string              `json:"forbid_removed,omitempty" nullable:"false" maxItems:"500" doc:"Tools that must still be offered; [\"*\"] is every one"`
	MinHeapPercent   *int                   `json:"min_heap_percent,omitempty" minimum:"0" maximum:"100" doc:"Percentage of the earlier free heap; 0: no check. Default: 50"`
	MaxReconnects    *int                   `json:"max_reconnects,omitempty" minimum:"0" maximum:"1000000" doc:"While the device is watched. Default: 3"`
	ApprovalRequired *bool                  `json:"approval_required,omitempty" doc:"A second person must approve before it starts"`
	MaxAttempts      *int                   `json:"max_attempts,omitempty" minimum:"0" maximum:"1000" doc:"Maximum attempts per device. Default: 3"`
}

// WavePlanView is a step of a campaign as planned.
type WavePlanView struct {
	Name           string            `json:"name" required:"false" maxLength:"100"`
	Percent        float64           `json:"percent,omitempty" minimum:"0" maximum:"100" doc:"Of the audience that has had its turn after this wave: 1, 10, 100"`
	Count          int               `json:"count,omitempty" minimum:"0" maximum:"10000000" doc:"Or the number of its devices"`
	Devices        []fleet.DeviceID  `json:"devices,omitempty" nullable:"false" doc:"Or these devices"`
	SuccessPercent float64           `json:"success_percent" required:"false" minimum:"0" maximum:"100" doc:"Share of the devices with a verdict that must succeed for the next wave to open. Default: 90"`
	MinSample      int               `json:"min_sample" required:"false" minimum:"0" maximum:"10000000" doc:"Verdicts needed to judge. Default: 1"`
	SoakMs         *int64            `json:"soak_ms" required:"false" nullable:"false" minimum:"0" maximum:"31536000000" doc:"How long each device must stay healthy. Default: ten minutes in the first of several waves, else two"`
	Gate           campaign.WaveGate `json:"gate" required:"false" enum:"auto,manual" doc:"manual: an operator opens the next wave. Default: auto"`
}

// AbortRuleView is a rule that stops a failing campaign.
type AbortRuleView struct {
	Class       string                `json:"class" required:"false" enum:"failed,timed_out,rolled_back,wrong_build,unhealthy,rejected,any"`
	MinExecuted int                   `json:"min_executed" required:"false" minimum:"0" maximum:"10000000" doc:"Devices dispatched before the rule may fire"`
	Percent     float64               `json:"percent" required:"false" minimum:"0" maximum:"100" doc:"Share of a cohort, which is the first n devices dispatched, for any n; devices without a verdict count as not failed. 0 fires at the first failure"`
	Measure     campaign.AbortMeasure `json:"measure" required:"false" enum:"lower_bound,share" doc:"Compared with percent: lower_bound is the lower bound of the share with 99 % confidence, from three failures on; share is the plain share. Default: lower_bound"`
	Scope       campaign.AbortScope   `json:"scope" required:"false" enum:"wave,campaign,board"`
	Wave        int                   `json:"wave,omitempty" minimum:"0" maximum:"100" doc:"Only in this wave, counted from 1; 0: any"`
	Action      campaign.AbortAction  `json:"action" required:"false" enum:"pause,abort,abort_and_rollback"`
}

// WindowView is a recurring time window in which devices may be notified.
type WindowView struct {
	Cron       string `json:"cron" maxLength:"100" example:"0 2 * * *" doc:"When it opens: minute, hour, day of month, month, day of week"`
	DurationMs int64  `json:"duration_ms" minimum:"1" maximum:"31536000000"`
	TimeZone   string `json:"time_zone" required:"false" maxLength:"100" example:"Europe/Berlin" doc:"IANA name, or device: each device's own"`
}

// HealthCheckView is a call that must succeed.
type HealthCheckView struct {
	Tool      string          `json:"tool" minLength:"1" maxLength:"200" example:"self.get_device_status"`
	Arguments arguments       `json:"arguments,omitempty"`
	Assert    []AssertionView `json:"assert,omitempty" nullable:"false" maxItems:"50" doc:"Assertions on the answer; if empty, the call must only succeed"`
	Retries   int             `json:"retries" required:"false" minimum:"0" maximum:"100"`
}

// AssertionView compares a part of a call's result with a value.
type AssertionView struct {
	Path  string          `json:"path" minLength:"1" maxLength:"500" example:"$.battery.level"`
	Op    string          `json:"op" enum:"eq,ne,lt,le,gt,ge,exists,matches,unchanged"`
	Value json.RawMessage `json:"value,omitempty" doc:"Not for exists and unchanged"`
}

// maybeTime is a time that may be omitted, or null.
type maybeTime struct {
	Set bool
	At  *time.Time
}

// Schema marks the time as nullable.
func (maybeTime) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time", Nullable: true}
}

// UnmarshalJSON is not called for an omitted time.
func (m *maybeTime) UnmarshalJSON(data []byte) error {
	m.Set = true
	return json.Unmarshal(data, &m.At)
}

// apply copies the fields of the request into a plan.
func (f *CampaignFields) apply(p *campaign.Plan) error {
	if err := f.applyAudience(p); err != nil {
		return err
	}
	set(&p.Mode, f.Mode)
	set(&p.PullNow, f.PullNow)
	set(&p.Supersede, f.Supersede)
	set(&p.AllowDowngrade, f.AllowDowngrade)
	set(&p.Continuous, f.Continuous)
	set(&p.MaxDevices, f.MaxDevices)
	set(&p.MaxInFlight, f.MaxInFlight)
	set(&p.MaxPerMinute, f.MaxPerMinute)
	set(&p.EndBehavior, f.EndBehavior)
	set(&p.ForbidRemoved, f.ForbidRemoved)
	set(&p.MinHeapPercent, f.MinHeapPercent)
	set(&p.MaxReconnects, f.MaxReconnects)
	set(&p.ApprovalRequired, f.ApprovalRequired)
	set(&p.MaxAttempts, f.MaxAttempts)
	f.applyLists(p)
	f.applyTimes(p)
	return nil
}

// applyAudience replaces named devices by a filter, or a filter by named devices.
func (f *CampaignFields) applyAudience(p *campaign.Plan) error {
	switch {
	case f.Query != nil && f.Devices != nil:
		return fleet.Refuse(fleet.ErrInvalid, "audience_missing")
	case f.Query != nil:
		p.Query, p.Devices = *f.Query, nil
	case f.Devices != nil:
		ids, err := deviceIDs(*f.Devices)
		if err != nil {
			return err
		}
		p.Query, p.Devices = "", ids
	}
	return nil
}

// deviceIDs reads ids in any form.
func deviceIDs(list []string) ([]fleet.DeviceID, error) {
	ids := make([]fleet.DeviceID, 0, len(list))
	for _, s := range list {
		id, err := fleet.ParseDeviceID(s)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (f *CampaignFields) applyLists(p *campaign.Plan) {
	if f.Waves != nil {
		p.Waves = wavePlans(*f.Waves)
	}
	if f.AbortRules != nil {
		p.AbortRules = viewed(*f.AbortRules, AbortRuleView.rule)
	}
	if f.Windows != nil {
		p.Windows = viewed(*f.Windows, func(w WindowView) campaign.Window {
			return campaign.Window{Cron: w.Cron, Duration: fromMs(w.DurationMs), TimeZone: w.TimeZone}
		})
	}
	if f.HealthChecks != nil {
		p.HealthChecks = viewed(*f.HealthChecks, HealthCheckView.check)
	}
}

func (f *CampaignFields) applyTimes(p *campaign.Plan) {
	if f.JitterMs != nil {
		p.Jitter = fromMs(*f.JitterMs)
	}
	if f.StartAt.Set {
		p.StartAt = utcOrNil(f.StartAt.At)
	}
	if f.EndAt.Set {
		p.EndAt = utcOrNil(f.EndAt.At)
	}
}

func fromMs(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// wavePlans reads waves. A wave without a soak time gets that of the first or later waves of
// [campaign.DefaultWaves]: in the domain zero means none.
func wavePlans(views []WavePlanView) []campaign.WavePlan {
	usual := campaign.DefaultWaves()
	waves := make([]campaign.WavePlan, len(views))
	for i, v := range views {
		soak := usual[len(usual)-1].Soak
		if i == 0 && len(views) > 1 {
			soak = usual[0].Soak
		}
		if v.SoakMs != nil {
			soak = fromMs(*v.SoakMs)
		}
		waves[i] = campaign.WavePlan{Name: v.Name, Percent: v.Percent, Count: v.Count, Devices: v.Devices,
			SuccessPercent: v.SuccessPercent,
			MinSample:      v.MinSample, Soak: soak, Gate: v.Gate}
	}
	return waves
}

func wavePlan(p campaign.WavePlan) WavePlanView {
	return WavePlanView{Name: p.Name, Percent: p.Percent, Count: p.Count, Devices: p.Devices,
		SuccessPercent: p.SuccessPercent,
		MinSample:      p.MinSample, SoakMs: ptr(p.Soak.Milliseconds()), Gate: p.Gate}
}

// rule returns the rule. The default measure has no name in the domain.
func (v AbortRuleView) rule() campaign.AbortRule {
	if v.Measure == campaign.MeasureBound {
		v.Measure = ""
	}
	return campaign.AbortRule(v)
}

func abortRule(r campaign.AbortRule) AbortRuleView {
	r.Measure = cmp.Or(r.Measure, campaign.MeasureBound)
	return AbortRuleView(r)
}

func (v HealthCheckView) check() campaign.HealthCheck {
	return campaign.HealthCheck{Tool: v.Tool, Arguments: json.RawMessage(v.Arguments), Retries: v.Retries,
		Assert: viewed(v.Assert, func(s AssertionView) campaign.Assertion { return campaign.Assertion(s) })}
}

func healthCheck(c campaign.HealthCheck) HealthCheckView {
	return HealthCheckView{Tool: c.Tool, Arguments: arguments(c.Arguments), Retries: c.Retries,
		Assert: viewed(c.Assert, func(s campaign.Assertion) AssertionView { return AssertionView(s) })}
}

func window(w campaign.Window) WindowView {
	return WindowView{Cron: w.Cron, DurationMs: w.Duration.Milliseconds(), TimeZone: w.TimeZone}
}

// CampaignBody is the plan of a new campaign.
type CampaignBody struct {
	Name      string    `json:"name" minLength:"1" maxLength:"200"`
	ReleaseID uuid.UUID `json:"release_id" format:"uuid"`
	CampaignFields
}

func (b *CampaignBody) plan() (campaign.Plan, error) {
	p := campaign.DefaultPlan()
	p.Name, p.Release = b.Name, b.ReleaseID
	if (b.Query == nil) == (b.Devices == nil) {
		return p, fleet.Refuse(fleet.ErrInvalid, "audience_missing")
	}
	return p, b.apply(&p)
}
