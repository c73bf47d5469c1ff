// Package cluster describes the nodes of a cluster as an operator sees them: which core leads, which
// cores stand by, and which edges hold connections.
//
// Each node announces itself by a [Beat] each second; a [Table] keeps the latest beat of each node and
// derives its state. A [Service] drains nodes for an operator. The package knows no transport:
// broker/cluster carries the beats.
package cluster

import (
	"slices"
	"time"

	"fleetd/fleet/lease"
)

// A Role is what a node does.
type Role string

// The roles.
const (
	All  Role = "all" // a single process, which is not in a cluster
	Core Role = "core"
	Edge Role = "edge"
)

// A State is the state of a node.
type State string

// The states.
const (
	Leads     State = "leads"
	StandsBy  State = "stands_by"
	Attached  State = "attached"  // an edge that has announced all its connections to the leader
	Attaching State = "attaching" // an edge that has not yet
	Draining  State = "draining"  // it gives up its work before a planned stop
	Silent    State = "silent"    // no beat for SilentAfter
	Gone      State = "gone"      // no beat for GoneAfter, though it did not leave, or a core that was replaced
)

// States lists every state.
var States = []State{Leads, StandsBy, Attached, Attaching, Draining, Silent, Gone}

// How long a node can be quiet.
const (
	SilentAfter    = 5 * time.Second
	GoneAfter      = time.Minute
	ForgottenAfter = time.Hour // then a Table no longer has the node
)

// A Beat is what a node announces about itself.
type Beat struct {
	Name        string
	Role        Role
	Incarnation uint64 // of the process
	Version     string // of fleetd
	Since       time.Time
	Connections int       // of devices; a core has none
	Term        int       // that a core leads, or that an edge follows; 0 for none
	Messages    int64     // from and to devices, since the start
	Memory      int64     // bytes that the process has obtained from the operating system
	Drain       *Drain    // nil unless it is an edge that is being drained
	Expires     time.Time // its certificate; zero if unknown
	Leaves      bool      // it stops; the last beat
}

// A Node is one process of the cluster.
type Node struct {
	Name        string
	Role        Role
	State       State
	Version     string
	Connections int // of devices, as last announced; a core has none
	Since       time.Time
	Heard       time.Time // its latest beat
	Drain       *Drain    // nil unless it is an edge that is being drained
	Expires     time.Time // its certificate; zero if unknown
	Messages    float64   // messages from and to devices per second
	Memory      int64     // bytes; 0 if unknown
}

// A Drain is the progress of a drain: the devices of an edge are asked to connect to another one.
type Drain struct {
	Since     time.Time
	Moved     int // connections of devices that were asked to move
	Remaining int // connections of devices that are open
}

// MovesPerSecond is how many devices an edge that is being drained asks to move.
const MovesPerSecond = 500

// ExpiresSoon is how long before its certificate expires a node is shown with a warning.
const ExpiresSoon = 30 * 24 * time.Hour

// Running reports whether the node was heard recently.
func (n Node) Running() bool { return n.State != Silent && n.State != Gone }

// A Status is the state of the whole cluster, as the leader sees it.
type Status struct {
	ID     string // of the cluster; "" for a single process
	Term   int
	Leader string
	Since  time.Time    // when the leader got the lease, by the database's clock
	Why    lease.Reason // why this term began
	Nodes  []Node       // the leader, other cores, and edges, each by name
	Terms  []lease.Term // the latest terms, the newest first
}

// KeptTerms is how many terms a [Status] has.
const KeptTerms = 10

// HasStandby reports whether a core could replace the leader.
func HasStandby(nodes []Node) bool {
	return slices.ContainsFunc(nodes, func(n Node) bool { return n.State == StandsBy })
}

// Versions returns the different versions of the nodes that run, sorted.
func Versions(nodes []Node) (all []string) {
	for _, n := range nodes {
		if n.Running() {
			all = append(all, n.Version)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
