package broker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/broker/dialect"
	"fleetd/fleet"
	"fleetd/fleet/redact"
	"fleetd/mcp"
)

// A causeError is the cause for which the broker ended a connection.
type causeError struct{ fleet.Cause }

func (e causeError) Error() string { return e.Text }

func causeOf(code, text string, params ...any) causeError {
	return causeError{fleet.Cause{Reason: fleet.Because(code, params...), Text: text}}
}

// brokenRules returns the cause for ending a connection that violates the MQTT protocol.
func brokenRules(how string) causeError {
	return causeOf(fleet.CauseViolation, how, "detail", fleet.CleanText(how, 120))
}

var (
	errTakenOver = causeOf(fleet.CauseTakenOver, "the device connected again")
	errStopping  = causeOf(fleet.CauseStopping, "fleetd is stopping")
	errNotTaken  = causeOf(fleet.CauseNotTaken, "the device accepts no more bytes")
)

var errPanic = errors.New("internal error")

// seenEvery is the minimum interval between two reports of received packets to the domain, for
// one connection.
const seenEvery = 5 * time.Second

// A connection is one device's connection to the broker, over MQTT or a WebSocket.
type connection struct {
	fleet.Connection
	broker  *Broker
	device  *device
	carrier carrier
	dialect dialect.Dialect
	session *mcp.Session
	lost    chan struct{} // closed when the connection has ended
	health  atomic.Int32

	// These belong to the reader's goroutine.
	clean        bool // the device sent DISCONNECT, or closed its WebSocket
	establishing bool // holds device.takeover
	established  bool
	lastSeen     time.Time
	lastHello    time.Time
	conversation Conversation // the latest relayed one, which may be over; nil before the first

	mu         sync.Mutex
	channel    channel
	cause      error // why it ended; nil while it is open
	line       line
	onboarding onboarding
}

// States of the device's health, as seen on this connection.
const (
	healthUnknown int32 = iota // no request has been answered yet
	healthGood
	healthSilent // the last request timed out
)

// newConnection creates a connection. The caller sets its carrier.
func (b *Broker) newConnection(id fleet.DeviceID, speaks dialect.Dialect, clientID, transport,
	remoteAddr string) *connection {
	d := b.registry.hold(id)
	c := &connection{
		Connection: fleet.Connection{Device: id, Node: b.o.Node, ClientID: clientID, Transport: transport,
			RemoteAddr: remoteAddr},
		broker: b, device: d, dialect: speaks, lost: make(chan struct{}),
	}
	d.inherit(speaks)
	if speaks.Opening().Initialize {
		c.line.held = true
	}
	c.session = mcp.NewSession(c, mcp.SessionOptions{
		IDs: d.ids, ListTimeout: b.o.RequestTimeout, Logger: b.log,
		OnNotification: c.notified, OnUnmatched: c.unmatched,
	})
	return c
}

// takeoverGoodbye bounds the DISCONNECT to a connection that is taken over: the new connection
// waits for it, and a stuck socket accepts nothing.
const takeoverGoodbye = 50 * time.Millisecond

// establish begins the takeover of the device by c; established or ended completes it. It waits
// for other connections of the same device, at most until they have their CONNACK.
func (b *Broker) establish(c *connection) {
	c.device.takeover.Lock()
	c.establishing = true
	c.At = time.Now().UTC()
	c.Epoch = b.nextEpoch(c.At)
	if old := c.device.connection(); old != nil {
		b.stats.takeovers.Add(1)
		c.OverClientID, c.OverRemoteAddr = old.ClientID, old.RemoteAddr
		old.carrier.farewell(errTakenOver, takeoverGoodbye)
		old.stop(errTakenOver)
	}
}

// established makes c the device's current connection; from then on it receives calls.
func (b *Broker) established(c *connection) {
	c.device.take(c)
	c.endEstablishing()
	c.established = true
	b.stats.connects.Add(1)
	b.stats.connections.Add(1)
	b.devices.Connected(c.Connection)
	if c.dialect.Opening().AtOnce {
		c.startOnboarding(0)
	}
}

func (c *connection) endEstablishing() {
	if c.establishing {
		c.establishing = false
		c.device.takeover.Unlock()
	}
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

// stop ends the connection immediately: calls fail, the socket is closed, and its reader notices.
// It does not wait. Only the first stop has an effect.
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
	}
	c.mu.Unlock()
	if first {
		c.carrier.shut(cause)
		c.session.Close(cause)
		c.broker.prober.remove(c)
	}
}

// endCause returns why the connection ended. It returns the zero Cause if the device disconnected
// cleanly.
func (c *connection) endCause(err error) fleet.Cause {
	c.mu.Lock()
	cause := c.cause
	c.mu.Unlock()
	var ours causeError
	silent, isSilent := c.carrier.silence(cause)
	switch {
	case errors.As(cause, &ours):
		return ours.Cause
	case c.clean:
		return fleet.Cause{}
	case isSilent:
		return silent.Cause
	case errors.Is(err, errPanic):
		return causeOf(fleet.CauseInternal, err.Error()).Cause
	case err == nil, errors.Is(err, io.EOF):
		return causeOf(fleet.CauseSocketClosed, "the device closed the socket").Cause
	case errors.Is(err, net.ErrClosed):
		return errNotTaken.Cause
	}
	return causeOf(fleet.CauseSocketError, err.Error(), "detail", fleet.CleanText(err.Error(), 120)).Cause
}

// seen records that a packet of any kind was received.
func (c *connection) seen(now time.Time) {
	if now.Sub(c.lastSeen) >= seenEvery {
		c.lastSeen = now
		c.broker.devices.Seen(c.Device)
	}
}

// Send sends a message of the MCP session. It makes a connection the session's transport.
func (c *connection) Send(_ context.Context, msg []byte, scope mcp.Scope) error {
	return c.carrier.post(c.dialect.Wrap(c.carrier.begin(c.dialect.Address(msg), len(msg)+64), msg, scope))
}

// deliver sends a message of a conversation to the device unchanged. See carrier.post.
func (c *connection) deliver(message []byte) error {
	return c.carrier.post(append(c.carrier.begin(c.dialect.Address(message), len(message)), message...))
}

// receive handles a message that the device published to the topic or sent over its WebSocket.
// All text from devices enters here: results, errors, notifications, logs and tools. receive
// removes the Client-Id that the device's credentials are bound to: any reader of the device's
// texts could otherwise poll with it and be given the credentials.
func (c *connection) receive(topic string, payload []byte, properties []dialect.Property) {
	c.broker.stats.publishesIn.Add(1)
	payload = redact.ClientID(payload, dialect.UUIDOf(c.ClientID))
	m, err := c.dialect.Decode(topic, payload, properties)
	if err != nil {
		// A healthy device sends malformed texts: stock firmware does not escape error messages.
		// The call that such a text answers can often be determined.
		if !errors.Is(err, mcp.ErrMalformed) || !c.session.ReceiveBroken(payload) {
			c.broker.stats.unreadable.Add(1)
		}
		return
	}
	switch m.Kind {
	case dialect.RPC:
		c.session.Receive(m.Payload)
	case dialect.Ready:
		c.carrier.greeted(0)
		c.startOnboarding(0)
	case dialect.Left:
		c.left()
	case dialect.Hello:
		c.carrier.greeted(m.Greeting.AudioVersion)
		c.answerHello(m, time.Now())
	case dialect.Goodbye, dialect.Text:
		c.converse(m)
	}
}

// converse handles a message of the device's conversation.
func (c *connection) converse(m dialect.Message) {
	over := m.Kind == dialect.Goodbye
	if c.conversation != nil {
		over = c.conversation.Receive(m.Type, m.Session, m.Payload)
	}
	if over {
		c.endChannel()
	}
}

// left ends the connection of a device whose MCP server has ended. A client that stays connected
// without it could not run a call.
func (c *connection) left() {
	c.clean = true
	c.stop(nil)
}

// Notifications that the broker acts on. The domain receives them too.
const (
	toolsChanged = "notifications/tools/list_changed"
	serverLeft   = "notifications/disconnected" // of MCP over MQTT: the device ends the session
)

func (c *connection) notified(method string, params json.RawMessage) {
	switch {
	case method == toolsChanged:
		c.listAgain()
	case method == serverLeft && c.dialect.Opening().Standard:
		c.left()
		return
	}
	c.broker.devices.Notified(c.Device, method, params)
}

// answered records that the device answered a request, and is therefore healthy.
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

// unanswered records that a request to the device timed out.
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

// hostOf removes the port, which does not identify the device.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
