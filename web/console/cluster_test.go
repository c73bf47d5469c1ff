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
	switch {
	case c.edgeGone.Load():
		edge.State = cluster.Gone
	case c.edgeDrains.Load():
		edge.State, edge.Drain = cluster.Draining, &cluster.Drain{Since: at, Moved: 766, Remaining: 1234}
	}
	return cluster.Status{ID: "c1", Term: 2, Leader: "core-2", Since: at, Why: lease.Silent, Nodes: []cluster.Node{
		{Name: "core-2", Role: cluster.Core, State: cluster.Leads, Version: "1.2.3", Since: at, Heard: at},
		{Name: "core-1", Role: cluster.Core, State: cluster.StandsBy, Version: "1.2.4", Since: at, Heard: at}, edge,
		{Name: "edge-2", Role: cluster.Edge, State: cluster.Attached, Version: "1.2.3", Since: at, Heard: at}},
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

// drainNode is the edge's confirmation.
func (c *site) drainNode(_ string, drain bool) bool {
	c.edgeDrains.Store(drain)
	return true
}

// An admin drains an edge after the page has said what it costs, and sees the progress.
func TestDrainPage(t *testing.T) {
	c := newConsole(t)
	viewer := c.as(fleet.RoleViewer)
	if strings.Contains(viewer.get(ui.PathCluster).body, ui.DrainPath("edge-1")) {
		t.Error("a viewer is offered to drain an edge")
	}
	viewer.get(ui.DrainPath("edge-1")).wantStatus(http.StatusForbidden)
	viewer.post(ui.DrainPath("edge-1"), nil).wantStatus(http.StatusForbidden)
	admin := c.as(fleet.RoleAdmin)
	admin.get(ui.PathCluster).wantText("#cluster", "Drain").wantText("#cluster", "Hand over")
	admin.get(ui.DrainPath("edge-9")).wantStatus(http.StatusNotFound)
	p := admin.get(ui.DrainPath("edge-1")).wantStatus(http.StatusOK)
	for _, want := range []string{"1,234", "500 a second", "about 60 seconds", "about 6 s"} {
		p.wantText("main", want)
	}
	live := admin.stream(ui.EventsURL(ui.ViewCluster, nil))
	live.want("patch", `id="cluster"`, "attached", ui.DrainPath("edge-1"))
	admin.post(ui.DrainPath("edge-1"), nil).wantStatus(http.StatusSeeOther)
	live.want("patch", `id="cluster"`, "draining", "766 moved, 1,234 remaining", ui.DrainPath("edge-1")+"/cancel")
	admin.post(ui.DrainPath("edge-2"), nil).wantStatus(http.StatusConflict).wantText("main", "start one first")
	admin.post(ui.DrainPath("core-1"), nil).wantStatus(http.StatusConflict).wantText("main", "stop it without a drain")
	admin.post(ui.DrainPath("edge-1")+"/cancel", nil).wantStatus(http.StatusSeeOther)
	live.want("patch", `id="cluster"`, "attached")
}
