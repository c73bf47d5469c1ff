package api

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/cluster"
	"fleetd/fleet/lease"
	"fleetd/web/access"
)

func (a *api) registerCluster() {
	register(a, operation{id: "get-cluster", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/cluster", role: fleet.RoleViewer,
		summary: "Show the nodes of the cluster, and which core leads",
		about: "The leading core answers, with what it heard of the other nodes, which announce themselves each second. " +
			"A node is silent after 5 seconds without a beat and gone after 60, and is no longer listed after an hour, or " +
			"at once if it was stopped. " +
			"A single process is one node with the role all."},
		a.getCluster)
}

type clusterView struct {
	ID     string            `json:"id" doc:"Of the cluster; empty for a single process"`
	Term   int               `json:"term" doc:"Number of the leader's term; one more for each change of the leader"`
	Leader string            `json:"leader" doc:"Name of the node that leads"`
	Since  time.Time         `json:"since" doc:"When its term began"`
	Reason lease.Reason      `json:"reason" enum:"first,released,silent,gone" doc:"Why it leads: nothing led before (first), or the previous leader stopped (released), did not renew its lease (silent) or died (gone)"`
	Nodes  []clusterNodeView `json:"nodes" nullable:"false" doc:"The leader first, then other cores, then edges"`
	Terms  []clusterTermView `json:"terms" nullable:"false" doc:"The latest terms, the newest first"`
}

type clusterNodeView struct {
	Name        string        `json:"name"`
	Role        cluster.Role  `json:"role" enum:"all,core,edge"`
	State       cluster.State `json:"state" enum:"leads,stands_by,attached,attaching,draining,silent,gone" doc:"An edge is attaching until it has announced all its connections to the leader"`
	Version     string        `json:"version"`
	Connections int           `json:"connections" doc:"Of devices, as last announced; a core has none"`
	Since       time.Time     `json:"since" doc:"When the process started"`
	LastHeard   time.Time     `json:"last_heard" doc:"When it last announced itself"`
	Messages    float64       `json:"messages_per_second" doc:"From and to devices, over about ten seconds"`
	MemoryBytes int64         `json:"memory_bytes" doc:"Obtained from the operating system"`
}

type clusterTermView struct {
	Term    int          `json:"term"`
	Node    string       `json:"node"`
	Host    string       `json:"host"`
	Version string       `json:"version"`
	Since   time.Time    `json:"since"`
	EndedAt *time.Time   `json:"ended_at"`
	Reason  lease.Reason `json:"reason" enum:"first,released,silent,gone"`
}

func (a *api) getCluster(context.Context, fleet.Principal, *struct{}) (*answer[clusterView], error) {
	s := a.Cluster()
	v := clusterView{ID: s.ID, Term: s.Term, Leader: s.Leader, Since: utc(s.Since), Reason: s.Why,
		Nodes: []clusterNodeView{}, Terms: []clusterTermView{}}
	for _, n := range s.Nodes {
		v.Nodes = append(v.Nodes, clusterNodeView{Name: n.Name, Role: n.Role, State: n.State, Version: n.Version,
			Connections: n.Connections, Since: utc(n.Since), LastHeard: utc(n.Heard), Messages: n.Messages,
			MemoryBytes: n.Memory})
	}
	for _, t := range s.Terms {
		v.Terms = append(v.Terms, clusterTermView{t.Term, t.Node, t.Host, t.Version, utc(t.Since),
			utcOrNil(t.Ended), t.Reason})
	}
	return answerWith(v), nil
}
