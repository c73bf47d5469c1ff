package cluster

import (
	"cmp"
	"context"
	"crypto/hmac"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

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

	// TicketKey signs what edges announce to the next leader. All cores have the same.
	TicketKey []byte

	// Lost is called when an edge is lost, after its connections have ended. May be nil.
	Lost func(edge string)

	// Silent is called for each connection of an edge that becomes silent, and Heard for each that such
	// an edge turns out to have held. May be nil.
	Silent func(c fleet.Connection, since time.Time)
	Heard  func(c fleet.Connection)

	// PostTimeout is how long an edge may take to acknowledge a message. Later it does not pass the
	// message to the device. Default: 5s.
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
	Term        int       `json:"term"`               // that it follows or leads; 0 for none
	Draining    *Draining `json:"draining,omitempty"` // nil unless an edge is being drained
	Expires     time.Time `json:"expires,omitzero"`   // its certificate
	Leaves      bool      `json:"leaves,omitempty"`   // it stops, and this is its last beat
	Load
}

// A Draining is the progress of an edge's drain.
type Draining struct {
	Since     time.Time `json:"since"`
	Moved     int       `json:"moved"`
	Remaining int       `json:"remaining"`
}

const (
	maxOpening = 256      // connections of one edge that the core admits at a time
	maxOpen    = 64 << 10 // bytes of a frame that asks to admit a connection
	maxWork    = 4 * window

	// maxAhead is how far the epochs of an edge's connections may be ahead of the clock here: a core
	// with another clock may have assigned them.
	maxAhead = 24 * time.Hour
)

// A Core gives the leading core the connections of all edges.
type Core struct {
	o   CoreOptions
	log *slog.Logger

	mu    sync.Mutex
	peers map[string]*peer // by the name of the edge
	twins map[string]*rate.Sometimes
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
	Twins       int64 // batches of edges whose name another process uses, which is served instead
	Panics      int64 // contained in one connection
}

type coreCounters struct{ garbage, twins, panics atomic.Int64 }

// NewCore returns the leader's side of the link. [Core.Run] starts it.
func NewCore(o CoreOptions) *Core {
	o.PostTimeout = cmp.Or(o.PostTimeout, 5*time.Second)
	o.LostAfter = cmp.Or(o.LostAfter, time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Silent == nil {
		o.Silent = func(fleet.Connection, time.Time) {}
	}
	if o.Heard == nil {
		o.Heard = func(fleet.Connection) {}
	}
	o.Leader.Link = cmp.Or(o.Leader.Link, latestVersion)
	return &Core{o: o, log: o.Log, peers: make(map[string]*peer), twins: make(map[string]*rate.Sometimes)}
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
	connected := c.o.Bus.StatusChanged(nats.CONNECTED)
	defer c.o.Bus.RemoveStatusListener(connected)
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		c.announce()
		select {
		case now := <-beat.C:
			c.sweep(now)
		case <-connected:
			c.mu.Lock()
			for _, p := range c.peers {
				p.stream.resume()
			}
			c.mu.Unlock()
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
	s := CoreStats{Edges: int64(len(c.peers)), Garbage: c.stats.garbage.Load(),
		Twins: c.stats.twins.Load(), Panics: c.stats.panics.Load()}
	for _, p := range c.peers {
		s.Connections += int64(p.len())
		if p.attached.Load() {
			s.Attached++
		}
	}
	return s
}

// sweep ends the connections of edges that have been silent for too long.
func (c *Core) sweep(now time.Time) {
	c.mu.Lock()
	var lost []*peer
	for name, p := range c.peers {
		silent := p.stream.silentFor(now)
		if silent >= c.o.LostAfter || p.seemsLost(now, silent) {
			lost = append(lost, p)
			delete(c.peers, name)
		} else if silent >= silentAfter {
			p.enqueue(received{silent: true})
		}
	}
	c.mu.Unlock()
	for _, p := range lost {
		c.log.Warn("an edge is lost", "edge", p.name, "connections", p.len())
		p.lose()
	}
}

// suspectAfter is how long an edge that seems to have ended may be silent: it sends a beat each second.
const suspectAfter = 3 * time.Second

// Suspect reports that the process of an edge seems to have ended. If it is silent from now on, its
// connections have ended with it.
func (c *Core) Suspect(edge string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[edge]; p != nil {
		p.suspect.Store(time.Now().UnixNano())
	}
}

// seemsLost reports whether an edge under suspicion has been silent since.
func (p *peer) seemsLost(now time.Time, silent time.Duration) bool {
	since := p.suspect.Load()
	if since == 0 {
		return false
	}
	if now.Add(-silent).After(time.Unix(0, since).Add(beatEvery / 2)) { // heard after it
		p.suspect.Store(0)
		return false
	}
	return silent >= suspectAfter
}

// receive handles a batch of an edge. The bus lets an edge publish under its own name only.
func (c *Core) receive(name string, data []byte) {
	h, frames, err := parseHeader(data)
	if err == nil && h.term != uint64(c.o.Leader.Term) {
		err = fmt.Errorf("it is for term %d", h.term)
	}
	if err != nil {
		c.garbage(name, err)
		return
	}
	c.mu.Lock()
	p := c.peers[name]
	if p != nil && p.stream.edge == h.edge {
		c.mu.Unlock()
		p.enqueue(received{header: h, frames: frames})
		return
	}
	next, answer := c.begin(name, p, h, frames)
	if next != nil {
		c.peers[name] = next
	}
	c.mu.Unlock()
	if next == nil {
		answer.version, answer.edge, answer.term, answer.round = h.version, h.edge, h.term, 1
		_ = c.o.Bus.Publish(c.o.Cluster.Down(name), appendHeader(nil, answer)) // repeated, if the edge's batch is
		return
	}
	if p != nil {
		p.lose() // the edge has started again
	}
	next.enqueue(received{header: h, frames: frames})
}

// begin handles a batch of a stream that is unknown here. It returns the edge if its stream begins
// with the batch, and otherwise the answer to it. p is the edge with the same name; nil for none.
func (c *Core) begin(name string, p *peer, h header, frames []byte) (*peer, header) {
	if p != nil && p.refused == h.edge && h.number != 1 && !p.stream.silent(time.Now()) {
		return nil, c.twin(name)
	}
	if h.number != 1 {
		return nil, header{missing: h.round, restart: true}
	}
	f, _, err := nextFrame(frames)
	var hello helloFrame
	if err != nil || f.kind != frameHello || json.Unmarshal(f.body, &hello) != nil || c.life.Err() != nil {
		c.garbage(name, errors.New("it does not introduce the edge"))
		return nil, header{}
	}
	if p != nil && hello.before(p.hello) && !p.stream.silent(time.Now()) {
		p.refused = h.edge
		return nil, c.twin(name)
	}
	return c.newPeer(name, h.version, h.edge, hello), header{}
}

// twin reports that two processes use the name of an edge. The later one is served.
func (c *Core) twin(name string) header {
	c.stats.twins.Add(1)
	log := c.twins[name]
	if log == nil {
		log = &rate.Sometimes{First: 1, Interval: time.Minute}
		c.twins[name] = log
	}
	log.Do(func() {
		c.log.Error("two edges use the same name; only the one that started last is served: stop the other, or give it"+
			" another name and certificate", "edge", name)
	})
	return header{twin: true}
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
	hello  helloFrame
	stream *stream
	end    context.CancelFunc
	lost   chan struct{}       // closed when the edge is lost
	gate   *semaphore.Weighted // limits the connections that are being opened
	work   chan received
	size   atomic.Int64 // of work, in bytes

	attached atomic.Bool // it has announced all its connections
	hidden   bool        // it is silent, and Silent was called; used by run

	suspect atomic.Int64 // when the process of the edge seemed to have ended, in Unix nanoseconds; 0 for never

	refused uint64 // number of the stream of an older process with the name; under core.mu

	mu          sync.Mutex
	connections map[uint64]*remote
	posts       map[uint64]*post // that wait for their result, by number
	lastPost    uint64
	gone        bool
}

// A received batch waits to be handled.
type received struct {
	header header
	frames []byte
	silent bool // no batch: nothing was received for a while
}

// newPeer returns an edge, which sends its first batch.
func (c *Core) newPeer(name string, version byte, number uint64, hello helloFrame) *peer {
	ctx, cancel := context.WithCancel(c.life)
	p := &peer{core: c, name: name, hello: hello, end: cancel, lost: make(chan struct{}),
		gate: semaphore.NewWeighted(maxOpening), connections: make(map[uint64]*remote),
		posts: make(map[uint64]*post), work: make(chan received, 1024)}
	down := c.o.Cluster.Down(name)
	p.stream = newStream(version, number, uint64(c.o.Leader.Term), func(batch []byte) error {
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
			p.size.Add(-int64(len(r.frames)))
			if r.silent {
				p.hide()
				continue
			}
			p.show()
			if err := p.stream.handle(r.header, r.frames); err != nil {
				p.core.garbage(p.name, err)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (p *peer) enqueue(r received) {
	if !r.silent {
		p.stream.hear()
	}
	if p.size.Load() > maxWork {
		return // repeated by the edge
	}
	p.size.Add(int64(len(r.frames)))
	select {
	case p.work <- r:
	default:
		p.size.Add(-int64(len(r.frames)))
	}
}

// hide reports the connections of an edge that is silent.
func (p *peer) hide() {
	silent := p.stream.silentFor(time.Now())
	if silent < silentAfter {
		return
	}
	p.abandon()
	if p.hidden {
		return
	}
	p.hidden = true
	p.core.log.Warn("an edge is silent", "edge", p.name, "connections", p.len(), "for", silent.Round(time.Second))
	since := time.Now().Add(-silent)
	p.each(func(c fleet.Connection) { p.core.o.Silent(c, since) })
}

// show ends hide.
func (p *peer) show() {
	if p.hidden {
		p.hidden = false
		p.core.log.Info("an edge is heard again", "edge", p.name, "connections", p.len())
		p.each(p.core.o.Heard)
	}
}

// each calls f with each connection that was admitted.
func (p *peer) each(f func(fleet.Connection)) {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.connections))
	p.mu.Unlock()
	for _, r := range all {
		r.mu.Lock()
		conn := r.conn
		r.mu.Unlock()
		if conn != nil {
			f(conn.Facts())
		}
	}
}

// abandon ends the connections that are being established while the edge is silent: each keeps later
// connections of the same device waiting.
func (p *peer) abandon() {
	p.mu.Lock()
	var all []*remote
	for n, r := range p.connections {
		if !r.established {
			all = append(all, r)
			delete(p.connections, n)
		}
	}
	p.mu.Unlock()
	for _, r := range all {
		r.closed(closedFrame{Cause: link.ErrEdgeLost.Cause})
		r.Stop(link.ErrEdgeLost.Cause)
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
	p.stream.stop()
	p.mu.Lock()
	p.gone = true
	close(p.lost)
	all := p.connections
	p.connections = make(map[uint64]*remote)
	p.mu.Unlock()
	for _, r := range all {
		r.closed(closedFrame{Cause: link.ErrEdgeLost.Cause})
	}
	if p.core.o.Lost != nil {
		p.core.o.Lost(p.name)
	}
}

// handle handles a frame of the edge.
func (p *peer) handle(f frame) {
	switch f.kind {
	case frameHello:
		return // see Core.begin
	case framePresented:
		p.attached.Store(true)
		p.core.log.Info("an edge is attached", "edge", p.name, "version", p.hello.Version, "connections", p.len())
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
	r := &remote{peer: p, number: f.conn}
	p.mu.Lock()
	again := p.connections[f.conn] != nil
	if !again && !p.gone {
		p.connections[f.conn] = r
	}
	gone := p.gone
	p.mu.Unlock()
	if again {
		p.core.garbage(p.name, errors.New("it opens a connection twice"))
	}
	if again || gone {
		return
	}
	q, facts, err := p.core.parseOpen(p.name, f)
	switch {
	case err != nil:
		p.core.garbage(p.name, err)
		p.refuse(r, link.RefusedCredentials)
		if f.kind == framePresent {
			r.Stop(link.ErrInternal.Cause) // the device connects again
		}
	case f.kind == framePresent:
		defer r.contain()
		r.dialect, r.established = q.Dialect, true
		r.admitted(p.core.o.Core.Adopt(q, facts, r))
	default:
		r.dialect = q.Dialect
		p.core.running.Go(func() {
			if p.gate.Acquire(p.core.life, 1) != nil {
				return
			}
			defer p.gate.Release(1)
			if !r.hasEnded() {
				p.admit(q, r)
			}
		})
	}
}

// parseOpen returns what a frame says of a connection. The facts are those of a present one.
func (c *Core) parseOpen(node string, f frame) (q link.Connect, facts fleet.Connection, err error) {
	if len(f.body) > maxOpen {
		return q, facts, fmt.Errorf("it describes a connection in %d bytes", len(f.body))
	}
	var open openFrame
	if err := open.parse(f.body); err != nil {
		return q, facts, err
	}
	if q, err = open.connect(node); err != nil || f.kind == frameOpen {
		return q, facts, err
	}
	if open.Facts == nil || open.Facts.Device != q.Device {
		return q, facts, fmt.Errorf("it presents another device than %s", fleet.CleanText(string(q.Device), 64))
	}
	facts = *open.Facts
	if !hmac.Equal(open.Ticket, ticket(c.o.TicketKey, node, facts)) {
		return q, facts, fmt.Errorf("it presents a connection of %s that no core of this cluster admitted", q.Device)
	}
	if facts.Epoch <= 0 || facts.Epoch > time.Now().Add(maxAhead).UnixMicro() {
		return q, facts, fmt.Errorf("connection of %s: epoch %d", q.Device, facts.Epoch)
	}
	return q, facts, nil
}

// admit asks the core to admit a connection.
func (p *peer) admit(q link.Connect, r *remote) {
	defer func() {
		if panicked := recover(); panicked != nil {
			r.log(panicked)
			p.refuse(r, link.RefusedLater)
			r.closed(closedFrame{Cause: link.ErrInternal.Cause})
		}
	}()
	conn, err := p.core.o.Core.Open(q, r)
	if err != nil {
		p.refuse(r, refusalOf(err))
		return
	}
	conn.Establish()
	facts := conn.Facts()
	body := encode(admission{facts, ticket(p.core.o.TicketKey, p.name, facts)})
	if r.admitted(conn) {
		_ = p.stream.announce(frameAdmitted, r.number, body)
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
	_ = p.stream.announce(frameRefused, r.number, []byte(why))
}

// A post waits until the edge has accepted its message.
type post struct {
	result  chan error // has room for one; sent to under peer.mu
	timeout *time.Timer
}

var posts = sync.Pool{New: func() any {
	timeout := time.NewTimer(time.Hour)
	timeout.Stop()
	return &post{result: make(chan error, 1), timeout: timeout}
}}

// post sends a message and waits until the edge has accepted it.
func (p *peer) post(conn uint64, message []byte) error {
	w := posts.Get().(*post)
	number, err := p.begin(w)
	if err != nil {
		posts.Put(w)
		return err
	}
	defer p.finish(number, w)
	body := binary.AppendUvarint(make([]byte, 0, 2*binary.MaxVarintLen64+len(message)), number)
	if p.stream.version >= 2 {
		body = binary.AppendUvarint(body, uint64(p.stream.at(time.Now().Add(p.core.o.PostTimeout))))
	}
	if err := p.stream.add(framePost, conn, append(body, message...)); err != nil {
		return errNotSent(err.Error())
	}
	w.timeout.Reset(p.core.o.PostTimeout)
	select {
	case err := <-w.result:
		return err
	case <-p.lost:
		return fmt.Errorf("%w: %w, %s, before it acknowledged the message", mcp.ErrClosed, link.ErrEdgeLost, p.name)
	case <-w.timeout.C:
		return fmt.Errorf("%w: %w: %s did not acknowledge the message", mcp.ErrClosed, link.ErrEdgeLost, p.name)
	case <-p.core.life.Done():
		return fmt.Errorf("%w: fleetd is stopping", mcp.ErrClosed)
	}
}

// begin returns the number of a post.
func (p *peer) begin(w *post) (uint64, error) {
	silent := p.stream.silent(time.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.gone:
		return 0, errNotSent("the edge is lost")
	case silent:
		return 0, link.ErrEdgeSilent
	}
	p.lastPost++
	p.posts[p.lastPost] = w
	return p.lastPost, nil
}

// finish ends a post. No result comes after it.
func (p *peer) finish(number uint64, w *post) {
	w.timeout.Stop()
	p.mu.Lock()
	delete(p.posts, number)
	p.mu.Unlock()
	select {
	case <-w.result:
	default:
	}
	posts.Put(w)
}

// accepted handles the result of a post.
func (p *peer) accepted(body []byte) {
	number, rest, err := uvarint(body)
	if err != nil || len(rest) == 0 {
		p.core.stats.garbage.Add(1)
		return
	}
	switch rest[0] {
	case 0:
		err = nil
	case 1:
		err = errNotSent(fleet.CleanText(string(rest[1:]), 200))
	default:
		err = fmt.Errorf("%w: %s", mcp.ErrClosed, fleet.CleanText(string(rest[1:]), 200))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.posts[number]
	if w == nil {
		return // its timeout has passed
	}
	select {
	case w.result <- err:
	default: // a second result
	}
}

// A remote is a connection at an edge.
type remote struct {
	peer    *peer
	number  uint64
	dialect dialect.Dialect

	established bool // under peer.mu, after the first frame

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
	r.log(p)
	r.Stop(link.ErrInternal.Cause)
}

func (r *remote) log(panicked any) {
	r.peer.core.stats.panics.Add(1)
	stack := debug.Stack()
	r.peer.core.log.Error("connection ended by a panic", "edge", r.peer.name, "panic", fmt.Sprint(panicked),
		"stack", string(stack[:min(len(stack), 4096)]))
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
		if r.establish() {
			conn.Established()
		}
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

// establish reports whether the connection is established only now. An adopted one was before.
func (r *remote) establish() bool {
	r.peer.mu.Lock()
	defer r.peer.mu.Unlock()
	first := !r.established
	r.established = true
	return first
}

func (r *remote) hasEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone
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
func (r *remote) Finish() { _ = r.peer.stream.announce(frameFinish, r.number, nil) }

// Stop implements [link.Carrier].
func (r *remote) Stop(cause fleet.Cause) {
	r.mu.Lock()
	again := r.stopped
	r.stopped = true
	r.mu.Unlock()
	if !again {
		_ = r.peer.stream.announce(frameStop, r.number, encode(cause))
	}
}
