package cluster

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// A Table keeps the nodes that were heard within the last hour. The zero value is ready to use.
type Table struct {
	mu    sync.Mutex
	nodes map[string]*heard
}

// heard is a node with its latest beat.
type heard struct {
	Beat
	at time.Time

	// The number of messages at an earlier beat, from which the rate is calculated.
	from     int64
	fromAt   time.Time
	messages float64
}

// maxNodes bounds the table: names come from certificates, so only a mistake reaches it.
const maxNodes = 1000

// rateOver is the period over which messages are averaged.
const rateOver = 10 * time.Second

// Hear records a beat. While a restarted node and its earlier process both announce a name, the one
// that started last counts.
func (t *Table) Hear(b Beat) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes == nil {
		t.nodes = make(map[string]*heard)
	}
	n := t.nodes[b.Name]
	switch {
	case b.Leaves:
		if n != nil && n.Incarnation == b.Incarnation {
			delete(t.nodes, b.Name)
		}
	case n == nil && len(t.nodes) >= maxNodes:
		return
	case n != nil && n.Incarnation == b.Incarnation:
		n.Beat, n.at = b, now
		if over := now.Sub(n.fromAt); over >= rateOver {
			n.messages = max(0, float64(b.Messages-n.from)/over.Seconds())
			n.from, n.fromAt = b.Messages, now
		}
	case n != nil && b.Since.Before(n.Since) && now.Sub(n.at) < SilentAfter:
		return
	default:
		t.nodes[b.Name] = &heard{Beat: b, at: now, from: b.Messages, fromAt: now}
	}
}

// Nodes lists the nodes as the leader sees them: itself, other cores, and edges. attached reports
// whether an edge has announced all its connections in the leader's term.
func (t *Table) Nodes(leader Beat, attached func(edge string) bool) []Node {
	t.Hear(leader) // the leader knows its state without the bus
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Node, 0, len(t.nodes))
	for name, h := range t.nodes {
		quiet := now.Sub(h.at)
		if quiet >= ForgottenAfter {
			delete(t.nodes, name)
			continue
		}
		n := Node{Name: name, Role: h.Role, Version: h.Version, Connections: h.Connections, Since: h.Since, Heard: h.at.UTC(),
			Drain: h.Drain, Expires: h.Expires, Messages: h.messages, Memory: h.Memory}
		switch {
		case h.Incarnation == leader.Incarnation:
			n.State = Leads
		case quiet >= GoneAfter, h.Role == Core && h.Term > 0: // it led an earlier term
			n.State = Gone
		case quiet >= SilentAfter:
			n.State = Silent
		case h.Drain != nil:
			n.State = Draining
		case h.Role == Core:
			n.State = StandsBy
		case h.Term == leader.Term && attached(name):
			n.State = Attached
		default:
			n.State = Attaching
		}
		if !n.Running() {
			n.Messages = 0
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func rank(n Node) int {
	switch {
	case n.State == Leads:
		return 0
	case n.Role == Core:
		return 1
	}
	return 2
}
