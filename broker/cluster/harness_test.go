package cluster_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"fleetd/broker"
	"fleetd/broker/cluster"
	"fleetd/broker/cluster/clustertest"
	"fleetd/broker/dialect"
	"fleetd/broker/edge"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
	"fleetd/internal/bus"
)

// A logBuffer holds what nodes log.
type logBuffer struct {
	mu sync.Mutex
	strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(p)
}

func (l *logBuffer) contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.Builder.String(), text)
}

// A world is a bus whose nodes a test starts and ends.
type world struct {
	t    testing.TB
	ctx  context.Context
	bus  *clustertest.Bus
	logs *logBuffer
	log  *slog.Logger

	embedded bool // cores connect within the process
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, logs: new(logBuffer)}
	w.log = slog.New(slog.NewTextHandler(w.logs, nil))
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w.bus = clustertest.Start(t, w.ctx, w.log)
	t.Cleanup(func() { w.bus.Server.Close() })
	t.Cleanup(func() {
		if t.Failed() {
			w.logs.mu.Lock()
			defer w.logs.mu.Unlock()
			t.Log(w.logs.Builder.String())
		}
	})
	return w
}

// A core is a broker with its side of the link.
type core struct {
	*broker.Broker
	link   *cluster.Core
	nc     *nats.Conn
	domain *domain
	stop   func() // of the link, then of the broker
}

func (w *world) core(term int, change func(*cluster.CoreOptions)) *core {
	w.t.Helper()
	c := &core{domain: new(domain)}
	var err error
	if w.embedded {
		c.nc, err = bus.Connect(w.ctx, bus.ConnectOptions{Identity: w.bus.Core, Embedded: w.bus.Server, Log: w.log})
		if err != nil {
			w.t.Fatal(err)
		}
	} else {
		c.nc = w.bus.Connect(w.t, w.ctx, w.bus.Core)
	}
	if c.Broker, err = broker.New(broker.Options{Devices: c.domain, Logger: w.log}); err != nil {
		w.t.Fatal(err)
	}
	o := cluster.CoreOptions{Bus: c.nc, Cluster: w.bus.Core.Cluster, Core: c.Broker, Log: w.log,
		Silent: c.domain.silent, Heard: func(of fleet.Connection) { c.domain.note("heard %s", of.Device) },
		Leader: cluster.Leader{Term: term, Name: "core", Version: "test"}}
	if change != nil {
		change(&o)
	}
	c.link = cluster.NewCore(o)
	endBroker, endLink := clustertest.Run(w.t, c.Broker.Run), clustertest.Run(w.t, c.link.Run)
	c.stop = sync.OnceFunc(func() { endLink(); endBroker(); c.nc.Close() })
	w.t.Cleanup(c.stop)
	return c
}

// An edgeNode is an edge with its side of the link.
type edgeNode struct {
	*edge.Edge
	link *cluster.Edge
	nc   *nats.Conn
	stop func()
	kill func() // cuts the edge from the bus first, so that it cannot say goodbye
}

func (w *world) edge(name string, id *bus.Identity, change func(*cluster.EdgeOptions)) *edgeNode {
	w.t.Helper()
	if id == nil {
		id = w.bus.Identity(w.t, name, bus.Edge)
	}
	e := &edgeNode{nc: w.bus.Connect(w.t, w.ctx, id)}
	o := cluster.EdgeOptions{Bus: e.nc, Cluster: id.Cluster, Name: name, Version: "test", Log: w.log}
	if change != nil {
		change(&o)
	}
	e.link = cluster.NewEdge(o)
	var err error
	if e.Edge, err = edge.New(edge.Options{Addr: "127.0.0.1:0", Core: e.link, Node: name, Logger: w.log}); err != nil {
		w.t.Fatal(err)
	}
	endLink, endEdge := clustertest.Run(w.t, e.link.Run), clustertest.Run(w.t, e.Edge.Run)
	e.stop = sync.OnceFunc(func() { endEdge(); endLink(); e.nc.Close() })
	e.kill = func() { e.nc.Close(); e.stop() }
	w.t.Cleanup(e.stop)
	return e
}

func (w *world) attached(e *edgeNode, term int) {
	w.t.Helper()
	fleettest.Eventually(w.t, "the edge follows the leader", func() bool {
		l, known, _ := e.link.Leader()
		return known && l.Term == term
	})
}

// logged waits until a node has logged the text.
func (w *world) logged(text string) {
	w.t.Helper()
	fleettest.Eventually(w.t, "a log message: "+text, func() bool { return w.logs.contains(text) })
}

// domain is the broker's Devices.
type domain struct {
	mu     sync.Mutex
	events []string
	since  time.Time // of the latest silence
}

func (d *domain) silent(c fleet.Connection, since time.Time) {
	d.note("silent %s", c.Device)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.since = since
}

func (d *domain) silentSince() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since
}

func (d *domain) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, fmt.Sprintf(format, args...))
}

func (d *domain) count(prefix string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if strings.HasPrefix(e, prefix) {
			n++
		}
	}
	return n
}

func (d *domain) all() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.events, "\n")
}

// matching returns the events with the prefix, without it.
func (d *domain) matching(prefix string) (all []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if after, ok := strings.CutPrefix(e, prefix); ok {
			all = append(all, after)
		}
	}
	return all
}

func passwordOf(clientID string) string {
	b := []byte(clientID)
	slices.Reverse(b)
	return string(b)
}

func (d *domain) Authenticate(clientID, _ string, password []byte, _ string) (fleet.DeviceID, error) {
	if string(password) != passwordOf(clientID) {
		return "", enrolment.CredentialsForged
	}
	return idOf(clientID), nil
}

func (d *domain) AuthenticateToken(fleet.DeviceID, string, string, string) (string, error) {
	return "", enrolment.CredentialsForged
}
func (d *domain) Connected(c fleet.Connection) { d.note("connected %s at %s", c.Device, c.Node) }
func (d *domain) Adopted(c fleet.Connection)   { d.note("connected %s at %s", c.Device, c.Node) }
func (d *domain) Disconnected(c fleet.Connection, clean bool, cause fleet.Cause) {
	d.note("disconnected %s at %s: %s", c.Device, c.Node, cause.Reason.Code)
}
func (d *domain) Seen(fleet.DeviceID)                        {}
func (d *domain) Responded(fleet.DeviceID)                   {}
func (d *domain) Unresponsive(fleet.Connection, fleet.Cause) {}
func (d *domain) AnsweredLate(id fleet.DeviceID, rpcID int32, as func(tool string) fleet.Answer) bool {
	d.note("%s answered %d late: %s", id, rpcID, as("x").Text)
	return true
}
func (d *domain) IsSoftware(fleet.DeviceID) bool                       { return false }
func (d *domain) NeedsListing(fleet.DeviceID) bool                     { return false }
func (d *domain) SaveListing(context.Context, fleet.ToolListing) error { return nil }
func (d *domain) Notified(id fleet.DeviceID, method string, _ json.RawMessage) {
	d.note("notified %s %s", id, method)
}

func clientID(n int) string {
	return fmt.Sprintf("GID_default@@@02_00_00_00_%02x_%02x@@@uuid-%d", n>>8, n&255, n)
}

func idOf(clientID string) fleet.DeviceID {
	_, id := dialect.OverMQTT(dialect.Connect{ClientID: clientID})
	return id
}

func deviceID(n int) fleet.DeviceID { return idOf(clientID(n)) }

func str(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

func packet(kind byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{kind}, uint64(len(body))), body...)
}

// A device is a raw MQTT client that answers calls.
type device struct {
	id     fleet.DeviceID
	conn   net.Conn
	r      *bufio.Reader
	mute   atomic.Bool  // does not answer
	calls  atomic.Int64 // received
	ended  chan struct{}
	mu     sync.Mutex // for writes
	latest atomic.Int64
	asked  map[string]int // calls by arguments; under mu
}

// dial connects the n-th device, and returns nil if it is refused.
func dial(t testing.TB, addr net.Addr, n int) *device {
	t.Helper()
	return dialWith(t, addr, n, (*device).serve)
}

func dialWith(t testing.TB, addr net.Addr, n int, serve func(*device)) *device {
	t.Helper()
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	d := &device{id: deviceID(n), conn: conn, r: bufio.NewReaderSize(conn, 512), ended: make(chan struct{}),
		asked: make(map[string]int)}
	body := append(str("MQTT"), 4, 0xc2)
	body = append(binary.BigEndian.AppendUint16(body, 600), str(clientID(n))...)
	d.write(packet(0x10, append(append(body, str("user")...), str(passwordOf(clientID(n)))...)))
	kind, answer, err := d.read()
	if err != nil || kind != 0x20 || answer[1] != 0 {
		conn.Close()
		return nil
	}
	t.Cleanup(func() { conn.Close(); <-d.ended })
	go func() {
		defer close(d.ended)
		serve(d)
	}()
	return d
}

func connect(t testing.TB, e *edgeNode, n int) *device {
	t.Helper()
	d := dial(t, e.Addr(), n)
	if d == nil {
		t.Fatalf("device %d is refused", n)
	}
	return d
}

func (d *device) write(b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, _ = d.conn.Write(b)
}

func (d *device) read() (kind byte, body []byte, err error) {
	if kind, err = d.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(d.r)
	if err != nil {
		return 0, nil, err
	}
	body = make([]byte, n)
	_, err = io.ReadFull(d.r, body)
	return kind, body, err
}

func (d *device) publish(payload string) {
	d.write(packet(0x30, append(str("fleet/"+string(d.id)+"/up"), payload...)))
}

func (d *device) notify(method string) {
	d.publish(`{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/` + method +
		`","params":{}}}`)
}

func (d *device) answer(id int64) {
	d.publish(fmt.Sprintf(`{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","id":%d,`+
		`"result":{"content":[{"type":"text","text":"true"}],"isError":false}}}`, id))
}

func (d *device) serve() {
	for {
		kind, body, err := d.read()
		if err != nil {
			return
		}
		if kind>>4 != 3 {
			continue
		}
		var m struct {
			Payload struct {
				ID     int64
				Method string
				Params struct{ Arguments json.RawMessage }
			}
		}
		if json.Unmarshal(body[2+int(binary.BigEndian.Uint16(body)):], &m) != nil || m.Payload.Method != "tools/call" {
			continue
		}
		d.mu.Lock()
		d.asked[string(m.Payload.Params.Arguments)]++
		d.mu.Unlock()
		d.latest.Store(m.Payload.ID)
		d.calls.Add(1)
		if !d.mute.Load() {
			d.answer(m.Payload.ID)
		}
	}
}

func (d *device) hasEnded() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

// call calls a tool of the device.
func (c *core) call(id fleet.DeviceID, arguments string, wait time.Duration) error {
	turn, err := c.Queue(id, fleet.KindOperator)
	if err != nil {
		return err
	}
	defer turn.Done()
	select {
	case <-turn.Ready():
	case <-turn.Lost():
		return fleet.ErrLost
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	_, err = turn.Send(ctx, fleet.Invocation{Tool: "self.a", Arguments: json.RawMessage(arguments)}, nil)
	return err
}

func (c *core) connected(t testing.TB, n int) fleet.Connection {
	t.Helper()
	var conn fleet.Connection
	fleettest.Eventually(t, fmt.Sprintf("the core knows device %d", n), func() (ok bool) {
		conn, ok = c.Connection(deviceID(n))
		return ok
	})
	return conn
}
