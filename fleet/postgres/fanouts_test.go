package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// If the clock is set back during a fan-out, its calls have earlier times than the fan-out: they
// still count, and no device is called again.
func TestFanOutCallsFromAClockSetBack(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	f := call.FanOut{ID: uuid.Must(uuid.NewV7()), Actor: admin, Tool: "t", Arguments: []byte(`{}`), MaxInFlight: 2,
		State: call.FanOutRunning, Targets: 1, CreatedAt: now().Add(3 * time.Hour)} // by a clock that was right again later
	check(t, s.CreateFanOut(ctx, &f, []call.FanOutTarget{{Device: "d0"}}))
	c := newCall("d0", fleet.CallSent)
	c.FanOut = f.ID
	check(t, s.InsertCall(ctx, c))
	check(t, s.FinishCall(ctx, finish(c, fleet.CallSucceeded, `{"content":[{"type":"text","text":"72%"}]}`)))

	if pending, err := s.PendingTargets(ctx, f.ID, "", 10); err != nil || len(pending) != 0 {
		t.Errorf("to be called: %v, %v", pending, err)
	}
	if p, err := s.Progress(ctx, f.ID); err != nil || p.Waiting != 0 || p.ByState[fleet.CallSucceeded] != 1 {
		t.Errorf("progress: %+v, %v", p, err)
	}
	if answers, err := s.Answers(ctx, f.ID, 10); err != nil || len(answers) != 1 || answers[0].Text != "72%" {
		t.Errorf("answers: %+v, %v", answers, err)
	}
}

// A target that cannot be called is counted once, with its first reason.
func TestFanOutSkipTarget(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	f := call.FanOut{ID: uuid.Must(uuid.NewV7()), Actor: admin, Tool: "t", Arguments: []byte(`{}`), MaxInFlight: 2,
		State: call.FanOutRunning, Targets: 2, CreatedAt: now()}
	check(t, s.CreateFanOut(ctx, &f, []call.FanOutTarget{{Device: "d0"}, {Device: "d1"}}))
	for _, reason := range []string{"record_refused", "device_unknown"} {
		check(t, s.SkipTarget(ctx, f.ID, call.FanOutTarget{Device: "d0", Reason: reason}))
	}
	f.Targets, f.Skipped = 1, 1
	got, err := s.FanOut(ctx, f.ID)
	check(t, err)
	same(t, got, f)
	skipped, err := s.SkippedTargets(ctx, f.ID)
	check(t, err)
	same(t, skipped, []fleet.DeviceCount{{Value: "record_refused", Count: 1}})
	pending, err := s.PendingTargets(ctx, f.ID, "", 10)
	check(t, err)
	same(t, pending, []fleet.DeviceID{"d1"})
	p, err := s.Progress(ctx, f.ID)
	check(t, err)
	same(t, p, call.FanOutProgress{Waiting: 1, ByState: map[fleet.CallState]int{}})
}

func TestFanOut(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	f := call.FanOut{ID: uuid.Must(uuid.NewV7()), Actor: admin, Query: "lab", Tool: "t",
		Arguments:   []byte(`{"b":1, "a":2}`),
		MaxInFlight: 2, State: call.FanOutRunning, Targets: 6, Skipped: 2, CreatedAt: now()}
	var targets []call.FanOutTarget
	for i := range 8 {
		target := call.FanOutTarget{Device: fleet.DeviceID(fmt.Sprintf("d%d", i))}
		if i >= 6 {
			target.Reason = "device_held"
		}
		targets = append(targets, target)
	}
	check(t, s.CreateFanOut(ctx, &f, targets))
	got, err := s.FanOut(ctx, f.ID)
	check(t, err)
	same(t, got, f)
	skipped, err := s.SkippedTargets(ctx, f.ID)
	check(t, err)
	same(t, skipped, []fleet.DeviceCount{{Value: "device_held", Count: 2}})

	insert := func(device fleet.DeviceID, state fleet.CallState, result string) {
		t.Helper()
		c := newCall(device, fleet.CallSent)
		if !state.Final() {
			c = newCall(device, state)
		}
		c.FanOut = f.ID
		if state.Final() {
			finish(c, state, result)
			if state == fleet.CallCanceled {
				c.Error = &fleet.CallError{Code: fleet.CodeStopped, Message: "stopped"}
			}
		}
		check(t, s.InsertCall(ctx, c))
	}
	insert("d0", fleet.CallSucceeded, `{"content":[{"type":"text","text":"72%"}],"isError":false}`)
	insert("d1", fleet.CallCanceled, "") // fleetd stopped: to be called again
	insert("d1", fleet.CallSucceeded, `{"content":[{"type":"text","text":"72%"}],"isError":false}`)
	insert("d2", fleet.CallCanceled, "")
	insert("d3", fleet.CallOffline, "")
	insert("d4", fleet.CallPending, "")

	pending, err := s.PendingTargets(ctx, f.ID, "", 10)
	check(t, err)
	same(t, pending, []fleet.DeviceID{"d2", "d5"})
	pending, err = s.PendingTargets(ctx, f.ID, "d2", 10)
	check(t, err)
	same(t, pending, []fleet.DeviceID{"d5"})

	p, err := s.Progress(ctx, f.ID)
	check(t, err)
	same(t, p, call.FanOutProgress{Waiting: 2, ByState: map[fleet.CallState]int{fleet.CallSucceeded: 2,
		fleet.CallOffline: 1, fleet.CallPending: 1}})
	answers, err := s.Answers(ctx, f.ID, 10)
	check(t, err)
	if len(answers) != 2 || answers[0].Count != 2 || answers[0].Text != "72%" || !slices.Equal(answers[0].Sample,
		[]fleet.DeviceID{"d0", "d1"}) ||
		len(answers[0].CallIDs) != 2 || answers[1].State != fleet.CallOffline {
		t.Errorf("answers: %+v", answers)
	}

	running, err := s.RunningFanOuts(ctx)
	check(t, err)
	if len(running) != 1 {
		t.Errorf("%d fan-outs running", len(running))
	}
	check(t, s.FinishFanOut(ctx, admin, f.ID, call.FanOutCanceled, now()))
	wantKind(t, s.FinishFanOut(ctx, admin, f.ID, call.FanOutCompleted, now()), fleet.ErrConflict)
	wantKind(t, s.FinishFanOut(ctx, admin, uuid.New(), call.FanOutCompleted, now()), fleet.ErrNotFound)
	page, err := s.FanOuts(ctx, 10, "")
	check(t, err)
	if len(page.Items) != 1 || page.Items[0].State != call.FanOutCanceled || page.Items[0].CanceledBy != "ada" {
		t.Errorf("fan-outs: %+v", page.Items)
	}
	_, err = s.Progress(ctx, uuid.New())
	wantKind(t, err, fleet.ErrNotFound)
}
