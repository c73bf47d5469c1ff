package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetd/broker/agent"
	"fleetd/broker/cluster"
	"fleetd/broker/edge"
	"fleetd/broker/voice"
	"fleetd/broker/voicelink"
	"fleetd/fleet/blobs"
	"fleetd/internal/collector"
	"fleetd/web/device"
	"fleetd/web/door"
)

// A Process is a [Server] or an [EdgeServer].
type Process interface {
	Greet(w io.Writer)
	Serve(ctx context.Context) error
}

// StartRole starts what Config.Role says.
func StartRole(ctx context.Context, cfg Config) (Process, error) {
	if cfg.Role == RoleEdge {
		return StartEdge(ctx, cfg)
	}
	return Start(ctx, cfg)
}

// Run starts what Config.Role says, greets, and serves until ctx ends or a part fails. A core that an
// operator has drained starts again, and stands by.
func Run(ctx context.Context, cfg Config, greeting io.Writer) error {
	for {
		p, err := StartRole(ctx, cfg)
		switch {
		case ctx.Err() != nil && err != nil: // stopped before it had started, which is not a failure
			return nil
		case err != nil:
			return err
		}
		p.Greet(greeting)
		if err = p.Serve(ctx); !errors.Is(err, errHandedOver) {
			return err
		}
	}
}

// An EdgeServer is a process that holds connections of devices and people, and passes on what they
// say to the core that leads. It has no database and no signing key.
type EdgeServer struct {
	cfg     Config
	log     *slog.Logger
	stages  *stages
	metrics *metrics
	admin   *adminServer

	node  *node
	link  *cluster.Edge
	edge  *edge.Edge
	door  *door.Door
	talks *voicelink.Client           // asks the core about conversations
	voice atomic.Pointer[voice.Relay] // nil until its address is open

	stopping atomic.Bool

	httpListener, adminListener net.Listener
}

// StartEdge starts an edge and returns when all its parts run. [EdgeServer.Close] stops it; the end of
// ctx only interrupts StartEdge. A cluster without a leader is no error: devices and requests wait for
// one.
func StartEdge(ctx context.Context, cfg Config) (_ *EdgeServer, err error) {
	if err := cfg.check(); err != nil {
		return nil, UsageError{err}
	}
	log := cfg.logger()
	s := &EdgeServer{cfg: cfg, log: log, stages: newStages(log), metrics: &metrics{registry: prometheus.NewRegistry()}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	var cert *certificate // nil without TLS
	if cfg.TLSCert != "" {
		if cert, err = openCertificate(cfg.TLSCert, cfg.TLSKey, log); err != nil {
			return nil, err
		}
	}
	clientCAs, err := openClientCAs(cfg.ClientCA, log)
	if err != nil {
		return nil, err
	}
	if s.httpListener, err = listenOn(ctx, cfg.HTTPAddr, "--http-addr"); err != nil {
		return nil, err
	}
	s.stages.onStop("http listener", func() { _ = s.httpListener.Close() })
	if s.adminListener, err = listenOn(ctx, cfg.AdminAddr, "--admin-addr"); err != nil {
		return nil, err
	}
	s.admin = &adminServer{hosts: cfg.AdminHosts, reg: s.metrics.registry,
		probe: func(context.Context) error { return s.unready() }}
	s.stages.run("admin listener", func(ctx context.Context) error { return s.admin.run(ctx, s.adminListener) })
	if s.node, err = openNode(ctx, &s.cfg, s.stages, log); err != nil {
		return nil, err
	}

	s.link = cluster.NewEdge(cluster.EdgeOptions{Bus: s.node.bus, Cluster: s.node.id.Cluster, Name: s.node.id.Name,
		Version: cfg.Version, Log: log, Drain: s.setDrain, Draining: s.drainOf,
		Expires: s.node.id.Expires, Messages: func() int64 {
			stats := s.edge.Stats()
			return stats.PublishesIn + stats.PublishesOut
		}})
	s.stages.add("link to the core", s.link.Run)
	s.talks = newTalks(s)
	s.edge, err = edge.New(edge.Options{Addr: cfg.MQTTAddr, TLSAddr: cfg.MQTTSAddr,
		TLSConfig: followCertificate(cert, clientCAs, s.stages, s.metrics), ProxyFrom: s.cfg.proxyProtocol, Core: s.link,
		Voice: edgeVoice{&s.voice}, Agents: agent.NewRemote(s.agentTunnel), Node: s.node.id.Name, Logger: log})
	if err != nil {
		return nil, err
	}
	s.stages.add("edge", s.edge.Run)
	s.metrics.watchEdge(s.edge)
	s.stages.add("garbage collector", func(ctx context.Context) error {
		return collector.Run(ctx, collector.Load{Messages: func() int64 { return s.edge.Stats().PublishesIn },
			Connects: func() int64 { return s.edge.Stats().Connects }})
	})
	leaders := new(door.Announced)
	s.door = door.New(door.Options{Leader: leaders, TLS: s.node.id.ClientTLS(),
		Devices: http.HandlerFunc(s.edge.ServeWebSocket), Attend: true, TrustedProxies: s.cfg.trustedProxies,
		S3:          blobs.Transport(door.S3Timeout),
		ConnContext: device.WithConn,
		ConnState:   boundHTTPConnections(&s.cfg, s.metrics).ConnState, Node: s.node.id.Name,
		Expires: s.node.id.Expires, Log: log})
	s.stages.add("certificate", func(ctx context.Context) error {
		return s.node.watchCertificate(ctx, log)
	})
	s.stages.add("leader", func(ctx context.Context) error { return s.followLeader(ctx, leaders) })
	s.metrics.watchNode(s.node)
	s.watchCluster()
	lingerer := openLingerer(s.metrics)
	s.stages.add("http", func(ctx context.Context) error {
		context.AfterFunc(ctx, lingerer.Stop)
		return s.door.Run(ctx, lingerer.Listener(s.httpListener))
	})
	s.stages.add("voice", s.relay) // stops first: the records of conversations that it ends go through the door
	s.stages.start()
	s.admin.ready.Store(true)
	return s, nil
}

// followLeader announces to the door which core leads, until ctx ends.
func (s *EdgeServer) followLeader(ctx context.Context, to *door.Announced) error {
	tick := time.NewTicker(time.Second) // a leader that falls silent is no change
	defer tick.Stop()
	for term := 0; ; {
		l, known, changed := s.link.Leader()
		if l.Term != term {
			term = l.Term
			s.talks.ReportAll()
		}
		if known {
			to.Announce(door.Leader{Term: int64(l.Term), Addr: l.Addr})
		} else {
			to.Announce(door.Leader{})
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Greet prints what the process is.
func (s *EdgeServer) Greet(w io.Writer) {
	fmt.Fprintf(w, "\nfleetd %s is up as edge %s of the cluster %s\n\n", s.cfg.Version, s.node.id.Name, s.node.id.Cluster)
	fmt.Fprintf(w, "  HTTP       %s\n  MQTT       %s\n  audio      %s, UDP\n\n", s.httpListener.Addr(), s.edge.Addr(),
		s.cfg.VoiceUDPEndpoint)
}

// Serve returns when ctx ends, or with the error of a part that ended earlier. It closes the edge
// first.
func (s *EdgeServer) Serve(ctx context.Context) error {
	err := s.stages.wait(ctx)
	if err == nil {
		s.drainBeforeStop()
	}
	s.log.Info("stopping")
	s.Close()
	return err
}

// Close stops all parts, the last one first, and returns within closeTimeout.
func (s *EdgeServer) Close() {
	if s.admin != nil {
		s.admin.ready.Store(false)
	}
	s.stages.stop()
}

// HTTPAddr returns the listen address for people and devices.
func (s *EdgeServer) HTTPAddr() net.Addr { return s.httpListener.Addr() }

// MQTTAddr returns the listen address for devices without TLS.
func (s *EdgeServer) MQTTAddr() net.Addr { return s.edge.Addr() }
