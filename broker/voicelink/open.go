package voicelink

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/upstream"
)

// An openTable has the open conversations of the edges, as they reported them.
type openTable struct {
	mu    sync.Mutex
	edges map[string]*reported
}

// reported is the state of one edge.
type reported struct {
	incarnation uint64
	number      int64
	open        map[uuid.UUID]fleet.DeviceID
	health      []healthReport
}

const maxHealth = 1000 // voice servers in a report

// report takes over the open conversations of an edge.
func (c *Core) report(ctx context.Context, edge string, q *reportRequest) (any, error) {
	if len(q.Health) > maxHealth {
		return nil, errGarbage
	}
	ctx, cancel := context.WithTimeout(ctx, attachTimeout) // for all of them together
	defer cancel()
	var list []fleet.Conversation
	for i := range q.Begun {
		b := &q.Begun[i]
		if _, err := c.valid(ctx, edge, &b.Pass); err == nil {
			list = append(list, fleet.Conversation{ID: b.Pass.Conversation, Device: b.Pass.Device, Upstream: b.Pass.Name,
				Begin: b.Begin})
		}
	}
	if len(list) < len(q.Begun) && !c.o.Attached(edge) {
		return reportAnswer{Again: true}, nil
	}
	q.Health = slices.DeleteFunc(q.Health, func(h healthReport) bool {
		return h.Health.LastError != "" && !slices.Contains(fleet.ConversationEnds, h.Health.LastError)
	})
	t := &c.open
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.edges[edge]
	switch {
	case q.All && (r == nil || r.incarnation != q.Incarnation || q.Number > r.number):
		next := &reported{incarnation: q.Incarnation, open: make(map[uuid.UUID]fleet.DeviceID)}
		for _, v := range list {
			next.open[v.ID] = v.Device
		}
		if r != nil {
			for id, device := range r.open {
				if _, still := next.open[id]; !still {
					c.o.Open.End(device, id)
				}
			}
		}
		for _, v := range list {
			if r == nil || r.open[v.ID] == "" {
				c.o.Open.Begin(v)
			}
		}
		t.edges[edge], r = next, next
	case r == nil || r.incarnation != q.Incarnation || q.Number > r.number+1:
		return reportAnswer{Again: true}, nil
	case q.Number <= r.number:
		return reportAnswer{}, nil // repeated
	default:
		for _, v := range list {
			r.open[v.ID] = v.Device
			c.o.Open.Begin(v)
		}
		for _, id := range q.Ended {
			if device, open := r.open[id]; open {
				delete(r.open, id)
				c.o.Open.End(device, id)
			}
		}
	}
	r.number, r.health = q.Number, q.Health
	return reportAnswer{}, nil
}

// Lost ends the open conversations of an edge that is lost. If it is not, its next report opens them
// again.
func (c *Core) Lost(edge string) {
	c.open.mu.Lock()
	defer c.open.mu.Unlock()
	if r := c.open.edges[edge]; r != nil {
		delete(c.open.edges, edge)
		for id, device := range r.open {
			c.o.Open.End(device, id)
		}
	}
}

// Conversations returns the ids of the open conversations.
func (c *Core) Conversations() (ids []uuid.UUID) {
	c.open.mu.Lock()
	defer c.open.mu.Unlock()
	for _, r := range c.open.edges {
		for id := range r.open {
			ids = append(ids, id)
		}
	}
	return ids
}

// Health returns the health of a voice server since it was changed, as all edges see it.
func (c *Core) Health(id uuid.UUID, changed time.Time) (h upstream.Health) {
	c.open.mu.Lock()
	defer c.open.mu.Unlock()
	first := true
	for _, r := range c.open.edges {
		for _, v := range r.health {
			switch {
			case v.ID != id || v.Changed.Before(changed):
			case first:
				h, first = v.Health, false
			default:
				h = h.And(v.Health)
			}
		}
	}
	return h
}
