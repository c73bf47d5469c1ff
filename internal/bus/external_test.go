package bus_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"fleetd/fleet/fleettest"
	"fleetd/internal/bus"
)

// externalConfig is the configuration of an existing NATS server with the permissions that docs/cluster.md lists.
const externalConfig = `
listen: "%[2]s"
log_file: "/dev/full"
authorization {
  users = [
    { user: core, password: core-secret, permissions: { publish: "fleetd.%[1]s.>", subscribe: "fleetd.%[1]s.>" } }
    { user: edge-1, password: edge-secret, permissions: {
      publish: ["fleetd.%[1]s.up.*.edge-1", "fleetd.%[1]s.node.edge-1"]
      subscribe: ["fleetd.%[1]s.term", "fleetd.%[1]s.edges", "fleetd.%[1]s.down.edge-1"]
    } }
  ]
}
`

// TestDebiansServer uses the NATS server that Debian has. The disk of its log is full, and a user of it is what an
// edge may be.
func TestDebiansServer(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("nats-server")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/nats-server"); err != nil {
			t.Skip("nats-server is not installed (Debian: nats-server)")
		}
	}
	dir := newCluster(t)
	core, edge := join(t, dir, "core", bus.Core), join(t, dir, "edge-1", bus.Edge)
	addr, err := fleettest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, externalConfig, core.Cluster, addr), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.CommandContext(t.Context(), path, "-c", config)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	await(t, "listening", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	c := connect(t, bus.ConnectOptions{Identity: core, URL: "nats://core:core-secret@" + addr})
	e := connect(t, bus.ConnectOptions{Identity: edge, URL: "nats://edge-1:edge-secret@" + addr})
	c.await(true)
	e.await(true)
	id := core.Cluster
	up, nodes, down := c.subscribe(id.UpAll(1)), c.subscribe(id.Nodes()), e.subscribe(id.Down("edge-1"))
	term := e.subscribe(id.Term())
	long := strings.Repeat("x", 1<<20-100)
	e.publish(id.Up(1, "edge-1"), long)
	c.receive(up, id.Up(1, "edge-1"), long)
	e.publish(id.Node("edge-1"), "beat")
	c.receive(nodes, id.Node("edge-1"), "beat")
	c.publish(id.Down("edge-1"), long)
	e.receive(down, id.Down("edge-1"), long)

	// What an edge may not do with the permissions.
	e.publish(id.Term(), "false")
	e.publish(id.Down("edge-2"), "false")
	e.publish(id.Up(1, "edge-2"), "false")
	c.publish(id.Term(), "true")
	e.receive(term, id.Term(), "true")
	if m, err := up.NextMsg(50 * time.Millisecond); err != nats.ErrTimeout {
		t.Errorf("the core received %v, %v", m, err)
	}
	if _, err := e.SubscribeSync(id.Down("edge-2")); err != nil {
		t.Fatal(err)
	}
	await(t, "refused", func() bool { return errors.Is(e.LastError(), nats.ErrPermissionViolation) })
}
