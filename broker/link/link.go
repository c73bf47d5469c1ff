// Package link connects the two halves of the broker: the edge, which holds the sockets of devices
// (package broker/edge), and the core, which gives their messages a meaning (package broker). Each
// half sees an interface of the other. In one process they call each other directly; between
// machines package broker/cluster carries the same calls over NATS.
//
// A connection exists on both sides from Core.Open, which admits the device, to Connection.Closed.
// Messages keep their order on each connection. Nothing here knows MQTT, SQL or operators.
package link

import (
	"crypto/x509"
	"fmt"

	"fleetd/broker/dialect"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/mcp"
)

// A Core admits devices that connect to an edge.
type Core interface {
	// Open admits a device: it checks the credentials, and waits for the core's answer. Its error is
	// a [Refusal]. Each connection that it returns must be closed.
	Open(c Connect, carrier Carrier) (Connection, error)
}

// An Adopter is a core that can take over connections from another process.
type Adopter interface {
	Core
	// Adopt takes over a connection that another process admitted, with its facts. The connection is
	// established: the device notices nothing, and messages follow.
	Adopt(c Connect, facts fleet.Connection, carrier Carrier) Connection
}

// A Connect describes a client that asks for admission.
type Connect struct {
	Device      fleet.DeviceID // that the client claims to be
	ClientID    string         // of MQTT; over a WebSocket the device's UUID
	Username    string
	Password    []byte            // over a WebSocket the token
	Certificate *x509.Certificate // verified; nil without one
	Transport   string            // one of the transports below
	Node        string            // name of the edge
	RemoteAddr  string            // without port
	LocalHost   string            // the address of the server that the device connected to

	// Said are the fields of the CONNECT that identify the dialect; zero over a WebSocket.
	Said dialect.Connect
	// Dialect is the dialect of the connection. Both halves use it.
	Dialect dialect.Dialect

	// Shown is what the device has done on a connection that another process admitted.
	Shown Shown
}

// A Shown is what a device has done on a connection, as far as the edge saw it. The process that admitted
// the connection may have ended before it acted on that.
type Shown struct {
	Unanswered bool // the device has answered no request yet
	Greeted    bool // it has sent hello
	Greeting   dialect.Greeting
	Talking    bool // it is in a conversation with a voice server
}

// The transports.
const (
	MQTT      = "mqtt"
	MQTTS     = "mqtts"
	WebSocket = "ws"
)

// A Refusal is the reason why a device was not admitted: one of those below, or the text of an
// [enrolment.CredentialsError].
type Refusal string

const (
	RefusedLater       = Refusal(enrolment.CredentialsLater)
	RefusedOtherDevice = Refusal(enrolment.CredentialsOtherDevice)
	RefusedCredentials = Refusal("credentials")    // for another reason
	RefusedTooOften    = Refusal("too_many_dials") // the device opens WebSockets too often
)

func (r Refusal) Error() string { return "not admitted: " + string(r) }

// A Connection is the core's side of an admitted connection. Except for Converse, its methods
// are called by one goroutine at a time. Except for Establish, they do not wait.
type Connection interface {
	// Facts returns what is known of the connection. At and Epoch are set by Establish.
	Facts() fleet.Connection
	// Establish ends the device's earlier connection. It waits for other connections of the same
	// device that are being established.
	Establish()
	// Established is called when the device has been notified that it is admitted. From then on it
	// may be sent messages.
	Established()
	// Seen is called when packets arrive, at most once every few seconds.
	Seen()
	// Receive handles a message, which is valid until Receive returns.
	Receive(m Message)
	// Converse handles an event of the device's conversation with a voice server. Any goroutine may
	// call it.
	Converse(e Event)
	// Closed is called last. clean means that the device sent DISCONNECT, as it does before it
	// restarts. cause is zero in that case, and repeats a cause that the core gave to Carrier.Stop.
	Closed(clean bool, cause fleet.Cause)
}

// A Message is a message that a device published to a permitted topic, or sent over a WebSocket.
type Message struct {
	Topic      string // "" over a WebSocket
	Payload    []byte
	Properties []dialect.Property // of MQTT 5

	// What the edge decoded; Err is the error of Dialect.Decode.
	Decoded dialect.Message
	Err     error
}

// An EventKind is a kind of [Event].
type EventKind uint8

const (
	// Greeted precedes each conversation. If there is no voice server for the device, Receive follows
	// with the hello.
	Greeted EventKind = iota + 1
	Opened            // the device was sent the answer to its hello
	Ended             // the device or the voice server ended the conversation
)

// An Event is an event of a conversation.
type Event struct {
	Kind     EventKind
	Greeting dialect.Greeting // of Greeted
}

// A Carrier is the edge's side of a connection. Its methods may be called by any goroutine.
type Carrier interface {
	// Begin returns the start of a message to the device, with capacity for size bytes of payload.
	// The caller appends the payload.
	Begin(to dialect.Address, size int) []byte
	// Post sends a message that Begin started. It returns when the edge has accepted the message,
	// without waiting for the device: only an answer of the device proves delivery. If the error
	// wraps [mcp.ErrNotSent], no byte was sent; after any other error the device may have received
	// the message.
	Post(message []byte) error
	// Notify does the same without waiting for the edge: an error means that the message was certainly
	// not sent.
	Notify(message []byte) error
	// Finish ends the connection after all messages that were posted are written.
	Finish()
	// Stop ends the connection and tries to notify the device of the cause. Only the first call
	// has an effect.
	Stop(cause fleet.Cause)
}

// ErrEdgeSilent is the error of a message that was not sent because the edge is silent.
var ErrEdgeSilent = fmt.Errorf("%w: the edge that holds the connection is silent", mcp.ErrNotSent)

// A CauseError is the cause for which one half ended a connection.
type CauseError struct{ fleet.Cause }

func (e CauseError) Error() string { return e.Text }

// CauseOf returns the cause with a code, an English text for logs, and parameters.
func CauseOf(code, text string, params ...any) CauseError {
	return CauseError{fleet.Cause{Reason: fleet.Because(code, params...), Text: text}}
}

// The causes that both halves use.
var (
	ErrTakenOver        = CauseOf(fleet.CauseTakenOver, "the device connected again")
	ErrInternal         = CauseOf(fleet.CauseInternal, "internal error")
	ErrStopping         = CauseOf(fleet.CauseStopping, "fleetd is stopping")
	ErrEdgeLost         = CauseOf(fleet.CauseEdgeLost, "the edge that held the connection is lost")
	ErrEdgeDrained      = CauseOf(fleet.CauseEdgeDrained, "the edge that held the connection is being drained")
	ErrConversationOver = CauseOf(fleet.CauseConversationOver, "the conversation is over")
)
