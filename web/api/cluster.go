package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

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
	drain := operation{id: "drain-node", reach: access.Fleet, models: fleet.ModelsNever, noun: "node",
		method: http.MethodPost, path: "/cluster/nodes/{node}/drain", role: fleet.RoleAdmin,
		summary: "Drain a node before it is stopped",
		about: "An edge is no longer ready, refuses new connections, and after three seconds asks its devices to connect " +
			"to another edge: 500 a second, and those in a conversation when it has ended, or after a minute. A stock board " +
			"is away for about 60 seconds. The answer comes when the drain has begun; GET /cluster has its progress. The edge " +
			"stays drained until it is restarted, or the drain is cancelled. A core that leads lets one that stands by lead, " +
			"and stands by itself; devices notice nothing."}
	register(a, drain, a.drainNode)
	register(a, operation{id: "cancel-drain", reach: access.Fleet, models: fleet.ModelsNever, noun: "node",
		method: http.MethodDelete, path: drain.path, role: fleet.RoleAdmin,
		summary: "Cancel the drain of an edge",
		about:   "It accepts connections again, and keeps the devices that it still has."}, a.cancelDrain)
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

	CertificateExpiresAt *time.Time `json:"certificate_expires_at" doc:"Of the node in the cluster; null if unknown, and for a single process"`

	Drain *clusterDrainView `json:"drain" doc:"Of an edge that is being drained, else null"`
}

// TransformSchema marks the properties that may be null.
func (clusterNodeView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "drain", "certificate_expires_at")
}

type clusterDrainView struct {
	Since     time.Time `json:"since"`
	Moved     int       `json:"moved" doc:"Devices that were asked to connect to another edge"`
	Remaining int       `json:"remaining" doc:"Devices that are still connected"`
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
	s := a.Cluster.Status()
	v := clusterView{ID: s.ID, Term: s.Term, Leader: s.Leader, Since: utc(s.Since), Reason: s.Why,
		Nodes: []clusterNodeView{}, Terms: []clusterTermView{}}
	for _, n := range s.Nodes {
		v.Nodes = append(v.Nodes, viewOfNode(n))
	}
	for _, t := range s.Terms {
		v.Terms = append(v.Terms, clusterTermView{t.Term, t.Node, t.Host, t.Version, utc(t.Since),
			utcOrNil(t.Ended), t.Reason})
	}
	return answerWith(v), nil
}

func viewOfNode(n cluster.Node) clusterNodeView {
	v := clusterNodeView{Name: n.Name, Role: n.Role, State: n.State, Version: n.Version, Connections: n.Connections,
		Since: utc(n.Since), LastHeard: utc(n.Heard), Messages: n.Messages, MemoryBytes: n.Memory,
		CertificateExpiresAt: utcOrNil(&n.Expires)}
	if d := n.Drain; d != nil {
		v.Drain = &clusterDrainView{utc(d.Since), d.Moved, d.Remaining}
	}
	return v
}

type nodeInput struct {
	Node string `path:"node" doc:"Name of the node"`
}

func (a *api) drainNode(ctx context.Context, by fleet.Principal, in *nodeInput) (*answer[clusterNodeView], error) {
	n, err := a.Cluster.Drain(ctx, by, in.Node)
	return answerWith(viewOfNode(n)), err
}

func (a *api) cancelDrain(ctx context.Context, by fleet.Principal, in *nodeInput) (*answer[clusterNodeView], error) {
	n, err := a.Cluster.CancelDrain(ctx, by, in.Node)
	return answerWith(viewOfNode(n)), err
}
