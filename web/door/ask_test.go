package door_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/web/door"
)

// asked returns a handler that answers the edges' own requests, and counts them.
func asked(n *atomic.Int64, answer func(w http.ResponseWriter, r *http.Request)) ownHandler {
	return ownHandler{Handler: site(), own: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		answer(w, r)
	})}
}

func repeatBack(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	_, _ = io.WriteString(w, door.EdgeOf(r.Context())+" "+r.URL.Path+" "+string(text))
}

// code returns the code of the error with which a question ended.
func code(err error) string {
	if e, ok := errors.AsType[*fleet.Error](err); ok {
		return e.Code
	}
	return ""
}

// The edge asks the leader for itself, and clients cannot ask in its name.
func TestAsk(t *testing.T) {
	a := newAuthority(t)
	e := startEdge(t, a, nil)
	var n atomic.Int64
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := e.Ask(short, door.Question{Name: "x"}); code(err) != "no_leader" {
		t.Errorf("without a leader: %v", err)
	}
	if _, _, err := e.Ask(t.Context(), door.Question{Name: "x", HoldFor: time.Millisecond}); code(err) != "no_leader" {
		t.Errorf("without a leader: %v", err)
	}
	answers := make(chan string, 1)
	go func() {
		_, text, err := e.Ask(t.Context(), door.Question{Name: "voice/x", Body: []byte("{}")})
		if err != nil {
			t.Error(err)
		}
		answers <- string(text)
	}()
	fleettest.Eventually(t, "the question waits", func() bool { return e.Stats(door.Own).Held == 1 })
	c := startCore(t, a, 1, asked(&n, repeatBack))
	e.announce(t, c.leader())
	if got := <-answers; got != "edge-1 /voice/x {}" {
		t.Errorf("answer %q", got)
	}
	for _, path := range []string{"/cluster/voice/x", "/cluster/attend"} {
		resp, _ := e.do(t, "POST", path, strings.NewReader("{}"), "Fleetd-Term", "1", "Connection", "Fleetd-Edge")
		if resp.StatusCode >= 500 {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if n.Load() != 1 || c.own.Attending() != 0 {
		t.Errorf("%d questions, %d edges attend, after requests of a client", n.Load(), c.own.Attending())
	}
	c.term.Store(0) // it leads no longer
	later := startCore(t, a, 2, asked(&n, repeatBack))
	go func() {
		fleettest.Eventually(t, "the question is held", func() bool { return e.Stats(door.Own).Held == 1 })
		e.leaders.Announce(later.leader())
	}()
	if status, text, err := e.Ask(t.Context(), door.Question{Name: "y"}); err != nil || status != 200 ||
		string(text) != "edge-1 /y " {
		t.Errorf("after a core that leads no longer: %d %q %v", status, text, err)
	}
	if n.Load() != 2 {
		t.Errorf("%d questions", n.Load())
	}
}

// A question that a core may have handled is repeated only if that changes nothing.
func TestAskOfACoreThatDies(t *testing.T) {
	a := newAuthority(t)
	for _, repeat := range []bool{false, true} {
		e := startEdge(t, a, nil)
		var first, second atomic.Int64
		var c *core
		c = startCore(t, a, 1, asked(&first, func(http.ResponseWriter, *http.Request) {
			e.leaders.Announce(door.Leader{})
			c.die()
		}))
		next := startCore(t, a, 2, asked(&second, repeatBack))
		e.announce(t, c.leader())
		go func() {
			fleettest.Eventually(t, "the first core has it", func() bool { return first.Load() == 1 })
			e.leaders.Announce(next.leader())
		}()
		_, text, err := e.Ask(t.Context(), door.Question{Name: "x", Repeat: repeat})
		if want := map[bool]string{false: "outcome_unknown"}[repeat]; code(err) != want {
			t.Errorf("repeat %v: %q, %v", repeat, text, err)
		}
		if want := map[bool]int64{true: 1}[repeat]; second.Load() != want {
			t.Errorf("repeat %v: the second core got it %d times", repeat, second.Load())
		}
	}
}

// A leader that was replaced may be frozen: a question that may be repeated does not wait for it.
func TestAskOfAFrozenCore(t *testing.T) {
	a := newAuthority(t)
	e := startEdge(t, a, nil)
	var n atomic.Int64
	frozen := startCore(t, a, 1, asked(&n, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	next := startCore(t, a, 2, asked(new(atomic.Int64), repeatBack))
	e.announce(t, frozen.leader())
	go func() {
		fleettest.Eventually(t, "the frozen core has it", func() bool { return n.Load() == 1 })
		e.leaders.Announce(next.leader())
	}()
	_, text, err := e.Ask(t.Context(), door.Question{Name: "x", Repeat: true})
	if err != nil || string(text) != "edge-1 /x " {
		t.Errorf("%q, %v", text, err)
	}
}
