package server

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"fleetd/broker/cluster"
	"fleetd/fleet"
	nodes "fleetd/fleet/cluster"
	"fleetd/internal/bus"
	"fleetd/web"
	"fleetd/web/device"
	"fleetd/web/door"
)

// A node is what a core or an edge has of its cluster.
type node struct {
	id     *bus.Identity
	bus    *nats.Conn
	stages *stages

	members *members // nil in an edge
}

// openNode opens the certificate of this node and connects to the bus. A core first starts the NATS
// server that is a part of it, unless there is an existing one.
func openNode(ctx context.Context, cfg *Config, parts *stages, log *slog.Logger) (*node, error) {
	id, err := bus.Open(cfg.ClusterDir)
	if err != nil {
		return nil, fmt.Errorf("--cluster-dir: %w", err)
	}
	if string(id.Role) != cfg.Role {
		return nil, fmt.Errorf("--cluster-dir %s has the certificate of the %s %s, and this process has --role %s",
			cfg.ClusterDir, id.Role, id.Name, cfg.Role)
	}
	cfg.NodeName = id.Name
	life, end := context.WithCancel(context.Background())
	parts.onStop("bus", end)
	o := bus.ConnectOptions{Identity: id, Servers: cfg.ClusterServers, URL: cfg.NATSURL, Log: log}
	if cfg.Role == RoleCore && cfg.NATSURL == "" {
		o.Embedded, err = bus.StartServer(life, bus.ServerOptions{Identity: id, Listen: cfg.ClusterListen,
			Routes: cfg.ClusterRoutes, Log: log})
		if err != nil {
			return nil, err
		}
		parts.onStop("NATS", o.Embedded.Close)
		log.Info("NATS for the nodes of the cluster", "addr", o.Embedded.Addr(), "cluster", id.Cluster)
	}
	nc, err := bus.Connect(life, o)
	if err != nil {
		return nil, err
	}
	parts.onStop("connection to the bus", nc.Close)
	return &node{id: id, bus: nc, stages: parts}, nil
}

// watchCertificate warns each day, from 30 days before the certificate of this node expires.
func (n *node) watchCertificate(ctx context.Context, log *slog.Logger) error {
	warn := rate.Sometimes{First: 1, Interval: 24 * time.Hour}
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		if expires := n.id.Expires(); time.Until(expires) < nodes.ExpiresSoon {
			warn.Do(func() {
				log.Warn("the certificate of this node expires: renew it with fleetd cluster cert, and copy it to the node; "+
					"with an expired one it cannot connect to the other nodes", "expires", expires.UTC(),
					"days", int(time.Until(expires).Hours()/24))
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// openLink makes the leader's side of the link to the edges.
func (s *Server) openLink(secret []byte) error {
	key, err := hkdf.Key(sha256.New, secret, nil, "fleetd connections of edges v1", sha256.Size)
	if err != nil {
		return fmt.Errorf("secret key: %w", err)
	}
	s.talksKey, err = hkdf.Key(sha256.New, secret, nil, "fleetd conversations of edges v1", sha256.Size)
	if err != nil {
		return fmt.Errorf("secret key: %w", err)
	}
	s.link = cluster.NewCore(cluster.CoreOptions{Bus: s.node.bus, Cluster: s.node.id.Cluster, Core: s.broker, Log: s.log,
		TicketKey: key, Lost: func(edge string) { s.talks.Lost(edge) },
		Silent: s.Presences.EdgeSilent, Heard: s.Presences.EdgeHeard,
		Leader: cluster.Leader{Term: s.term, Name: s.node.id.Name, Version: s.cfg.Version,
			Addr: cmp.Or(s.cfg.announce, announced(s.cfg.InternalAddr, s.httpListener.Addr()))}})
	s.stages.add("link to the edges", s.link.Run)
	s.attachedAll = make(chan struct{})
	s.stages.add("connections of the edges", s.followAttach)
	s.node.members.lead(s.term, func() int64 { return s.broker.Stats().Messages })
	s.watchCluster()
	return nil
}

// At the start of a term the connections of the previous one are not yet known. An edge hears of the
// new leader within a second; then all edges that run are waited for, unless none makes progress.
const (
	attachTime = 1500 * time.Millisecond
	attachIdle = 5 * time.Second
	attachTick = 50 * time.Millisecond
)

// followAttach ends the start of the term, as far as the connections of devices are concerned.
func (s *Server) followAttach(ctx context.Context) error {
	s.awaitAttach(ctx)
	for _, n := range s.nodes() {
		if n.Role == nodes.Edge && n.State == nodes.Silent {
			s.silentEdges = append(s.silentEdges, n.Name)
		}
	}
	close(s.attachedAll)
	s.awaitEdges(ctx, s.silentEdges)
	<-ctx.Done()
	return nil
}

// awaitEdges waits for the edges that are silent at the start of the term. The devices that an edge does not
// present when it attaches, or that it held when it is lost, have no connection.
func (s *Server) awaitEdges(ctx context.Context, silent []string) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for len(silent) > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		waits := slices.DeleteFunc(s.nodes(), func(n nodes.Node) bool {
			return n.State != nodes.Silent && (!n.Running() || s.link.Attached(n.Name))
		})
		silent = slices.DeleteFunc(silent, func(edge string) bool {
			if slices.ContainsFunc(waits, func(n nodes.Node) bool { return n.Name == edge }) {
				return false
			}
			if err := s.Presences.EdgeGone(ctx, edge); err != nil {
				s.log.Warn("cannot store that the devices of an edge are offline; trying again", "edge", edge, "err", err)
				return false
			}
			return true
		})
	}
}

func (s *Server) awaitAttach(ctx context.Context) {
	tick := time.NewTicker(attachTick)
	defer tick.Stop()
	begun := time.Now()
	grown, connections := begun, int64(0)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if n := s.link.Stats().Connections; n != connections {
			grown, connections = time.Now(), n
		}
		late := slices.ContainsFunc(s.nodes(), func(n nodes.Node) bool {
			return n.Role == nodes.Edge && n.Running() && !s.link.Attached(n.Name)
		})
		if time.Since(begun) >= attachTime && (!late || time.Since(grown) >= attachIdle) {
			return
		}
	}
}

// attached returns when the edges have announced their connections, as far as can be known, and the names
// of those that are silent.
func (s *Server) attached(ctx context.Context) (silent []string) {
	if s.link == nil {
		return nil
	}
	select {
	case <-s.attachedAll:
		return s.silentEdges
	case <-ctx.Done():
		return nil
	}
}

// settled returns when it is known whether the device is connected: a call at the start of a term must
// not end because the connection was not announced yet.
func (s *Server) settled(ctx context.Context, id fleet.DeviceID) {
	if s.link == nil {
		return
	}
	select {
	case <-s.attachedAll:
		return
	default:
	}
	tick := time.NewTicker(attachTick)
	defer tick.Stop()
	for {
		if _, connected := s.broker.Connection(id); connected {
			return
		}
		select {
		case <-s.attachedAll:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// serveEdges is the HTTP server of a core: it serves what the edges pass on.
func (s *Server) serveEdges(handler *web.Server) func(context.Context) error {
	own := http.NewServeMux()
	own.Handle("/", s.talks)
	own.Handle("/"+device.ReportsPath, device.ServeReports(s.downloads, door.EdgeOf, s.log))
	internal := door.NewInternal(door.InternalOptions{Handler: handler, Own: own,
		Tunnels: map[string]func(string, net.Conn){agentTunnel: func(_ string, conn net.Conn) { s.agents.Serve(conn) }},
		TLS:     s.node.id.ServerTLS(bus.Edge, bus.Core),
		Peer: func(state *tls.ConnectionState) (string, error) {
			peer, err := bus.PeerOf(state)
			return peer.Name, err
		},
		Term: func() int64 {
			if !s.admin.ready.Load() {
				return 0
			}
			return int64(s.term)
		}, Left: s.link.Suspect, CloseStreams: handler.CloseStreams, Log: s.log})
	return func(ctx context.Context) error { return internal.Run(ctx, s.httpListener) }
}
