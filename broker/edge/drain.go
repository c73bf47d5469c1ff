package edge

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"fleetd/broker/link"
)

const (
	movesPerSecond = 500
	moveBurst      = 10 // devices that are asked at once after a pause

	// answerWithin is how long a device that was sent a message may take to answer before it is asked
	// to move: the answer to a call would be lost.
	answerWithin = 10 * time.Second

	drainPause    = 50 * time.Millisecond // between two passes over the connections
	movedGoodbye  = time.Second           // to send the DISCONNECT: a stuck device accepts none
	refusedDrains = "edge_drained"        // reason for refusing a connection
)

// A Draining is the progress of a drain: all devices are asked to connect to another edge.
type Draining struct {
	Since     time.Time
	Moved     int // connections of devices that were asked to move
	Remaining int // connections of devices that are open
}

// A drain is under way from Drain to CancelDrain or the end of the process.
type drain struct {
	since time.Time
	end   context.CancelFunc
	ended chan struct{}
	moved atomic.Int64
}

// Drain refuses new connections from now on, and after Options.DrainNotice asks the devices to move,
// 500 a second. Devices in a conversation, and those that are about to answer a call, follow when they
// have ended it, or after Options.DrainLimit. The messages that were posted to a device are written
// first. MCP clients are disconnected after the devices. Drain does not wait. A second drain changes
// nothing.
func (e *Edge) Drain() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.draining.Load() != nil || e.stopping {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &drain{since: time.Now().UTC(), end: cancel, ended: make(chan struct{})}
	e.draining.Store(d)
	e.log.Info("draining: devices are asked to connect to another edge", "connections", len(e.connections))
	go e.move(ctx, d)
}

// CancelDrain accepts connections again. Devices that were asked to move do.
func (e *Edge) CancelDrain() {
	if d := e.draining.Swap(nil); d != nil {
		d.end()
		<-d.ended
		e.log.Info("no longer draining", "moved", d.moved.Load())
	}
}

// Draining returns the progress of the drain; ok is false if none is under way.
func (e *Edge) Draining() (progress Draining, ok bool) {
	d := e.draining.Load()
	if d == nil {
		return Draining{}, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return Draining{Since: d.since, Moved: int(d.moved.Load()), Remaining: len(e.connections)}, true
}

// stopDraining ends the drain for a shutdown, and permits no further one.
func (e *Edge) stopDraining() {
	e.mu.Lock()
	e.stopping = true
	d := e.draining.Load()
	e.mu.Unlock()
	if d != nil {
		d.end()
		<-d.ended
	}
}

// move asks all devices to move, also those that were being admitted when the drain began, until ctx
// ends. MCP clients follow the devices that they may be calling.
func (e *Edge) move(ctx context.Context, d *drain) {
	defer close(d.ended)
	pace := rate.NewLimiter(movesPerSecond, moveBurst)
	if len(e.established())+int(e.stats.agents.Load()) > 0 && !sleep(ctx, e.o.DrainNotice) {
		return
	}
	for limit := d.since.Add(e.o.DrainLimit); ; {
		devices := e.established()
		for _, c := range devices {
			busy := func() bool { return c.isBusy(time.Now()) && time.Now().Before(limit) }
			if c.asked.Load() || busy() {
				continue
			}
			if pace.Wait(ctx) != nil {
				return
			}
			if c.carrier.leave(link.ErrEdgeDrained, busy) {
				d.moved.Add(1)
			}
		}
		if len(devices) == 0 || time.Now().After(limit) {
			e.moveAgents()
		}
		if !sleep(ctx, drainPause) {
			return
		}
	}
}

// moveAgents asks the MCP clients to connect to another edge.
func (e *Edge) moveAgents() {
	if e.stats.agents.Load() == 0 {
		return
	}
	for _, cl := range e.server.Clients.GetAll() {
		if a := agentOf(cl); a != nil && a.asked.CompareAndSwap(false, true) {
			go func() { // a client that does not read must not delay the others
				within(movedGoodbye, func() { a.End(AgentMoved) })
				a.client.Stop(nil)
			}()
		}
	}
}

// established returns the connections that are open.
func (e *Edge) established() []*connection {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*connection, 0, len(e.connections))
	for c := range e.connections {
		all = append(all, c)
	}
	return all
}

// isBusy reports whether the device is in a conversation, or may be about to answer.
func (c *connection) isBusy(now time.Time) bool {
	posted := c.posted.Load()
	return c.talking.Load() || posted != 0 && now.Sub(time.Unix(0, posted)) < answerWithin
}

// sleep reports whether ctx is still alive after d.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
