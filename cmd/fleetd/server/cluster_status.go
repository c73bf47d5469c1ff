package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	wire "fleetd/broker/cluster"
	"fleetd/fleet/cluster"
	"fleetd/fleet/lease"
	"fleetd/internal/bus"
	"fleetd/web/door"
)

// members are the nodes of the cluster, as a core hears them. A core that stands by hears them, too,
// so that it knows them when it leads.
type members struct {
	table   cluster.Table
	self    wire.Node
	expires func() time.Time // the certificate
	term    atomic.Int64     // that this core leads; 0 while it stands by
	load    atomic.Pointer[func() int64]
}

// openMembers starts to announce this core and to hear the other nodes.
func (n *node) openMembers(version string) error {
	m := &members{self: wire.Node{Name: n.id.Name, Role: bus.Core, Incarnation: rand.Uint64(), Version: version,
		Since: time.Now().UTC()}, expires: n.id.Expires}
	n.members = m
	if err := wire.Hear(n.bus, n.id.Cluster, func(w wire.Node) { m.table.Hear(beatOf(w)) }); err != nil {
		return err
	}
	n.stages.run("beat of the node", func(ctx context.Context) error {
		return wire.Beat(ctx, n.bus, n.id.Cluster, m.now)
	})
	return nil
}

// lead records that this core leads; messages counts those of its devices.
func (m *members) lead(term int, messages func() int64) {
	m.load.Store(&messages)
	m.term.Store(int64(term))
}

// now returns the beat of this core.
func (m *members) now() wire.Node {
	n, messages := m.self, int64(0)
	n.Expires = m.expires().UTC()
	n.Term = int(m.term.Load())
	if count := m.load.Load(); count != nil {
		messages = (*count)()
	}
	n.Load = wire.LoadOf(messages)
	return n
}

func beatOf(n wire.Node) cluster.Beat {
	return cluster.Beat{Name: n.Name, Role: cluster.Role(n.Role), Incarnation: n.Incarnation, Version: n.Version,
		Since: n.Since, Connections: n.Connections, Term: n.Term, Messages: n.Messages, Memory: n.Memory,
		Drain: (*cluster.Drain)(n.Draining), Expires: n.Expires, Leaves: n.Leaves}
}

// nodes lists the nodes of the cluster; of a single process it lists this one.
func (s *Server) nodes() []cluster.Node {
	if s.node != nil {
		return s.node.members.table.Nodes(beatOf(s.node.members.now()), s.link.Attached)
	}
	b := s.broker.Stats()
	return s.alone.Nodes(cluster.Beat{Name: s.cfg.NodeName, Role: cluster.All, Version: s.cfg.Version, Since: s.started,
		Connections: int(b.Connections), Term: s.term, Messages: b.Messages, Memory: wire.LoadOf(0).Memory}, nil)
}

// errHandedOver is the error of [Server.Serve] after an operator let another core lead. [Run] starts the
// server again, which then stands by.
var errHandedOver = errors.New("another core leads now")

// handOverTime is how long this core waits for one that stands by to lead, before it may do so itself.
// A standby looks at the lease five times a second.
const handOverTime = 3 * time.Second

// openCluster makes the service for the nodes of the cluster.
func (s *Server) openCluster() {
	o := cluster.Options{Store: s.store, Status: s.clusterStatus, Log: s.log,
		HandOver: func() { s.stages.fail(errHandedOver) }}
	if s.link != nil {
		o.Drain = s.link.Drain
	}
	s.cluster = cluster.NewService(o)
}

// awaitStandby gives another core the time to lead.
func (s *Server) awaitStandby(ctx context.Context) {
	select {
	case <-time.After(handOverTime):
	case <-ctx.Done():
	}
}

// readTerms reads the latest terms. While this process leads, they do not change.
func (s *Server) readTerms(ctx context.Context) (err error) {
	s.terms, err = s.store.LeaseTerms(ctx, cluster.KeptTerms)
	return err
}

// clusterStatus returns the state of the cluster.
func (s *Server) clusterStatus() cluster.Status {
	v := cluster.Status{Term: s.term, Leader: s.cfg.NodeName, Since: s.led.UTC(), Why: lease.First, Nodes: s.nodes(),
		Terms: s.terms}
	if s.node != nil {
		v.ID = string(s.node.id.Cluster)
	}
	for _, t := range s.terms {
		if t.Term == s.term {
			v.Since, v.Why = t.Since.UTC(), t.Reason
		}
	}
	return v
}

// watchNode exports what each node of a cluster has.
func (m *metrics) watchNode(n *node) {
	m.gauge("fleetd_cluster_certificate_expiry_timestamp_seconds",
		"When the certificate of this node of the cluster expires, in Unix time.", nil,
		func() float64 { return float64(n.id.Expires().Unix()) })
}

// watchCluster exports what the leader knows of the cluster.
func (s *Server) watchCluster() {
	m := s.metrics
	m.registry.MustRegister(nodeMetrics{s.nodes})
	m.gauge("fleetd_cluster_term", termHelp, nil, func() float64 { return float64(s.term) })
	m.registry.MustRegister(statMetrics[wire.CoreStats]{coreLinkMetrics, s.link.Stats})
}

// watchCluster exports what an edge knows of the cluster.
func (s *EdgeServer) watchCluster() {
	m := s.metrics
	m.gauge("fleetd_cluster_term", termHelp, nil, func() float64 {
		l, _, _ := s.link.Leader()
		return float64(l.Term)
	})
	m.registry.MustRegister(statMetrics[wire.EdgeStats]{edgeLinkMetrics, s.link.Stats}, doorMetrics{s.door})
}

const termHelp = "Term of the core that leads, as this node knows it; 0 if it knows none."

func linkMetric[S any](name, help string, kind prometheus.ValueType, read func(*S) int64) statMetric[S] {
	return statMetric[S]{prometheus.NewDesc("fleetd_cluster_link_"+name, help, nil, nil), kind, read}
}

var coreLinkMetrics = []statMetric[wire.CoreStats]{
	linkMetric("edges", "Edges linked to this core.", prometheus.GaugeValue,
		func(s *wire.CoreStats) int64 { return s.Edges }),
	linkMetric("edges_attached", "Edges that have announced all their connections to this core.", prometheus.GaugeValue,
		func(s *wire.CoreStats) int64 { return s.Attached }),
	linkMetric("connections", "Connections at the edges linked to this core.", prometheus.GaugeValue,
		func(s *wire.CoreStats) int64 { return s.Connections }),
	linkMetric("unreadable_total", "Batches or frames of edges that could not be read.", prometheus.CounterValue,
		func(s *wire.CoreStats) int64 { return s.Garbage }),
	linkMetric("panics_total", "Panics contained in one connection.", prometheus.CounterValue,
		func(s *wire.CoreStats) int64 { return s.Panics }),
}

var edgeLinkMetrics = []statMetric[wire.EdgeStats]{
	linkMetric("dropped_total", "Messages of devices that were not passed on, because too many waited.",
		prometheus.CounterValue, func(s *wire.EdgeStats) int64 { return s.Dropped }),
	linkMetric("unreadable_total", "Batches of cores that could not be read.", prometheus.CounterValue,
		func(s *wire.EdgeStats) int64 { return s.Garbage }),
	linkMetric("stale_total", "Batches of cores that had been replaced, which this edge refused.",
		prometheus.CounterValue, func(s *wire.EdgeStats) int64 { return s.Stale }),
	linkMetric("overdue_total", "Messages for devices that came too late and were not passed on.",
		prometheus.CounterValue, func(s *wire.EdgeStats) int64 { return s.Overdue }),
}

// nodeMetrics exports the number of nodes.
type nodeMetrics struct{ nodes func() []cluster.Node }

var nodesDesc = prometheus.NewDesc("fleetd_cluster_nodes", "Nodes of the cluster by role and state.",
	[]string{"role", "state"}, nil)

// Describe implements prometheus.Collector.
func (nodeMetrics) Describe(descs chan<- *prometheus.Desc) { descs <- nodesDesc }

// Collect implements prometheus.Collector. States that no node can have in a role are left out;
// others are present as 0.
func (m nodeMetrics) Collect(metrics chan<- prometheus.Metric) {
	type key struct {
		role  cluster.Role
		state cluster.State
	}
	counts := make(map[key]int)
	for _, state := range cluster.States {
		if state != cluster.Attached && state != cluster.Attaching {
			counts[key{cluster.Core, state}] = 0
		}
		if state != cluster.Leads && state != cluster.StandsBy {
			counts[key{cluster.Edge, state}] = 0
		}
	}
	for _, n := range m.nodes() {
		counts[key{n.Role, n.State}]++
	}
	for k, n := range counts {
		metrics <- prometheus.MustNewConstMetric(nodesDesc, prometheus.GaugeValue, float64(n), string(k.role),
			string(k.state))
	}
}

// doorMetrics exports the requests that an edge passes on, by kind.
type doorMetrics struct{ door *door.Door }

var (
	doorRequestsDesc = prometheus.NewDesc("fleetd_door_requests_total",
		"Requests at this edge by kind and outcome: passed to a core that answered, refused because no core handled it, "+
			"or unknown because a core may have handled it.", []string{"kind", "outcome"}, nil)
	doorHeldDesc = prometheus.NewDesc("fleetd_door_held", "Requests that wait for a leader, by kind.", []string{"kind"},
		nil)
	doorRetriedDesc = prometheus.NewDesc("fleetd_door_retries_total", "Attempts to pass on a request after the first one.",
		[]string{"kind"}, nil)
)

// Describe implements prometheus.Collector.
func (doorMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- doorRequestsDesc
	descs <- doorHeldDesc
	descs <- doorRetriedDesc
}

// Collect implements prometheus.Collector.
func (m doorMetrics) Collect(metrics chan<- prometheus.Metric) {
	for k, kind := range door.Kinds {
		s := m.door.Stats(door.Kind(k))
		for outcome, n := range map[string]int64{"passed": s.Passed, "refused": s.Refused, "unknown": s.Unknown} {
			metrics <- prometheus.MustNewConstMetric(doorRequestsDesc, prometheus.CounterValue, float64(n), kind, outcome)
		}
		metrics <- prometheus.MustNewConstMetric(doorHeldDesc, prometheus.GaugeValue, float64(s.Held), kind)
		metrics <- prometheus.MustNewConstMetric(doorRetriedDesc, prometheus.CounterValue, float64(s.Retried), kind)
	}
}
