package edge

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/fleet/redact"
)

var (
	errNotTaken = link.CauseOf(fleet.CauseNotTaken, "the device accepts no more bytes")
	errPanic    = errors.New("internal error")
)

// brokenRules returns the cause for ending a connection that violates the MQTT protocol.
func brokenRules(how string) link.CauseError {
	return link.CauseOf(fleet.CauseViolation, how, "detail", fleet.CleanText(how, 120))
}

const (
	// seenEvery is the minimum interval between two reports of received packets to the core, for one
	// connection.
	seenEvery = 5 * time.Second

	// takeoverGoodbye bounds the DISCONNECT to a connection that is taken over: the new connection
	// waits for it, and a stuck socket accepts nothing.
	takeoverGoodbye = 50 * time.Millisecond
)

// A carrier transports the messages of one connection. It is a mochi client or a WebSocket.
type carrier interface {
	link.Carrier

	// greeted records that the device has sent its hello. audioVersion is the version of its
	// binary messages; 0 changes nothing. It runs on the reader's goroutine.
	greeted(audioVersion int)
	// stream returns the stream that carries audio, or nil if audio uses UDP.
	stream() Stream
	// farewell tries for at most d to notify the device why its connection is about to be
	// stopped.
	farewell(why link.CauseError, d time.Duration)
	// leave asks the device to connect to another edge, after the messages that were posted are
	// written, and ends the connection. It does not wait. It does nothing if busy, which is called
	// while no message can be posted, returns true.
	leave(why link.CauseError, busy func() bool) (left bool)
	// shut closes the connection on behalf of connection.stop. It does not wait.
	shut(cause error)
	// silence returns the cause for err if err means that the device was silent for too long.
	silence(err error) (why link.CauseError, silent bool)
}

var (
	_ carrier = (*mqttCarrier)(nil)
	_ carrier = (*socket)(nil)
)

// A connection is one device's connection to the edge, over MQTT or a WebSocket.
type connection struct {
	edge       *Edge
	core       link.Connection // nil until it is admitted
	carrier    carrier
	dialect    dialect.Dialect
	device     fleet.DeviceID
	clientID   string // of MQTT, also over a WebSocket
	remoteAddr string
	lost       chan struct{} // closed when the connection has ended
	talking    atomic.Bool   // in a conversation
	posted     atomic.Int64  // when MCP was last posted, in Unix nanoseconds; 0 if some was received since
	asked      atomic.Bool   // to connect to another edge

	// These belong to the reader's goroutine.
	clean        bool // the device sent DISCONNECT, or closed its WebSocket
	established  bool
	lastSeen     time.Time
	conversation Conversation  // the latest relayed one, which may be over; nil before the first
	hellos       *rate.Limiter // nil before the first

	mu    sync.Mutex
	cause error // why it ended; nil while it is open
}

// open asks the core to admit the connection. The caller has set its carrier.
func (c *connection) open(q link.Connect) (err error) {
	q.Node, q.Dialect = c.edge.o.Node, c.dialect
	c.core, err = c.edge.core.Open(q, c.carrier)
	if err != nil {
		return err
	}
	facts := c.core.Facts()
	c.device, c.clientID, c.remoteAddr = facts.Device, facts.ClientID, facts.RemoteAddr
	return nil
}

// refusal returns the reason for which the core did not admit a connection.
func refusal(err error) link.Refusal {
	if r, ok := errors.AsType[link.Refusal](err); ok {
		return r
	}
	return link.RefusedCredentials
}

// establish ends the device's earlier connection; establishedNow follows.
func (c *connection) establish() { c.core.Establish() }

// establishedNow lets the core use the connection.
func (c *connection) establishedNow() {
	e := c.edge
	e.mu.Lock()
	e.connections[c] = struct{}{}
	e.mu.Unlock()
	c.established = true
	e.stats.connects.Add(1)
	c.core.Established()
}

// end cleans up after the connection. err is the error of its reader.
func (c *connection) end(err error) {
	if c.asked.Load() { // the device may have ended the connection first
		c.clean = false
		c.stop(link.ErrEdgeDrained)
	}
	c.stop(err)
	c.edge.mu.Lock()
	delete(c.edge.connections, c)
	c.edge.mu.Unlock()
	c.core.Closed(c.clean, c.endCause(err))
}

// stop ends the connection immediately: the socket is closed, and its reader notices. It does not
// wait. Only the first stop has an effect.
func (c *connection) stop(cause error) {
	if cause == nil {
		cause = io.EOF
	}
	c.mu.Lock()
	first := c.cause == nil
	if first {
		c.cause = cause
		close(c.lost)
	}
	c.mu.Unlock()
	if first {
		c.carrier.shut(cause)
	}
}

// stopped is the core's stop.
func (c *connection) stopped(cause fleet.Cause) {
	why := link.CauseError{Cause: cause}
	if cause.Reason.Code == fleet.CauseTakenOver {
		c.carrier.farewell(why, takeoverGoodbye)
	}
	c.stop(why)
}

// endCause returns why the connection ended. It returns the zero Cause if the device disconnected
// cleanly.
func (c *connection) endCause(err error) fleet.Cause {
	c.mu.Lock()
	cause := c.cause
	c.mu.Unlock()
	var ours link.CauseError
	silent, isSilent := c.carrier.silence(cause)
	switch {
	case errors.As(cause, &ours):
		return ours.Cause
	case c.clean:
		return fleet.Cause{}
	case isSilent:
		return silent.Cause
	case errors.Is(err, errPanic):
		return link.CauseOf(fleet.CauseInternal, err.Error()).Cause
	case err == nil, errors.Is(err, io.EOF):
		return link.CauseOf(fleet.CauseSocketClosed, "the device closed the socket").Cause
	case errors.Is(err, net.ErrClosed):
		return errNotTaken.Cause
	}
	return link.CauseOf(fleet.CauseSocketError, err.Error(), "detail", fleet.CleanText(err.Error(), 120)).Cause
}

// seen records that a packet of any kind was received.
func (c *connection) seen(now time.Time) {
	if now.Sub(c.lastSeen) >= seenEvery {
		c.lastSeen = now
		c.core.Seen()
	}
}

// deliver sends a message of a conversation to the device unchanged. See link.Carrier.
func (c *connection) deliver(message []byte) error {
	return c.carrier.Notify(append(c.carrier.Begin(c.dialect.Address(message), len(message)), message...))
}

// receive handles a message that the device published to the topic or sent over its WebSocket.
// All text from devices enters here: results, errors, notifications, logs and tools. receive
// removes the Client-Id that the device's credentials are bound to: any reader of the device's
// texts could otherwise poll with it and be given the credentials.
func (c *connection) receive(topic string, payload []byte, properties []dialect.Property) {
	c.edge.stats.publishesIn.Add(1)
	payload = redact.ClientID(payload, dialect.UUIDOf(c.clientID))
	m := link.Message{Topic: topic, Payload: payload, Properties: properties}
	if m.Decoded, m.Err = c.dialect.Decode(topic, payload, properties); m.Err == nil {
		switch m.Decoded.Kind {
		case dialect.RPC:
			c.posted.Store(0)
		case dialect.Ready:
			c.carrier.greeted(0)
		case dialect.Hello:
			c.carrier.greeted(m.Decoded.Greeting.AudioVersion)
			if c.beginConversation(m.Decoded, time.Now()) {
				return
			}
		case dialect.Goodbye, dialect.Text:
			c.converse(m.Decoded)
			return
		case dialect.Ignored:
			return
		}
	}
	c.core.Receive(m)
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
