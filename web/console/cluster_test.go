package console_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/cluster"
	"fleetd/fleet/lease"
	"fleetd/web/console"
	"fleetd/web/ui"
)

// clusterStatus is the state of a cluster in which the edge is attached, or gone if c.edgeGone says so.
func (c *site) clusterStatus() cluster.Status {
	at := time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)
	edge := cluster.Node{Name: "edge-1", Role: cluster.Edge, State: cluster.Attached, Version: "1.2.3", Connections: 1234,
		Since: at, Heard: at}
	if c.edgeGone.Load() {
		edge.State = cluster.Gone
	}
	return cluster.Status{ID: "c1", Term: 2, Leader: "core-2", Since: at, Why: lease.Silent, Nodes: []cluster.Node{
		{Name: "core-2", Role: cluster.Core, State: cluster.Leads, Version: "1.2.3", Since: at, Heard: at},
		{Name: "core-1", Role: cluster.Core, State: cluster.StandsBy, Version: "1.2.4", Since: at, Heard: at}, edge},
		Terms: []lease.Term{{Term: 2, Node: "core-2", Since: at, Reason: lease.Silent},
			{Term: 1, Node: "core-1", Since: at.Add(-time.Hour), Reason: lease.First}}}
}

func TestClusterPage(t *testing.T) {
	c := newConsole(t)
	viewer := c.as(fleet.RoleViewer)
	p := viewer.get(ui.PathCluster).wantStatus(200)
	for _, want := range []string{"core-2", "The previous leader stopped responding", "stands by", "1,234",
		"run different versions"} {
		p.wantText("#cluster", want)
	}
	p.wantText("#terms", "No core led before")
	if strings.Contains(p.body, "No core stands by") {
		t.Error("the page warns that no core stands by")
	}
	live := viewer.stream(ui.EventsURL(ui.ViewCluster, nil))
	live.want("patch", `id="cluster"`, "attached")
	c.edgeGone.Store(true)
	live.want("patch", `id="cluster"`, "is-gone")
}

// A single process has no page about a cluster, and no link to it.
func TestNoCluster(t *testing.T) {
	c := newConsole(t, func(o *console.Options) { o.InCluster = false })
	viewer := c.as(fleet.RoleViewer)
	viewer.get(ui.PathCluster).wantStatus(http.StatusNotFound)
	viewer.get(ui.EventsURL(ui.ViewCluster, nil)).wantStatus(http.StatusNotFound)
	if strings.Contains(viewer.get("/settings").body, ui.PathCluster) {
		t.Error("the settings link to the page about a cluster")
	}
}
