package forms

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/policy"
)

func TestPolicySurvivesItsForm(t *testing.T) {
	full := policy.Rule{Name: "夜间 🦊", Enabled: true, Kinds: []fleet.PrincipalKind{fleet.KindModel, fleet.KindVoice},
		Roles: []fleet.Role{fleet.RoleOperator}, Names: []string{"bot 7", "ci-*"}, Tools: []string{"self.a", "self.b.*"},
		Audience: fleet.AudienceModel, Effects: []fleet.ToolEffect{fleet.EffectLeaves}, Devices: `tag:lab name:"front door"`,
		Arguments: json.RawMessage(`{"required":["volume"]}`), Window: &fleet.Window{Cron: "0 2 * * *", Duration: 90 * time.Minute,
			TimeZone: "Asia/Shanghai"}, Decision: call.DecisionRequireApproval, Note: "why", ApprovalTTL: time.Hour,
		RatePerMinute: 3, DailyBudget: 40}
	for _, rule := range []policy.Rule{full, {Name: "bare", Decision: call.DecisionDeny}} {
		got, err := FillPolicy(rule).Read()
		if err == nil {
			err = got.Clean()
		}
		if diff := cmp.Diff(rule, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("%s comes back changed, with the error %v:\n%s", rule.Name, err, diff)
		}
	}
	for _, f := range []Policy{{Rate: "x"}, {Budget: "-1"}, {Wait: "1.5"}, {Cron: "0 2 * * *", Minutes: "soon"}} {
		if _, err := f.Read(); err == nil {
			t.Errorf("%+v is read", f)
		}
	}
}
