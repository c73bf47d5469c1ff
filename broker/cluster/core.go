package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/semaphore"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/internal/bus"
	"fleetd/mcp"
)

// CoreOptions configures a [Core]. Bus, Cluster, Leader and Core are required.
type CoreOptions struct {
	Bus     *nats.Conn
	Cluster bus.Cluster
	Leader  Leader // this process
	Core    link.Adopter
	Log     *slog.Logger

	// PostTimeout is how long an edge may take to acknowledge a message. Default: 5s.
	PostTimeout time.Duration
	// LostAfter is how long an edge may be silent until its connections count as ended. Default: 60s.
	LostAfter time.Duration
}

// A Node is one process of the cluster, as its beat describes it.
type Node struct {
	Name        string    `json:"name"`
	Role        bus.Role  `json:"role"`
	Incarnation uint64    `json:"incarnation"`
	Version     string    `json:"version"`
	Since       time.Time `json:"since"`
	Connections int       `json:"connections"`
	Term        int       `json:"term"` // that it follows or leads; 0 for none
	Draining    bool      `json:"draining,omitempty"`
	Leaves      bool      `json:"leaves,omitempty"` // it stops, and this is its last beat
	Load
}

// maxOpening is how many connections of one edge the core admits at a time.
const maxOpening = 256

// A Core gives the leading core the connections of all edges.
type Core struct {
	o   CoreOptions
	log *slog.Logger

	mu    sync.Mutex
	peers map[string]*peer // by the name of the edge
	stats coreCounters

	life    context.Context
	running sync.WaitGroup
}

// CoreStats are the counters of a [Core] since its start. Fields marked "now" are current values.
type CoreStats struct {
	Edges       int64 // now
	Attached    int64 // now: those that have announced all their connections
	Connections int64 // now
	Garbage     int64 // batches or frames that could not be read
	Panics      int64 // contained in one connection
}

type coreCounters struct{ garbage, panics atomic.Int64 }

// NewCore returns the leader's side of the link. [Core.Run] starts it.
func NewCore(o CoreOptions) *Core {
	o.PostTimeout = cmp.Or(o.PostTimeout, 5*time.Second)
	o.LostAfter = cmp.Or(o.LostAfter, time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Core{o: o, log: o.Log, peers: make(map[string]*peer)}
}

// Run leads until ctx ends: it announces the term and serves the edges. The connections stay open at
// the edges, for the next leader.
func (c *Core) Run(ctx context.Context) error {
	c.life = ctx
	defer c.running.Wait()
	up, err := c.o.Bus.Subscribe(c.o.Cluster.UpAll(c.o.Leader.Term), func(m *nats.Msg) {
		c.receive(bus.Sender(m.Subject), m.Data)
	})
	if err != nil {
		return fmt.Errorf("link to the edges: %w", err)
	}
	if err := up.SetPendingLimits(-1, 4*maxQueued); err != nil {
		return fmt.Errorf("link to the edges: %w", err)
	}
	defer func() { _ = up.Unsubscribe() }()
	nodes, err := c.o.Bus.Subscribe(c.o.Cluster.Nodes(), func(m *nats.Msg) {
		var n Node
		if json.Unmarshal(m.Data, &n) == nil && n.Role == bus.Edge && n.Term < c.o.Leader.Term {
			c.announce()
		}
	})
	if err != nil {
		return fmt.Errorf("link to the edges: %w", err)
	}
	defer func() { _ = nodes.Unsubscribe() }()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		c.announce()
		select {
		case now := <-beat.C:
			c.sweep(now)
		case <-ctx.Done():
			return nil
		}
	}
}

// announce publishes the term.
func (c *Core) announce() {
	_ = c.o.Bus.Publish(c.o.Cluster.Term(), encode(c.o.Leader)) // the next beat follows
}

// Stats returns the counters.
func (c *Core) Stats() CoreStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := CoreStats{Edges: int64(len(c.peers)), Garbage: c.stats.garbage.Load(), Panics: c.stats.panics.Load()}
	for _, p := range c.peers {
		p.mu.Lock()
		s.Connections += int64(len(p.connections))
		if p.presented {
			s.Attached++
		}
		p.mu.Unlock()
	}
	return s
}

// sweep ends the connections of edges that have been silent for too long.
func (c *Core) sweep(now time.Time) {
	c.mu.Lock()
	var lost []*peer
	for name, p := range c.peers {
		if p.stream.silentFor(now) >= c.o.LostAfter {
			lost = append(lost, p)
			delete(c.peers, name)
		}
	}
	c.mu.Unlock()
	for _, p := range lost {
		c.log.Warn("an edge is lost", "edge", p.name, "connections", p.len())
		p.lose()
	}
}

// receive handles a batch of an edge. The bus lets an edge publish under its own name only.
func (c *Core) receive(name string, data []byte) {
	h, frames, err := parseHeader(data)
	if err != nil || h.term != uint64(c.o.Leader.Term) {
		c.garbage(name, err)
		return
	}
	c.mu.Lock()
	p := c.peers[name]
	var before *peer
	if p == nil || p.stream.edge != h.edge {
		before, p = p, nil
		if h.number == 1 {
			p = c.newPeer(name, h.edge)
			c.peers[name] = p
		}
	}
	c.mu.Unlock()
	if p == nil {
		return // what precedes it is repeated, and comes first
	}
	if before != nil {
		before.lose() // the edge has started again
	}
	p.enqueue(h, frames)
}

func (c *Core) garbage(edge string, err error) {
	if c.stats.garbage.Add(1) == 1 {
		c.log.Error("cannot read a message of an edge; further ones are counted", "edge", edge, "err", err)
	}
}

// A peer is an edge.
type peer struct {
	core   *Core
	name   string
	stream *stream
	end    context.CancelFunc
	lost   chan struct{}       // closed when the edge is lost
	gate   *semaphore.Weighted // limits the connections that are being opened
	work   chan received

	mu          sync.Mutex
	hello       helloFrame
	presented   bool
	connections map[uint64]*remote
	posts       map[uint64]chan error // that wait for their result, by number
	lastPost    uint64
	gone        bool
}

type received struct {
	header header
	frames []byte
}

// newPeer returns an edge, which sends its first batch.
func (c *Core) newPeer(name string, incarnation uint64) *peer {
	ctx, cancel := context.WithCancel(c.life)
	p := &peer{core: c, name: name, end: cancel, lost: make(chan struct{}), gate: semaphore.NewWeighted(maxOpening),
		connections: make(map[uint64]*remote), posts: make(map[uint64]chan error), work: make(chan received, 1024)}
	down := c.o.Cluster.Down(name)
	p.stream = newStream(incarnation, uint64(c.o.Leader.Term), func(batch []byte) error {
		return c.o.Bus.Publish(down, batch)
	}, p.handle)
	c.running.Go(func() { p.stream.run(ctx) })
	c.running.Go(func() { p.run(ctx) })
	return p
}

// run handles the batches of the edge, so that a busy edge does not delay the others.
func (p *peer) run(ctx context.Context) {
	for {
		select {
		case r := <-p.work:
			if err := p.stream.handle(r.header, r.frames); err != nil {
				p.core.garbage(p.name, err)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (p *peer) enqueue(h header, frames []byte) {
	select {
	case p.work <- received{h, frames}:
	default: // repeated by the edge
	}
}

func (p *peer) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.connections)
}

// lose ends all connections of the edge.
func (p *peer) lose() {
	p.end()
	p.mu.Lock()
	p.gone = true
	close(p.lost)
	all := p.connections
	p.connections = make(map[uint64]*remote)
	p.mu.Unlock()
	for _, r := range all {
		r.closed(closedFrame{Cause: link.ErrEdgeLost.Cause})
	}
}

// handle handles a frame of the edge.
func (p *peer) handle(f frame) {
	switch f.kind {
	case frameHello:
		p.mu.Lock()
		defer p.mu.Unlock()
		if json.Unmarshal(f.body, &p.hello) != nil {
			p.core.stats.garbage.Add(1)
		}
		return
	case framePresented:
		p.mu.Lock()
		p.presented = true
		n := len(p.connections)
		p.mu.Unlock()
		p.core.log.Info("an edge is attached", "edge", p.name, "connections", n)
		return
	case frameAccepted:
		p.accepted(f.body)
		return
	case frameOpen, framePresent:
		p.open(f)
		return
	}
	p.mu.Lock()
	r := p.connections[f.conn]
	if f.kind == frameClosed {
		delete(p.connections, f.conn)
	}
	p.mu.Unlock()
	if r == nil {
		return // the core has refused it
	}
	r.handle(f)
}

// open admits a connection, or adopts one that the core of an earlier term admitted.
func (p *peer) open(f frame) {
	var open openFrame
	if err := json.Unmarshal(f.body, &open); err != nil {
		p.core.garbage(p.name, err)
		return
	}
	r := &remote{peer: p, number: f.conn}
	p.mu.Lock()
	if p.gone || p.connections[f.conn] != nil {
		p.mu.Unlock()
		return
	}
	p.connections[f.conn] = r
	p.mu.Unlock()
	q, err := open.connect(p.name)
	switch {
	case err != nil:
		p.core.garbage(p.name, err)
		p.refuse(r, link.RefusedCredentials)
	case f.kind == framePresent && open.Facts != nil:
		r.dialect = q.Dialect
		r.admitted(p.core.o.Core.Adopt(q, *open.Facts, r))
	default:
		r.dialect = q.Dialect
		if p.gate.Acquire(p.core.life, 1) != nil {
			return
		}
		p.core.running.Go(func() {
			defer p.gate.Release(1)
			defer r.contain()
			conn, err := p.core.o.Core.Open(q, r)
			if err != nil {
				p.refuse(r, refusalOf(err))
				return
			}
			conn.Establish()
			if r.admitted(conn) {
				_ = p.stream.add(frameAdmitted, r.number, encode(conn.Facts()))
			}
		})
	}
}

func refusalOf(err error) link.Refusal {
	if r, ok := err.(link.Refusal); ok {
		return r
	}
	return link.RefusedCredentials
}

func (p *peer) refuse(r *remote, why link.Refusal) {
	p.mu.Lock()
	delete(p.connections, r.number)
	p.mu.Unlock()
	_ = p.stream.add(frameRefused, r.number, []byte(why)) // lost, the edge refuses it after its timeout
}

// post sends a message and waits until the edge has accepted it.
func (p *peer) post(conn uint64, message []byte) error {
	result := make(chan error, 1)
	p.mu.Lock()
	switch {
	case p.gone:
		p.mu.Unlock()
		return errNotSent("the edge is lost")
	case p.stream.silent(time.Now()):
		p.mu.Unlock()
		return errNotSent("the edge is silent")
	}
	p.lastPost++
	number := p.lastPost
	p.posts[number] = result
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.posts, number)
		p.mu.Unlock()
	}()
	body := binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64+len(message)), number)
	if err := p.stream.add(framePost, conn, append(body, message...)); err != nil {
		return errNotSent(err.Error())
	}
	timeout := time.NewTimer(p.core.o.PostTimeout)
	defer timeout.Stop()
	select {
	case err := <-result:
		return err
	case <-p.lost:
		return fmt.Errorf("%w: the edge %s was lost before it acknowledged the message", mcp.ErrClosed, p.name)
	case <-timeout.C:
		return fmt.Errorf("%w: the edge %s did not acknowledge the message", mcp.ErrClosed, p.name)
	case <-p.core.life.Done():
		return fmt.Errorf("%w: fleetd is stopping", mcp.ErrClosed)
	}
}

// accepted handles the result of a post.
func (p *peer) accepted(body []byte) {
	number, rest, err := uvarint(body)
	if err != nil || len(rest) == 0 {
		p.core.stats.garbage.Add(1)
		return
	}
	p.mu.Lock()
	result := p.posts[number]
	p.mu.Unlock()
	if result == nil {
		return // its timeout has passed
	}
	switch rest[0] {
	case 0:
		result <- nil
	case 1:
		result <- errNotSent(fleet.CleanText(string(rest[1:]), 200))
	default:
		result <- fmt.Errorf("%w: %s", mcp.ErrClosed, fleet.CleanText(string(rest[1:]), 200))
	}
}

// A remote is a connection at an edge.
type remote struct {
	peer    *peer
	number  uint64
	dialect dialect.Dialect

	mu      sync.Mutex
	conn    link.Connection // nil until it is admitted
	gone    bool            // it has ended
	stopped bool
}

var _ link.Carrier = (*remote)(nil)

// admitted sets the connection that the core has admitted. It returns false if the connection has
// ended meanwhile.
func (r *remote) admitted(conn link.Connection) bool {
	r.mu.Lock()
	r.conn = conn
	gone := r.gone
	r.mu.Unlock()
	if gone {
		conn.Closed(false, link.ErrEdgeLost.Cause)
	}
	return !gone
}

// contain ends one connection if a frame of it causes a panic.
func (r *remote) contain() {
	p := recover()
	if p == nil {
		return
	}
	r.peer.core.stats.panics.Add(1)
	stack := debug.Stack()
	r.peer.core.log.Error("connection ended by a panic", "edge", r.peer.name, "panic", fmt.Sprint(p),
		"stack", string(stack[:min(len(stack), 4096)]))
	r.Stop(link.ErrInternal.Cause)
}

// handle handles a frame of the connection, in the order of the frames.
func (r *remote) handle(f frame) {
	defer r.contain()
	if f.kind == frameClosed {
		var end closedFrame
		if json.Unmarshal(f.body, &end) != nil {
			r.peer.core.stats.garbage.Add(1)
		}
		r.closed(end)
		return
	}
	r.mu.Lock()
	conn := r.conn
	r.mu.Unlock()
	if conn == nil {
		r.peer.core.stats.garbage.Add(1) // it is not admitted yet
		return
	}
	switch f.kind {
	case frameEstablished:
		conn.Established()
	case frameSeen:
		conn.Seen()
	case frameReceive:
		topic, properties, payload, err := parseMessage(f.body)
		if err != nil {
			r.peer.core.stats.garbage.Add(1)
			return
		}
		m := link.Message{Topic: topic, Payload: payload, Properties: properties}
		m.Decoded, m.Err = r.dialect.Decode(topic, payload, properties)
		conn.Receive(m)
	case frameConverse:
		var event link.Event
		if json.Unmarshal(f.body, &event) != nil {
			r.peer.core.stats.garbage.Add(1)
			return
		}
		conn.Converse(event)
	default:
		r.peer.core.stats.garbage.Add(1)
	}
}

func (r *remote) closed(end closedFrame) {
	r.mu.Lock()
	conn, again := r.conn, r.gone
	r.gone = true
	r.mu.Unlock()
	if conn != nil && !again {
		conn.Closed(end.Clean, end.Cause)
	}
}

// Begin implements [link.Carrier].
func (r *remote) Begin(to dialect.Address, size int) []byte {
	return appendMessage(make([]byte, 0, 128+size), to.Topic, to.Properties)
}

// Post implements [link.Carrier].
func (r *remote) Post(message []byte) error { return r.peer.post(r.number, message) }

// Notify implements [link.Carrier].
func (r *remote) Notify(message []byte) error {
	if err := r.peer.stream.add(frameNotify, r.number, message); err != nil {
		return errNotSent(err.Error())
	}
	return nil
}

// Finish implements [link.Carrier].
func (r *remote) Finish() { _ = r.peer.stream.add(frameFinish, r.number, nil) }

// Stop implements [link.Carrier].
func (r *remote) Stop(cause fleet.Cause) {
	r.mu.Lock()
	again := r.stopped
	r.stopped = true
	r.mu.Unlock()
	if !again {
		_ = r.peer.stream.add(frameStop, r.number, encode(cause))
	}
}
