package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/metrics"
	"time"

	"github.com/nats-io/nats.go"

	"fleetd/internal/bus"
)

// Beat announces a core each second, until ctx ends. An [Edge] announces itself.
func Beat(ctx context.Context, to *nats.Conn, of bus.Cluster, node func() Node) error {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		n := node()
		_ = to.Publish(of.Node(n.Name), encode(n)) // the next beat follows
		select {
		case <-tick.C:
		case <-ctx.Done():
			n = node()
			n.Leaves = true
			_ = to.Publish(of.Node(n.Name), encode(n))
			return nil
		}
	}
}

// Hear calls hear for each beat of a node. Only cores may: an edge is not permitted to subscribe.
func Hear(from *nats.Conn, of bus.Cluster, hear func(Node)) error {
	_, err := from.Subscribe(of.Nodes(), func(m *nats.Msg) {
		var n Node
		if json.Unmarshal(m.Data, &n) == nil && of.Node(n.Name) == m.Subject { // the bus checks the subject alone
			hear(n)
		}
	})
	if err != nil {
		return fmt.Errorf("beats of nodes: %w", err)
	}
	return nil
}

// A Load is how busy a node is.
type Load struct {
	Messages int64 `json:"messages,omitempty"` // from and to devices, since the start
	Memory   int64 `json:"memory,omitempty"`   // bytes that the process has obtained from the operating system
}

// LoadOf returns the load of this process.
func LoadOf(messages int64) Load {
	memory := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(memory)
	return Load{Messages: messages, Memory: int64(memory[0].Value.Uint64())}
}

// Drain asks an edge to drain, or not to drain any more. It returns false if the edge is not linked to
// this core, or is of a version that cannot drain. The edge confirms by its beat.
func (c *Core) Drain(edge string, drain bool) bool {
	c.mu.Lock()
	p := c.peers[edge]
	c.mu.Unlock()
	return p != nil && p.stream.version >= 2 && p.stream.announce(frameDrain, 0, encode(drainFrame{drain})) == nil
}

// Attached reports whether an edge has announced all its connections.
func (c *Core) Attached(edge string) bool {
	c.mu.Lock()
	p := c.peers[edge]
	c.mu.Unlock()
	return p != nil && p.attached.Load()
}
