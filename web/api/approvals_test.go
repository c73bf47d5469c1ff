package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/policy"
	"fleetd/fleet/webhook"
)

// askFirst adds a rule that requires an approval for calls of the tools, until remove is called.
func (w *world) askFirst(t testing.TB, tools ...string) (remove func()) {
	t.Helper()
	by := fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd", Role: fleet.RoleAdmin}
	rule, err := w.policies.Create(t.Context(), by, w.policies.Table().Version, 1, policy.Rule{Name: "ask first",
		Enabled: true, Tools: tools, Decision: call.DecisionRequireApproval})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := w.policies.Delete(t.Context(), by, w.policies.Table().Version, rule.ID); err != nil {
			t.Fatal(err)
		}
	}
}

const loud = `{"tool":"self.audio_speaker.set_volume","arguments":{"volume":80},"purpose":"party"}`

func TestCallsWaitForApprovals(t *testing.T) {
	w := newWorld(t)
	w.askFirst(t, "self.audio_speaker.set_volume")
	ask := func() callView {
		t.Helper()
		c := decode[callView](t, w.post(t, "/devices/"+string(unit)+"/calls", loud), 200)
		if c.State != fleet.CallPendingApproval || c.ApprovalID == nil || c.FinishedAt != nil {
			t.Fatalf("the call is %+v", c)
		}
		return c
	}
	c := ask()
	path := "/approvals/" + c.ApprovalID.String()
	a := decode[CallApprovalView](t, w.get(t, path), 200)
	if a.State != call.ApprovalWaiting || *a.CallID != c.ID || *a.DeviceID != unit || a.Purpose != "party" ||
		a.RuleName != "ask first" || a.PolicyVersion != w.policies.Table().Version || string(a.Arguments) != `{"volume":80}` || a.DecidedBy != nil ||
		a.AskedBy.Name != "admin-script" || len(a.Digest) != 64 {
		t.Errorf("the approval is %+v", a)
	}
	waiting := decode[list[CallApprovalView]](t, w.get(t, "/approvals?state=waiting"), 200)
	if len(waiting.Items) != 1 || waiting.Items[0].ID != a.ID {
		t.Errorf("%d wait", len(waiting.Items))
	}
	if calls := decode[list[callView]](t, w.get(t, "/calls?state=pending_approval"), 200); len(calls.Items) != 1 {
		t.Errorf("%d calls wait", len(calls.Items))
	}
	if p := w.post(t, path+"/approve", "").problem(t); p.Status != 403 || p.Code != "own_approval" {
		t.Errorf("the asker is answered %+v", p)
	}
	if p := w.as(t, fleet.RoleViewer, "POST", path+"/approve", "").problem(t); p.Status != 403 {
		t.Errorf("a viewer is answered %+v", p)
	}
	done := decode[CallApprovalView](t, w.as(t, fleet.RoleOperator, "POST", path+"/approve", `{"reason":"once"}`), 200)
	if done.State != call.ApprovalApproved || done.DecidedBy.Name != "operator-script" || done.Reason != "once" {
		t.Errorf("approved it is %+v", done)
	}
	fleettest.Eventually(t, "the call succeeded", func() bool {
		return decode[callView](t, w.get(t, "/calls/"+c.ID.String()), 200).State == fleet.CallSucceeded
	})
	if p := w.as(t, fleet.RoleOperator, "POST", path+"/deny", "").problem(t); p.Status != 409 ||
		p.Code != "approval_not_waiting" {
		t.Errorf("a second decision is answered %+v", p)
	}

	c = ask()
	w.as(t, fleet.RoleOperator, "POST", "/approvals/"+c.ApprovalID.String()+"/deny", `{"reason":"too loud"}`)
	c = decode[callView](t, w.get(t, "/calls/"+c.ID.String()), 200)
	if c.State != fleet.CallRefused || c.Error == nil || c.Error.Code != "approval_denied" ||
		c.Error.Params["reason"] != "too loud" || c.Error.Message != "denied by operator-script: too loud" {
		t.Errorf("denied it is %+v", c)
	}
	c = ask()
	if r := w.post(t, "/approvals/"+c.ApprovalID.String()+"/withdraw", `{}`); r.status != 200 {
		t.Errorf("withdrawn: %d %s", r.status, r.body)
	}
	if p := w.get(t, "/approvals/"+uuid.NewString()).problem(t); p.Status != 404 || p.Code != "unknown_approval" {
		t.Errorf("an unknown one is answered %+v", p)
	}
	long := `{"tool":"self.audio_speaker.set_volume","purpose":"` + strings.Repeat("é", 200) + `"}`
	if p := w.post(t, "/devices/"+string(unit)+"/calls", long).problem(t); p.Code != "invalid_purpose" {
		t.Errorf("a long purpose is answered %+v", p)
	}
}

func TestFanOutsWaitForApprovals(t *testing.T) {
	w := newWorld(t)
	w.askFirst(t, "self.audio_speaker.set_volume")
	body := `{"q":"","tool":"self.audio_speaker.set_volume","arguments":{"volume":8}`
	p := decode[previewView](t, w.post(t, "/fanouts", body+`,"dry_run":true}`), 200)
	if p.Targets != 2 || p.Approval != 2 {
		t.Errorf("preview %+v", p)
	}
	f := decode[FanOutView](t, w.post(t, "/fanouts", body+`,"purpose":"night"}`), 201)
	if f.State != call.FanOutPendingApproval || f.ApprovalID == nil {
		t.Fatalf("the fan-out is %+v", f)
	}
	path := "/approvals/" + f.ApprovalID.String()
	if a := decode[CallApprovalView](t, w.get(t, path), 200); a.Subject != call.ApprovalOfFanOut || *a.FanOutID != f.ID ||
		a.Targets != 2 || a.DeviceID != nil {
		t.Errorf("the approval is %+v", a)
	}
	if r := w.as(t, fleet.RoleOperator, "POST", path+"/approve", ""); r.status != 200 {
		t.Fatalf("approved: %d %s", r.status, r.body)
	}
	fleettest.Eventually(t, "the device of the bulk call was called", func() bool {
		return decode[fanOutProgressView](t, w.get(t, "/fanouts/"+f.ID.String()), 200).Counts.Succeeded == 1
	})
}

// A campaign that a language model starts waits for an operator other than the creator of its
// token.
func TestCampaignStartedByAModelWaits(t *testing.T) {
	w := newWorld(t)
	alice, err := w.operators.Create(t.Context(), root, operator.Request{Name: "alice",
		Access: operator.Access{Role: fleet.RoleAdmin}, Password: "correct horse"})
	if err != nil {
		t.Fatal(err)
	}
	token := func(name string, kind fleet.PrincipalKind) fleet.Principal {
		made, _, err := w.operators.NewToken(t.Context(), alice.Principal(), operator.TokenRequest{Name: name, Kind: kind,
			Role: fleet.RoleOperator})
		if err != nil {
			t.Fatal(err)
		}
		return made.Principal()
	}
	model, script := token("assistant", fleet.KindModel), token("script", fleet.KindProgram)
	others := w.planned(t, "")
	_, err = w.campaigns.Start(t.Context(), model, others.ID)
	if e, ok := errors.AsType[*fleet.Error](err); !ok || e.Code != "person_needed" {
		t.Errorf("a model that starts the draft of another is answered %v", err)
	}
	c, err := w.campaigns.Create(t.Context(), model, campaign.Plan{Name: "by a model", Release: others.releaseID(t),
		Devices: []fleet.DeviceID{unit}})
	if err != nil {
		t.Fatal(err)
	}
	started, err := w.campaigns.Start(t.Context(), model, c.ID)
	if err != nil || started.State != campaign.AwaitingApproval {
		t.Fatalf("started by a model it is %s, %v", started.State, err)
	}
	for who, by := range map[string]fleet.Principal{"the model": model, "who made its token": alice.Principal(),
		"another token of that person": script} {
		if _, err := w.campaigns.Approve(t.Context(), by, c.ID, started.Digest); err == nil {
			t.Errorf("%s approved it", who)
		}
	}
	// The creator of a plan cannot approve it through a token either.
	plan, err := w.campaigns.Create(t.Context(), alice.Principal(), campaign.Plan{Name: "own", Release: others.releaseID(t),
		Devices: []fleet.DeviceID{other}, ApprovalRequired: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.campaigns.Approve(t.Context(), script, plan.ID, plan.Digest); err == nil {
		t.Error("the maker approved it through a token")
	}

	bob := fleet.Principal{Kind: fleet.KindOperator, ID: uuid.NewString(), Name: "bob", Role: fleet.RoleOperator}
	if c, err := w.campaigns.Approve(t.Context(), bob, c.ID, started.Digest); err != nil || c.State != campaign.Running {
		t.Errorf("approved by another person it is %s, %v", c.State, err)
	}
}

func (c CampaignView) releaseID(t *testing.T) uuid.UUID {
	t.Helper()
	if c.ReleaseID == nil {
		t.Fatal("the campaign has no release")
	}
	return *c.ReleaseID
}

// A receiver stores the posts that it receives.
type receiver struct {
	*httptest.Server
	status atomic.Int32
	posts  chan post
}

type post struct {
	header http.Header
	body   []byte
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{posts: make(chan post, 100)}
	r.status.Store(204)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		status := r.status.Load() // read first: a test that receives the post may set the next status
		r.posts <- post{req.Header, body}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(int(status))
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) next(t *testing.T) post {
	t.Helper()
	select {
	case p := <-r.posts:
		return p
	case <-time.After(time.Minute):
		t.Fatal("nothing was posted")
		return post{}
	}
}

func TestWebhooks(t *testing.T) {
	w := newWorld(t)
	w.askFirst(t, "self.audio_speaker.set_volume")
	w.run(t, w.jobs.Run)
	r := newReceiver(t)
	made := decode[newWebhookView](t, w.post(t, "/webhooks",
		`{"name":"chat","url":"`+r.URL+`/hook?key=hidden"}`), 201)
	if made.Secret == "" || len(made.Events) != len(webhook.EventKinds) || !made.Enabled || made.Last != nil {
		t.Fatalf("made %+v", made)
	}
	check := func(p post, event string) map[string]any {
		t.Helper()
		var body struct {
			Event    string
			At       time.Time
			SentAt   time.Time `json:"sent_at"`
			URL      string
			Approval map[string]any
		}
		if err := json.Unmarshal(p.body, &body); err != nil {
			t.Fatal(err)
		}
		if got, want := p.header.Get(webhook.SignatureHeader), webhook.Sign([]byte(made.Secret), p.body); got != want {
			t.Errorf("signed %s, want %s", got, want)
		}
		if p.header.Get(webhook.TimestampHeader) != strconv.FormatInt(body.SentAt.Unix(), 10) || body.Event != event ||
			body.At.IsZero() || p.header.Get("Content-Type") != "application/json" {
			t.Errorf("posted %v %s", p.header, p.body)
		}
		if body.Approval != nil && body.URL != "http://fleet.test/approvals/"+body.Approval["id"].(string) {
			t.Errorf("url is %s", body.URL)
		}
		return body.Approval
	}
	c := decode[callView](t, w.post(t, "/devices/"+string(unit)+"/calls", loud), 200)
	if a := check(r.next(t), "approval.requested"); a["state"] != "waiting" || a["purpose"] != "party" ||
		a["device_id"] != string(unit) || a["arguments"].(map[string]any)["volume"] != 80.0 {
		t.Errorf("requested: %v", a)
	}
	// The receiver fails once: the delivery is repeated.
	r.status.Store(500)
	w.as(t, fleet.RoleOperator, "POST", "/approvals/"+c.ApprovalID.String()+"/approve", `{"reason":"yes"}`)
	first := r.next(t)
	r.status.Store(204)
	second := r.next(t)
	if a := check(second, "approval.decided"); a["state"] != "approved" || a["reason"] != "yes" {
		t.Errorf("decided: %v", a)
	}
	id := func(p post) (id struct {
		ID string `json:"delivery_id"`
	}) {
		_ = json.Unmarshal(p.body, &id)
		return id
	}
	if id(first) != id(second) || id(first).ID == "" {
		t.Errorf("deliveries %v and %v", id(first), id(second))
	}
	one := "/webhooks/" + made.ID.String()
	fleettest.Eventually(t, "the decision was delivered", func() bool {
		hooks := decode[list[WebhookView]](t, w.as(t, fleet.RoleAdmin, "GET", "/webhooks", ""), 200)
		return len(hooks.Items) == 1 && hooks.Items[0].Last != nil && hooks.Items[0].Last.OK &&
			hooks.Items[0].Last.Status == 204 && hooks.Items[0].Last.Event == "approval.decided"
	})

	// A redirect is not followed, and counts as a failure.
	r.status.Store(302)
	if d := decode[deliveryView](t, w.post(t, one+"/test", ""), 200); d.OK || d.Status != 302 ||
		d.Code != "webhook_status" || d.Event != webhook.Test {
		t.Errorf("a redirect: %+v", d)
	}
	check(r.next(t), "test")
	// After a failure to reach an address, no secret is stored.
	r.Close()
	if d := decode[deliveryView](t, w.post(t, one+"/test", ""), 200); d.OK || d.Status != 0 ||
		d.Code != "webhook_failed" || strings.Contains(d.Message, "hidden") {
		t.Errorf("nobody there: %+v", d)
	}
	if off := decode[WebhookView](t, w.as(t, fleet.RoleAdmin, "PATCH", one, `{"enabled":false,"name":"room"}`), 200); off.Enabled ||
		off.Name != "room" || off.URL != made.URL {
		t.Errorf("changed to %+v", off)
	}
	for body, code := range map[string]string{
		`{"name":"x","url":"ftp://h/"}`:                        "invalid_webhook_url",
		`{"name":"x","url":"javascript:alert(1)"}`:             "invalid_webhook_url",
		`{"name":"x","url":"http://h/","secret":"short"}`:      "invalid_webhook_secret",
		`{"name":" ","url":"http://h/"}`:                       "invalid_name",
		`{"name":"x","url":"http://h/","events":[]}`:           "invalid_webhook_events",
		`{"name":"x","url":"http://h/","events":["reboot"]}`:   "invalid_request",
		`{"name":"x","url":"http://h/","events":["test"]}`:     "invalid_request",
		`{"name":"x","url":"http:///path","enabled":true}`:     "invalid_webhook_url",
		`{"name":"x","url":"http://h/\u0000","enabled":false}`: "invalid_webhook_url",
	} {
		if p := w.post(t, "/webhooks", body).problem(t); p.Code != code {
			t.Errorf("%s is answered %+v, want %s", body, p, code)
		}
	}
	for _, role := range []fleet.Role{fleet.RoleViewer, fleet.RoleOperator} {
		if p := w.as(t, role, "GET", "/webhooks", "").problem(t); p.Status != 403 {
			t.Errorf("%s is answered %+v", role, p)
		}
	}
	if r := w.as(t, fleet.RoleAdmin, "DELETE", one, ""); r.status != 204 {
		t.Errorf("deleted: %d %s", r.status, r.body)
	}
	if p := w.as(t, fleet.RoleAdmin, "DELETE", one, "").problem(t); p.Code != "unknown_webhook" {
		t.Errorf("deleted twice: %+v", p)
	}
	for _, secret := range []string{made.Secret, "hidden"} {
		if strings.Contains(w.log.String(), secret) {
			t.Errorf("the log has %s", secret)
		}
	}
}

// An approval of a call or a fan-out includes whether it interrupts conversations: fleetd does not
// interrupt a conversation without a request, and an approval whose recorded request has changed is
// stale.
func TestApprovalsCoverInterruptions(t *testing.T) {
	tests := []struct {
		name      string
		path      string
		interrupt bool
		tamper    bool
		want      fleet.CallState
	}{
		{"a call waits for the conversation", "/devices/" + string(unit) + "/calls", false, false, fleet.CallPending},
		{"a call interrupts it", "/devices/" + string(unit) + "/calls", true, false, fleet.CallSucceeded},
		{"a call whose approval was changed", "/devices/" + string(unit) + "/calls", false, true, fleet.CallRefused},
		{"a fan-out interrupts it", "/fanouts", true, false, fleet.CallSucceeded},
		{"a fan-out whose approval was changed", "/fanouts", true, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.listing(t, unit, []fleet.Tool{{Name: fleet.ToolConfigSet, InputSchema: []byte(`{"type":"object"}`)}})
			w.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
				return fleettest.Text("true"), nil
			})
			w.open.Begin(fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: unit, Begin: time.Now().UTC()})
			w.askFirst(t, fleet.ToolConfigSet)
			body := fmt.Sprintf(`{"tool":%q,"interrupt":%t`, fleet.ToolConfigSet, tt.interrupt)
			if tt.path == "/fanouts" {
				body += `,"devices":["` + string(unit) + `"]`
			}
			w.post(t, tt.path, body+"}")
			waiting := decode[list[CallApprovalView]](t, w.get(t, "/approvals?state=waiting"), 200).Items
			if len(waiting) != 1 || waiting[0].Interrupt != tt.interrupt {
				t.Fatalf("the approvals are %+v", waiting)
			}
			if tt.tamper {
				if _, err := w.db.Exec(t.Context(), `UPDATE approvals SET interrupt = NOT interrupt`); err != nil {
					t.Fatal(err)
				}
			}
			r := w.as(t, fleet.RoleOperator, "POST", "/approvals/"+waiting[0].ID.String()+"/approve", "")
			if tt.tamper {
				if p := r.problem(t); p.Status != 409 || p.Code != call.CodeApprovalStale {
					t.Errorf("approving what was changed is answered %s", r.body)
				}
			} else if r.status != 200 {
				t.Fatalf("approving is answered %d %s", r.status, r.body)
			}
			var calls []callView
			fleettest.Eventually(t, "the call has its state", func() bool {
				calls = decode[list[callView]](t, w.get(t, "/calls"), 200).Items
				return tt.want == "" || len(calls) == 1 && calls[0].State == tt.want
			})
			if tt.want == fleet.CallPending && calls[0].Waits == nil {
				t.Errorf("the approved call does not say what it waits for: %+v", calls[0])
			}
			if tt.want == "" && len(calls) != 0 {
				t.Errorf("a fan-out that was not approved made %+v", calls)
			}
		})
	}
}
