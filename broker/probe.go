package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"fleetd/mcp"
)

// A prober records which connections are silent and when to ping them next. One goroutine serves
// all, since nearly all devices are healthy.
type prober struct {
	mu   sync.Mutex
	next map[*connection]time.Time
}

func (p *prober) add(c *connection, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = make(map[*connection]time.Time)
	}
	p.next[c] = now.Add(c.broker.o.ProbeEvery)
}

func (p *prober) remove(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.next, c)
}

func (p *prober) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.next)
}

// due returns the connections to ping now.
func (p *prober) due(now time.Time) (all []*connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, at := range p.next {
		switch {
		case c.hasEnded() || c.health.Load() != healthSilent:
			delete(p.next, c) // its health changed while it was being added
		case !at.After(now):
			p.next[c] = now.Add(c.broker.o.ProbeEvery)
			all = append(all, c)
		}
	}
	return all
}

// watch pings silent devices and forgets those that are long gone, until the broker stops.
func (b *Broker) watch() {
	probe := time.NewTicker(b.o.ProbeEvery / 4)
	defer probe.Stop()
	sweep := time.NewTicker(max(b.o.ForgetAfter/16, time.Second))
	defer sweep.Stop()
	for {
		select {
		case now := <-probe.C:
			for _, c := range b.prober.due(now) {
				b.pool.submit(c.ping)
			}
		case now := <-sweep.C:
			b.registry.forget(now.Add(-b.o.ForgetAfter))
		case <-b.life.Done():
			return
		}
	}
}

// ping pings the device without joining the line: a device answers a ping while a call runs, and
// a call must not wait for it.
func (c *connection) ping() {
	ctx, cancel := context.WithTimeout(c.broker.life, c.broker.o.RequestTimeout)
	defer cancel()
	if c.probe(ctx) == nil {
		c.answered()
	}
}

// probe requests something that the device answers without an effect. Plain MCP devices need not
// know ping, and the SDKs of MCP over MQTT do not answer it: they are asked for their tools, or
// introduced again if they have not been yet.
func (c *connection) probe(ctx context.Context) error {
	if !c.dialect.Opening().Standard {
		return c.session.Ping(ctx)
	}
	if !c.initialized() {
		c.resumeOnboarding()
		return errNotInitialized
	}
	_, err := c.session.ListTools(ctx, mcp.ListToolsParams{})
	if _, refused := errors.AsType[*mcp.Error](err); refused || errors.Is(err, mcp.ErrMalformed) ||
		errors.Is(err, mcp.ErrTooLarge) {
		return nil
	}
	return err
}

var errNotInitialized = errors.New("the device has not answered initialize on this connection")
