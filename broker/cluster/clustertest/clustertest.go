// Package clustertest puts the bus between a broker and its edge in tests: an embedded NATS server on
// a free port of this machine, with the certificates of a cluster that is made for the test. Tests
// that pass with an edge in the same process run over it, too.
package clustertest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"fleetd/broker/cluster"
	"fleetd/broker/link"
	"fleetd/internal/bus"
)

// Wanted reports whether the tests are to run over NATS.
func Wanted() bool { return os.Getenv("FLEETD_TEST_LINK") == "nats" }

// A Bus is the NATS server of a cluster, with certificates for its nodes.
type Bus struct {
	Server *bus.Server
	Core   *bus.Identity
	dir    string
	log    *slog.Logger
}

// Start starts a bus. It ends with ctx.
func Start(t testing.TB, ctx context.Context, log *slog.Logger) *Bus {
	t.Helper()
	b := &Bus{dir: t.TempDir(), log: log}
	if _, err := bus.Init(b.dir); err != nil {
		t.Fatal(err)
	}
	b.Core = b.Identity(t, "core", bus.Core)
	var err error
	if b.Server, err = bus.StartServer(ctx, bus.ServerOptions{Identity: b.Core, Listen: "127.0.0.1:0", Log: log}); err != nil {
		t.Fatal(err)
	}
	return b
}

// Identity returns a new node's identity.
func (b *Bus) Identity(t testing.TB, name string, role bus.Role) *bus.Identity {
	t.Helper()
	dir, _, err := bus.Issue(b.dir, bus.Order{Name: name, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	id, err := bus.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Connect connects a node.
func (b *Bus) Connect(t testing.TB, ctx context.Context, id *bus.Identity) *nats.Conn {
	t.Helper()
	nc, err := bus.Connect(ctx, bus.ConnectOptions{Identity: id, Servers: []string{b.Server.Addr()}, Log: b.log})
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

// A Link is a bus with the leader and one edge.
type Link struct {
	Edge *cluster.Edge // the core, as the edge sees it
	Core *cluster.Core
	stop []func()
}

// Join puts a bus between an edge of the name and the core. It returns when they know each other.
func Join(t testing.TB, name string, core link.Adopter, log *slog.Logger) *Link {
	t.Helper()
	l := new(Link)
	ctx, cancel := context.WithCancel(context.Background())
	b := Start(t, ctx, log)
	edge := b.Identity(t, name, bus.Edge)
	down, up := b.Connect(t, ctx, b.Core), b.Connect(t, ctx, edge)
	l.Core = cluster.NewCore(cluster.CoreOptions{Bus: down, Cluster: b.Core.Cluster, Core: core, Log: log,
		Leader: cluster.Leader{Term: 1, Name: "core", Addr: "127.0.0.1:1", Version: "test"}})
	l.Edge = cluster.NewEdge(cluster.EdgeOptions{Bus: up, Cluster: b.Core.Cluster, Name: name, Version: "test", Log: log})
	l.stop = []func(){cancel, b.Server.Close, down.Close, up.Close, Run(t, l.Core.Run), Run(t, l.Edge.Run)}
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, known, _ := l.Edge.Leader(); known && l.Core.Stats().Edges == 1 {
			return l
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("edge and core do not find each other")
		}
	}
}

// Stop ends the link, after the edge has closed its connections and before the core ends.
func (l *Link) Stop() {
	for i := len(l.stop) - 1; i >= 0; i-- {
		l.stop[i]()
	}
}

// Run runs a part and returns the function that ends it.
func Run(t testing.TB, part func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
