package campaign_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// Doors complete a plan before the domain sees it. Normalizing must add nothing; otherwise a door
// would show another plan than it stores.
func TestDefaultPlanIsNormal(t *testing.T) {
	plan := campaign.DefaultPlan()
	plan.Name, plan.Release = "spring", uuid.New()
	normal := plan
	normal.Waves = append([]campaign.WavePlan(nil), plan.Waves...)
	normal.AbortRules = append([]campaign.AbortRule(nil), plan.AbortRules...)
	if err := normal.Normalize(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan, normal); diff != "" {
		t.Errorf("Normalize changes the default plan (-before +after):\n%s", diff)
	}
}

// Scripts rely on the defaults of a plan with three fields.
func TestDefaultPlan(t *testing.T) {
	wave := func(name string, percent float64, soak time.Duration) campaign.WavePlan {
		return campaign.WavePlan{Name: name, Percent: percent, SuccessPercent: 90, MinSample: 1, Soak: soak,
			Gate: campaign.GateAuto}
	}
	want := campaign.Plan{Mode: firmware.ModeAuto, MaxInFlight: 10, MaxAttempts: 3, MinHeapPercent: 50, MaxReconnects: 3,
		EndBehavior: campaign.EndStopRollout,
		Waves: []campaign.WavePlan{wave("canary", 1, 10*time.Minute), wave("early", 10, 2*time.Minute),
			wave("rest", 100, 2*time.Minute)},
		AbortRules: []campaign.AbortRule{
			{Class: "rolled_back", MinExecuted: 1, Scope: campaign.ScopeWave, Wave: 1, Action: campaign.AbortPause},
			{Class: "any", MinExecuted: 5, Percent: 10, Scope: campaign.ScopeCampaign, Action: campaign.AbortPause}}}
	if diff := cmp.Diff(want, campaign.DefaultPlan()); diff != "" {
		t.Errorf("DefaultPlan (-want +got):\n%s", diff)
	}
}
