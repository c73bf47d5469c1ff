package postgres_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

// askLate makes a call to a disconnected device. The call needs an approval, and then waits until
// the device is back.
func (b *approvalBench) askLate(wait time.Duration) (fleet.Call, call.Approval) {
	b.t.Helper()
	b.leave("d0")
	c, err := b.calls.Make(b.t.Context(), call.Request{Actor: b.model, Device: "d0", Tool: askedTool,
		Arguments: json.RawMessage(`{"volume": 30}`), Purpose: "too quiet", OfflineWait: wait})
	check(b.t, err)
	a, err := b.store.Approval(b.t.Context(), c.Approval)
	check(b.t, err)
	if c.State != fleet.CallPendingApproval || a.WaitUntil == nil {
		b.t.Fatalf("the call is %s, the approval names %v", c.State, a.WaitUntil)
	}
	return c, a
}

// restart ends the services, and starts others that continue the waiting calls.
func (b *approvalBench) restart() {
	b.t.Helper()
	b.stop()
	b.start()
	check(b.t, b.calls.Resume(b.t.Context()))
}

// A call that was approved while its device was away is judged again when the device is back: by
// the current rights of its caller and its approver, the policy, and what was approved.
func TestApprovedCallWaitsForItsDevice(t *testing.T) {
	const disable = `UPDATE operators SET disabled_at = now() WHERE name = $1`
	const role = `UPDATE operators SET role = 'viewer' WHERE name = $1`
	const scope = `UPDATE operators SET scope = 'id:d2' WHERE name = $1`
	for name, tt := range map[string]struct {
		meanwhile func(b *approvalBench, id uuid.UUID)
		want      fleet.CallState // "": it is sent
		code      string
	}{
		"nothing":         {},
		"fleetd restarts": {meanwhile: func(b *approvalBench, _ uuid.UUID) { b.restart() }},
		"the asking token was revoked": {func(b *approvalBench, _ uuid.UUID) {
			b.sql(`UPDATE tokens SET revoked_at = now() WHERE id::text = $1`, b.model.ID)
		}, fleet.CallCanceled, fleet.CodeActorGone},
		"who asked reads only": {func(b *approvalBench, _ uuid.UUID) {
			b.sql(`UPDATE tokens SET role = 'viewer' WHERE id::text = $1`, b.model.ID)
		}, fleet.CallRefused, "forbidden"},
		"who asked may call other tools": {func(b *approvalBench, _ uuid.UUID) {
			b.sql(`UPDATE tokens SET tools = '{self.get_*}' WHERE id::text = $1`, b.model.ID)
		}, fleet.CallRefused, "tool_not_allowed"},
		"who approved is disabled": {func(b *approvalBench, _ uuid.UUID) { b.sql(disable, "bob") },
			fleet.CallRefused, call.CodeApprovalStale + ".approver"},
		"who approved reads only": {func(b *approvalBench, _ uuid.UUID) { b.sql(role, "bob") },
			fleet.CallRefused, call.CodeApprovalStale + ".approver"},
		"who approved has other devices": {func(b *approvalBench, _ uuid.UUID) { b.sql(scope, "bob") },
			fleet.CallRefused, call.CodeApprovalStale + ".approver"},
		"who approved is disabled while fleetd restarts": {func(b *approvalBench, _ uuid.UUID) {
			b.sql(disable, "bob")
			b.restart()
		}, fleet.CallRefused, call.CodeApprovalStale + ".approver"},
		"another policy": {func(b *approvalBench, _ uuid.UUID) { b.policy.change(func() { b.policy.version++ }) },
			fleet.CallRefused, call.CodeApprovalStale},
		"the policy denies": {func(b *approvalBench, _ uuid.UUID) { b.policy.change(func() { b.policy.deny = true }) },
			fleet.CallRefused, "policy_denied"},
		"another tool": {func(b *approvalBench, _ uuid.UUID) { b.lists("d0", "rings a bell", "2.0.3", "") },
			fleet.CallRefused, call.CodeApprovalStale + ".tool"},
		"other firmware, after a restart": {func(b *approvalBench, _ uuid.UUID) {
			b.sql(`UPDATE devices SET version = '9.9' WHERE id = 'd0'`)
			b.restart()
		}, fleet.CallRefused, call.CodeApprovalStale + ".firmware"},
		"held": {func(b *approvalBench, _ uuid.UUID) {
			b.sql(`UPDATE devices SET hold_reason = 'bench', hold_since = now(), hold_name = 'x', hold_kind = 'operator',
				hold_id = 'x', hold_role = 'admin' WHERE id = 'd0'`)
		}, fleet.CallRefused, "device_held"},
		"canceled": {func(b *approvalBench, id uuid.UUID) {
			if c, err := b.calls.Cancel(b.t.Context(), b.bob, id); err != nil || c.State != fleet.CallCanceled {
				b.t.Errorf("%s, %v", c.State, err)
			}
		}, fleet.CallCanceled, fleet.CodeWithdrawn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newApprovalBench(t)
			c, a := b.askLate(time.Hour)
			_, err := b.calls.Cancel(t.Context(), b.model, c.ID)
			wantRefusal(t, err, fleet.ErrConflict, "call_not_waiting")
			_, err = b.svc.Approve(t.Context(), b.bob, a.ID, "")
			check(t, err)
			if c, err := b.calls.Get(t.Context(), c.ID); err != nil || c.State != fleet.CallPendingDevice ||
				!c.WaitUntil.Equal(*a.WaitUntil) || !c.Waits.Is(call.ReasonDeviceAway) {
				t.Fatalf("approved, it is %s until %v for %v, %v", c.State, c.WaitUntil, c.Waits, err)
			}
			if tt.meanwhile != nil {
				tt.meanwhile(b, c.ID)
			}
			b.notSent()
			b.connect("d0")
			got := b.outcome(c.ID)
			if tt.want == "" {
				if sent := <-b.sent; sent != askedTool+`{"volume": 30}` {
					t.Errorf("sent %s", sent)
				}
				tt.want = fleet.CallSucceeded
				if len(got.Evidence) != 1 || !got.Evidence[0].Reason.Is(call.ReasonDeviceBack) {
					t.Errorf("evidence %+v", got.Evidence)
				}
			}
			code := ""
			if got.Error != nil {
				code = got.Error.Code
				if of, is := got.Error.Params["case"].(string); is && code == call.CodeApprovalStale {
					code += "." + of
				}
			}
			if got.State != tt.want || code != tt.code {
				t.Errorf("it is %s with %q, want %s with %q", got.State, code, tt.want, tt.code)
			}
			b.notSent()
		})
	}
}

// The approver of a bulk call must still have the right to approve it when a device comes back.
func TestApprovedFanOutWaitsForItsDevices(t *testing.T) {
	for name, tt := range map[string]struct {
		change  string // SQL
		refused []fleet.DeviceID
	}{
		"who approved is disabled": {`UPDATE operators SET disabled_at = now() WHERE name = 'bob'`,
			[]fleet.DeviceID{"d1", "d2"}},
		"who approved has one device less": {`UPDATE operators SET scope = 'id:d0,d2' WHERE name = 'bob'`,
			[]fleet.DeviceID{"d1"}},
		"who approved is as they were before": {`SELECT 1`, nil},
	} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", name, restarts), func(t *testing.T) {
				t.Parallel()
				b := newApprovalBench(t)
				b.leave("d1")
				b.leave("d2")
				f, err := b.fanOuts.Create(t.Context(), call.FanOutRequest{Actor: b.model, Tool: askedTool,
					Devices: []fleet.DeviceID{"d0", "d1", "d2"}, Arguments: json.RawMessage(`{"volume":5}`), OfflineWait: time.Hour})
				check(t, err)
				_, err = b.svc.Approve(t.Context(), b.bob, f.Approval, "")
				check(t, err)
				<-b.sent
				ended := func(state fleet.CallState) []fleet.Call {
					page, err := b.calls.List(t.Context(), call.Filter{FanOut: f.ID, States: []fleet.CallState{state}})
					check(t, err)
					return page.Items
				}
				fleettest.Eventually(b.t, "the call to d0 is on record", func() bool {
					return len(ended(fleet.CallSucceeded)) == 1
				})
				b.sql(tt.change)
				if restarts {
					b.restart()
				}
				b.connect("d1")
				b.connect("d2")
				b.ends(f.ID, call.FanOutCompleted)
				for range 2 - len(tt.refused) {
					<-b.sent
				}
				b.notSent()
				var refused []fleet.DeviceID
				for _, c := range ended(fleet.CallRefused) {
					refused = append(refused, c.Device)
					why := c.Error.Params
					if c.Error.Code != call.CodeApprovalStale || why["case"] != "approver" || why["by"] != "bob" {
						t.Errorf("%s is refused with %+v", c.Device, c.Error)
					}
				}
				slices.Sort(refused)
				same(t, refused, tt.refused)
			})
		}
	}
}

// The wait counts from the request of the call, so an approval can come too late. If the device
// is connected, an approved call does not wait.
func TestApprovedCallNeedNotWait(t *testing.T) {
	b := newApprovalBench(t)
	c, a := b.askLate(time.Hour)
	b.connect("d0")
	_, err := b.svc.Approve(t.Context(), b.bob, a.ID, "")
	check(t, err)
	if got := b.outcome(c.ID); got.State != fleet.CallSucceeded || len(got.Evidence) > 0 {
		t.Errorf("the device was there: %s, %+v", got.State, got.Evidence)
	}
	c, a = b.askLate(time.Minute)
	b.now = func() time.Time { return now().Add(2 * time.Minute) }
	_, err = b.svc.Approve(t.Context(), b.bob, a.ID, "")
	check(t, err)
	if got := b.outcome(c.ID); got.State != fleet.CallOffline {
		t.Errorf("approved too late: %s", got.State)
	}
}
