package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

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
	// Messages counts the messages of the edge's devices, for its beat. Default: not announced.
	Messages func() int64
}

// maxHeld is how many bytes of messages of one device wait while there is no leader.
const maxHeld = 64 << 10

// An Edge is the core as an edge sees it: it passes on the connections to the leader.
type Edge struct {
	o           EdgeOptions
	log         *slog.Logger
	incarnation uint64
	since       time.Time
	last        atomic.Uint64 // number of the latest connection
	stats       edgeCounters

	mu          sync.RWMutex
	leader      Leader  // zero before the first
	stream      *stream // with the leader; nil before the first
	endStream   context.CancelFunc
	connections map[uint64]*edgeConnection
	changed     chan struct{} // closed when the leader changes

	life    context.Context
	running sync.WaitGroup
}

// EdgeStats are the counters of an [Edge] since its start.
type EdgeStats struct {
	Dropped int64 // messages of devices that were not passed on, because too many waited
	Garbage int64 // batches that could not be read
	Stale   int64 // batches of a leader that has been replaced
}

type edgeCounters struct{ dropped, garbage, stale atomic.Int64 }

// A Leader is the core that leads.
type Leader struct {
	Term    int    `json:"term"`
	Name    string `json:"name"`
	Addr    string `json:"addr"` // of HTTP for edges
	Version string `json:"version"`
}

var _ link.Core = (*Edge)(nil)

// NewEdge returns an edge's side of the link. [Edge.Run] starts it.
func NewEdge(o EdgeOptions) *Edge {
	o.AdmitTimeout = cmp.Or(o.AdmitTimeout, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Edge{o: o, log: o.Log, incarnation: rand.Uint64(), since: time.Now().UTC(),
		connections: make(map[uint64]*edgeConnection), changed: make(chan struct{})}
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
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		e.announce(false)
		select {
		case <-beat.C:
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

// Stats returns the counters.
func (e *Edge) Stats() EdgeStats {
	return EdgeStats{Dropped: e.stats.dropped.Load(), Garbage: e.stats.garbage.Load(), Stale: e.stats.stale.Load()}
}

// follow attaches the edge to the leader of a later term.
func (e *Edge) follow(l Leader) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.Term <= e.leader.Term || e.life.Err() != nil {
		if l.Term == e.leader.Term && l.Name == e.leader.Name && l.Addr != e.leader.Addr {
			e.leader = l
			e.announceLeader()
		}
		return
	}
	var unsent []byte
	if e.stream != nil {
		e.endStream()
		unsent = e.stream.end()
	}
	up := e.o.Cluster.Up(l.Term, e.o.Name)
	s := newStream(e.incarnation, uint64(l.Term), func(batch []byte) error { return e.o.Bus.Publish(up, batch) }, e.handle)
	ctx, cancel := context.WithCancel(e.life)
	e.leader, e.stream, e.endStream = l, s, cancel
	_ = s.add(frameHello, 0, encode(helloFrame{Version: e.o.Version, Since: e.since}))
	for _, c := range e.connections {
		c.attach(s)
	}
	_ = s.add(framePresented, 0, nil)
	e.repeat(s, unsent)
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
		if e.stats.garbage.Add(1) == 1 {
			e.log.Error("cannot read a message of the core; further ones are counted", "err", err)
		}
		return
	}
	e.mu.RLock()
	s := e.stream
	e.mu.RUnlock()
	switch {
	case h.edge != e.incarnation || s == nil || h.term > s.term: // of an earlier process of this name, or early
		return
	case h.term < s.term:
		e.stats.stale.Add(1)
		return
	}
	if err := s.handle(h, frames); err != nil {
		e.stats.garbage.Add(1)
	}
}

// handle handles a frame of the leader.
func (e *Edge) handle(f frame) {
	e.mu.RLock()
	c, s := e.connections[f.conn], e.stream
	e.mu.RUnlock()
	if f.kind == framePost {
		number, message, err := uvarint(f.body)
		if err != nil {
			e.stats.garbage.Add(1)
			return
		}
		err = errGone
		if c != nil {
			err = c.deliver(message)
		}
		body := binary.AppendUvarint(nil, number)
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
		_ = c.deliver(f.body) // a conversation's message; an error means that the connection is ending
	case frameAdmitted:
		var facts fleet.Connection
		if err := json.Unmarshal(f.body, &facts); err != nil {
			e.stats.garbage.Add(1)
			return
		}
		c.decide(&facts, "")
	case frameRefused:
		c.decide(nil, link.Refusal(f.body))
	case frameFinish:
		c.carrier.Finish()
	case frameStop:
		var cause fleet.Cause
		if err := json.Unmarshal(f.body, &cause); err != nil {
			e.stats.garbage.Add(1)
		}
		c.carrier.Stop(cause)
	default:
		e.stats.garbage.Add(1)
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

// Open implements [link.Core]. Opening also takes over the device, so Establish has nothing left to
// do.
func (e *Edge) Open(q link.Connect, carrier link.Carrier) (link.Connection, error) {
	c := &edgeConnection{edge: e, carrier: carrier, number: e.last.Add(1), connect: q, decided: make(chan struct{})}
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
		c.decide(nil, link.RefusedLater)
	}
	c.mu.Lock()
	refused := c.refused
	c.mu.Unlock()
	if refused != "" {
		e.forget(c)
		e.send(frameClosed, c.number, encode(closedFrame{}))
		return nil, refused
	}
	return c, nil
}

func (e *Edge) forget(c *edgeConnection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.connections, c.number)
}

var errGone = errNotSent("the connection has ended")

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
	refused     link.Refusal
	answered    bool
	established bool
}

var _ link.Connection = (*edgeConnection)(nil)

// attach announces the connection on a stream.
func (c *edgeConnection) attach(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.refused != "":
	case c.established:
		_ = s.add(framePresent, c.number, encode(openFrameOf(c.connect, &c.facts)))
	default:
		_ = s.add(frameOpen, c.number, encode(openFrameOf(c.connect, nil)))
	}
}

// decide records the core's answer. Only the first one counts, except that a later core gives the
// connection another epoch.
func (c *edgeConnection) decide(facts *fleet.Connection, refused link.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if facts != nil && c.refused == "" {
		c.facts = *facts
	}
	if c.answered {
		return
	}
	c.answered, c.refused = true, refused
	close(c.decided)
}

func (c *edgeConnection) isEstablished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.established
}

// deliver passes a message of the core to the device.
func (c *edgeConnection) deliver(message []byte) error {
	topic, properties, payload, err := parseMessage(message)
	if err != nil {
		c.edge.stats.garbage.Add(1)
		return errNotSent("the edge could not read the message")
	}
	to := dialect.Address{Topic: topic, Properties: properties}
	return c.carrier.Post(append(c.carrier.Begin(to, len(payload)), payload...))
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
	c.edge.send(frameEstablished, c.number, nil)
}

func (c *edgeConnection) Seen() { c.edge.send(frameSeen, c.number, nil) }

func (c *edgeConnection) Receive(m link.Message) {
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
	c.edge.send(frameConverse, c.number, encode(event))
}

func (c *edgeConnection) Closed(clean bool, cause fleet.Cause) {
	c.edge.forget(c)
	c.edge.send(frameClosed, c.number, encode(closedFrame{Clean: clean, Cause: cause}))
}

// encode returns a value as JSON. The values of this package have no part that could fail.
func encode(v any) []byte {
	text, _ := json.Marshal(v)
	return text
}
