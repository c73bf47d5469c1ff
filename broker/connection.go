package broker

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/mcp"
)

// A connection is one device's connection to an edge.
type connection struct {
	fleet.Connection
	broker    *Broker
	device    *device
	carrier   link.Carrier
	dialect   dialect.Dialect
	localHost string
	session   *mcp.Session
	lost      chan struct{} // closed when the connection has ended
	health    atomic.Int32

	// These belong to the goroutine that calls the methods of link.Connection.
	hasLeft      bool // the device's MCP server has ended
	establishing bool // holds device.takeover
	established  bool
	adopted      bool // another process admitted it, and the device has answered requests on it
	lastHello    time.Time
	greeted      bool      // the latest hello began, or may have begun, a conversation with a voice server
	earlierHello time.Time // lastHello before that

	mu         sync.Mutex
	channel    channel
	cause      *link.CauseError // why it ended; nil while it is open
	line       line
	onboarding onboarding
}

// States of the device's health, as seen on this connection.
const (
	healthUnknown int32 = iota // no request has been answered yet
	healthGood
	healthSilent // the last request timed out
)

var _ link.Connection = (*connection)(nil)

// Open implements [link.Core].
func (b *Broker) Open(q link.Connect, carrier link.Carrier) (link.Connection, error) {
	id, clientID, err := b.authenticate(q)
	if err == nil && id != q.Device {
		err = errors.New("the client id names a different device than the credentials")
	}
	if err != nil {
		if reason, ok := errors.AsType[enrolment.CredentialsError](err); ok {
			return nil, link.Refusal(reason)
		}
		return nil, link.RefusedCredentials
	}
	c := b.newConnection(id, clientID, q, carrier)
	if q.Transport == link.WebSocket && !c.device.dials.AllowN(time.Now(), 1) {
		c.device.release(c)
		return nil, link.RefusedTooOften
	}
	return c, nil
}

// Adopt implements [link.Core]. The device is not asked for anything that is on record, except that
// a dialect may need each core to introduce itself.
func (b *Broker) Adopt(q link.Connect, facts fleet.Connection, carrier link.Carrier) link.Connection {
	c := b.newConnection(facts.Device, facts.ClientID, q, carrier)
	c.At, c.Epoch = facts.At, facts.Epoch
	c.adopted = !q.Shown.Unanswered
	b.advanceEpoch(facts.Epoch)
	old, newest := c.device.adopt(c)
	if !newest { // the domain does not hear of it: a clock that was ahead may have made its epoch greater
		c.stop(link.ErrTakenOver)
		return c
	}
	c.established = true
	b.stats.connections.Add(1)
	if old != nil {
		old.stop(link.ErrTakenOver)
	}
	b.devices.Adopted(c.Connection)
	switch opening := q.Dialect.Opening(); {
	case opening.AtOnce, opening.Initialize, q.Shown.Talking:
		c.startOnboarding(0)
	case q.Shown.Greeted:
		c.resumeChannel(q.Shown.Greeting)
	}
	return c
}

// authenticate returns the device that the credentials belong to, and its MQTT client id. A
// certificate replaces user name and password.
func (b *Broker) authenticate(q link.Connect) (id fleet.DeviceID, clientID string, err error) {
	switch by := b.o.AuthenticateCertificate; {
	case q.Transport == link.WebSocket:
		clientID, err = b.devices.AuthenticateToken(q.Device, q.ClientID, string(q.Password), q.RemoteAddr)
		return q.Device, clientID, err
	case q.Certificate != nil && by != nil:
		id, err = by(q.ClientID, q.Certificate)
	default:
		id, err = b.devices.Authenticate(q.ClientID, q.Username, q.Password, q.RemoteAddr)
	}
	return id, q.ClientID, err
}

func (b *Broker) newConnection(id fleet.DeviceID, clientID string, q link.Connect, carrier link.Carrier) *connection {
	d := b.registry.hold(id)
	c := &connection{
		Connection: fleet.Connection{Device: id, Node: q.Node, ClientID: clientID, Transport: q.Transport,
			RemoteAddr: q.RemoteAddr},
		broker: b, device: d, carrier: carrier, dialect: q.Dialect, localHost: q.LocalHost, lost: make(chan struct{}),
	}
	d.inherit(q.Dialect)
	if q.Dialect.Opening().Initialize {
		c.line.held = true
	}
	c.session = mcp.NewSession(c, mcp.SessionOptions{
		IDs: d.ids, ListTimeout: b.o.RequestTimeout, Logger: b.log,
		OnNotification: c.notified, OnUnmatched: c.unmatched,
	})
	return c
}

// Facts implements [link.Connection].
func (c *connection) Facts() fleet.Connection { return c.Connection }

// Establish begins the takeover of the device by c; Established or Closed completes it.
func (c *connection) Establish() {
	b := c.broker
	c.device.takeover.Lock()
	c.establishing = true
	c.device.setOpening(true)
	c.At = time.Now().UTC()
	c.Epoch = b.nextEpoch(c.At)
	if old := c.device.connection(); old != nil {
		b.stats.takeovers.Add(1)
		c.OverClientID, c.OverRemoteAddr = old.ClientID, old.RemoteAddr
		old.stop(link.ErrTakenOver)
	}
}

// Established makes c the device's current connection; from then on it receives calls.
func (c *connection) Established() {
	b := c.broker
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
		c.device.setOpening(false)
		c.device.takeover.Unlock()
	}
}

// Closed implements [link.Connection].
func (c *connection) Closed(clean bool, cause fleet.Cause) {
	clean = clean || c.hasLeft
	if clean {
		cause = fleet.Cause{}
	}
	if ours := c.end(link.CauseError{Cause: cause}); ours.Reason.Code != "" && !c.hasLeft {
		cause = ours.Cause
	}
	c.endEstablishing()
	c.device.learn(c.habitShown(clean, cause, time.Now()))
	c.device.release(c)
	if c.established {
		c.broker.stats.connections.Add(-1)
		c.broker.devices.Disconnected(c.Connection, clean, cause)
	}
}

// stop ends the connection immediately: calls fail, and the edge closes the socket. It does not wait
// for that. Only the first stop has an effect.
func (c *connection) stop(cause link.CauseError) {
	if !c.hasEnded() {
		c.end(cause)
		c.carrier.Stop(cause.Cause)
	}
}

// end ends the use of the connection. It returns the cause of the first call.
func (c *connection) end(cause link.CauseError) link.CauseError {
	if cause.Text == "" {
		cause.Text = "the device disconnected"
	}
	c.mu.Lock()
	if c.cause != nil {
		defer c.mu.Unlock()
		return *c.cause
	}
	c.cause = &cause
	close(c.lost)
	c.onboarding.stop()
	c.channel.end()
	c.mu.Unlock()
	c.session.Close(cause)
	c.broker.prober.remove(c)
	return cause
}

// Seen implements [link.Connection].
func (c *connection) Seen() { c.broker.devices.Seen(c.Device) }

// Send sends a message of the MCP session. It makes a connection the session's transport.
func (c *connection) Send(_ context.Context, msg []byte, scope mcp.Scope) error {
	return c.carrier.Post(c.dialect.Wrap(c.carrier.Begin(c.dialect.Address(msg), len(msg)+64), msg, scope))
}

// deliver sends a message of a conversation to the device unchanged. See link.Carrier.
func (c *connection) deliver(message []byte) error {
	return c.carrier.Notify(append(c.carrier.Begin(c.dialect.Address(message), len(message)), message...))
}

// Receive implements [link.Connection].
func (c *connection) Receive(in link.Message) {
	c.broker.stats.messages.Add(1)
	if in.Err != nil {
		// A healthy device sends malformed texts: stock firmware does not escape error messages.
		// The call that such a text answers can often be determined.
		if !errors.Is(in.Err, mcp.ErrMalformed) || !c.session.ReceiveBroken(in.Payload) {
			c.broker.stats.unreadable.Add(1)
		}
		return
	}
	switch m := in.Decoded; m.Kind {
	case dialect.RPC:
		c.session.Receive(m.Payload)
	case dialect.Ready:
		c.startOnboarding(0)
	case dialect.Left:
		c.left()
	case dialect.Hello:
		c.answerHello(m, time.Now())
	}
}

// left ends the connection of a device whose MCP server has ended. A client that stays connected
// without it could not run a call.
func (c *connection) left() {
	c.hasLeft = true
	c.stop(link.CauseError{Cause: fleet.Cause{Text: "the device's MCP server has ended"}})
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
		link.CauseOf(fleet.CauseNoAnswer, "no answer to "+request, "request", fleet.CleanText(request, 100)).Cause)
}

func (c *connection) hasEnded() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}
