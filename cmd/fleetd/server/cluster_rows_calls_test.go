package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A rowCall is a call on record.
type rowCall struct {
	ID         string
	State      fleet.CallState
	Late       *struct{ Result json.RawMessage }
	ApprovalID string `json:"approval_id"`
	Error      *struct{ Code string }
}

func (w *leaseWorld) callOf(p *leaseProcess, id string) (c rowCall) {
	w.t.Helper()
	w.rest(p, w.token, "GET", "/calls/"+id, nil, &c)
	return c
}

// act is the body of a call that rowDevices accept.
func act(timeout time.Duration) map[string]any {
	return map[string]any{"tool": "self.act", "timeout_ms": timeout.Milliseconds()}
}

func callsPath[ID ~string](id ID) string { return "/devices/" + string(id) + "/calls" }

func rowCallInFlight(w *rowsWorld, n int) func(*testing.T) {
	d := w.rowDevice(w.edges[1], n)
	d.silent.Store(true)
	asked := w.begin(w.edges[0], w.token, "POST", callsPath(d.id), act(time.Minute), nil)
	d.awaitCalls(1)
	return func(t *testing.T) {
		status, text := asked.await(t)
		if status != http.StatusBadGateway || !strings.Contains(string(text), "outcome_unknown") {
			t.Errorf("the caller was answered %d: %s", status, text)
		}
		var page list[rowCall]
		w.rest(w.edges[0], w.token, "GET", callsPath(d.id)+"?limit=5", nil, &page)
		if len(page.Items) != 1 || page.Items[0].State != fleet.CallUnknown || page.Items[0].Late != nil {
			t.Fatalf("on record: %+v", page.Items)
		}
		// The answer comes after those of the new term, too: it is not taken as an answer to them.
		d.silent.Store(false)
		var next rowCall
		w.rest(w.edges[0], w.token, "POST", callsPath(d.id), act(time.Minute), &next)
		if next.State != fleet.CallSucceeded {
			t.Errorf("the next call: %+v", next)
		}
		d.silent.Store(true)
		begun := w.begin(w.edges[0], w.token, "POST", callsPath(d.id), act(time.Minute), nil)
		d.awaitCalls(3)
		ids := d.received("tools/call")
		for range 2 {
			d.say(d.newest(), ids[0].ID, rowResult("late"))
		}
		fleettest.EventuallyWithin(t, time.Minute, "the late answer on record", func() bool {
			return w.callOf(w.edges[0], page.Items[0].ID).Late != nil
		})
		if c := w.callOf(w.edges[0], page.Items[0].ID); c.State != fleet.CallUnknown ||
			!strings.Contains(string(c.Late.Result), "late") {
			t.Errorf("the call with a late answer: %+v", c)
		}
		d.say(d.newest(), ids[2].ID, rowResult("the third"))
		if status, text := begun.await(t); status != http.StatusOK || !strings.Contains(string(text), "the third") {
			t.Errorf("the call in flight meanwhile: %d: %s", status, text)
		}
		seen := map[int64]bool{}
		for _, r := range ids {
			if seen[r.ID] {
				t.Errorf("the id %d is used twice", r.ID)
			}
			seen[r.ID] = true
		}
	}
}

func rowFanOut(w *rowsWorld, n int) func(*testing.T) {
	var muted, others []*rowDevice // muted come first: calls are made in the order of ids
	var ids []fleet.DeviceID
	for i := range 6 {
		d := w.rowDevice(w.edges[i%2], n+i)
		if i < 2 {
			d.silent.Store(true)
			muted = append(muted, d)
		} else {
			others = append(others, d)
		}
		ids = append(ids, d.id)
	}
	var made struct{ ID string }
	w.rest(w.edges[0], w.token, "POST", "/fanouts", map[string]any{"devices": ids, "tool": "self.act", "max_in_flight": 2,
		"timeout_ms": 60_000}, &made)
	for _, d := range muted {
		d.awaitCalls(1)
	}
	return func(t *testing.T) {
		fleettest.EventuallyWithin(t, time.Minute, "the end of the fan-out", func() bool {
			return w.count(`SELECT count(*) FROM fanouts WHERE id = $1 AND state = 'completed'`, made.ID) == 1
		})
		for _, d := range append(slices.Clone(muted), others...) {
			want := fleet.CallSucceeded
			if slices.Contains(muted, d) {
				want = fleet.CallUnknown
			}
			if got := w.count(`SELECT count(*) FROM calls WHERE fanout_id = $1 AND device_id = $2 AND state = $3`, made.ID, d.id,
				want); got != 1 || d.calls() != 1 {
				t.Errorf("%s got %d calls; %d are on record as %s", d.mac, d.calls(), got, want)
			}
		}
	}
}

func rowIdempotency(w *rowsWorld, n int) func(*testing.T) {
	d := w.rowDevice(w.edges[1], n)
	d.silent.Store(true)
	key := http.Header{"Idempotency-Key": {"row"}}
	asked := w.begin(w.edges[0], w.token, "POST", callsPath(d.id), act(time.Minute), key)
	d.awaitCalls(1)
	return func(t *testing.T) {
		asked.await(t)
		d.silent.Store(false)
		for range 2 {
			status, text := w.ask(w.edges[0], w.token, "POST", callsPath(d.id), act(time.Minute), key)
			if status != http.StatusConflict || !strings.Contains(string(text), `"request_interrupted"`) {
				t.Errorf("the repetition was answered %d: %s", status, text)
			}
		}
		if d.calls() != 1 {
			t.Errorf("the device got %d calls", d.calls())
		}
	}
}

func rowCallsInLine(w *rowsWorld, n int) func(*testing.T) {
	d := w.rowDevice(w.edges[0], n)
	d.silent.Store(true)
	first := w.begin(w.edges[1], w.token, "POST", callsPath(d.id), act(time.Minute), nil)
	d.awaitCalls(1)
	second := w.begin(w.edges[1], w.token, "POST", callsPath(d.id), act(time.Minute), nil)
	pending := func(n int) {
		w.t.Helper()
		fleettest.EventuallyWithin(w.t, time.Minute, fmt.Sprint(n, " calls in line"), func() bool {
			return w.count(`SELECT count(*) FROM calls WHERE device_id = $1 AND state = 'pending'`, d.id) == n
		})
	}
	pending(1)
	var third rowCall
	w.rest(w.edges[1], w.asker, "POST", callsPath(d.id), act(time.Minute), &third)
	w.rest(w.edges[1], w.token, "POST", "/approvals/"+third.ApprovalID+"/approve", map[string]any{"reason": "row"}, nil)
	pending(2)
	return func(t *testing.T) {
		first.await(t)
		second.await(t)
		d.silent.Store(false)
		for state, want := range map[fleet.CallState]int{fleet.CallUnknown: 1, fleet.CallCanceled: 2} {
			if got := w.count(`SELECT count(*) FROM calls WHERE device_id = $1 AND state = $2`, d.id, state); got != want {
				t.Errorf("%d calls are %s, want %d", got, state, want)
			}
		}
		if c := w.callOf(w.edges[0], third.ID); c.State != fleet.CallCanceled {
			t.Errorf("the approved call: %+v", c)
		}
		if d.calls() != 1 {
			t.Errorf("the device got %d calls", d.calls())
		}
	}
}

func rowApprovals(w *rowsWorld, n int) func(*testing.T) {
	d := w.rowDevice(w.edges[0], n)
	var approved, denied rowCall
	for _, c := range []*rowCall{&approved, &denied} {
		w.rest(w.edges[1], w.asker, "POST", callsPath(d.id), act(time.Minute), c)
		if c.State != fleet.CallPendingApproval {
			w.t.Fatalf("a call that needs an approval: %+v", c)
		}
	}
	return func(t *testing.T) {
		w.rest(w.edges[1], w.token, "POST", "/approvals/"+approved.ApprovalID+"/approve", map[string]any{"reason": "row"}, nil)
		w.rest(w.edges[1], w.token, "POST", "/approvals/"+denied.ApprovalID+"/deny", map[string]any{"reason": "row"}, nil)
		fleettest.EventuallyWithin(t, time.Minute, "the approved call", func() bool {
			return w.callOf(w.edges[1], approved.ID).State == fleet.CallSucceeded
		})
		if c := w.callOf(w.edges[1], denied.ID); c.State != fleet.CallRefused || d.calls() != 1 {
			t.Errorf("the denied call: %+v; the device got %d calls", c, d.calls())
		}
		var next rowCall
		w.rest(w.edges[1], w.asker, "POST", callsPath(d.id), act(time.Minute), &next)
		if next.State != fleet.CallPendingApproval {
			t.Errorf("the next call: %+v", next)
		}
	}
}

// hammer repeats a call until stop is called, and returns the states of the calls.
func (w *clusterWorld) hammer(token string, d *rowDevice) (stop func() map[string]int) {
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	states := map[string]int{}
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			status, text := w.ask(w.edges[1], token, "POST", callsPath(d.id), act(5*time.Second), nil)
			var c rowCall
			if _ = json.Unmarshal(text, &c); c.State == "" {
				c.State = fleet.CallState(fmt.Sprint(status))
			}
			states[string(c.State)]++
			time.Sleep(10 * time.Millisecond)
		}
	})
	return func() map[string]int {
		cancel()
		all.Wait()
		return states
	}
}

func rowHold(w *rowsWorld, n int) func(*testing.T) {
	d := w.rowDevice(w.edges[0], n)
	w.rest(w.edges[0], w.token, "POST", "/devices/"+string(d.id)+"/hold", map[string]any{"reason": "row"}, nil)
	before := d.calls()
	stop := w.hammer(w.other, d)
	return func(t *testing.T) {
		time.Sleep(time.Second) // calls of the new term
		if states := stop(); d.calls() != before || states["refused"] == 0 {
			t.Errorf("a device on hold got %d calls; %v", d.calls()-before, states)
		}
	}
}

func rowPolicy(w *rowsWorld, n int) func(*testing.T) {
	d, spent := w.rowDevice(w.edges[0], n), w.rowDevice(w.edges[1], n+1)
	states := func() (all []fleet.CallState) {
		for range 4 {
			var c rowCall
			w.rest(w.edges[0], w.thrice, "POST", callsPath(spent.id), act(time.Minute), &c)
			all = append(all, c.State)
		}
		return all
	}
	if got := states(); !slices.Equal(got, []fleet.CallState{"succeeded", "succeeded", "succeeded", "refused"}) {
		w.t.Fatalf("calls of a budget of three: %v", got)
	}
	stop := w.hammer(w.denied, d)
	return func(t *testing.T) {
		time.Sleep(time.Second)
		if got := stop(); d.calls() != 0 || got["refused"] == 0 {
			t.Errorf("a denied program made %d calls; %v", d.calls(), got)
		}
		if got := states(); slices.Contains(got, fleet.CallSucceeded) || spent.calls() != 3 {
			t.Errorf("calls of a budget that is spent: %v; the device got %d", got, spent.calls())
		}
	}
}

func rowPin(w *rowsWorld, n int) func(*testing.T) {
	pinned, other := w.rowDevice(w.edges[0], n), w.newRowDevice(n+1)
	other.tools = rowTool("self.act", "something else")
	other.begin(w.edges[1])
	var model struct{ Token string }
	w.rest(w.edges[0], w.token, "POST", "/tokens", map[string]any{"name": "model", "role": "operator", "kind": "model",
		"tools": []string{"*"}}, &model)
	w.rest(w.edges[0], w.token, "PUT", "/tool-pins", map[string]any{"device": pinned.id, "tool": "self.act"}, nil)
	stop := w.hammer(model.Token, other)
	return func(t *testing.T) {
		time.Sleep(time.Second)
		if states := stop(); other.calls() != 0 || states["refused"] == 0 {
			t.Errorf("a device with a changed tool got %d calls of a model; %v", other.calls(), states)
		}
		var c rowCall
		if w.rest(w.edges[0], model.Token, "POST", callsPath(pinned.id), act(time.Minute), &c); c.State != fleet.CallSucceeded {
			t.Errorf("a call of the pinned tool: %+v, %+v", c, c.Error)
		}
		w.rest(w.edges[0], model.Token, "POST", callsPath(other.id), act(time.Minute), &c)
		if c.Error == nil || c.Error.Code != "tool_changed" {
			t.Errorf("a call of the changed tool: %+v, %+v", c, c.Error)
		}
	}
}

func rowOfflineWait(w *rowsWorld, n int) func(*testing.T) {
	d := w.rowDevice(w.edges[0], n)
	_ = d.newest().Disconnect(&paho.Disconnect{})
	fleettest.EventuallyWithin(w.t, time.Minute, "the device to be offline", func() bool {
		return w.count(`SELECT count(*) FROM devices WHERE id = $1 AND presence = 'offline'`, d.id) == 1
	})
	body := act(time.Minute)
	body["offline"] = "wait"
	var c rowCall
	w.rest(w.edges[0], w.token, "POST", callsPath(d.id), body, &c)
	if c.State != fleet.CallPendingDevice {
		w.t.Fatalf("a call that waits: %+v", c)
	}
	return func(t *testing.T) {
		if err := d.connect(w.edges[1]); err != nil {
			t.Fatal(err)
		}
		fleettest.EventuallyWithin(t, time.Minute, "the call", func() bool {
			return w.callOf(w.edges[0], c.ID).State == fleet.CallSucceeded
		})
		if d.calls() != 1 {
			t.Errorf("the device got %d calls", d.calls())
		}
	}
}

func rowFirstCalls(w *rowsWorld, n int) func(*testing.T) {
	d := w.rowDevice(w.edges[0], n)
	var stops []func() map[string]int
	for range 4 {
		stops = append(stops, w.hammer(w.token, d))
	}
	return func(t *testing.T) {
		if w.frozen > attachTime-200*time.Millisecond { // it needs some time to attach
			t.Skipf("a busy machine kept the edge frozen for %v; calls wait for it for %v", w.frozen, attachTime)
		}
		for _, stop := range stops {
			if states := stop(); states["offline"] > 0 || states["succeeded"] == 0 {
				t.Errorf("calls of a connected device: %v", states)
			}
		}
	}
}
