package server

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"fleetd/broker/cluster"
	"fleetd/internal/bus"
	"fleetd/web"
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

// openLink makes the leader's side of the link to the edges.
func (s *Server) openLink(secret []byte) error {
	key, err := hkdf.Key(sha256.New, secret, nil, "fleetd connections of edges v1", sha256.Size)
	if err != nil {
		return fmt.Errorf("secret key: %w", err)
	}
	s.link = cluster.NewCore(cluster.CoreOptions{Bus: s.node.bus, Cluster: s.node.id.Cluster, Core: s.broker, Log: s.log,
		TicketKey: key,
		Leader: cluster.Leader{Term: s.term, Name: s.node.id.Name, Version: s.cfg.Version,
			Addr: announced(s.cfg.InternalAddr, s.httpListener.Addr())}})
	s.stages.add("link to the edges", s.link.Run)
	s.node.members.lead(s.term, func() int64 { return s.broker.Stats().Messages })
	s.watchCluster()
	return nil
}

// attachTime bounds how long the devices of the previous leader keep their presence until the edges
// announce them; an edge hears of the new leader within a second.
const attachTime = 5 * time.Second

// attached returns when the edges have announced their connections, as far as can be known.
func (s *Server) attached(ctx context.Context) {
	if s.link == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		stats := s.link.Stats()
		if time.Since(begun) >= 2500*time.Millisecond && stats.Attached == stats.Edges {
			return
		}
	}
}

// serveEdges is the HTTP server of a core: it serves what the edges pass on.
func (s *Server) serveEdges(handler *web.Server) func(context.Context) error {
	internal := door.NewInternal(door.InternalOptions{Handler: handler, TLS: s.node.id.ServerTLS(bus.Edge, bus.Core),
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
