package ui

import (
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/policy"
	"fleetd/web/i18n"
)

// The sentence of a rule is true alone: it contains the roles, and announces further conditions.
func TestRuleSentences(t *testing.T) {
	deny := policy.Rule{Decision: call.DecisionDeny, Kinds: []fleet.PrincipalKind{fleet.KindOperator, fleet.KindProgram},
		Roles: []fleet.Role{fleet.RoleViewer}, Tools: []string{"self.reboot"}}
	everybody, named := deny, deny
	everybody.Kinds, everybody.Roles = nil, []fleet.Role{fleet.RoleViewer, fleet.RoleOperator}
	named.Names, named.Roles, named.Devices = []string{"ada"}, nil, "tag:lab"
	tests := []struct {
		rule policy.Rule
		lang i18n.Lang
		want string
	}{
		{deny, i18n.English, "People and programs with the role Viewer may not call self.reboot"},
		{deny, i18n.Chinese, "角色为查看者的人员和程序不得调用 self.reboot"},
		{everybody, i18n.English, "Callers with the role Viewer or Operator may not call self.reboot"},
		{named, i18n.English, "People and programs may not call self.reboot, if all of these conditions hold:"},
		{policy.Rule{Decision: call.DecisionAllow}, i18n.English, "Every caller may call any tool"},
	}
	for _, tt := range tests {
		if got := saying(WithPage(t.Context(), Page{Lang: tt.lang}), tt.rule); got != tt.want {
			t.Errorf("the sentence is %q, want %q", got, tt.want)
		}
	}
}
