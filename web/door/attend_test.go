package door_test

import (
	"net/http"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
	"fleetd/web/door"
)

// attended waits until an edge keeps a connection open.
func attended(t *testing.T, c *core) {
	t.Helper()
	fleettest.Eventually(t, "an edge attends", func() bool { return c.own.Attending() == 1 })
}

// A core knows at once when the process of an edge has ended, and not when only its own term has.
func TestAttend(t *testing.T) {
	a := newAuthority(t)
	first, second := startCore(t, a, 1, http.NotFoundHandler()), startCore(t, a, 2, http.NotFoundHandler())
	e := startEdge(t, a, func(o *door.Options) { o.Attend = true })
	e.announce(t, first.leader())
	await := func(c *core, what string) {
		t.Helper()
		select {
		case edge := <-c.left:
			if edge != "edge-1" {
				t.Errorf("%s: the edge %q", what, edge)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: not reported", what)
		}
	}
	attended(t, first)
	e.announce(t, second.leader())
	await(first, "the edge follows another core")
	attended(t, second)
	e.stop()
	await(second, "the edge has ended")

	// A core that stops reports no edge.
	third := startEdge(t, a, func(o *door.Options) { o.Attend = true })
	third.announce(t, second.leader())
	attended(t, second)
	second.stop()
	if err := <-second.done; err != nil {
		t.Error(err)
	}
	second.done <- nil
	select {
	case edge := <-second.left:
		t.Errorf("a core that stopped reports %s", edge)
	default:
	}
}
