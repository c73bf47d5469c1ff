package broker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/fleet"
	"fleetd/fleet/redact"
	"fleetd/mcp"
)

// A causeError says why we ended a connection.
type causeError struct{ fleet.Cause }

func (e causeError) Error() string { return e.Text }

func causeOf(code, text string, params ...any) causeError {
	return causeError{fleet.Cause{Reason: fleet.Because(code, params...), Text: text}}
}

// brokenRules is the cause of the end of a connection that breaks the rules of
// MQTT.
func brokenRules(how string) causeError {
	return causeOf(fleet.CauseViolation, how, "detail", fleet.CleanText(how, 120))
}

var (
	errTakenOver = causeOf(fleet.CauseTakenOver, "the device connected again")
	errStopping  = causeOf(fleet.CauseStopping, "fleetd is stopping")
	errNotTaken  = causeOf(fleet.CauseNotTaken, "the device takes no more bytes")
)

var errPanic = errors.New("internal error")

// seenEvery is how often the domain hears of packets of one connection.
const seenEvery = 5 * time.Second

// A connection is one device's hold on the broker.
type connection struct {
	fleet.Connection
	broker   *Broker
	device   *device
	client   *mqtt.Client // nil over a WebSocket
	socket   *socket      // nil over MQTT
	session  *mcp.Session
	up, down string
	lost     chan struct{} // closed when the connection has ended
	health   atomic.Int32

	// These belong to the goroutine that reads.
	clean        bool // DISCONNECT was received
	expiryAsked  bool // CONNECT asked for a session that outlives the connection
	establishing bool // holds device.takeover
	established  bool
	lastSeen     time.Time
	lastHello    time.Time
	unreleased   map[uint16]struct{} // QoS 2 messages that were received, until their PUBREL
	helloAtOnce  bool                // the first hello came right after CONNECT
	conversation Conversation        // the latest that is relayed, maybe over; nil before the first

	mu         sync.Mutex
	channel    channel
	cause      error // why it ended; nil while it is open
	line       line
	outbox     outbox
	onboarding onboarding
}

// What is known of the device at the other end.
const (
	healthUnknown int32 = iota // nothing was answered yet
	healthGood
	healthSilent // the last request was not answered
)

// newConnection makes a connection. The caller adds what carries it.
func (b *Broker) newConnection(id fleet.DeviceID, clientID, transport, remoteAddr string) *connection {
	d := b.registry.hold(id)
	c := &connection{
		Connection: fleet.Connection{Device: id, Node: b.o.Node, ClientID: clientID, Transport: transport,
			RemoteAddr: remoteAddr},
		broker: b, device: d, up: upTopic(id), down: downTopic(id), lost: make(chan struct{}),
	}
	c.session = mcp.NewSession(c, mcp.SessionOptions{
		IDs: d.ids, ListTimeout: b.o.RequestTimeout, Logger: b.log,
		OnNotification: c.notified, OnUnmatched: c.unmatched,
	})
	return c
}

// takeoverGoodbye bounds the DISCONNECT to a connection that is taken over: the
// new one waits for it, and a stuck socket accepts nothing.
const takeoverGoodbye = 50 * time.Millisecond

// establish begins the takeover of the device by c, which established or ended
// ends. It waits for others of the same device: their CONNACK at most.
func (b *Broker) establish(c *connection) {
	c.device.takeover.Lock()
	c.establishing = true
	c.At = time.Now().UTC()
	c.Epoch = b.nextEpoch(c.At)
	if old := c.device.connection(); old != nil {
		b.stats.takeovers.Add(1)
		c.OverClientID, c.OverRemoteAddr = old.ClientID, old.RemoteAddr
		if old.v5() {
			within(takeoverGoodbye, func() { old.say(packets.ErrSessionTakenOver) })
		}
		old.stop(errTakenOver)
	}
}

// established makes c the device's connection, from now on reachable.
func (b *Broker) established(c *connection) {
	c.device.take(c)
	c.endEstablishing()
	c.established = true
	b.stats.connects.Add(1)
	b.stats.connections.Add(1)
	b.devices.Connected(c.Connection)
	if c.socket == nil { // else the device waits for the answer to its hello first
		c.startOnboarding(0)
	}
}

func (c *connection) endEstablishing() {
	if c.establishing {
		c.establishing = false
		c.device.takeover.Unlock()
	}
}

// ended cleans up after a connection, however it came to its end. err is what
// mochi made of it.
func (b *Broker) ended(nc *netConn, err error) {
	c := nc.link
	if c == nil {
		b.endedUnknown(err)
		return
	}
	if cl, ok := b.server.Clients.Get(c.ClientID); ok && cl == c.client {
		b.server.Clients.Delete(c.ClientID) // left there after a panic
	}
	b.endConnection(c, err)
}

func (b *Broker) endConnection(c *connection, err error) {
	c.stop(err)
	c.endEstablishing()
	c.device.learn(c.habitShown(time.Now()))
	c.device.release(c)
	if c.established {
		b.stats.connections.Add(-1)
		b.devices.Disconnected(c.Connection, c.clean, c.endCause(err))
	}
}

// endedUnknown counts sockets that never became a device's. What the hook
// refused is counted already.
func (b *Broker) endedUnknown(err error) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.stats.refuse("silent")
	case errors.Is(err, errNoConnect), errors.Is(err, errLongConnect), errors.Is(err, errBadLength),
		errors.Is(err, errShortContents), errors.Is(err, errBadFlags), errors.Is(err, errProtocolName):
		b.stats.refuse("malformed_connect")
	case errors.Is(err, errProtocolLevel):
		b.stats.refuse("protocol_level")
	}
}

// stop ends the connection, at once and without waiting for anything: calls
// fail, the socket is closed, its reader finds out. Only the first stop counts.
func (c *connection) stop(cause error) {
	if cause == nil {
		cause = io.EOF
	}
	c.mu.Lock()
	first := c.cause == nil
	if first {
		c.cause = cause
		close(c.lost)
		c.onboarding.stop()
		c.channel.end()
		c.outbox.clear()
	}
	c.mu.Unlock()
	if first {
		if c.socket != nil {
			c.socket.shut(cause)
		} else {
			c.client.Stop(cause)
		}
		c.session.Close(cause)
		c.broker.prober.remove(c)
	}
}

// endCause returns why the connection ended; none if the device disconnected
// cleanly.
func (c *connection) endCause(err error) fleet.Cause {
	c.mu.Lock()
	cause := c.cause
	c.mu.Unlock()
	var ours causeError
	switch {
	case errors.As(cause, &ours):
		return ours.Cause
	case c.clean:
		return fleet.Cause{}
	case c.socket != nil && isTimeout(cause):
		return causeOf(fleet.CauseNoPong, "no answer to pings of its WebSocket").Cause
	case errors.Is(cause, os.ErrDeadlineExceeded):
		return causeOf(fleet.CauseNoKeepalive, "no sign of life within 1.5 times its keepalive").Cause
	case errors.Is(err, errPanic):
		return causeOf(fleet.CauseInternal, err.Error()).Cause
	case err == nil, errors.Is(err, io.EOF):
		return causeOf(fleet.CauseSocketClosed, "the device closed the socket").Cause
	case errors.Is(err, net.ErrClosed):
		return errNotTaken.Cause
	}
	return causeOf(fleet.CauseSocketError, err.Error(), "detail", fleet.CleanText(err.Error(), 120)).Cause
}

// seen notes a packet of any kind.
func (c *connection) seen(now time.Time) {
	if now.Sub(c.lastSeen) >= seenEvery {
		c.lastSeen = now
		c.broker.devices.Seen(c.Device)
	}
}

// handle receives the messages that b begins with and returns how many bytes they
// take. The rest is for mochi: it begins with a packet that is not QoS 0 to the
// device's own topic without properties, or not complete.
func (c *connection) handle(b []byte) (handled int) {
	payload, next := c.plainMessage(b)
	if next == 0 {
		return 0
	}
	now := time.Now()
	c.seen(now)
	for ; next > 0 && !c.client.Closed(); payload, next = c.plainMessage(b[handled:]) {
		handled += next
		c.receive(payload)
	}
	if k := c.client.State.Keepalive; k > 0 { // as mochi does for the packets that it reads
		_ = c.client.Net.Conn.SetDeadline(now.Add(time.Duration(k+k/2) * time.Second))
	}
	return handled
}

// plainMessage returns the payload of the packet that b begins with, and its
// length; 0 if it is a packet that handle leaves to mochi.
func (c *connection) plainMessage(b []byte) (payload []byte, length int) {
	if len(b) < 2 || b[0] != packetPublish<<4 {
		return nil, 0
	}
	remaining, n := binary.Uvarint(b[1:])
	if n <= 0 || remaining > uint64(len(b)-1-n) {
		return nil, 0
	}
	length = 1 + n + int(remaining)
	body := b[1+n : length]
	if len(body) < 2+len(c.up) || int(binary.BigEndian.Uint16(body)) != len(c.up) || string(body[2:2+len(c.up)]) != c.up {
		return nil, 0
	}
	payload = body[2+len(c.up):]
	if !c.v5() {
		return payload, length
	}
	if len(payload) == 0 || payload[0] != 0 {
		return nil, 0
	}
	return payload[1:], length
}

// receive takes what the device published. This is where text of devices comes in:
// results, errors, notifications, logs and tools. The Client-Id that the device's
// credentials are bound to goes no further, or whoever reads what devices say could
// poll with it and be given them.
func (c *connection) receive(payload []byte) {
	c.broker.stats.publishesIn.Add(1)
	payload = redact.ClientID(payload, uuidOf(c.ClientID))
	e, err := mcp.ParseEnvelope(payload)
	switch {
	case errors.Is(err, mcp.ErrMalformed):
		// A healthy device sends such texts: stock firmware does not escape error
		// messages. The call they answer can often be determined.
		if !c.session.ReceiveBroken(payload) {
			c.broker.stats.unreadable.Add(1)
		}
	case err != nil:
		c.broker.stats.unreadable.Add(1)
	case e.Type == mcp.TypeMCP && e.Payload != nil:
		c.session.Receive(e.Payload)
	case e.Type == "hello":
		c.answerHello(payload, time.Now())
	case c.conversation != nil && e.Type != mcp.TypeMCP:
		if c.conversation.Receive(e.Type, e.SessionID, payload) {
			c.endChannel()
		}
	case e.Type == "goodbye":
		c.endChannel()
	}
}

func (c *connection) notified(method string, params json.RawMessage) {
	c.broker.devices.Notified(c.Device, method, params)
}

// answered notes that the device answered a request: it is well.
func (c *connection) answered() {
	if c.health.Load() == healthGood {
		return
	}
	was := c.health.Swap(healthGood)
	if was == healthGood {
		return
	}
	if was == healthSilent {
		c.broker.prober.remove(c)
	}
	c.broker.devices.Responded(c.Device)
	if was == healthSilent {
		c.resumeOnboarding()
	}
}

// unanswered notes that the device let a request time out.
func (c *connection) unanswered(request string) {
	if c.health.Swap(healthSilent) == healthSilent || c.hasEnded() {
		return
	}
	c.broker.prober.add(c, time.Now())
	c.broker.devices.Unresponsive(c.Connection,
		causeOf(fleet.CauseNoAnswer, "no answer to "+request, "request", fleet.CleanText(request, 100)).Cause)
}

func (c *connection) hasEnded() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}

// hostOf strips the port: it says nothing about the device.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
