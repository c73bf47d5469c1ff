package postgres_test

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// The record of a call that waits until its device is back, from its request to its outcome, and
// across starts of fleetd.
func TestCallsThatWaitForTheirDevices(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	until := time.Now().Add(24 * time.Hour).UTC().Truncate(time.Millisecond)
	fresh := func() *fleet.Call {
		c := newCall("self.get_device_status", fleet.CallPendingDevice)
		c.WaitUntil = &until
		return c
	}
	state := func(c *fleet.Call, want fleet.CallState) fleet.Call {
		t.Helper()
		got, err := s.Call(ctx, c.ID)
		check(t, err)
		if got.State != want || got.WaitUntil == nil || !got.WaitUntil.Equal(until) {
			t.Errorf("%s until %v, want %s until %v", got.State, got.WaitUntil, want, until)
		}
		return got
	}
	waits := func(want ...*fleet.Call) {
		t.Helper()
		waiting, err := s.WaitingCalls(ctx)
		check(t, err)
		if len(waiting) != len(want) {
			t.Fatalf("%d calls wait, want %d", len(waiting), len(want))
		}
		for i, w := range waiting {
			if w.ID != want[i].ID || !w.Interrupt || w.Picture != "blob" {
				t.Errorf("call %d: %+v", i, w)
			}
		}
	}
	wait := func(c *fleet.Call) {
		t.Helper()
		check(t, s.WaitForDevice(ctx, c, call.Wait{Interrupt: true, Picture: "blob"}))
	}
	now := time.Now().UTC()
	sent := func(c *fleet.Call) {
		t.Helper()
		c.State, c.SentAt, c.RPCID, c.Arguments = fleet.CallSent, &now, 7, []byte(`{"url":"http://h/u/…"}`)
		check(t, s.SendWaiting(ctx, c))
	}

	first, second := fresh(), fresh()
	wait(first)
	wait(second)
	waits(first, second)

	sent(first)
	if got := state(first, fleet.CallSent); got.RPCID != 7 || string(got.Arguments) != `{"url":"http://h/u/…"}` {
		t.Errorf("sent as %+v", got)
	}
	waits(second)
	// Nothing could be written: the call waits on.
	first.State, first.SentAt, first.Arguments = fleet.CallPendingDevice, nil, []byte(`{}`)
	wait(first)
	if got := state(first, fleet.CallPendingDevice); got.SentAt != nil || string(got.Arguments) != `{}` {
		t.Errorf("waits again as %+v", got)
	}
	waits(first, second)
	page, err := s.Calls(ctx, call.Filter{States: []fleet.CallState{fleet.CallPendingDevice}})
	check(t, err)
	if len(page.Items) != 2 {
		t.Errorf("%d listed", len(page.Items))
	}

	// A start of fleetd leaves waiting calls as they are; a call that was sent may have run.
	sent(first)
	_, unknown, err := s.RecoverCalls(ctx, stopped)
	check(t, err)
	if unknown != 1 {
		t.Errorf("%d unknown, want 1", unknown)
	}
	state(first, fleet.CallUnknown)
	waits(second)

	// The first outcome stays.
	second.State, second.FinishedAt, second.Error = fleet.CallCanceled, &now, fleet.NewCallError(fleet.CodeWithdrawn)
	check(t, s.FinishCall(ctx, second))
	late := *second
	late.State, late.SentAt, late.FinishedAt = fleet.CallSent, &now, nil
	wantKind(t, s.SendWaiting(ctx, &late), fleet.ErrConflict)
	late.State, late.SentAt = fleet.CallPendingDevice, nil
	wantKind(t, s.WaitForDevice(ctx, &late, call.Wait{}), fleet.ErrConflict)
	state(second, fleet.CallCanceled)
	waits()
}
