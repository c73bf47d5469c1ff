package voice

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A device uses its new voice server from its next conversation on, without other effects. One
// server's failures do not affect the others.
func TestDeviceChangesUpstream(t *testing.T) {
	var broken atomic.Int32
	one, two := server(t, voicetest.Options{}), server(t, voicetest.Options{Secret: "s"})
	bad := server(t, voicetest.Options{Broken: func(w http.ResponseWriter, r *http.Request) {
		broken.Add(1)
		voicetest.HTML(w, r)
	}})
	ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	var mu sync.Mutex
	choice, has := Upstream{ID: ids[0], Name: "one", URL: one.URL(true)}, true
	choose := func(u Upstream, ok bool) { mu.Lock(); choice, has = u, ok; mu.Unlock() }
	w := start(t, one.URL(true), func(o *Options) {
		o.Choose = func(context.Context, Hello) (Upstream, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return choice, has, nil
		}
	})

	// Another board is in conversation with the first server throughout.
	stays := newBoard(t, 9)
	stays.talk(w.Relay, boardHello)
	stays.open()

	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	choose(Upstream{ID: ids[1], Name: "two", URL: two.URL(false), Secret: "s"}, true)
	if n := len(two.Sessions()); n != 0 || first(t, one).Closed() {
		t.Errorf("a conversation was moved while it was open: %d", n)
	}
	b.conversation.End(fleet.EndedByNewHello)
	b.talk(w.Relay, boardHello)
	fleettest.Eventually(t, "it talks to the second server", func() bool {
		return len(two.Sessions()) == 1 && len(b.got()) == 2
	})
	fleettest.Eventually(t, "both are well", func() bool {
		second := w.Health(ids[1], time.Time{}) // it is recorded after the board has its hello
		return w.Health(ids[0], time.Time{}).Open == 1 && second.Open == 1 && second.LastSuccess != nil
	})
	if h := w.Health(ids[1], time.Time{}); h.HelloIn <= 0 || h.Failures != 0 || h.RetryAt != nil {
		t.Errorf("health of the second %+v", h)
	}
	fleettest.Eventually(t, "the first talk is on record", func() bool {
		n, _ := w.records.ended(fleet.EndedByNewHello)
		return n == 1
	})
	if _, c := w.records.ended(fleet.EndedByNewHello); c.Upstream != "one" {
		t.Errorf("on record with %q", c.Upstream)
	}

	badOne := Upstream{ID: ids[2], Name: "bad", URL: bad.URL(false)}
	choose(badOne, true)
	for i := range breakAfter + 2 {
		failing := newBoard(t, 20+i)
		failing.talk(w.Relay, boardHello)
		fleettest.Eventually(t, "hello, goodbye, alert", func() bool { return len(failing.got()) == 3 })
	}
	if broken.Load() != breakAfter {
		t.Errorf("the broken one was tried %d times", broken.Load())
	}
	if h := w.Health(ids[2], time.Time{}); !h.Down() || h.LastError != fleet.EndedNoWebSocket || h.RetryAt == nil ||
		h.LastSuccess != nil || h.LastFailure == nil {
		t.Errorf("health of the broken one %+v", h)
	}
	if c := w.Check(t.Context(), badOne); c.OK || c.Error != fleet.EndedNoWebSocket || broken.Load() != breakAfter+1 {
		t.Errorf("a check of the broken one: %+v", c)
	}
	if c := w.Check(t.Context(), Upstream{ID: ids[1], URL: two.URL(false), Secret: "wrong"}); c.Error != fleet.EndedRefused {
		t.Errorf("a check with a wrong secret: %+v", c)
	}

	// A changed upstream is tried at once, and so is one whose check succeeds.
	badOne.Changed = time.Now()
	if h := w.Health(ids[2], badOne.Changed); h.Failures != 0 {
		t.Errorf("health after a change %+v", h)
	}
	line := w.lines.of(&badOne)
	for range breakAfter {
		line.note(fleet.EndedUnreachable, 0, time.Now())
	}
	if line.allow(time.Now()) == "" {
		t.Fatal("the breaker does not break")
	}
	badOne.URL = one.URL(false)
	if c := w.Check(t.Context(), badOne); !c.OK || line.allow(time.Now()) != "" {
		t.Errorf("a good check: %+v", c)
	}

	choose(Upstream{}, false)
	if c := w.Begin(newBoard(t, 50).device(), []byte(boardHello)); c != nil {
		t.Error("a device without a voice server begins a conversation")
	}
	if stays.conversation.Receive("listen", "", []byte(`{"type":"listen","state":"start"}`)) {
		t.Error("the other conversation is over")
	}
	fleettest.Eventually(t, "the first server hears", func() bool { return len(one.Sessions()[0].Texts()) == 1 })
}

func TestCheckGivesUp(t *testing.T) {
	t.Parallel()
	up := server(t, voicetest.Options{NoHello: true})
	c := Check(t.Context(), Upstream{URL: up.URL(true)}, 2*time.Second) // the server never sends hello
	if c.OK || c.Error != fleet.EndedNoHello {
		t.Errorf("%+v", c)
	}
}
