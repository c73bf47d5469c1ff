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
