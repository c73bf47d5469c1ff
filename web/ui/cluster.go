package ui

import (
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
