package console_test

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/web/ui"
)

func TestPoliciesPage(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	admin, viewer := c.as(fleet.RoleAdmin), c.as(fleet.RoleViewer)
	fixed, open := c.policies.Table().Rules[0], c.policies.Table().Rules[1]
	version := func() string { return strconv.FormatInt(c.policies.Table().Version, 10) }
	p := admin.get(ui.PathPolicies)
	p.wantText("#policies", "Models and voice servers may not call user-only tools").wantText("#policies", "cannot be disabled")
	p.wantText("#policies", "Any other call is allowed")
	if body := viewer.get(ui.PathPolicies).body; strings.Contains(body, ui.PolicyPath(open.ID, "disable")) {
		t.Error("a viewer is offered changes")
	}
	if strings.Contains(p.body, ui.PolicyPath(fixed.ID, "disable")) ||
		!strings.Contains(p.body, ui.PolicyPath(open.ID, "disable")) {
		t.Error("the fixed rule is offered to be disabled, or the other one is not")
	}
	form := url.Values{"name": {"loud <b>"}, "decision": {"require_approval"}, "kind": {"model"}, "enabled": {"1"},
		"tools": {"self.audio_speaker.*"}, "arguments": {`{"required":["volume"]}`}, "cron": {"0 22 * * *"}, "minutes": {"480"},
		"zone": {"Europe/Berlin"}, "wait": {"10"}, "budget": {"5"}, "version": {version()}}
	bad := func(field, value, want string) {
		t.Helper()
		f := url.Values{}
		for k, v := range form {
			f[k] = v
		}
		f.Set(field, value)
		admin.post(ui.PathPolicies, f).wantStatus(http.StatusUnprocessableEntity).wantText("#add", want)
	}
	bad("budget", "many", "not a whole number")
	bad("arguments", `{"$ref":"#"}`, "his JSON schema cannot check")
	bad("zone", "device", "time zone")
	bad("version", "77", "was changed in the meantime")
	admin.post(ui.PathPolicies, form).wantRedirect(ui.PathPolicies)
	rule := c.policies.Table().Rules[2]
	if rule.Name != "loud <b>" || rule.DailyBudget != 5 || rule.Window == nil || rule.ApprovalTTL == 0 {
		t.Fatalf("the form made %+v", rule)
	}
	admin.get(ui.PathPolicies).wantText("#policies", "Models may call self.audio_speaker.* with approval").
		wantText("#policies", "loud <b>")
	admin.get(ui.PolicyPath(rule.ID)).wantStatus(http.StatusOK)
	stale := version()
	admin.post(ui.PolicyPath(rule.ID, "move"), url.Values{"to": {"1"}, "version": {stale}}).wantRedirect(ui.PathPolicies)
	if c.policies.Table().Rules[1].ID != rule.ID {
		t.Error("the rule did not move")
	}
	admin.post(ui.PolicyPath(rule.ID, "disable"), url.Values{"version": {stale}}).wantRedirect(ui.PathPolicies)
	if !c.policies.Table().Rules[1].Enabled {
		t.Error("a form of an older table was accepted")
	}
	admin.post(ui.PolicyPath(rule.ID, "disable"), url.Values{"version": {version()}}).wantRedirect(ui.PathPolicies)
	form.Set("name", "quiet")
	form.Set("version", version())
	admin.post(ui.PolicyPath(rule.ID, "edit"), form).wantRedirect(ui.PathPolicies)
	if r := c.policies.Table().Rules[1]; r.Name != "quiet" || !r.Enabled {
		t.Errorf("edited to %+v", r)
	}
	admin.post(ui.PolicyPath(fixed.ID, "disable"), url.Values{"version": {version()}}).wantStatus(http.StatusConflict)
	admin.post(ui.PolicyPath(rule.ID, "delete"), url.Values{"version": {version()}}).wantRedirect(ui.PathPolicies)
	if len(c.policies.Table().Rules) != 2 {
		t.Error("the rule is still there")
	}
}

// The tester needs no JavaScript: it is a form whose result has an address.
func TestPolicyTester(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	viewer := c.as(fleet.RoleViewer)
	try := func(values url.Values) *page { return viewer.get(ui.PathPolicies + "?" + values.Encode()) }
	try(url.Values{"caller": {"model:operator"}, "tool": {"self.reboot"}, "on": {"id:a085e3112233"}}).
		wantText("#try", "would be refused").wantText("#try", "Models never call user-only tools").wantText("#try", "user_only")
	try(url.Values{"caller": {"operator:operator"}, "tool": {"self.get_device_status"}}).wantText("#try", "No rule applies")
	try(url.Values{"caller": {"operator:operator"}, "tool": {"x"}, "on": {"colour:red"}}).wantText("#try", "colour")
	try(url.Values{"caller": {"nonsense"}, "tool": {"x"}}).wantText("#try", "nonsense")
	try(url.Values{"caller": {"model:operator"}, "tool": {"x"}, "on": {"tag:none"}}).wantText("#try", "No devices match")
}
