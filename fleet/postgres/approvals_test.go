package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/authority"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/postgres"
	"fleetd/fleet/webhook"
)

// askPolicy requires an approval for some tools.
type askPolicy struct {
	mu      sync.Mutex
	tools   []string
	deny    bool
	version int64
	ttl     time.Duration
}

func (p *askPolicy) Judge(q *call.Proposal) call.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := call.Verdict{Decision: call.DecisionAllow, Version: p.version, Rule: "r1", RuleName: "ask first",
		ApprovalTTL: p.ttl}
	if slices.Contains(p.tools, q.Tool.Name) {
		v.Decision = call.DecisionRequireApproval
	}
	if p.deny {
		v.Decision = call.DecisionDeny
	}
	return v
}

func (p *askPolicy) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// approvalBench is fleetd's path of a call over PostgreSQL and scripted devices.
type approvalBench struct {
	t       *testing.T
	db      *pgxpool.Pool
	store   *postgres.Store
	policy  *askPolicy
	link    *fleettest.Link
	events  *fleet.Events
	targets *fleet.Targets
	calls   *call.Service
	fanOuts *call.FanOuts
	svc     *call.Approvals
	sent    chan string
	now     func() time.Time
	away    *awayDevices
	seen    *seenDevices
	stop    func() // ends the services, as a stop of fleetd does

	alice, bob, carol fleet.Principal
	model             fleet.Principal // made by alice
	jobs              []webhook.Job
}

type noURLs struct{}

func (noURLs) UploadURL(context.Context, fleet.DeviceID, uuid.UUID, time.Duration) (string, error) {
	return "http://h/u/secret", nil
}
func (noURLs) PreviewURL(context.Context, fleet.DeviceID, uuid.UUID, string, time.Duration) (string, error) {
	return "http://h/d/secret/preview.jpg", nil
}
func (noURLs) CoreDumpURL(context.Context, fleet.DeviceID, uuid.UUID, time.Duration) (string, error) {
	return "http://h/u/secret", nil
}

// awayDevices are the devices that are not connected.
type awayDevices struct{ ids sync.Map }

func (a *awayDevices) IsConnected(id fleet.DeviceID) bool {
	_, away := a.ids.Load(id)
	return !away
}

// seenDevices observes one thing about devices: that one connects.
type seenDevices struct {
	mu       sync.Mutex
	watchers map[chan fleet.Evidence]bool
}

func (s *seenDevices) Watch(fleet.DeviceID) (<-chan fleet.Evidence, func()) {
	seen := make(chan fleet.Evidence, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[seen] = true
	return seen, func() { s.mu.Lock(); defer s.mu.Unlock(); delete(s.watchers, seen) }
}

func (s *seenDevices) connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seen := range s.watchers {
		select {
		case seen <- fleet.Evidence{At: now(), Kind: fleet.EvidenceConnect}:
		default:
		}
	}
}

// leave ends a device's connection; connect opens it again.
func (b *approvalBench) leave(id fleet.DeviceID) {
	b.away.ids.Store(id, true)
	b.link.Disconnect(id)
}

func (b *approvalBench) connect(id fleet.DeviceID) {
	b.link.Connect(id, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		return fleettest.Text("true"), nil
	})
	b.away.ids.Delete(id)
	b.seen.connected()
	b.events.Publish(fleet.Event{Kind: fleet.EventPresence, Device: id, Presence: fleet.PresenceOnline, At: now()})
}

// lists stores a device's tools, with a description of the called tool, and its build.
func (b *approvalBench) lists(id fleet.DeviceID, description, version, elf string) {
	b.t.Helper()
	l := fleet.ToolListing{Device: id, At: now(), Inventory: fleet.Inventory{ID: "inv-" + description, Tools: []fleet.Tool{
		{Name: quietTool, InputSchema: json.RawMessage(`{"type":"object"}`), Audience: fleet.AudienceModel},
		{Name: askedTool, Description: description, InputSchema: json.RawMessage(
			`{"type":"object","properties":{"volume":{"type":"integer"}}}`), Audience: fleet.AudienceModel}}}}
	check(b.t, b.store.SaveListing(b.t.Context(), l))
	b.sql(`UPDATE devices SET version = $2, elf_sha256 = $3 WHERE id = $1`, string(id), version, elf)
	b.targets.Forget(id)
}

const (
	quietTool = "self.get_device_status"
	askedTool = "self.audio_speaker.set_volume"
)

func newApprovalBench(t *testing.T) *approvalBench {
	db := testDB(t)
	b := &approvalBench{t: t, db: db, store: postgres.New(db, postgres.Options{}), policy: &askPolicy{tools: []string{
		askedTool, fleet.ToolSnapshot},
		version: 7}, link: &fleettest.Link{}, events: &fleet.Events{}, sent: make(chan string, 100), away: &awayDevices{},
		seen: &seenDevices{watchers: map[chan fleet.Evidence]bool{}}, now: func() time.Time { return time.Now().UTC() }}
	ids := []fleet.DeviceID{"d0", "d1", "d2"}
	addDevices(t, b.store, ids...)
	for _, id := range ids {
		check(t, b.store.SaveListing(t.Context(), fleet.ToolListing{Device: id, At: now(), Inventory: fleet.Inventory{
			ID: "inv", Tools: []fleet.Tool{
				{Name: quietTool, InputSchema: json.RawMessage(`{"type":"object"}`), Audience: fleet.AudienceModel},
				{Name: fleet.ToolSnapshot, InputSchema: json.RawMessage(
					`{"type":"object","properties":{"url":{"type":"string"}}}`), Audience: fleet.AudienceUser},
				{Name: askedTool, InputSchema: json.RawMessage(
					`{"type":"object","properties":{"volume":{"type":"integer"}}}`), Audience: fleet.AudienceModel},
			}}}))
		b.link.Connect(id, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleettest.Text("true"), nil
		})
	}
	b.link.Sending = func(i fleet.Invocation) { b.sent <- i.Tool + string(i.Arguments) }
	people := operator.New(b.store)
	b.alice, b.bob, b.carol = b.person(people, "alice", fleet.RoleAdmin), b.person(people, "bob", fleet.RoleOperator),
		b.person(people, "carol", fleet.RoleViewer)
	b.model = b.token(b.alice, "assistant", fleet.KindModel, "")
	b.store.SetOutbox(func(_ context.Context, _ pgx.Tx, jobs []webhook.Job) error {
		b.jobs = append(b.jobs, jobs...)
		return nil
	})
	b.start()
	return b
}

// start makes the services as fleetd does when it starts.
func (b *approvalBench) start() {
	b.targets = fleet.NewTargets(b.store, b.store)
	calls := call.New(call.Options{Store: b.store, Targets: b.targets, Policy: b.policy, Approvals: b.store,
		Link: b.link, Watcher: b.seen, URLs: noURLs{}, Events: b.events,
		Authority: authority.New(authority.Options{Store: b.store, MaxAge: time.Nanosecond})})
	fanOuts := call.NewFanOuts(call.FanOutsOptions{Store: b.store, Devices: b.store, Calls: calls,
		Approvals: b.store, Presence: b.away, Events: b.events, Grace: time.Nanosecond})
	b.calls, b.fanOuts = calls, fanOuts
	b.svc = call.NewApprovals(call.ApprovalsOptions{Store: b.store, Calls: calls, FanOuts: fanOuts, Events: b.events,
		Now: func() time.Time { return b.now() }})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = fanOuts.Run(ctx) }()
	b.stop = sync.OnceFunc(func() { stop(); <-done; calls.Shutdown() })
	b.t.Cleanup(b.stop)
}

func asAdmin(p fleet.Principal) fleet.Principal {
	p.Role = fleet.RoleAdmin
	return p
}

// sql changes the database without fleetd's knowledge.
func (b *approvalBench) sql(text string, args ...any) {
	b.t.Helper()
	_, err := b.db.Exec(b.t.Context(), text, args...)
	check(b.t, err)
}

func (b *approvalBench) person(people *operator.Service, name string, role fleet.Role) fleet.Principal {
	b.t.Helper()
	o, err := people.Create(b.t.Context(), admin, operator.Request{Name: name, Access: operator.Access{Role: role},
		Password: "correct horse"})
	check(b.t, err)
	return o.Principal()
}

func (b *approvalBench) token(by fleet.Principal, name string, kind fleet.PrincipalKind, scope string) fleet.Principal {
	b.t.Helper()
	t, _, err := operator.New(b.store).NewToken(b.t.Context(), by, operator.TokenRequest{Name: name, Kind: kind,
		Role: fleet.RoleAdmin, Scope: scope, Tools: map[bool][]string{true: {"*"}}[kind == fleet.KindModel]})
	check(b.t, err)
	return t.Principal()
}

// ask makes a call that needs an approval.
func (b *approvalBench) ask(by fleet.Principal) (fleet.Call, call.Approval) {
	b.t.Helper()
	c, err := b.calls.Make(b.t.Context(), call.Request{Actor: by, Device: "d0", Tool: askedTool,
		Arguments: json.RawMessage(`{"volume": 30}`), Purpose: "too quiet"})
	check(b.t, err)
	if c.State != fleet.CallPendingApproval || c.Approval == uuid.Nil {
		b.t.Fatalf("the call is %s, error %v, approval %s", c.State, c.Error, c.Approval)
	}
	a, err := b.store.Approval(b.t.Context(), c.Approval)
	check(b.t, err)
	return c, a
}

func (b *approvalBench) notSent() {
	b.t.Helper()
	select {
	case got := <-b.sent:
		b.t.Errorf("%s was sent", got)
	case <-time.After(100 * time.Millisecond):
	}
}

// outcome waits until a call ends, and returns it.
func (b *approvalBench) outcome(id uuid.UUID) (c fleet.Call) {
	b.t.Helper()
	fleettest.Eventually(b.t, "the call ended", func() bool {
		var err error
		c, err = b.store.Call(b.t.Context(), id)
		check(b.t, err)
		return c.State.Final()
	})
	return c
}

func (b *approvalBench) wantRefused(id uuid.UUID, code string) {
	b.t.Helper()
	if c := b.outcome(id); c.State != fleet.CallRefused || c.Error == nil || c.Error.Code != code {
		b.t.Errorf("the call is %s with %+v, want refused with %s", c.State, c.Error, code)
	}
	b.notSent()
}

func wantRefusal(t *testing.T, err error, kind error, code string) {
	t.Helper()
	var e *fleet.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Code != code {
		t.Errorf("error %v, want %v %s", err, kind, code)
	}
}

func TestCallWaitsForItsApproval(t *testing.T) {
	b := newApprovalBench(t)
	c, a := b.ask(b.model)
	b.notSent()
	same(t, a.AskedBy, fleet.Principal{Kind: fleet.KindModel, ID: b.model.ID, Name: "assistant", Role: fleet.RoleAdmin})
	same(t, a.AskedLine, []string{b.model.ID, b.alice.ID})
	if a.Person != "alice" || a.Purpose != "too quiet" || a.Tool != askedTool || a.Device != "d0" ||
		a.RuleName != "ask first" || a.PolicyVersion != 7 || !a.ExpiresAt.Equal(a.CreatedAt.Add(call.DefaultApprovalTTL)) ||
		string(a.Arguments) != `{"volume": 30}` {
		t.Errorf("the approval is %+v", a)
	}
	page, err := b.calls.List(t.Context(), call.Filter{States: []fleet.CallState{fleet.CallPendingApproval}})
	check(t, err)
	if len(page.Items) != 1 || page.Items[0].ID != c.ID {
		t.Errorf("%d calls are listed as waiting", len(page.Items))
	}
	done, err := b.svc.Approve(t.Context(), b.bob, a.ID, "go on")
	check(t, err)
	if done.State != call.ApprovalApproved || done.DecidedBy.Name != "bob" || done.Reason != "go on" {
		t.Errorf("decided: %+v", done)
	}
	if c := b.outcome(c.ID); c.State != fleet.CallSucceeded || c.Approval != a.ID || c.Actor.Name != "assistant" {
		t.Errorf("the call is %+v", c)
	}
	if got := <-b.sent; got != askedTool+`{"volume": 30}` {
		t.Errorf("sent %s", got)
	}
	for _, again := range []func() error{
		func() error { _, err := b.svc.Approve(t.Context(), b.bob, a.ID, ""); return err },
		func() error { _, err := b.svc.Deny(t.Context(), b.bob, a.ID, ""); return err },
		func() error { _, err := b.svc.Withdraw(t.Context(), b.model, a.ID, ""); return err },
	} {
		wantRefusal(t, again(), fleet.ErrConflict, "approval_not_waiting")
	}
	b.notSent()
	entries, err := b.store.AuditEntries(t.Context(), audit.Filter{Subject: a.ID.String()})
	check(t, err)
	if len(entries.Items) != 2 || entries.Items[0].Action != "approval.approve" || entries.Items[0].Actor.Name != "bob" ||
		entries.Items[1].Action != "approval.request" {
		t.Errorf("audit: %+v", entries.Items)
	}
}

func TestURLArgumentIsFilledInOnceApproved(t *testing.T) {
	b := newApprovalBench(t)
	c, err := b.calls.Make(t.Context(), call.Request{Actor: b.alice, Device: "d0", Tool: fleet.ToolSnapshot})
	check(t, err)
	if c.State != fleet.CallPendingApproval || string(c.Arguments) != "{}" {
		t.Fatalf("%s %s", c.State, c.Arguments)
	}
	_, err = b.svc.Approve(t.Context(), b.bob, c.Approval, "")
	check(t, err)
	if c := b.outcome(c.ID); string(c.Arguments) != `{"url":"http://h/u/…"}` {
		t.Errorf("on record: %s %s", c.State, c.Arguments)
	}
	if got := <-b.sent; got != fleet.ToolSnapshot+`{"url":"http://h/u/secret"}` {
		t.Errorf("sent %s", got)
	}
}

func TestWhoMayApprove(t *testing.T) {
	b := newApprovalBench(t)
	ofAlice, ofBob := b.token(b.alice, "script", fleet.KindProgram, ""), b.token(asAdmin(b.bob), "robot",
		fleet.KindProgram, "")
	ofScript := b.token(ofAlice, "script of script", fleet.KindProgram, "")
	local := b.token(fleet.Principal{Kind: fleet.KindSystem, Name: "root", Role: fleet.RoleAdmin}, "local",
		fleet.KindProgram, "")
	local2 := b.token(fleet.Principal{Kind: fleet.KindSystem, Name: "root", Role: fleet.RoleAdmin}, "local2",
		fleet.KindProgram, "")
	modelOfBob := b.token(asAdmin(b.bob), "model of bob", fleet.KindModel, "")
	elsewhere := b.token(asAdmin(b.bob), "elsewhere", fleet.KindProgram, "id:d1")
	limited, _, err := operator.New(b.store).NewToken(t.Context(), asAdmin(b.bob), operator.TokenRequest{
		Name: "reads", Role: fleet.RoleAdmin, Tools: []string{"self.get_*"}})
	check(t, err)
	_, asked := b.ask(b.alice)
	_, err = b.svc.Approve(t.Context(), limited.Principal(), asked.ID, "")
	wantRefusal(t, err, fleet.ErrForbidden, "tool_not_allowed")
	_, err = b.svc.Deny(t.Context(), limited.Principal(), asked.ID, "") // a no is open to it
	check(t, err)
	tests := []struct {
		name           string
		asker, decider fleet.Principal
		code           string // "" may
	}{
		{"another person", b.alice, b.bob, ""},
		{"the asker", b.alice, b.alice, "own_approval"},
		{"a token of the asker", b.alice, ofAlice, "own_approval"},
		{"a token of a token of the asker", b.alice, ofScript, "own_approval"},
		{"who made the asking token", b.model, b.alice, "own_approval"},
		{"another token of who made the asking token", b.model, ofAlice, "own_approval"},
		{"a token of the asking token", ofAlice, ofScript, "own_approval"},
		{"the asking token's maker, a token", ofScript, ofAlice, "own_approval"},
		{"the asking token", ofAlice, ofAlice, "own_approval"},
		{"another person, of a token", b.model, b.bob, ""},
		{"another person's token", b.model, ofBob, ""},
		{"a token made on the server", b.model, local, ""},
		{"another token made on the server", local, local2, ""},
		{"a model", b.alice, modelOfBob, "person_needed"},
		{"a viewer", b.alice, b.carol, "forbidden"},
		{"out of scope", b.alice, elsewhere, "not found"},
		{"a campaign", b.alice, fleet.Principal{Kind: fleet.KindCampaign, ID: "c", Name: "c", Role: fleet.RoleAdmin},
			"person_needed"},
		{"a voice server", b.alice, fleet.Principal{Kind: fleet.KindVoice, ID: "v", Name: "v", Role: fleet.RoleAdmin},
			"person_needed"},
		{"the system", b.alice, fleet.Principal{Kind: fleet.KindSystem, Name: "root", Role: fleet.RoleAdmin},
			"person_needed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b.t = t
			c, a := b.ask(tt.asker)
			for _, decide := range []func(context.Context, fleet.Principal, uuid.UUID, string) (call.Approval, error){
				b.svc.Deny, b.svc.Approve} {
				_, err := decide(t.Context(), tt.decider, a.ID, "")
				switch tt.code {
				case "":
					check(t, err)
					c, a = b.ask(tt.asker) // for the other decision
					continue
				case "not found":
					wantKind(t, err, fleet.ErrNotFound)
				default:
					wantRefusal(t, err, fleet.ErrForbidden, tt.code)
				}
				if now, err := b.store.Approval(t.Context(), a.ID); err != nil || now.State != call.ApprovalWaiting {
					t.Errorf("afterwards it is %s, %v", now.State, err)
				}
			}
			if c, err := b.store.Call(t.Context(), c.ID); err != nil || c.State != fleet.CallPendingApproval {
				t.Errorf("afterwards the call is %s, %v", c.State, err)
			}
		})
	}
}

func TestApprovalIsUsedOnce(t *testing.T) {
	b := newApprovalBench(t)
	for range 10 {
		c, a := b.ask(b.model)
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				by := b.token(asAdmin(b.bob), fmt.Sprint("t", i), fleet.KindProgram, "")
				if i%2 == 0 {
					_, errs[i] = b.svc.Approve(context.Background(), by, a.ID, "")
				} else {
					_, errs[i] = b.svc.Deny(context.Background(), by, a.ID, "")
				}
			})
		}
		wg.Wait()
		won := -1
		for i, err := range errs {
			if err == nil {
				if won >= 0 {
					t.Errorf("%d and %d both decided", won, i)
				}
				won = i
				continue
			}
			wantRefusal(t, err, fleet.ErrConflict, "approval_not_waiting")
		}
		if won < 0 {
			t.Fatal("no decision")
		}
		done := b.outcome(c.ID)
		if approved := won%2 == 0; approved != (done.State == fleet.CallSucceeded) {
			t.Errorf("decider %d won, and the call is %s", won, done.State)
		} else if approved {
			<-b.sent
		}
	}
	b.notSent()
}

func TestApprovalsThatAreNotGiven(t *testing.T) {
	b := newApprovalBench(t)
	t.Run("denied", func(t *testing.T) {
		b.t = t
		c, a := b.ask(b.model)
		_, err := b.svc.Deny(t.Context(), b.bob, a.ID, "not now")
		check(t, err)
		b.wantRefused(c.ID, "approval_denied")
		if e := b.outcome(c.ID).Error; e.Params["by"] != "bob" || e.Params["reason"] != "not now" {
			t.Errorf("params %v", e.Params)
		}
	})
	t.Run("withdrawn", func(t *testing.T) {
		b.t = t
		c, a := b.ask(b.model)
		_, err := b.svc.Withdraw(t.Context(), b.bob, a.ID, "")
		wantRefusal(t, err, fleet.ErrForbidden, "not_the_asker")
		_, err = b.svc.Withdraw(t.Context(), b.model, a.ID, "")
		check(t, err)
		b.wantRefused(c.ID, "approval_withdrawn")
	})
	t.Run("withdrawn by who made the token", func(t *testing.T) {
		b.t = t
		c, a := b.ask(b.model)
		_, err := b.svc.Withdraw(t.Context(), b.alice, a.ID, "")
		check(t, err)
		b.wantRefused(c.ID, "approval_withdrawn")
	})
	t.Run("expired, and not swept yet", func(t *testing.T) {
		b.t = t
		c, a := b.ask(b.model)
		b.now = func() time.Time { return a.ExpiresAt }
		_, err := b.svc.Approve(t.Context(), b.bob, a.ID, "")
		wantRefusal(t, err, fleet.ErrConflict, "approval_not_waiting")
		// Whatever time the service uses, the statement uses the database's.
		err = b.store.Decide(t.Context(), call.ApprovalDecision{ID: a.ID, State: call.ApprovalApproved, By: b.bob,
			At: a.ExpiresAt, Call: &c})
		wantRefusal(t, err, fleet.ErrConflict, "approval_not_waiting")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.svc.Run(ctx) }()
		b.wantRefused(c.ID, "approval_expired")
		stop()
		check(t, <-done)
		b.now = func() time.Time { return time.Now().UTC() }
	})
	stale := func(name string, change func(a call.Approval)) {
		t.Run(name, func(t *testing.T) {
			b.t = t
			c, a := b.ask(b.model)
			change(a)
			_, err := b.svc.Approve(t.Context(), b.bob, a.ID, "")
			wantRefusal(t, err, fleet.ErrConflict, "approval_stale")
			b.wantRefused(c.ID, "approval_stale")
			_, err = b.svc.Approve(t.Context(), b.bob, a.ID, "")
			wantRefusal(t, err, fleet.ErrConflict, "approval_not_waiting")
		})
	}
	stale("the policy changed", func(call.Approval) { b.policy.change(func() { b.policy.version++ }) })
	stale("the call changed", func(a call.Approval) {
		b.sql(`UPDATE calls SET arguments = '{"volume":100}' WHERE id = $1`, a.SubjectID)
	})
	stale("what the approver saw changed", func(a call.Approval) {
		b.sql(`UPDATE approvals SET arguments = '{"volume":1}' WHERE id = $1`, a.ID)
	})
	stale("the device changed", func(a call.Approval) {
		b.sql(`UPDATE calls SET device_id = 'd1' WHERE id = $1`, a.SubjectID)
	})
	stale("the device describes the tool otherwise", func(call.Approval) { b.lists("d0", "0 OPENS the door", "", "") })
	stale("the device runs another build", func(call.Approval) { b.lists("d0", "0 OPENS the door", "", "e1") })
	stale("the device runs another version", func(call.Approval) { b.lists("d0", "0 OPENS the door", "9.9.9", "e1") })
	stale("the device does not offer the tool", func(call.Approval) {
		check(b.t, b.store.SaveListing(b.t.Context(), fleet.ToolListing{Device: "d0", At: now(),
			Inventory: fleet.Inventory{ID: "none"}}))
		b.targets.Forget("d0")
	})
	b.t = t
	b.lists("d0", "0 closes the door", "2.4.2", "e0")
	stale("what the approver saw of the firmware changed", func(a call.Approval) {
		b.sql(`UPDATE approvals SET builds = replace(builds::text, '2.4.2', '2.4.3')::json WHERE id = $1`, a.ID)
	})
	stale("it was asked for before an update of fleetd", func(a call.Approval) {
		b.sql(`UPDATE approvals SET builds = NULL WHERE id = $1`, a.ID)
	})
	stale("the asking token was revoked", func(a call.Approval) {
		b.sql(`UPDATE tokens SET revoked_at = now() WHERE id::text = $1`, b.model.ID)
	})
}

// The gate judges an approved call like any other.
func TestApprovedCallGoesThroughTheGate(t *testing.T) {
	b := newApprovalBench(t)
	t.Run("policy denies", func(t *testing.T) {
		b.t = t
		c, a := b.ask(b.alice)
		b.policy.change(func() { b.policy.deny = true })
		_, err := b.svc.Approve(t.Context(), b.bob, a.ID, "")
		check(t, err)
		b.wantRefused(c.ID, "policy_denied")
		b.policy.change(func() { b.policy.deny = false })
	})
	t.Run("held meanwhile", func(t *testing.T) {
		b.t = t
		c, a := b.ask(b.alice)
		b.sql(`UPDATE devices SET hold_reason = 'bench', hold_since = now(), hold_name = 'x', hold_kind = 'operator',
			hold_id = 'x', hold_role = 'admin' WHERE id = $1`, "d0")
		b.targets.Forget("d0")
		_, err := b.svc.Approve(t.Context(), b.bob, a.ID, "")
		check(t, err)
		b.wantRefused(c.ID, "device_held")
	})
	t.Run("offline meanwhile", func(t *testing.T) {
		b.t = t
		b.sql(`UPDATE devices SET hold_reason = NULL, hold_since = NULL, hold_name = NULL, hold_kind = NULL,
			hold_id = NULL, hold_role = NULL WHERE id = $1`, "d0")
		b.targets.Forget("d0")
		c, a := b.ask(b.alice)
		b.link.Disconnect("d0")
		_, err := b.svc.Approve(t.Context(), b.bob, a.ID, "")
		check(t, err)
		if c := b.outcome(c.ID); c.State != fleet.CallOffline {
			t.Errorf("the call is %s", c.State)
		}
	})
}

// A start of fleetd keeps waiting calls, and closes calls that were approved but not sent.
func TestRestartBetweenDecisionAndSending(t *testing.T) {
	b := newApprovalBench(t)
	waits, _ := b.ask(b.model)
	approved, a := b.ask(b.model)
	sent, a2 := b.ask(b.model)
	// The process dies right after its decision is stored, more than an hour after the call was
	// made.
	for _, x := range []struct {
		c fleet.Call
		a call.Approval
	}{{approved, a}, {sent, a2}} {
		c := x.c
		c.State = fleet.CallPending
		check(t, b.store.Decide(t.Context(), call.ApprovalDecision{ID: x.a.ID, State: call.ApprovalApproved, By: b.bob,
			At: now(), Call: &c}))
		if c.ID == sent.ID {
			c.State, c.SentAt = fleet.CallSent, ptr(now())
			check(t, b.store.MarkSent(t.Context(), &c))
		}
	}
	canceled, unknown, err := b.store.RecoverCalls(t.Context(), stopped)
	if err != nil || canceled != 1 || unknown != 1 {
		t.Errorf("RecoverCalls = %d, %d, %v", canceled, unknown, err)
	}
	if c := b.outcome(approved.ID); c.State != fleet.CallCanceled || c.Error.Code != fleet.CodeStopped {
		t.Errorf("the approved call is %s, %v", c.State, c.Error)
	}
	if c := b.outcome(sent.ID); c.State != fleet.CallUnknown || c.Error.Code != fleet.CodeStopped {
		t.Errorf("the sent call is %s, %v", c.State, c.Error)
	}
	b.start()
	_, err = b.svc.Approve(t.Context(), b.bob, a.ID, "")
	wantRefusal(t, err, fleet.ErrConflict, "approval_not_waiting")
	b.notSent()
	if c, err := b.store.Call(t.Context(), waits.ID); err != nil || c.State != fleet.CallPendingApproval {
		t.Errorf("the call that waits is %s, %v", c.State, err)
	}
	_, err = b.svc.Approve(t.Context(), b.bob, waits.Approval, "")
	check(t, err)
	if c := b.outcome(waits.ID); c.State != fleet.CallSucceeded {
		t.Errorf("the call is %s, %v", c.State, c.Error)
	}
}

func TestFanOutWaitsForItsApproval(t *testing.T) {
	b := newApprovalBench(t)
	r := call.FanOutRequest{Actor: b.model, Devices: []fleet.DeviceID{"d2", "d0", "d1"}, Tool: askedTool,
		Arguments: json.RawMessage(`{"volume":5}`), Purpose: "night"}
	p, err := b.fanOuts.Preview(t.Context(), r)
	if err != nil || p.NeedApproval != 3 || p.Targets != 3 {
		t.Errorf("preview %+v, %v", p, err)
	}
	f, err := b.fanOuts.Create(t.Context(), r)
	check(t, err)
	if f.State != call.FanOutPendingApproval || f.Approval == uuid.Nil {
		t.Fatalf("the fan-out is %+v", f)
	}
	b.notSent()
	_, err = b.svc.Approve(t.Context(), b.token(asAdmin(b.bob), "one device", fleet.KindProgram, "id:d0"),
		f.Approval, "")
	wantKind(t, err, fleet.ErrNotFound)
	_, err = b.svc.Approve(t.Context(), b.alice, f.Approval, "")
	wantRefusal(t, err, fleet.ErrForbidden, "own_approval")
	_, err = b.svc.Approve(t.Context(), b.bob, f.Approval, "")
	check(t, err)
	b.ends(f.ID, call.FanOutCompleted)
	page, err := b.calls.List(t.Context(), call.Filter{FanOut: f.ID})
	check(t, err)
	if len(page.Items) != 3 {
		t.Errorf("%d calls", len(page.Items))
	}
	for _, c := range page.Items {
		if c.State != fleet.CallSucceeded || c.Approval != f.Approval {
			t.Errorf("the call to %s is %s with %v, approval %s", c.Device, c.State, c.Error, c.Approval)
		}
		<-b.sent
	}

	// Not given.
	for state, end := range map[call.FanOutState]func(id uuid.UUID) error{
		call.FanOutRefused: func(id uuid.UUID) error { _, err := b.svc.Deny(t.Context(), b.bob, id, "no"); return err },
		call.FanOutCanceled: func(id uuid.UUID) error {
			_, err := b.svc.Withdraw(t.Context(), b.model, id, "")
			return err
		},
	} {
		f, err := b.fanOuts.Create(t.Context(), r)
		check(t, err)
		check(t, end(f.Approval))
		b.ends(f.ID, state)
	}
	f, err = b.fanOuts.Create(t.Context(), r)
	check(t, err)
	check(t, b.fanOuts.Cancel(t.Context(), b.model, f.ID))
	b.ends(f.ID, call.FanOutCanceled)
	if a, err := b.store.Approval(t.Context(), f.Approval); err != nil || a.State != call.ApprovalWithdrawn {
		t.Errorf("the approval is %s, %v", a.State, err)
	}
	f, err = b.fanOuts.Create(t.Context(), r)
	check(t, err)
	b.policy.change(func() { b.policy.version++ })
	_, err = b.svc.Approve(t.Context(), b.bob, f.Approval, "")
	wantRefusal(t, err, fleet.ErrConflict, "approval_stale")
	b.ends(f.ID, call.FanOutRefused)
	b.notSent()
}

func (b *approvalBench) ends(id uuid.UUID, state call.FanOutState) {
	b.t.Helper()
	fleettest.Eventually(b.t, "the fan-out is "+string(state), func() bool {
		f, err := b.store.FanOut(b.t.Context(), id)
		check(b.t, err)
		return f.State == state
	})
}
