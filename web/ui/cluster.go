package ui

import (
	"context"
	"math"
	"time"

	"fleetd/fleet/cluster"
)

// PathCluster is the page about the nodes of the cluster: GET. A single process has none.
const PathCluster = "/settings/cluster"

// A ClusterPage shows which core leads, the nodes, and the latest terms.
type ClusterPage struct{ Nodes ClusterNodes }

// ClusterNodes is what the page shows; a live stream replaces it.
type ClusterNodes struct {
	Status cluster.Status
}

// A DrainPage says what draining a node costs, and asks whether to do it.
type DrainPage struct {
	Node    cluster.Node
	Problem string
}

// DrainPath returns the address of an act on a node.
func DrainPath(node string) string { return PathCluster + "/" + node + "/drain" }

// takes returns how long it takes to ask all devices to move.
func (v DrainPage) takes() time.Duration {
	return 3*time.Second + time.Duration((v.Node.Connections+cluster.MovesPerSecond-1)/cluster.MovesPerSecond)*time.Second
}

// moved returns how much of a drain is done, in percent.
func moved(d cluster.Drain) int {
	if d.Moved+d.Remaining == 0 {
		return 100
	}
	return 100 * d.Moved / (d.Moved + d.Remaining)
}

// mayDrain reports whether the page offers to drain a node.
func mayDrain(n cluster.Node) bool {
	return n.Role == cluster.Edge && n.Running() && n.Drain == nil || n.Role == cluster.Core && n.State == cluster.Leads
}

// expiryDays returns in how many days the certificate of a node expires, if that is soon.
func expiryDays(ctx context.Context, n cluster.Node) (days int, soon bool) {
	left := n.Expires.Sub(page(ctx).Now)
	return max(0, int(left.Hours()/24)), !n.Expires.IsZero() && left < cluster.ExpiresSoon
}

// memoryStep and quiet nodes alone showing when they were heard keep the stream from sending the page
// each second.
const memoryStep = 16 << 20

// NewClusterNodes returns the state of the cluster, with figures rounded as the page shows them.
func NewClusterNodes(s cluster.Status) ClusterNodes {
	nodes := make([]cluster.Node, len(s.Nodes))
	for i, n := range s.Nodes {
		n.Messages = math.Round(n.Messages)
		n.Memory = (n.Memory + memoryStep/2) / memoryStep * memoryStep
		if n.Running() {
			n.Heard = time.Time{}
		}
		nodes[i] = n
	}
	s.Nodes = nodes
	return ClusterNodes{s}
}

var nodeTones = map[cluster.State]tone{cluster.Leads: toneGood, cluster.StandsBy: toneGood, cluster.Attached: toneGood,
	cluster.Attaching: toneWarn, cluster.Draining: toneWarn, cluster.Silent: toneWarn, cluster.Gone: toneBad}

// unlike reports whether running nodes have different versions.
func (v ClusterNodes) unlike() bool { return len(cluster.Versions(v.Status.Nodes)) > 1 }

// alone reports whether no core stands by.
func (v ClusterNodes) alone() bool { return !cluster.HasStandby(v.Status.Nodes) }
