package postgres_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

func TestCallRoundTrip(t *testing.T) {
	for _, grouped := range []bool{false, true} {
		t.Run(fmt.Sprintf("grouped=%t", grouped), func(t *testing.T) {
			ctx, s := t.Context(), newStore(t)
			if grouped {
				run(t, s)
			}
			c := newCall("a085e3112233", fleet.CallPending)
			c.FanOut = uuid.Must(uuid.NewV7())
			if err := s.InsertCall(ctx, c); err != nil {
				t.Fatal(err)
			}
			got, err := s.Call(ctx, c.ID)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, *c)

			c.State, c.SentAt = fleet.CallSent, ptr(now())
			if err := s.MarkSent(ctx, c); err != nil {
				t.Fatal(err)
			}
			wantKind(t, s.MarkSent(ctx, c), fleet.ErrConflict)
			c.Evidence = []fleet.Evidence{{At: now(), Kind: fleet.EvidenceBootPoll, Detail: "2.4.0"},
				{At: now(), Kind: fleet.EvidenceUpload, Detail: "core dump, 70000 bytes",
					Reason: fleet.Because(fleet.ReasonCoreDumpUploaded, "size_bytes", 70_000)}}
			finish(c, fleet.CallSucceeded, `{"content":[{"type":"text","text":"z\u0000"}],"a":1}`)
			if err := s.FinishCall(ctx, c); err != nil {
				t.Fatal(err)
			}
			got, _ = s.Call(ctx, c.ID)
			same(t, got, *c)

			other := *c
			if err := s.FinishCall(ctx, finish(&other, fleet.CallTimedOut, "")); err != nil {
				t.Error("a second outcome must be no error:", err)
			}
			late := fleet.LateAnswer{At: now(), Result: []byte(`{"content":[]}`)}
			if err := s.AddLateAnswer(ctx, c.ID, late); err != nil {
				t.Fatal(err)
			}
			c.Late = &late
			got, _ = s.Call(ctx, c.ID)
			same(t, got, *c)
		})
	}
}

func TestCallsUnknown(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	for _, id := range []uuid.UUID{uuid.Must(uuid.NewV7()), uuid.New(), {}} {
		_, err := s.Call(ctx, id)
		wantKind(t, err, fleet.ErrNotFound)
		wantKind(t, s.AddLateAnswer(ctx, id, fleet.LateAnswer{At: now()}), fleet.ErrNotFound)
	}
	wantKind(t, s.FinishCall(ctx, newCall("d", fleet.CallSucceeded)), fleet.ErrNotFound)
	c := newCall("d", fleet.CallPending)
	c.ID = uuid.New()
	wantKind(t, s.InsertCall(ctx, c), fleet.ErrInvalid)
	c = newCall("d", fleet.CallPending)
	c.CreatedAt = c.CreatedAt.Add(-48 * time.Hour)
	wantKind(t, s.InsertCall(ctx, c), fleet.ErrInvalid)
	_, err := s.Calls(ctx, call.Filter{Cursor: "x"})
	wantKind(t, err, fleet.ErrInvalid)
}

// Text from devices is hostile; all of it must be stored.
func TestCallsHostileText(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	for _, result := range []string{"\xff\xfe", `{"a":"\ud800"}`, `{"a":"\u0000"}`, "{", strings.Repeat("[", 5000) +
		strings.Repeat("]", 5000),
		`"` + strings.Repeat("x", 256<<10) + `"`, `{"a":1e999999}`, "\"\x00\""} {
		c := newCall("d", fleet.CallSent)
		if err := s.InsertCall(ctx, c); err != nil {
			t.Fatal(err)
		}
		if err := s.FinishCall(ctx, finish(c, fleet.CallToolError, result)); err != nil {
			t.Errorf("result %.20q: %v", result, err)
		}
		if got, err := s.Call(ctx, c.ID); err != nil || got.State != fleet.CallToolError || len(got.Result) == 0 ||
			got.Error.Message != "nope \uFFFD" {
			t.Errorf("result %.20q came back as %.40q, %v, %v", result, got.Result, got.Error, err)
		}
	}
}

// A row that the database refuses must not make its neighbours fail.
func TestGroupCommitBadNeighbour(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	run(t, s)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			c := newCall("a085e3112233", fleet.CallPending)
			bad := i%50 == 7
			if bad {
				c.State = "lost" // refused by a constraint
			}
			err := s.InsertCall(ctx, c)
			if bad {
				wantKind(t, err, fleet.ErrInvalid)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	page, err := s.Calls(ctx, call.Filter{Limit: 500})
	if err != nil || len(page.Items) != 196 {
		t.Errorf("%d calls stored, %v; want 196", len(page.Items), err)
	}
}

func TestCallsFilterAndPage(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	var all []uuid.UUID
	// Other tests list calls that wait for an approval or for their devices: see
	// TestCallWaitsForItsApproval and TestCallsThatWaitForTheirDevices.
	states := fleet.CallStates[2:]
	for i := range 25 {
		c := newCall(fleet.DeviceID(fmt.Sprintf("d%d", i%2)), states[i%len(states)])
		if c.State == fleet.CallToolError {
			c.Tool = "self.odd"
		}
		if err := s.InsertCall(ctx, c); err != nil {
			t.Fatal(err)
		}
		all = append([]uuid.UUID{c.ID}, all...)
	}
	var seen []uuid.UUID
	f := call.Filter{Limit: 10}
	var cursors []string
	for {
		page, err := s.Calls(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Items {
			seen = append(seen, c.ID)
		}
		cursors = append(cursors, page.Prev)
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	same(t, seen, all)
	if len(cursors) != 3 || cursors[0] != "" || cursors[2] == "" {
		t.Fatalf("cursors back: %q", cursors)
	}
	f.Cursor = cursors[2]
	page, err := s.Calls(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	if page.Items[0].ID != all[10] || len(page.Items) != 10 || page.Next == "" || page.Prev == "" {
		t.Errorf("the page before the last: %d items, next %q, prev %q", len(page.Items), page.Next, page.Prev)
	}

	count := func(f call.Filter) int {
		t.Helper()
		p, err := s.Calls(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		return len(p.Items)
	}
	for name, tt := range map[string]struct {
		f    call.Filter
		want int
	}{
		"device":  {call.Filter{Device: "d1"}, 12},
		"tool":    {call.Filter{Tool: "self.odd"}, 3},
		"actor":   {call.Filter{Actor: "ada"}, 25},
		"nobody":  {call.Filter{Actor: "eve"}, 0},
		"open":    {call.Filter{States: []fleet.CallState{fleet.CallPending, fleet.CallSent}}, 6},
		"failed":  {call.Filter{States: []fleet.CallState{fleet.CallTimedOut}}, 3},
		"several": {call.Filter{States: []fleet.CallState{fleet.CallTimedOut, fleet.CallOffline}}, 5},
		"mixed":   {call.Filter{States: []fleet.CallState{fleet.CallSucceeded, fleet.CallOffline}}, 5},
		"since":   {call.Filter{Since: now().Add(-time.Hour)}, 25},
		"until":   {call.Filter{Until: now().Add(-time.Hour)}, 0},
	} {
		if got := count(tt.f); got != tt.want {
			t.Errorf("%s: %d calls, want %d", name, got, tt.want)
		}
	}
}

func TestCallsLargePage(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	big := `"` + strings.Repeat("x", 256<<10) + `"`
	for range 60 {
		if err := s.InsertCall(ctx, finish(newCall("d", fleet.CallSent), fleet.CallSucceeded, big)); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	f := call.Filter{Limit: 500}
	for {
		page, err := s.Calls(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Items) > 33 {
			t.Errorf("a page of %d large calls", len(page.Items))
		}
		seen += len(page.Items)
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	if seen != 60 {
		t.Errorf("saw %d calls, want 60", seen)
	}
}

func TestRecoverCalls(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	pending, sent, done := newCall("a", fleet.CallPending), newCall("b", fleet.CallSent), newCall("c", fleet.CallSucceeded)
	for _, c := range []*fleet.Call{pending, sent, done} {
		if err := s.InsertCall(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int64{1, 0} { // the second finds nothing left
		if canceled, unknown, err := s.RecoverCalls(ctx, stopped); err != nil || canceled != want ||
			unknown != want {
			t.Fatalf("RecoverCalls = %d, %d, %v; want %d, %d", canceled, unknown, err, want, want)
		}
	}
	for c, want := range map[*fleet.Call]fleet.CallState{pending: fleet.CallCanceled, sent: fleet.CallUnknown,
		done: fleet.CallSucceeded} {
		got, err := s.Call(ctx, c.ID)
		if err != nil || got.State != want || got.FinishedAt == nil {
			t.Errorf("call of %s is %s, %v; want %s", c.Device, got.State, err, want)
		}
		if want != fleet.CallSucceeded && (got.Error == nil || got.Error.Code != fleet.CodeStopped) {
			t.Errorf("call of %s: error %v", c.Device, got.Error)
		}
	}
	page, _ := s.Calls(ctx, call.Filter{States: []fleet.CallState{fleet.CallPending, fleet.CallSent}})
	if len(page.Items) != 0 {
		t.Errorf("%d calls still open", len(page.Items))
	}
}

// If the clock was changed, open calls can lie far behind or ahead of the others.
func TestRecoverCallsAfterTheClockWasSet(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	var open []*fleet.Call
	for _, step := range []time.Duration{-90 * 24 * time.Hour, -3 * time.Hour, 0, 3 * time.Hour} {
		for _, state := range []fleet.CallState{fleet.CallSent, fleet.CallSucceeded} {
			c := newCall("a", state)
			c.CreatedAt = c.CreatedAt.Add(step)
			binary.BigEndian.PutUint16(c.ID[:2], uint16(c.CreatedAt.UnixMilli()>>32))
			binary.BigEndian.PutUint32(c.ID[2:6], uint32(c.CreatedAt.UnixMilli()))
			check(t, s.InsertCall(ctx, c))
			if state == fleet.CallSent {
				open = append(open, c)
			}
		}
	}
	if _, unknown, err := s.RecoverCalls(ctx, stopped); err != nil || unknown != int64(len(open)) {
		t.Errorf("RecoverCalls closed %d, %v; want %d", unknown, err, len(open))
	}
	for _, c := range open {
		if got, err := s.Call(ctx, c.ID); err != nil || got.State != fleet.CallUnknown {
			t.Errorf("the call of %v is %s, %v", c.CreatedAt, got.State, err)
		}
	}
}

func TestLastArguments(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	for _, args := range []string{`{"volume":1}`, `{"volume":2}`} {
		c := newCall("d", fleet.CallSent)
		c.Tool, c.Arguments = "set", []byte(args)
		if err := s.InsertCall(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.LastArguments(ctx, admin, "set"); err != nil || string(got) != `{"volume":2}` {
		t.Errorf("LastArguments = %s, %v", got, err)
	}
	if got, err := s.LastArguments(ctx, admin, "other"); err != nil || got != nil {
		t.Errorf("LastArguments of a tool never used = %s, %v", got, err)
	}
}

// stopped is the error of calls that a process left open.
var stopped = fleet.NewCallError(fleet.CodeStopped + ".answer")
