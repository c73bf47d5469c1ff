package api

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// wholePlan contains every field of the contract, none with its default value.
const wholePlan = `{"name":"spring","release_id":"01a1fc6b-6015-711c-9d5d-5b739ab112aa","q":"tag:lab -hold","mode":"pull","pull_now":true,
	"waves":[{"name":"canary","count":2,"success_percent":100,"min_sample":2,"soak_ms":60000,"gate":"manual"},
		{"name":"named","devices":["a085e3112233"],"success_percent":95,"min_sample":3,"soak_ms":0,"gate":"auto"},
		{"name":"rest","percent":100,"success_percent":80,"min_sample":5,"soak_ms":1000,"gate":"auto"}],
	"supersede":true,"allow_downgrade":true,"continuous":true,"max_devices":500,"max_in_flight":20,"max_per_minute":60,
	"abort_rules":[{"class":"rolled_back","min_executed":2,"percent":12.5,"measure":"share","scope":"wave","wave":1,"action":"abort_and_rollback"}],
	"windows":[{"cron":"0 2 * * *","duration_ms":7200000,"time_zone":"Europe/Berlin"}],"jitter_ms":90000,
	"start_at":"2026-12-01T10:00:00+01:00","end_at":"2026-12-08T09:00:00Z","end_behavior":"abort_in_flight",
	"health_checks":[{"tool":"self.get_device_status","arguments":{"a":1},"assert":[{"path":"$.battery.level","op":"gt","value":20},{"path":"$.x","op":"exists"}],"retries":2}],
	"forbid_removed":["*"],"min_heap_percent":70,"max_reconnects":4,"approval_required":true,"max_attempts":5}`

// The plan has the values of the request, and its view has the same fields and values.
func TestPlanRoundTrip(t *testing.T) {
	var body CampaignBody
	if err := json.Unmarshal([]byte(wholePlan), &body); err != nil {
		t.Fatal(err)
	}
	plan, err := body.plan()
	if err != nil {
		t.Fatal(err)
	}
	start, end := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC), time.Date(2026, 12, 8, 9, 0, 0, 0, time.UTC)
	want := campaign.Plan{Name: "spring", Release: uuid.MustParse("01a1fc6b-6015-711c-9d5d-5b739ab112aa"),
		Query: "tag:lab -hold",
		Mode:  firmware.ModePull, PullNow: true, Supersede: true, AllowDowngrade: true, Continuous: true, MaxDevices: 500,
		MaxInFlight:  20,
		MaxPerMinute: 60, Jitter: 90 * time.Second, StartAt: &start, EndAt: &end, EndBehavior: campaign.EndAbortInFlight,
		Waves: []campaign.WavePlan{
			{Name: "canary", Count: 2, SuccessPercent: 100, MinSample: 2, Soak: time.Minute, Gate: campaign.GateManual},
			{Name: "named", Devices: []fleet.DeviceID{unit}, SuccessPercent: 95, MinSample: 3, Gate: campaign.GateAuto},
			{Name: "rest", Percent: 100, SuccessPercent: 80, MinSample: 5, Soak: time.Second, Gate: campaign.GateAuto}},
		AbortRules: []campaign.AbortRule{{Class: "rolled_back", MinExecuted: 2, Percent: 12.5,
			Measure: campaign.MeasureShare, Scope: campaign.ScopeWave,
			Wave: 1, Action: campaign.AbortAndRollback}},
		Windows: []campaign.Window{{Cron: "0 2 * * *", Duration: 2 * time.Hour, TimeZone: "Europe/Berlin"}},
		HealthChecks: []campaign.HealthCheck{{Tool: "self.get_device_status", Arguments: json.RawMessage(`{"a":1}`),
			Retries: 2,
			Assert: []campaign.Assertion{{Path: "$.battery.level", Op: "gt", Value: json.RawMessage("20")},
				{Path: "$.x", Op: "exists"}}}},
		ForbidRemoved: []string{"*"}, MinHeapPercent: 70, MaxReconnects: 4, ApprovalRequired: true, MaxAttempts: 5}
	if diff := cmp.Diff(want, plan); diff != "" {
		t.Errorf("planned (-want +got):\n%s", diff)
	}
	checkShown(t, plan)
}

// checkShown compares the view of a plan with the request.
func checkShown(t *testing.T, plan campaign.Plan) {
	t.Helper()
	data, err := json.Marshal(campaignItem(campaign.Campaign{Plan: plan}))
	if err != nil {
		t.Fatal(err)
	}
	var asked, shown map[string]any
	if err := json.Unmarshal([]byte(wholePlan), &asked); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &shown); err != nil {
		t.Fatal(err)
	}
	asked["start_at"] = "2026-12-01T09:00:00Z"
	for name, want := range asked {
		if diff := cmp.Diff(want, shown[name]); diff != "" {
			t.Errorf("%s is shown otherwise (-asked +shown):\n%s", name, diff)
		}
	}
}

// A change affects only the fields that it names; null removes a time, and an empty list is a
// value.
func TestPlanPatch(t *testing.T) {
	at := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	before := campaign.Plan{Name: "spring", Query: "tag:lab", MaxInFlight: 7, StartAt: &at, EndAt: &at,
		AbortRules: campaign.DefaultAbortRules(), Waves: campaign.DefaultWaves()}
	tests := []struct {
		body string
		want func(*campaign.Plan)
	}{
		{`{}`, func(*campaign.Plan) {}},
		{`{"start_at":null}`, func(p *campaign.Plan) { p.StartAt = nil }},
		{`{"abort_rules":[]}`, func(p *campaign.Plan) { p.AbortRules = []campaign.AbortRule{} }},
		{`{"max_in_flight":0,"q":""}`, func(p *campaign.Plan) { p.MaxInFlight, p.Query = 0, "" }},
		{`{"devices":["A0:85:E3:11:22:33"]}`, func(p *campaign.Plan) { p.Query, p.Devices = "", []fleet.DeviceID{unit} }},
		{`{"waves":[{"percent":1},{"percent":100}]}`, func(p *campaign.Plan) {
			p.Waves = []campaign.WavePlan{{Percent: 1, Soak: 10 * time.Minute}, {Percent: 100, Soak: 2 * time.Minute}}
		}},
		{`{"waves":[{"percent":100}]}`, func(p *campaign.Plan) {
			p.Waves = []campaign.WavePlan{{Percent: 100,
				Soak: 2 * time.Minute}}
		}},
		{`{"waves":[{"percent":100,"soak_ms":0}]}`, func(p *campaign.Plan) { p.Waves = []campaign.WavePlan{{Percent: 100}} }},
	}
	for _, tt := range tests {
		var fields CampaignFields
		if err := json.Unmarshal([]byte(tt.body), &fields); err != nil {
			t.Fatal(err)
		}
		got, want := before, before
		tt.want(&want)
		if err := fields.apply(&got); err != nil {
			t.Errorf("%s: %v", tt.body, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.body, diff)
		}
	}
}

// The enumerations of the document equal those of the domain.
func TestEnumerations(t *testing.T) {
	schemas := newAPI(Options{}).huma.OpenAPI().Components.Schemas.Map()
	tests := []struct {
		schema, property string
		want             []string
	}{
		{"Campaign", "state", stringsOf(campaign.States)},
		{"Deployment", "state", stringsOf(campaign.DeploymentStates)},
		{"Deployment", "failure_class", stringsOf(campaign.FailureClasses)},
		{"Release", "state", stringsOf(firmware.ReleaseStates)},
		{"Funnel", "step", stringsOf(campaign.FunnelSteps)},
		{"AbortRule", "class", append(campaign.AbortClasses[1:len(campaign.AbortClasses):len(campaign.AbortClasses)],
			campaign.AbortClasses[0])},
	}
	for _, tt := range tests {
		var got []string
		if s := schemas[tt.schema]; s != nil {
			got = enumOf(s.Properties[tt.property])
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s.%s (-domain +document):\n%s", tt.schema, tt.property, diff)
		}
	}
}

func stringsOf[T ~string](list []T) []string {
	return viewed(list, func(v T) string { return string(v) })
}

func enumOf(s *huma.Schema) []string {
	var all []string
	for _, v := range s.Enum {
		if text, ok := v.(string); ok {
			all = append(all, text)
		}
	}
	return all
}

// The store already counts a device in every earlier step too; adding up again would exceed the
// number of devices.
func TestFunnel(t *testing.T) {
	got := funnel(map[campaign.FunnelStep]int{campaign.FunnelPlanned: 10, campaign.FunnelNotified: 5,
		campaign.FunnelGet: 5, campaign.FunnelSucceeded: 2})
	want := []int{10, 5, 5, 0, 0, 0, 0, 2}
	for i, step := range got {
		if step.Step != campaign.FunnelSteps[i] || step.Count != want[i] {
			t.Errorf("step %d is %+v, want %s with %d", i, step, campaign.FunnelSteps[i], want[i])
		}
	}
}
