package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fleet/cluster"
)

// A world is a table, with a leader of term 3.
type world struct {
	t     *testing.T
	table cluster.Table
	lead  cluster.Beat
	ready []string // attached edges
}

func (w *world) hear(name string, role cluster.Role, incarnation uint64, term int) {
	w.table.Hear(cluster.Beat{Name: name, Role: role, Incarnation: incarnation, Term: term, Since: time.Now(),
		Version: "1"})
}

func (w *world) is(want string) {
	w.t.Helper()
	var all []string
	for _, n := range w.table.Nodes(w.lead, func(name string) bool { return slices.Contains(w.ready, name) }) {
		all = append(all, fmt.Sprintf("%s %s", n.Name, n.State))
	}
	if got := strings.Join(all, ", "); got != want {
		w.t.Errorf("nodes are %q, want %q", got, want)
	}
}

func inTime(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		test(&world{t: t, lead: cluster.Beat{Name: "core-2", Role: cluster.Core, Incarnation: 2, Term: 3, Since: time.Now()}})
	})
}

func TestStates(t *testing.T) {
	inTime(t, func(w *world) {
		w.is("core-2 leads")
		w.hear("edge-1", cluster.Edge, 11, 2) // follows the earlier term
		w.hear("core-1", cluster.Core, 1, 0)
		w.hear("core-3", cluster.Core, 3, 2) // led until now
		w.is("core-2 leads, core-1 stands_by, core-3 gone, edge-1 attaching")
		w.hear("edge-1", cluster.Edge, 11, 3)
		w.is("core-2 leads, core-1 stands_by, core-3 gone, edge-1 attaching")
		w.ready = []string{"edge-1"}
		w.is("core-2 leads, core-1 stands_by, core-3 gone, edge-1 attached")
		w.table.Hear(cluster.Beat{Name: "edge-1", Role: cluster.Edge, Incarnation: 11, Term: 3, Drain: &cluster.Drain{}})
		w.is("core-2 leads, core-1 stands_by, core-3 gone, edge-1 draining")
	})
}

func TestQuietNodes(t *testing.T) {
	inTime(t, func(w *world) {
		w.ready = []string{"edge-1"}
		w.hear("edge-1", cluster.Edge, 11, 3)
		time.Sleep(cluster.SilentAfter - time.Millisecond)
		w.is("core-2 leads, edge-1 attached")
		time.Sleep(time.Millisecond)
		w.is("core-2 leads, edge-1 silent")
		time.Sleep(cluster.GoneAfter - cluster.SilentAfter)
		w.is("core-2 leads, edge-1 gone")
		w.hear("edge-1", cluster.Edge, 11, 3)
		w.is("core-2 leads, edge-1 attached")
		time.Sleep(time.Hour)
		w.is("core-2 leads")
	})
}

// A node that stops leaves the table; the last beat of an earlier process of its name changes nothing.
func TestNodeLeaves(t *testing.T) {
	inTime(t, func(w *world) {
		w.hear("edge-1", cluster.Edge, 11, 3)
		w.table.Hear(cluster.Beat{Name: "edge-1", Role: cluster.Edge, Incarnation: 10, Leaves: true})
		w.is("core-2 leads, edge-1 attaching")
		w.table.Hear(cluster.Beat{Name: "edge-1", Role: cluster.Edge, Incarnation: 11, Leaves: true})
		w.is("core-2 leads")
	})
}

// A restarted node replaces its earlier process, whose late beats change nothing.
func TestRestartedNode(t *testing.T) {
	inTime(t, func(w *world) {
		first := cluster.Beat{Name: "core-1", Role: cluster.Core, Incarnation: 1, Term: 2, Since: time.Now()}
		w.table.Hear(first)
		time.Sleep(time.Second)
		w.hear("core-1", cluster.Core, 5, 0)
		w.table.Hear(first)
		w.is("core-2 leads, core-1 stands_by")
	})
}

func TestMessagesPerSecond(t *testing.T) {
	inTime(t, func(w *world) {
		edge := cluster.Beat{Name: "edge-1", Role: cluster.Edge, Incarnation: 11, Messages: 1000, Since: time.Now()}
		w.table.Hear(edge)
		for range 10 {
			time.Sleep(time.Second)
			edge.Messages += 50
			w.table.Hear(edge)
		}
		if n := w.table.Nodes(w.lead, func(string) bool { return true })[1]; n.Messages != 50 {
			t.Errorf("%v messages a second, want 50", n.Messages)
		}
	})
}
