package console_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/policy"
)

// askFirst adds a rule that requires an approval for calls of the tools, until remove is called.
func (c *site) askFirst(tools ...string) (remove func()) {
	c.t.Helper()
	ctx, by := c.t.Context(), fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd", Role: fleet.RoleAdmin}
	rule, err := c.policies.Create(ctx, by, c.policies.Table().Version, 1, policy.Rule{Name: "ask <first>", Enabled: true,
		Tools: tools, Decision: call.DecisionRequireApproval})
	if err != nil {
		c.t.Fatal(err)
	}
	return func() {
		if err := c.policies.Delete(ctx, by, c.policies.Table().Version, rule.ID); err != nil {
			c.t.Fatal(err)
		}
	}
}

const loud = "self.audio_speaker.set_volume"

// asked makes a call of a language model that waits for its approval.
func (c *site) asked(tool, arguments string) fleet.Call {
	c.t.Helper()
	kind := fleet.KindModel
	if tool == fleet.ToolReboot {
		kind = fleet.KindProgram
	}
	token, _, err := c.operators.NewToken(c.t.Context(), fleet.Principal{Kind: fleet.KindSystem,
		Role: fleet.RoleAdmin}, operator.TokenRequest{Name: "assistant", Kind: kind,
		Role: fleet.RoleOperator, Tools: []string{"*"}})
	if err != nil {
		c.t.Fatal(err)
	}
	asked, err := c.calls.Make(c.t.Context(), call.Request{Actor: token.Principal(), Device: "a085e3112233", Tool: tool,
		Arguments: json.RawMessage(arguments), Purpose: "the <b>room</b> is loud"})
	if err != nil || asked.State != fleet.CallPendingApproval {
		c.t.Fatalf("the call is %s, %v", asked.State, err)
	}
	return asked
}

func TestApprovalPages(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.askFirst(loud, fleet.ToolReboot)
	operator, viewer := c.as(fleet.RoleOperator), c.as(fleet.RoleViewer)
	operator.get("/approvals").wantStatus(200).says("Nothing is waiting for a decision.")
	asked := c.asked(loud, `{"volume":80}`)
	path := "/approvals/" + asked.Approval.String()

	p := operator.get("/approvals").wantStatus(200).says(loud, `"volume": 80`, "assistant", "ask <first>",
		"the <b>room</b> is loud", "expires in")
	if !strings.Contains(p.body, "the &lt;b&gt;room&lt;/b&gt; is loud") || strings.Contains(p.body, "<b>room") {
		t.Error("the purpose is not escaped")
	}
	if !strings.Contains(p.body, `formaction="`+path+`/deny"`) || !strings.Contains(p.body, `action="`+path+`/approve"`) {
		t.Error("the card has no buttons")
	}
	if p := viewer.get(path).wantStatus(200); strings.Contains(p.body, path+"/approve") {
		t.Error("a viewer is shown the buttons")
	}
	if p := operator.get("/calls/" + asked.ID.String()).wantStatus(200); !strings.Contains(p.body, path) {
		t.Error("the call does not lead to its approval")
	}
	if p := operator.get(path).wantStatus(200); !strings.Contains(p.body, "/calls/"+asked.ID.String()) {
		t.Error("the approval does not lead to its call")
	}
	operator.post(path+"/approve", url.Values{"reason": {"fine"}}).wantRedirect(path)
	operator.get(path).wantStatus(200).says("Approved. The call is made now.", "approved", "fine")
	operator.post(path+"/deny", nil).wantStatus(http.StatusConflict).says("it is approved")
	operator.get("/approvals?state=decided").wantStatus(200).says(loud, "approved")

	asked = c.asked(loud, `{"volume":81}`)
	path = "/approvals/" + asked.Approval.String()
	operator.post(path+"/deny", url.Values{"reason": {"too loud"}}).wantRedirect(path)
	operator.get("/calls/" + asked.ID.String()).wantStatus(200).says("Denied by operator-1: too loud")

	// A tool that disconnects the device requires a typed confirmation.
	asked = c.asked(fleet.ToolReboot, `{}`)
	path = "/approvals/" + asked.Approval.String()
	operator.get(path).says("1 device restarts.", "Type reboot to approve")
	operator.post(path+"/approve", url.Values{"confirm": {"yes"}}).wantStatus(http.StatusUnprocessableEntity)
	if a, err := c.store.Approval(t.Context(), asked.Approval); err != nil || a.State != call.ApprovalWaiting {
		t.Errorf("unconfirmed it is %s, %v", a.State, err)
	}
	operator.post(path+"/approve", url.Values{"confirm": {"reboot"}}).wantRedirect(path)
	operator.get("/approvals/" + uuid.NewString()).wantStatus(404)
	operator.get("/approvals/x").wantStatus(404)
}

func TestOwnApprovalOnItsPage(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.askFirst(loud)
	operator := c.as(fleet.RoleOperator)
	operator.post("/devices/a085e3112233/tools/"+loud, url.Values{"arg.volume": {"12"}})
	page, err := c.store.Approvals(t.Context(), call.ApprovalFilter{})
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("%d approvals, %v", len(page.Items), err)
	}
	path := "/approvals/" + page.Items[0].ID.String()
	if p := operator.get(path).says("Another person has to decide.", "Withdraw"); strings.Contains(p.body,
		path+"/approve") {
		t.Error("who asked is shown the button")
	}
	operator.post(path+"/approve", nil).wantStatus(http.StatusForbidden).says("cannot decide on")
	operator.post(path+"/withdraw", nil).wantRedirect(path)
	operator.get(path).says("Withdrawn. Nothing was sent.")
}

func TestInboxIsLive(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.askFirst(loud)
	asked := c.asked(loud, `{"volume":1}`)
	s := c.as(fleet.RoleOperator).stream("/events?view=approvals")
	c.asked(loud, `{"volume":2}`)
	s.want("new")
	by := c.operator("bob", fleet.RoleOperator).Principal()
	if _, err := c.approvals.Approve(t.Context(), by, asked.Approval, "ok"); err != nil {
		t.Fatal(err)
	}
	s.want("patch", `id="approval-`+asked.Approval.String())
	s.want("patch", `id="approvals-badge"`)
}

func TestLogStreamSettings(t *testing.T) {
	c := newConsole(t)
	c.background(c.record.Run, c.logStreams.Run)
	status, posts := &atomic.Int32{}, make(chan string, 1000)
	status.Store(200)
	to := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		posts <- r.Header.Get("Webhook-Id")
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(to.Close)
	next := func(want string) {
		t.Helper()
		for {
			select {
			case id := <-posts:
				if strings.HasPrefix(id, want) {
					return
				}
			case <-time.After(time.Minute):
				t.Fatal("nothing was posted")
			}
		}
	}
	admin := c.as(fleet.RoleAdmin)
	admin.post("/settings/log-streams", url.Values{"name": {"siem"}, "kind": {"webhook"}, "url": {to.URL + "/in/SEKRET"},
		"kinds": {"action", "started"}, "from": {"start"}, "headers": {"X-Key: SEKRET"}}).
		wantStatus(200).says("shown only once", "whsec_", "siem")
	next("0")
	var id string
	if err := c.db.QueryRow(t.Context(), `SELECT id::text FROM log_streams`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	one := "/settings/log-streams/" + id
	fleettest.Eventually(t, "the page shows the delivery", func() bool {
		return strings.Contains(admin.get(one).body, "is-delivered")
	})
	if p := admin.get(one); strings.Contains(p.body, "SEKRET") || strings.Contains(p.body, "whsec_") {
		t.Error("the page shows a secret")
	}
	admin.post(one+"/test", nil).wantRedirect(one)
	next("test-")
	admin.get(one).says("The test entry was delivered.")
	status.Store(500)
	admin.post(one+"/test", nil).wantRedirect(one)
	admin.get(one).says("The test entry was not delivered: the receiver responded with status 500")
	status.Store(200)
	admin.post(one+"/replay", url.Values{"from": {"soon"}}).wantRedirect(one)
	admin.get(one).says("Write start, now, a time")
	admin.post(one+"/replay", url.Values{"from": {"start"}}).wantRedirect(one)
	next("0")
	admin.post(one, url.Values{"name": {"kept"}, "url": {"ftp://h"}}).wantStatus(http.StatusUnprocessableEntity).
		says("must begin with http:// or https://")
	admin.post(one, url.Values{"name": {"moved"}, "url": {to.URL + "/…"}}).wantRedirect(one)
	admin.post(one+"/disable", nil).wantRedirect(one)
	admin.get("/settings/log-streams").says("moved", "off")
	c.as(fleet.RoleOperator).post(one+"/delete", nil).wantStatus(http.StatusForbidden)
	admin.get(one).wantStatus(200)
	admin.post(one+"/delete", nil).wantRedirect("/settings/log-streams")
	admin.get("/settings/log-streams").says("No log streams yet.")
}

func TestWebhookSettings(t *testing.T) {
	c := newConsole(t)
	posts := make(chan string, 9)
	to := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		posts <- r.Header.Get("X-Fleetd-Event")
	}))
	t.Cleanup(to.Close)
	admin := c.as(fleet.RoleAdmin)
	admin.post("/settings/webhooks", url.Values{"name": {"chat"}, "url": {to.URL + "/services/SEKRET"},
		"events": {"approval.requested"}}).wantStatus(200).says("shown only once", "chat", "nothing delivered yet")
	hook := c.webhook()
	admin.post("/settings/webhooks/"+hook+"/test", nil).wantRedirect("/settings/webhooks")
	select {
	case event := <-posts:
		if event != "test" {
			t.Errorf("posted %s", event)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was posted")
	}
	admin.get("/settings/webhooks").says("The test was delivered.", "delivered, status 200", to.URL+"/…")
	if p := admin.get("/settings/webhooks"); strings.Contains(p.body, "SEKRET") {
		t.Error("the page shows the secret part of an address")
	}
	admin.post("/settings/webhooks/"+hook+"/disable", nil).wantRedirect("/settings/webhooks")
	to.Close()
	admin.post("/settings/webhooks/"+hook+"/test", nil).wantRedirect("/settings/webhooks")
	admin.get("/settings/webhooks").says("The test was not delivered: no response", "off")
	admin.post("/settings/webhooks", url.Values{"name": {"x"}, "url": {"ftp://h"}, "events": {"approval.decided"}}).
		wantStatus(http.StatusUnprocessableEntity).says("must begin with http:// or https://")
	if p := admin.post("/settings/webhooks", url.Values{"name": {"kept"}, "url": {"ftp://h"}}); !strings.Contains(p.body,
		`value="kept"`) {
		t.Error("what was typed is lost")
	}
	admin.post("/settings/webhooks/"+hook+"/delete", nil).wantRedirect("/settings/webhooks")
	if p := admin.get("/settings"); !strings.Contains(p.body, `href="/settings/webhooks"`) {
		t.Error("an admin is not led to the webhooks")
	}
	operator := c.as(fleet.RoleOperator)
	operator.get("/settings/webhooks").wantStatus(http.StatusForbidden)
	if p := operator.get("/settings"); strings.Contains(p.body, "/settings/webhooks") {
		t.Error("an operator is led to the webhooks")
	}
}

func (c *site) webhook() string {
	c.t.Helper()
	all, err := c.store.Webhooks(c.t.Context())
	if err != nil || len(all) != 1 {
		c.t.Fatalf("%d webhooks, %v", len(all), err)
	}
	return all[0].ID.String()
}

// says fails the test unless the page has all the texts.
func (p *page) says(texts ...string) *page {
	p.t.Helper()
	all := p.text("#main")
	for _, text := range texts {
		if !strings.Contains(all, text) {
			p.t.Errorf("%s does not say %q:\n%s", p.what, text, all)
		}
	}
	return p
}

// doesNotSay fails the test if the page has one of the texts.
func (p *page) doesNotSay(texts ...string) *page {
	p.t.Helper()
	all := p.text("#main")
	for _, text := range texts {
		if strings.Contains(all, text) {
			p.t.Errorf("%s says %q:\n%s", p.what, text, all)
		}
	}
	return p
}
