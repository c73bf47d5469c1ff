package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/internal/bus"
	"fleetd/mcp"
)

// EdgeOptions configures an [Edge]. Bus, Cluster and Name are required.
type EdgeOptions struct {
	Bus     *nats.Conn
	Cluster bus.Cluster
	Name    string // of this node
	Version string // of fleetd
	Log     *slog.Logger

	// AdmitTimeout is how long a device waits for the core's answer; a standby that takes over may
	// give it. Default: 10s, after which the device is asked to try again.
	AdmitTimeout time.Duration
	// Drain starts or ends a drain of the edge, and Draining returns its progress, nil if none is under
	// way. They do not wait. Default: this edge cannot be drained.
	Drain    func(drain bool)
	Draining func() *Draining
	// Expires returns when the certificate of this node expires. Default: not announced.
	Expires func() time.Time
	// Messages counts the messages of the edge's devices, for its beat. Default: not announced.
	Messages func() int64
}

// maxHeld is how many bytes of messages of one device wait while there is no leader.
const maxHeld = 64 << 10

// An Edge is the core as an edge sees it: it passes on the connections to the leader.
type Edge struct {
	o           EdgeOptions
	log         *slog.Logger
	incarnation uint64 // of this process
	since       time.Time
	twins       rate.Sometimes // limits the log
	last        atomic.Uint64  // number of the latest connection
	stats       edgeCounters

	attaching sync.Mutex // held while streams change

	mu          sync.RWMutex
	leader      Leader  // zero before the first
	stream      *stream // with the leader; nil before the first
	endStream   context.CancelFunc
	connections map[uint64]*edgeConnection
	stopping    map[fleet.DeviceID]chan struct{} // closed when the device's connection is stopped
	changed     chan struct{}                    // closed when the leader changes

	life    context.Context
	running sync.WaitGroup
}

// EdgeStats are the counters of an [Edge] since its start.
type EdgeStats struct {
	Dropped int64 // messages of devices that were not passed on, because too many waited
	Garbage int64 // batches that could not be read
	Stale   int64 // batches of a leader that has been replaced
	Twins   int64 // replies of a leader that serves another process with this name
	Overdue int64 // messages for devices that came so late that the core had given them up
}

type edgeCounters struct{ dropped, garbage, stale, twins, overdue atomic.Int64 }

// A Leader is the core that leads.
type Leader struct {
	Term    int    `json:"term"`
	Name    string `json:"name"`
	Addr    string `json:"addr"` // of HTTP for edges
	Version string `json:"version"`
	Link    int    `json:"link,omitempty"` // latest version of the format that it understands. Default of a core: this one's; 0 in a beat: 1
}

var _ link.Core = (*Edge)(nil)

// NewEdge returns an edge's side of the link. [Edge.Run] starts it.
func NewEdge(o EdgeOptions) *Edge {
	o.AdmitTimeout = cmp.Or(o.AdmitTimeout, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Edge{o: o, log: o.Log, incarnation: rand.Uint64(), since: time.Now().UTC(),
		twins: rate.Sometimes{First: 1, Interval: time.Minute}, connections: make(map[uint64]*edgeConnection),
		stopping: make(map[fleet.DeviceID]chan struct{}), changed: make(chan struct{})}
}

// Run exchanges messages with the leader until ctx ends. The caller then has closed all connections.
func (e *Edge) Run(ctx context.Context) error {
	e.mu.Lock()
	e.life = ctx
	e.mu.Unlock()
	defer e.running.Wait()
	down, err := e.o.Bus.Subscribe(e.o.Cluster.Down(e.o.Name), func(m *nats.Msg) { e.receive(m.Data) })
	if err != nil {
		return err
	}
	defer func() { _ = down.Unsubscribe() }()
	term, err := e.o.Bus.Subscribe(e.o.Cluster.Term(), func(m *nats.Msg) {
		var l Leader
		if err := json.Unmarshal(m.Data, &l); err != nil || l.Term < 1 {
			e.stats.garbage.Add(1)
			return
		}
		e.follow(l)
	})
	if err != nil {
		return err
	}
	defer func() { _ = term.Unsubscribe() }()
	connected := e.o.Bus.StatusChanged(nats.CONNECTED)
	defer e.o.Bus.RemoveStatusListener(connected)
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		e.announce(false)
		select {
		case <-beat.C:
		case <-connected:
			e.mu.RLock()
			if e.stream != nil {
				e.stream.resume()
			}
			e.mu.RUnlock()
		case <-ctx.Done():
			e.announce(true)
			e.mu.Lock()
			if e.endStream != nil {
				e.endStream()
			}
			e.mu.Unlock()
			return nil
		}
	}
}

// announce publishes the beat of this node, the last one if it leaves. The leader answers the first one
// with its term.
func (e *Edge) announce(leaves bool) {
	e.mu.RLock()
	n := Node{Name: e.o.Name, Role: bus.Edge, Incarnation: e.incarnation, Version: e.o.Version, Since: e.since,
		Connections: len(e.connections), Term: e.leader.Term, Leaves: leaves}
	e.mu.RUnlock()
	if e.o.Expires != nil {
		n.Expires = e.o.Expires()
	}
	if e.o.Draining != nil {
		n.Draining = e.o.Draining()
	}
	if e.o.Messages != nil {
		n.Load = LoadOf(e.o.Messages())
	}
	text, _ := json.Marshal(n)                            // cannot fail
	_ = e.o.Bus.Publish(e.o.Cluster.Node(e.o.Name), text) // the next beat follows
}

// Leader returns the leader, and a channel that is closed when it changes. known is false while no
// core leads: before the first one, and while the last one is silent.
func (e *Edge) Leader() (l Leader, known bool, changed <-chan struct{}) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.leader, e.stream != nil && !e.stream.silent(time.Now()), e.changed
}

// LeaderSilence returns how long ago the leader was heard; known is false before the first one.
func (e *Edge) LeaderSilence() (silent time.Duration, known bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.stream == nil {
		return 0, false
	}
	return e.stream.silentFor(time.Now()), true
}

// Stats returns the counters.
func (e *Edge) Stats() EdgeStats {
	return EdgeStats{Dropped: e.stats.dropped.Load(), Garbage: e.stats.garbage.Load(), Stale: e.stats.stale.Load(),
		Twins: e.stats.twins.Load(), Overdue: e.stats.overdue.Load()}
}

// follow attaches the edge to the leader of a later term. One goroutine calls it at a time.
func (e *Edge) follow(l Leader) {
	e.mu.Lock()
	if known := e.leader; l.Term <= known.Term || e.life.Err() != nil {
		if l.Term == known.Term && l.Name == known.Name && l.Addr != known.Addr {
			e.leader = l
			e.announceLeader()
		}
		e.mu.Unlock()
		return
	}
	before := e.stream
	e.mu.Unlock()
	e.attach(l, before)
}

// attach begins a stream with the leader that replaces another, which is nil for the first one. What
// comes over the other one has no effect from now on.
func (e *Edge) attach(l Leader, before *stream) {
	e.attaching.Lock()
	defer e.attaching.Unlock()
	e.mu.RLock()
	current := e.stream
	e.mu.RUnlock()
	if before != current {
		return // attached meanwhile; if that was to an earlier leader, the next beat leads here again
	}
	if before != nil {
		before.stop() // without e.mu, which its receiver may be waiting for
	}
	up := e.o.Cluster.Up(l.Term, e.o.Name)
	var s *stream
	s = newStream(agreed(l.Link), rand.Uint64(), uint64(l.Term),
		func(batch []byte) error { return e.o.Bus.Publish(up, batch) }, func(f frame) { e.handle(s, f) })
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(e.life)
	if before != nil {
		e.endStream()
	}
	e.leader, e.stream, e.endStream = l, s, cancel
	_ = s.add(frameHello, 0, encode(helloFrame{Version: e.o.Version, Since: e.since, Incarnation: e.incarnation}))
	for _, c := range e.connections {
		c.attach(s)
	}
	_ = s.announce(framePresented, 0, nil)
	if before != nil {
		for _, frames := range before.rest() {
			e.repeat(s, frames)
		}
	}
	e.running.Go(func() { s.run(ctx) })
	e.announceLeader()
	e.log.Info("attached to the leader", "term", l.Term, "leader", l.Name, "connections", len(e.connections))
}

func (e *Edge) announceLeader() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// repeat sends to a new leader what the previous one may not have received from connections that are
// still open. It may have: an answer that comes twice matches no call the second time.
func (e *Edge) repeat(s *stream, frames []byte) {
	for len(frames) > 0 {
		f, rest, err := nextFrame(frames)
		if err != nil {
			return // cannot happen: these are our frames
		}
		frames = rest
		switch f.kind {
		case frameReceive, frameConverse, frameSeen:
			if c := e.connections[f.conn]; c != nil && c.isEstablished() {
				_ = s.add(f.kind, f.conn, f.body)
			}
		}
	}
}

// receive handles a batch of a core.
func (e *Edge) receive(data []byte) {
	h, frames, err := parseHeader(data)
	if err != nil {
		e.garbage(err)
		return
	}
	e.mu.RLock()
	s, l := e.stream, e.leader
	e.mu.RUnlock()
	switch {
	case s == nil || h.term > s.term: // early: the beat of its term follows
		return
	case h.term < s.term:
		e.stats.stale.Add(1)
		return
	case h.edge != s.edge: // for another process of this name, or for an earlier stream
		return
	case h.twin:
		e.stats.twins.Add(1)
		s.forsake()
		e.twins.Do(func() {
			e.log.Error("another edge uses the name of this one and is served instead; give each edge a name and a certificate"+
				" that no other uses, then restart it", "edge", e.o.Name)
		})
		return
	case h.restart && s.restartable():
		e.log.Warn("the leader has lost this edge; attaching again", "term", l.Term, "leader", l.Name)
		e.attach(l, s)
		return
	}
	if err := s.handle(h, frames); err != nil {
		e.garbage(err)
	}
}

func (e *Edge) garbage(err error) {
	if e.stats.garbage.Add(1) == 1 {
		e.log.Error("cannot read a message of the core; further ones are counted", "err", err)
	}
}

// handle handles a frame that the leader sent on a stream.
func (e *Edge) handle(s *stream, f frame) {
	if f.kind == frameDrain {
		e.drain(f.body)
		return
	}
	e.mu.RLock()
	c := e.connections[f.conn]
	e.mu.RUnlock()
	if f.kind == framePost {
		number, message, err := uvarint(f.body)
		due := uint64(math.MaxInt64)
		if err == nil && s.version >= 2 {
			due, message, err = uvarint(message)
		}
		switch {
		case err != nil:
			e.stats.garbage.Add(1)
			return
		case c == nil:
			err = errGone
		case s.overdue(due):
			err = errOverdue
			e.stats.overdue.Add(1)
		default:
			err = c.deliver(message, c.carrier.Post)
		}
		body := binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64+1), number)
		switch {
		case err == nil:
			body = append(body, 0)
		case errors.Is(err, mcp.ErrNotSent):
			body = append(append(body, 1), err.Error()...)
		default:
			body = append(append(body, 2), err.Error()...)
		}
		_ = s.add(frameAccepted, f.conn, body) // lost, the core does not know the result
		return
	}
	if c == nil {
		return // it has ended
	}
	switch f.kind {
	case frameNotify:
		_ = c.deliver(f.body, c.carrier.Notify) // of a conversation; an error means that the connection is ending
	case frameAdmitted:
		var a admission
		if err := json.Unmarshal(f.body, &a); err != nil {
			e.stats.garbage.Add(1)
			return
		}
		c.decide(a, "")
	case frameRefused:
		c.decide(admission{}, cmp.Or(link.Refusal(f.body), link.RefusedCredentials))
	case frameFinish:
		c.carrier.Finish()
	case frameStop:
		var cause fleet.Cause
		if err := json.Unmarshal(f.body, &cause); err != nil {
			e.stats.garbage.Add(1)
		}
		e.stop(c, cause)
	default:
		e.stats.garbage.Add(1)
	}
}

// drain starts or ends a drain, and announces it at once.
func (e *Edge) drain(body []byte) {
	var d drainFrame
	if json.Unmarshal(body, &d) != nil || e.o.Drain == nil {
		e.stats.garbage.Add(1)
		return
	}
	e.o.Drain(d.Drain)
	e.announce(false)
}

// stop ends a connection on behalf of the core. It does not wait, but the device's next connection
// does: it comes after the farewell to this one.
func (e *Edge) stop(c *edgeConnection, cause fleet.Cause) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.Err() != nil {
		return // the caller of Run closes all connections
	}
	id, before, done := c.connect.Device, e.stopping[c.connect.Device], make(chan struct{})
	e.stopping[id] = done
	e.running.Go(func() {
		c.carrier.Stop(cause)
		if before != nil {
			<-before
		}
		close(done)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.stopping[id] == done {
			delete(e.stopping, id)
		}
	})
}

// stopped waits until the stops of a device's connections have had their effect.
func (e *Edge) stopped(id fleet.DeviceID) {
	e.mu.RLock()
	done := e.stopping[id]
	e.mu.RUnlock()
	if done != nil {
		<-done
	}
}

// send passes on a frame of a connection.
func (e *Edge) send(k kind, conn uint64, body []byte) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.stream == nil || e.stream.add(k, conn, body) != nil {
		e.stats.dropped.Add(1)
	}
}

// announceFrame passes on a frame of a connection without which the core would have a wrong idea of it.
func (e *Edge) announceFrame(k kind, conn uint64, body []byte) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.stream != nil && e.stream.announce(k, conn, body) != nil {
		e.stats.dropped.Add(1)
	}
}

// Open implements [link.Core]. Opening also takes over the device, so Establish has nothing left to
// do.
func (e *Edge) Open(q link.Connect, carrier link.Carrier) (link.Connection, error) {
	if f := openFrameOf(q, nil); len(f.append(make([]byte, 0, 256))) > maxOpen {
		return nil, link.RefusedCredentials // a WebSocket's token may be long
	}
	c := &edgeConnection{edge: e, carrier: carrier, number: e.last.Add(1), connect: q, decided: make(chan struct{}),
		shown: link.Shown{Unanswered: true}}
	e.mu.Lock()
	e.connections[c.number] = c
	if e.stream != nil {
		c.attach(e.stream)
	}
	e.mu.Unlock()
	timeout := time.NewTimer(e.o.AdmitTimeout)
	defer timeout.Stop()
	select {
	case <-c.decided:
	case <-timeout.C:
		c.decide(admission{}, link.RefusedLater)
	}
	c.mu.Lock()
	refused := c.refused
	c.mu.Unlock()
	if refused != "" {
		e.forget(c)
		e.announceFrame(frameClosed, c.number, encode(closedFrame{}))
		return nil, refused
	}
	e.stopped(q.Device)
	return c, nil
}

func (e *Edge) forget(c *edgeConnection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.connections, c.number)
}

var (
	errGone    = errNotSent("the connection has ended")
	errOverdue = errNotSent("the message reached the edge too late")
)

type errNotSent string

func (e errNotSent) Error() string { return string(e) }
func (e errNotSent) Unwrap() error { return mcp.ErrNotSent }

// An edgeConnection is a connection that the core admits, or is asked to.
type edgeConnection struct {
	edge    *Edge
	carrier link.Carrier
	number  uint64
	decided chan struct{} // closed when the core has answered
	held    int           // bytes passed on while the leader was silent; of the goroutine that reads

	mu          sync.Mutex
	connect     link.Connect // without credentials once it is established
	facts       fleet.Connection
	ticket      []byte
	refused     link.Refusal
	answered    bool
	established bool
	shown       link.Shown
}

var _ link.Connection = (*edgeConnection)(nil)

// attach announces the connection on a stream.
func (c *edgeConnection) attach(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.refused != "":
	case c.answered: // it is established, or about to be
		f := openFrameOf(c.connect, &c.facts)
		f.Ticket, f.Shown = c.ticket, c.shown
		_ = s.announce(framePresent, c.number, f.append(make([]byte, 0, 256)))
	default:
		f := openFrameOf(c.connect, nil)
		_ = s.announce(frameOpen, c.number, f.append(make([]byte, 0, 256)))
	}
}

// decide records the core's answer. Only the first one counts: a connection that was admitted is
// announced to later cores as such.
func (c *edgeConnection) decide(a admission, refused link.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered {
		return
	}
	c.answered, c.facts, c.ticket, c.refused = true, a.Facts, a.Ticket, refused
	close(c.decided)
}

func (c *edgeConnection) isEstablished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.established
}

// deliver passes a message of the core to the device, by Post or Notify of its carrier.
func (c *edgeConnection) deliver(message []byte, post func([]byte) error) error {
	topic, properties, payload, err := parseMessage(message)
	if err != nil {
		c.edge.stats.garbage.Add(1)
		return errNotSent("the edge could not read the message")
	}
	to := dialect.Address{Topic: topic, Properties: properties}
	return post(append(c.carrier.Begin(to, len(payload)), payload...))
}

func (c *edgeConnection) Facts() fleet.Connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.facts
}

func (c *edgeConnection) Establish() {}

func (c *edgeConnection) Established() {
	c.mu.Lock()
	c.established = true
	c.connect.Password, c.connect.Certificate = nil, nil
	c.mu.Unlock()
	c.edge.announceFrame(frameEstablished, c.number, nil)
}

func (c *edgeConnection) Seen() { c.edge.send(frameSeen, c.number, nil) }

// show records what a message shows, for the next leader.
func (c *edgeConnection) show(m *link.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case m.Err != nil:
	case m.Decoded.Kind == dialect.Hello:
		c.shown.Greeted, c.shown.Greeting, c.shown.Talking = true, m.Decoded.Greeting, false
	case m.Decoded.Kind == dialect.RPC && c.shown.Unanswered && !bytes.Contains(m.Decoded.Payload, []byte(`"method"`)):
		c.shown.Unanswered = false
	}
}

func (c *edgeConnection) Receive(m link.Message) {
	c.show(&m)
	e := c.edge
	e.mu.RLock()
	s := e.stream
	e.mu.RUnlock()
	if s != nil && s.silent(time.Now()) {
		if c.held += len(m.Payload); c.held > maxHeld {
			e.stats.dropped.Add(1)
			return
		}
	} else {
		c.held = 0
	}
	body := appendMessage(make([]byte, 0, 64+len(m.Topic)+len(m.Payload)), m.Topic, m.Properties)
	e.send(frameReceive, c.number, append(body, m.Payload...))
}

func (c *edgeConnection) Converse(event link.Event) {
	c.mu.Lock()
	switch event.Kind {
	case link.Greeted:
		c.shown.Greeted, c.shown.Greeting, c.shown.Talking = true, event.Greeting, true
	case link.Ended:
		c.shown.Talking = false
	}
	c.mu.Unlock()
	c.edge.announceFrame(frameConverse, c.number, encode(event))
}

func (c *edgeConnection) Closed(clean bool, cause fleet.Cause) {
	c.edge.forget(c)
	c.edge.announceFrame(frameClosed, c.number, encode(closedFrame{Clean: clean, Cause: cause}))
}

// encode returns a value as JSON. The values of this package have no part that could fail.
func encode(v any) []byte {
	text, _ := json.Marshal(v)
	return text
}
