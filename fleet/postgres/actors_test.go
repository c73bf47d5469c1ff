package postgres_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// Work that continues after its request was answered: by then the caller may be gone, or may have
// fewer rights.

func (b *approvalBench) revoke(p fleet.Principal) {
	b.t.Helper()
	check(b.t, operator.New(b.store).Revoke(b.t.Context(), admin, uuid.MustParse(p.ID)))
}

// waitingFanOut starts a fan-out that has called d0 and waits for d1 and d2.
func (b *approvalBench) waitingFanOut(by fleet.Principal) call.FanOut {
	b.t.Helper()
	b.leave("d1")
	b.leave("d2")
	f, err := b.fanOuts.Create(b.t.Context(), call.FanOutRequest{Actor: by, Tool: quietTool,
		Devices: []fleet.DeviceID{"d0", "d1", "d2"}, OfflineWait: time.Hour})
	check(b.t, err)
	<-b.sent
	fleettest.Eventually(b.t, "the call to d0 is on record", func() bool {
		page, err := b.calls.List(b.t.Context(), call.Filter{FanOut: f.ID,
			States: []fleet.CallState{fleet.CallSucceeded}})
		return err == nil && len(page.Items) == 1
	})
	return f
}

// wantSkipped compares the devices that the fan-out left out.
func (b *approvalBench) wantSkipped(id uuid.UUID, want ...fleet.DeviceCount) {
	b.t.Helper()
	got, err := b.store.SkippedTargets(b.t.Context(), id)
	check(b.t, err)
	same(b.t, got, want)
}

func (b *approvalBench) wantActorGone(id uuid.UUID) {
	b.t.Helper()
	b.ends(id, call.FanOutCanceled)
	b.connect("d1")
	b.connect("d2")
	b.notSent()
	f, err := b.store.FanOut(b.t.Context(), id)
	check(b.t, err)
	if f.Code != fleet.CodeActorGone || f.Targets != 1 || f.Skipped != 2 || f.FinishedAt == nil {
		b.t.Errorf("the fan-out is %+v, want it canceled with %s after one of three devices", f, fleet.CodeActorGone)
	}
	b.wantSkipped(id, fleet.DeviceCount{Value: fleet.CodeActorGone, Count: 2})
}

func TestFanOutEndsWithItsToken(t *testing.T) {
	b := newApprovalBench(t)
	by := b.token(b.alice, "night job", fleet.KindProgram, "")
	f := b.waitingFanOut(by)
	b.revoke(by)
	b.wantActorGone(f.ID)
}

func TestFanOutOfDisabledOperatorEndsAtTheNextStart(t *testing.T) {
	b := newApprovalBench(t)
	f := b.waitingFanOut(b.bob)
	b.stop()
	b.sql(`UPDATE operators SET disabled_at = now() WHERE id::text = $1`, b.bob.ID)
	b.start()
	b.wantActorGone(f.ID)
}

// A recorded fan-out does not store its scope: it is read from the token.
func TestFanOutKeepsItsScopeAfterAStart(t *testing.T) {
	b := newApprovalBench(t)
	b.sql(`UPDATE devices SET tags = '{lab}'`)
	for _, id := range []fleet.DeviceID{"d0", "d1", "d2"} {
		b.targets.Forget(id)
	}
	f := b.waitingFanOut(b.token(b.alice, "lab job", fleet.KindProgram, "tag:lab"))
	b.stop()
	b.sql(`UPDATE devices SET tags = '{hall}' WHERE id = 'd1'`)
	b.start()
	b.connect("d1")
	b.connect("d2")
	if got := <-b.sent; got != quietTool+"{}" {
		t.Errorf("sent %s", got)
	}
	b.ends(f.ID, call.FanOutCompleted)
	b.notSent()
	page, err := b.calls.List(t.Context(), call.Filter{FanOut: f.ID, Device: "d1"})
	check(t, err)
	if len(page.Items) != 0 {
		t.Errorf("the device that left the scope was called: %+v", page.Items)
	}
	b.wantSkipped(f.ID, fleet.DeviceCount{Value: fleet.CodeOutOfScope, Count: 1})
}

func TestFanOutLosesItsTools(t *testing.T) {
	b := newApprovalBench(t)
	by := b.token(b.alice, "reader", fleet.KindProgram, "")
	f := b.waitingFanOut(by)
	b.sql(`UPDATE tokens SET tools = '{self.other}' WHERE id::text = $1`, by.ID)
	b.connect("d1")
	b.connect("d2")
	b.ends(f.ID, call.FanOutCompleted)
	b.notSent()
	page, err := b.calls.List(t.Context(), call.Filter{FanOut: f.ID, States: []fleet.CallState{fleet.CallRefused}})
	check(t, err)
	if len(page.Items) != 2 || page.Items[0].Error.Code != "tool_not_allowed" {
		t.Errorf("refused calls: %+v", page.Items)
	}
}

// A call that waits in its device's line is judged again when its turn comes.
func TestCallInLineIsJudgedAgain(t *testing.T) {
	b := newApprovalBench(t)
	for _, tt := range []struct {
		name   string
		change func(by fleet.Principal)
		state  fleet.CallState
		code   string
	}{
		{"the token is revoked", b.revoke, fleet.CallCanceled, fleet.CodeActorGone},
		{"the token loses the tool", func(by fleet.Principal) {
			b.sql(`UPDATE tokens SET tools = '{self.other}' WHERE id::text = $1`, by.ID)
		}, fleet.CallRefused, "tool_not_allowed"},
		{"the token loses its role", func(by fleet.Principal) {
			b.sql(`UPDATE tokens SET role = 'viewer' WHERE id::text = $1`, by.ID)
		}, fleet.CallRefused, "forbidden"},
		{"the device leaves the scope", func(fleet.Principal) {
			b.sql(`UPDATE devices SET tags = '{hall}' WHERE id = 'd0'`)
			b.targets.Forget("d0")
		}, fleet.CallCanceled, fleet.CodeOutOfScope},
		{"the policy denies it", func(fleet.Principal) {
			b.policy.change(func() { b.policy.deny = true })
		}, fleet.CallRefused, "policy_denied"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.t = t
			b.sql(`UPDATE devices SET tags = '{lab}' WHERE id = 'd0'`)
			b.targets.Forget("d0")
			by := b.token(b.alice, tt.name, fleet.KindProgram, "tag:lab")
			block := make(chan struct{})
			b.link.Connect("d0", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
				<-block
				return fleettest.Text("true"), nil
			})
			first, err := b.calls.Start(t.Context(), call.Request{Actor: b.bob, Device: "d0", Tool: quietTool})
			check(t, err)
			<-b.sent
			second, err := b.calls.Start(t.Context(), call.Request{Actor: by, Device: "d0", Tool: quietTool})
			check(t, err)
			if second.State != fleet.CallPending {
				t.Fatalf("the second call is %s, %v", second.State, second.Error)
			}
			tt.change(by)
			close(block)
			if c := b.outcome(first.ID); c.State != fleet.CallSucceeded {
				t.Errorf("the first call is %s, %v", c.State, c.Error)
			}
			if c := b.outcome(second.ID); c.State != tt.state || c.Error == nil || c.Error.Code != tt.code || c.SentAt != nil {
				t.Errorf("the call in line is %s, %v, want %s with %s", c.State, c.Error, tt.state, tt.code)
			}
			b.notSent()
		})
	}
}

// An approved call that waits in line is compared with what was approved.
func TestApprovedCallInLineNeedsTheSameTool(t *testing.T) {
	b := newApprovalBench(t)
	b.lists("d0", "0 closes the door", "2.4.2", "e0")
	block := make(chan struct{})
	b.link.Connect("d0", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		<-block
		return fleettest.Text("true"), nil
	})
	_, err := b.calls.Start(t.Context(), call.Request{Actor: b.bob, Device: "d0", Tool: quietTool})
	check(t, err)
	<-b.sent
	c, a := b.ask(b.model)
	if len(a.Builds) != 1 || a.Builds[0].Version != "2.4.2" || a.Builds[0].ELF != "e0" || a.Builds[0].Devices != 1 {
		t.Errorf("the approval names %+v", a.Builds)
	}
	_, err = b.svc.Approve(t.Context(), b.bob, a.ID, "")
	check(t, err)
	b.lists("d0", "0 OPENS the door", "2.4.2", "e0")
	close(block)
	b.wantRefused(c.ID, call.CodeApprovalStale)
}

// Each device of an approved fan-out must be as it was when the approval was requested.
func TestApprovedFanOutNeedsTheSameFirmware(t *testing.T) {
	b := newApprovalBench(t)
	for _, id := range []fleet.DeviceID{"d0", "d1", "d2"} {
		b.lists(id, "0 closes the door", "2.4.2", "e0")
	}
	b.leave("d1")
	ask := func() call.FanOut {
		f, err := b.fanOuts.Create(t.Context(), call.FanOutRequest{Actor: b.model, Tool: askedTool,
			Devices: []fleet.DeviceID{"d0", "d1", "d2"}, OfflineWait: time.Hour})
		check(t, err)
		return f
	}
	f := ask()
	a, err := b.svc.Approve(t.Context(), b.bob, f.Approval, "")
	check(t, err)
	if len(a.Builds) != 1 || a.Builds[0].Devices != 3 {
		t.Errorf("the approval names %+v", a.Builds)
	}
	<-b.sent
	<-b.sent
	b.lists("d1", "0 closes the door", "9.9.9", "e9")
	b.connect("d1")
	b.ends(f.ID, call.FanOutCompleted)
	b.notSent()
	page, err := b.calls.List(t.Context(), call.Filter{FanOut: f.ID, Device: "d1"})
	check(t, err)
	if len(page.Items) != 1 || page.Items[0].State != fleet.CallRefused ||
		page.Items[0].Error.Code != call.CodeApprovalStale || page.Items[0].Error.Params.Case() != "firmware" {
		t.Errorf("the call to the device with other firmware: %+v", page.Items)
	}

	// Before it is approved.
	f = ask()
	b.lists("d2", "0 OPENS the door", "2.4.2", "e0")
	_, err = b.svc.Approve(t.Context(), b.bob, f.Approval, "")
	wantRefusal(t, err, fleet.ErrConflict, call.CodeApprovalStale)
	b.ends(f.ID, call.FanOutRefused)
	if a, err := b.store.Approval(t.Context(), f.Approval); err != nil || a.Stale != call.StaleTool {
		t.Errorf("the approval ended %+v, %v", a, err)
	}
	b.notSent()
}

// The rights of the approver are read again as well.
func TestApproverMayNotActAnyMore(t *testing.T) {
	b := newApprovalBench(t)
	c, a := b.ask(b.model)
	b.sql(`UPDATE operators SET disabled_at = now() WHERE id::text = $1`, b.bob.ID)
	if _, err := b.svc.Approve(t.Context(), b.bob, a.ID, ""); err == nil {
		t.Error("a disabled operator approved")
	}
	b.notSent()
	if c, err := b.store.Call(t.Context(), c.ID); err != nil || c.State != fleet.CallPendingApproval {
		t.Errorf("the call is %s, %v", c.State, err)
	}
}
