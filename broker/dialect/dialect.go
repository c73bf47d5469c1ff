package dialect

import (
	"time"

	"fleetd/fleet"
	"fleetd/mcp"
)

// A Dialect is the language of one connection. Opening, Address, Wrap, Call and Goodbye may be
// called concurrently by any goroutine. The other methods are called by the goroutine that reads
// the connection. No method waits.
type Dialect interface {
	// Opening returns how the connection begins. It returns the same each time.
	Opening() Opening

	// MayPublish reports whether the device may publish to the topic. Messages to other topics
	// are dropped.
	MayPublish(topic string) bool
	// MaySubscribe reports whether the device may subscribe with the filter. Messages to the
	// device reach it without a subscription.
	MaySubscribe(filter string) bool

	// Decode decodes a message that the device published to a permitted topic, or sent over a
	// WebSocket; topic is then "". properties are the user properties of MQTT 5. The message
	// aliases payload. If the error wraps
	// [mcp.ErrMalformed], the broker searches payload for the call that it answers; after any
	// other error the message is dropped.
	Decode(topic string, payload []byte, properties []Property) (Message, error)

	// Address returns the destination of a message: msg is bare JSON-RPC, or a message of a
	// conversation.
	Address(msg []byte) Address
	// Wrap appends the payload that carries msg, one bare JSON-RPC message, to dst.
	Wrap(dst, msg []byte, scope mcp.Scope) []byte

	// Call returns the parameters of tools/call for an invocation. The broker adds
	// the id, the timeout and OnSent. If the device could not run the call, the error wraps
	// [mcp.ErrInvalid], or is a [fleet.Error] of the kind [fleet.ErrInvalid].
	Call(inv fleet.Invocation) (mcp.CallToolParams, error)

	// Follow takes over what the dialect of the device's previous connection learned about the
	// device. It is called before any other method.
	Follow(previous Dialect)
	// State returns what the dialect of the same connection needs in another process, in addition to
	// the CONNECT; nil for nothing. Restore takes it over, before any other method is called. State
	// may be called by any goroutine.
	State() []byte
	Restore(state []byte)
	// Listed returns the tools as they enter the inventory. It may be called by any goroutine.
	Listed(tools []mcp.Tool) []mcp.Tool

	Conversations

	// Closed returns the habit that the ended connection shows.
	Closed(e Ending) Habit
}

// Conversations defines how a device holds a conversation with a person while no voice server
// relays it. Only a dialect whose Decode returns [Hello] needs it.
type Conversations interface {
	// Keep returns how long the conversation that a hello begins is kept open for the device's
	// tools; 0 ends it at once. The broker may call it twice for one hello.
	Keep(g Greeting, h History) time.Duration
	// Answer returns an answer to hello and the session in it. The device sends its voice to host
	// and port.
	Answer(host string, port int) (session string, hello []byte)
	// Goodbye returns the message that ends a conversation, or nil if no message does. closes means
	// that the connection ends with the conversation. session is "" if the conversation ends
	// before its hello was answered.
	Goodbye(session string) (message []byte, closes bool)
}

// Mute is embedded by dialects of devices that hold no conversations.
type Mute struct{}

// Keep implements [Conversations].
func (Mute) Keep(Greeting, History) time.Duration { return 0 }

// Answer implements [Conversations].
func (Mute) Answer(string, int) (session string, hello []byte) { return "", nil }

// Goodbye implements [Conversations].
func (Mute) Goodbye(string) (message []byte, closes bool) { return nil, false }

// Follow implements [Dialect].
func (Mute) Follow(Dialect) {}

// State implements [Dialect].
func (Mute) State() []byte { return nil }

// Restore implements [Dialect].
func (Mute) Restore([]byte) {}

// Listed implements [Dialect].
func (Mute) Listed(tools []mcp.Tool) []mcp.Tool { return tools }

// Closed implements [Dialect].
func (Mute) Closed(Ending) Habit { return HabitUnknown }

// An Opening defines how a connection begins.
type Opening struct {
	// AtOnce means that fleetd requests the device's name and tools as soon as it is connected.
	// Otherwise the device sends first: see [Hello] and [Ready].
	AtOnce bool
	// Initialize means that each connection needs MCP's initialize, once. The tools are listed after
	// it, because no boot poll says whether they are still the same. Calls wait until then.
	Initialize bool
	// Standard means that the device speaks MCP without the extensions of stock xiaozhi firmware:
	// one list of tools for people and models, and no address for pictures.
	Standard bool
	Revision string // of MCP, to request in initialize; "" is that of stock firmware

	// The other fields apply to MQTT 5.

	Retain     bool       // the device may ask to retain a message or will; fleetd retains none
	Wildcards  bool       // MaySubscribe allows filters with wildcards
	Properties []Property // added to CONNACK
}

// A Property is a user property of MQTT 5.
type Property struct{ Key, Value string }

// An Address is the destination of a message over MQTT. WebSockets need none.
type Address struct {
	Topic      string
	Properties []Property // of MQTT 5
}

// A Kind is the kind of a message.
type Kind int8

const (
	Ignored Kind = iota // nothing to do
	RPC                 // Payload is JSON-RPC for the MCP session
	Ready               // the device now accepts requests for its name and tools
	Left                // the device's MCP server has ended; the connection ends, too
	Hello               // a person starts a conversation
	Goodbye             // the device ends the conversation
	Text                // anything else that belongs to the conversation
)

// A Message is what a device sent.
type Message struct {
	Kind     Kind
	Payload  []byte // for RPC the JSON-RPC message, otherwise the whole message
	Type     string // of Goodbye and Text, as the device names it
	Session  string // of Goodbye and Text: the conversation's; often empty or stale
	Greeting Greeting
}

// A Greeting contains the parts of a device's hello that the broker uses.
type Greeting struct {
	MCP bool // the device offers tools
	// AudioVersion is the version of the binary messages that carry audio over a
	// WebSocket, from 1 to 3; 0 if the hello names none.
	AudioVersion int
}

// A History describes a connection before a hello.
type History struct {
	Connected time.Duration // duration since CONNECT
	Greeted   bool          // an earlier hello on this connection was answered
	Kept      bool          // a conversation is kept open already
	Habit     Habit         // shown by earlier connections
	Software  bool          // the device's boot poll named no hardware
	Timeout   time.Duration // the usual limit of a conversation that is kept open
}

// An Ending describes a connection that has ended.
type Ending struct {
	Connected    time.Duration // duration
	Greeted      bool          // a hello was answered
	Goodbye      bool          // a conversation ended before the connection
	SinceGoodbye time.Duration // from the latest goodbye to the end
	ByDevice     bool          // the device ended the connection
}

// A Habit is how a device uses its connections.
type Habit int8

const (
	HabitUnknown Habit = iota
	HabitStays         // stays connected between conversations
	HabitLeaves        // connects for a conversation and disconnects after it
)
