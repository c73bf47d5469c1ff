package api

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/cluster"
	"fleetd/fleet/lease"
)

func TestCluster(t *testing.T) {
	w := newWorld(t)
	at, ended := time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC), time.Date(2026, 11, 27, 9, 59, 58, 0, time.UTC)
	w.cluster = cluster.Status{ID: "c1", Term: 2, Leader: "core-2", Since: at, Why: lease.Silent, Nodes: []cluster.Node{
		{Name: "core-2", Role: cluster.Core, State: cluster.Leads, Version: "1.2.3", Since: at, Heard: at},
		{Name: "edge-1", Role: cluster.Edge, State: cluster.Attached, Version: "1.2.2", Connections: 30, Since: at, Heard: at,
			Messages: 12.5, Memory: 1 << 20}},
		Terms: []lease.Term{{Term: 2, Node: "core-2", Since: at, Reason: lease.Silent},
			{Term: 1, Node: "core-1", Since: at.Add(-time.Hour), Reason: lease.First, Ended: &ended}}}
	v := decode[clusterView](t, w.as(t, fleet.RoleViewer, "GET", "/cluster", ""), 200)
	if v.ID != "c1" || v.Term != 2 || v.Leader != "core-2" || v.Reason != lease.Silent || !v.Since.Equal(at) ||
		len(v.Nodes) != 2 || len(v.Terms) != 2 {
		t.Fatalf("answered %+v", v)
	}
	want := clusterNodeView{Name: "edge-1", Role: cluster.Edge, State: cluster.Attached, Version: "1.2.2", Connections: 30,
		Since: at, LastHeard: at, Messages: 12.5, MemoryBytes: 1 << 20}
	if v.Nodes[1] != want {
		t.Errorf("the edge is %+v, want %+v", v.Nodes[1], want)
	}
	if e := v.Terms[1].EndedAt; e == nil || !e.Equal(ended) || v.Terms[0].EndedAt != nil {
		t.Errorf("the terms are %+v", v.Terms)
	}
}

// drainNode is the edge's confirmation.
func (w *world) drainNode(edge string, drain bool) bool {
	for i := range w.cluster.Nodes {
		if n := &w.cluster.Nodes[i]; n.Name == edge && drain {
			n.Drain, n.State = &cluster.Drain{Since: time.Now(), Remaining: n.Connections}, cluster.Draining
		} else if n.Name == edge {
			n.Drain, n.State = nil, cluster.Attached
		}
	}
	return true
}

func TestDrain(t *testing.T) {
	w := newWorld(t)
	w.cluster = cluster.Status{Leader: "core-2", Nodes: []cluster.Node{
		{Name: "core-2", Role: cluster.Core, State: cluster.Leads}, {Name: "core-1", Role: cluster.Core, State: cluster.StandsBy},
		{Name: "edge-1", Role: cluster.Edge, State: cluster.Attached, Connections: 30},
		{Name: "edge-2", Role: cluster.Edge, State: cluster.Attached},
		{Name: "edge-3", Role: cluster.Edge, State: cluster.Silent}}}
	path := func(node string) string { return "/cluster/nodes/" + node + "/drain" }
	refused := func(method, node, code string, status int) {
		t.Helper()
		p := decode[problem](t, w.as(t, fleet.RoleAdmin, method, path(node), ""), status)
		if p.Code != code {
			t.Errorf("%s %s: %s, want %s", method, node, p.Code, code)
		}
	}
	w.as(t, fleet.RoleOperator, "POST", path("edge-1"), "")
	w.as(t, "", "POST", path("edge-1"), "", "Authorization", "Bearer "+w.scoped(t, fleet.RoleOperator, "tag:in"))
	if w.cluster.Nodes[2].Drain != nil {
		t.Error("an operator who is no admin has drained an edge")
	}
	refused("POST", "edge-9", "unknown_node", 404)
	refused("POST", "core-1", "drain_standby", 409)
	refused("POST", "edge-3", "drain_silent", 409)
	refused("DELETE", "core-2", "drain_no_cancel", 409)
	n := decode[clusterNodeView](t, w.as(t, fleet.RoleAdmin, "POST", path("edge-1"), ""), 200)
	if n.Drain == nil || n.Drain.Remaining != 30 || n.State != cluster.Draining {
		t.Errorf("answered %+v", n)
	}
	decode[clusterNodeView](t, w.as(t, fleet.RoleAdmin, "POST", path("edge-1"), ""), 200) // again
	refused("POST", "edge-2", "drain_last_edge", 409)
	if n := decode[clusterNodeView](t, w.as(t, fleet.RoleAdmin, "DELETE", path("edge-1"), ""), 200); n.Drain != nil {
		t.Errorf("answered %+v", n)
	}
	decode[clusterNodeView](t, w.as(t, fleet.RoleAdmin, "POST", path("core-2"), ""), 200)
	if !w.handedOver {
		t.Error("the leader has not handed over")
	}
	w.cluster.Nodes = append(w.cluster.Nodes[:1:1], w.cluster.Nodes[2:]...)
	refused("POST", "core-2", "drain_no_standby", 409)
	var acts int
	if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM audit_entries WHERE action LIKE 'cluster.%'`).Scan(&acts); err != nil {
		t.Fatal(err)
	}
	if acts != 4 {
		t.Errorf("%d acts are on record, want 4", acts)
	}
	w.cluster = cluster.Status{Leader: "one", Nodes: []cluster.Node{{Name: "one", Role: cluster.All, State: cluster.Leads}}}
	refused("POST", "one", "drain_single", 409)
}
