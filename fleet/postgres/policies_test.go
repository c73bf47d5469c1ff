package postgres_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/policy"
	"fleetd/fleet/postgres"
)

var ada = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ada", Role: fleet.RoleAdmin}

func policyService(t *testing.T, s *postgres.Store) *policy.Service {
	t.Helper()
	p := policy.New(s, nil)
	check(t, p.Load(t.Context()))
	return p
}

func TestPoliciesAreStoredWhole(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	p := policyService(t, s)
	if rules := p.Table().Rules; len(rules) != 2 || !rules[0].Fixed || rules[1].Fixed {
		t.Fatalf("a new table has %+v", rules)
	}
	full := policy.Rule{Name: "nights", Enabled: true, Kinds: []fleet.PrincipalKind{fleet.KindModel},
		Roles: []fleet.Role{fleet.RoleOperator}, Names: []string{"bot-*"}, Tools: []string{"self.audio_*"},
		Audience: fleet.AudienceModel, Effects: []fleet.ToolEffect{fleet.EffectRestarts}, Devices: "tag:lab version<2.4",
		Arguments: json.RawMessage(`{"properties":{"text":{"const":"a\u0000\"b"}}}`),
		Window:    &fleet.Window{Cron: "0 2 * * *", Duration: time.Hour, TimeZone: "Europe/Berlin"},
		Decision:  call.DecisionRequireApproval, Note: "neighbours", ApprovalTTL: time.Hour, RatePerMinute: 3, DailyBudget: 50}
	made, err := p.Create(t.Context(), ada, 1, -1, full)
	check(t, err)
	full.ID, full.Position, full.UpdatedBy = made.ID, 2, "ada"
	if diff := cmp.Diff(full, made, cmpopts.IgnoreFields(policy.Rule{}, "CreatedAt", "UpdatedAt")); diff != "" {
		t.Error(diff)
	}
	if v := p.Table().Version; v != 2 {
		t.Errorf("version %d after the first change", v)
	}
	first, err := p.Create(t.Context(), ada, 2, 0, policy.Rule{Name: "first", Enabled: true, Decision: call.DecisionAllow})
	check(t, err)
	if first.Position != 1 {
		t.Errorf("a rule is at %d, before the fixed one or behind others", first.Position)
	}
	_, err = p.Move(t.Context(), ada, 0, made.ID, 0)
	check(t, err)
	check(t, p.Delete(t.Context(), ada, 0, first.ID))
	var names []string
	for i, r := range p.Table().Rules {
		if names = append(names, r.Name); r.Position != i {
			t.Errorf("%s is at %d, want %d", r.Name, r.Position, i)
		}
	}
	if diff := cmp.Diff([]string{"Models never call user-only tools", "nights", "Restarts need an operator"}, names); diff != "" {
		t.Error(diff)
	}
	entries, err := s.AuditEntries(t.Context(), audit.Filter{Subject: made.ID.String()})
	check(t, err)
	if len(entries.Items) != 2 || entries.Items[0].Action != "policy.move" || entries.Items[1].Action != "policy.create" ||
		entries.Items[1].Detail["version"] != 2.0 || entries.Items[1].Actor.Name != "ada" {
		t.Errorf("audit entries %+v", entries.Items)
	}
}

func TestFixedPolicyStays(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	p := policyService(t, s)
	fixed := p.Table().Rules[0]
	_, err := p.Update(t.Context(), ada, 0, fixed.ID, func(r *policy.Rule) error { r.Enabled = false; return nil })
	wantCode(t, err, "policy_fixed")
	_, err = p.Move(t.Context(), ada, 0, fixed.ID, 1)
	wantCode(t, err, "policy_fixed")
	wantCode(t, p.Delete(t.Context(), ada, 0, fixed.ID), "policy_fixed")
	// Nor directly in the store.
	fixed.Name, fixed.Enabled = "off", false
	wantKind(t, s.UpdatePolicy(t.Context(), ada, 1, fixed), fleet.ErrNotFound)
	wantKind(t, s.DeletePolicy(t.Context(), ada, 1, fixed), fleet.ErrNotFound)
	if v, err := s.PolicyVersion(t.Context()); v != 1 || err != nil {
		t.Errorf("version %d, %v after changes that were refused", v, err)
	}
	for _, who := range []fleet.Role{fleet.RoleViewer, fleet.RoleOperator} {
		_, err := p.Create(t.Context(), fleet.Principal{Kind: fleet.KindProgram, Role: who}, 0, -1, policy.Rule{Name: "x",
			Decision: call.DecisionAllow})
		wantKind(t, err, fleet.ErrForbidden)
	}
}

// Two editors who saw the same table do not overwrite each other, in one process or in two. An
// editor who names no version changes the current rule.
func TestPolicyEditorsDoNotOverwriteEachOther(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	a, b := policyService(t, s), policyService(t, s)
	rule := a.Table().Rules[1]
	note := func(text string) func(*policy.Rule) error {
		return func(r *policy.Rule) error { r.Note += text; return nil }
	}
	_, err := a.Update(t.Context(), ada, 1, rule.ID, note("a"))
	check(t, err)
	for _, of := range []*policy.Service{a, b} { // b has not read the change
		_, err = of.Update(t.Context(), ada, 1, rule.ID, note("b"))
		wantCode(t, err, "policy_changed")
		wantKind(t, err, fleet.ErrConflict)
	}
	_, err = a.Update(t.Context(), ada, 2, rule.ID, note("c"))
	check(t, err)
	last, err := b.Update(t.Context(), ada, 0, rule.ID, note("d"))
	check(t, err)
	if last.Note != "acd" {
		t.Errorf("note %q", last.Note)
	}
}

func TestPolicyIsReadAgain(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	a, b := policyService(t, s), policyService(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	_, err := a.Create(t.Context(), ada, 0, -1, policy.Rule{Name: "all", Enabled: true, Decision: call.DecisionDeny})
	check(t, err)
	proposal := &call.Proposal{Principal: ada, Device: &fleet.Device{ID: "d"}, Tool: fleet.Tool{Name: "self.a"},
		At: time.Now()}
	fleettest.Eventually(t, "another process judges by the change", func() bool {
		return b.Judge(proposal).Decision == call.DecisionDeny
	})
	if v := b.Judge(proposal); v.Version != 2 || v.RuleName != "all" {
		t.Errorf("verdict %+v", v)
	}
	cancel()
	check(t, <-done)
}

// A table that denies everything to everybody says so, and can be changed.
func TestPolicyLocksNoAdminOut(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	p := policyService(t, s)
	r, err := p.Create(t.Context(), ada, 0, 0, policy.Rule{Name: "nothing", Enabled: true, Decision: call.DecisionDeny})
	check(t, err)
	warnings, err := p.Warnings(t.Context())
	check(t, err)
	codes := map[string]uuid.UUID{}
	for _, w := range warnings {
		codes[w.Reason.Code] = w.Rule
	}
	if codes[policy.WarnLockedOut] != r.ID || codes[policy.WarnShadowed] != p.Table().Rules[2].ID {
		t.Errorf("warnings %+v", warnings)
	}
	operators := operator.New(s)
	root := fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd", Role: fleet.RoleAdmin}
	_, err = operators.Create(t.Context(), root, operator.Request{Name: "eve", Password: "correct horse",
		Access: operator.Access{Role: fleet.RoleAdmin}})
	check(t, err)
	eve, err := operators.SignIn(t.Context(), "eve", "correct horse")
	check(t, err)
	if _, err := p.Update(t.Context(), eve.Principal(), 0, r.ID, func(r *policy.Rule) error {
		r.Enabled = false
		return nil
	}); err != nil {
		t.Errorf("an admin cannot change a table that denies everything: %v", err)
	}
}

// The records of calls say what is left of a day's budget.
func TestBudgetOutlivesARestart(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	p := policyService(t, s)
	now := time.Now().UTC()
	made := func(tool string, state fleet.CallState, at time.Time) {
		c := newCall("d", state)
		if state.Final() {
			c = finish(newCall("d", fleet.CallPending), state, `{}`)
		}
		c.Tool, c.Actor, c.CreatedAt = tool, ada, at
		check(t, s.InsertCall(t.Context(), c))
	}
	if now.Truncate(24 * time.Hour).Equal(now.Add(-10 * time.Second).Truncate(24 * time.Hour)) {
		made("self.a", fleet.CallSucceeded, now.Add(-5*time.Second))
		made("self.a", fleet.CallOffline, now.Add(-4*time.Second))
	} else {
		t.Skip("the day has just begun")
	}
	made("self.a", fleet.CallRefused, now.Add(-3*time.Second))
	made("self.a", fleet.CallInvalid, now.Add(-3*time.Second))
	made("self.b", fleet.CallSucceeded, now.Add(-3*time.Second))
	_, err := p.Create(t.Context(), ada, 0, -1, policy.Rule{Name: "few", Enabled: true, Decision: call.DecisionAllow,
		DailyBudget: 3})
	check(t, err)
	proposal := &call.Proposal{Principal: ada, Device: &fleet.Device{ID: "d"}, Tool: fleet.Tool{Name: "self.a"}, At: now}
	if v := p.Judge(proposal); v.Decision != call.DecisionAllow {
		t.Errorf("the third call: %+v", v)
	}
	made("self.a", fleet.CallSucceeded, now.Add(-time.Second)) // that one
	for name, of := range map[string]*policy.Service{"this": p, "the next": policyService(t, s)} {
		if v := of.Judge(proposal); !v.Reason.Is("budget_spent") {
			t.Errorf("the fourth call in %s process: %+v", name, v)
		}
	}
}

func TestToolNames(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	p := policyService(t, s)
	names, err := s.ToolNames(t.Context())
	if err != nil || len(names) != 0 {
		t.Errorf("%v, %v of no inventories", names, err)
	}
	if _, err := p.Warnings(t.Context()); err != nil {
		t.Error(err)
	}
}
