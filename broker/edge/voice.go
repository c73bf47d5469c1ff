package edge

import (
	"time"

	"golang.org/x/time/rate"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
)

// A Voice relays conversations of devices with a voice server. Its methods, and those of its
// conversations, run on the goroutine that reads the device's socket. They do not wait, except
// for the choice of a voice server in Begin.
type Voice interface {
	// Begin begins the conversation that the device's hello requests, and answers the device
	// after the voice server has answered. It returns nil if there is no voice server for the
	// device. hello is valid until Begin returns.
	Begin(d VoiceDevice, hello []byte) Conversation
}

// A Conversation is one voice session of a device. It is used by one goroutine at a time. Input
// after its end is dropped.
type Conversation interface {
	// Receive handles a message of the device other than hello and mcp. It reports whether the
	// message ended the conversation. payload is valid until it returns.
	Receive(kind, session string, payload []byte) (ended bool)
	// Hear handles an audio frame of a device with a Stream. timestamp is in milliseconds, 0 if
	// the device sends none. frame is valid until it returns.
	Hear(frame []byte, timestamp uint32)
	// End ends the conversation. The device is not notified.
	End(how fleet.ConversationEnd)
}

// A VoiceDevice is a device that begins a conversation. Its functions may be called by any
// goroutine and do not wait.
type VoiceDevice struct {
	ID         fleet.DeviceID
	ClientID   string // the device's UUID, as in its Client-Id
	RemoteAddr string // without port

	// Stream carries audio over the connection that carries the messages. If it is nil, audio
	// uses UDP, which the relay sets up with its hello.
	Stream Stream

	Send   func(payload []byte) error // sends a JSON message; a nil error does not prove delivery
	Opened func()                     // called after the device was sent the answer to its hello
	Closed func()                     // called after the device was sent a goodbye
	Lost   <-chan struct{}            // closed when the connection has ended
}

// A Stream is the audio side of a device that talks over a WebSocket. Audio and messages are sent
// in the order of the calls. Such a device knows no goodbye: the end of its connection is the end
// of the conversation.
type Stream interface {
	// SendAudio sends a frame. It copies the frame and does not wait. It reports false if the
	// frame was dropped.
	SendAudio(frame []byte, timestamp uint32) bool
	// Close ends the connection after all queued messages are written.
	Close()
}

// These limit the hellos of a connection with a voice server. If a conversation fails at once, the
// next press of the device's button is still answered.
const (
	voiceHelloEvery = time.Second
	voiceHelloBurst = 5
)

// beginConversation passes a hello to the voice relay. It reports false if the device has no
// voice server. It runs on the reader's goroutine.
func (c *connection) beginConversation(m dialect.Message, now time.Time) bool {
	voice := c.edge.o.Voice
	if voice == nil {
		return false
	}
	if c.hellos == nil {
		c.hellos = rate.NewLimiter(rate.Every(voiceHelloEvery), voiceHelloBurst)
	}
	if !c.hellos.AllowN(now, 1) {
		c.hangUp()
		return true
	}
	if c.conversation != nil {
		c.conversation.End(fleet.EndedByNewHello)
		c.conversation = nil
	}
	c.core.Converse(link.Event{Kind: link.Greeted, Greeting: m.Greeting})
	c.talking.Store(true)
	conversation := voice.Begin(VoiceDevice{ID: c.device, ClientID: dialect.UUIDOf(c.clientID), RemoteAddr: c.remoteAddr,
		Stream: c.carrier.stream(), Send: c.deliver, Lost: c.lost,
		Opened: func() { c.core.Converse(link.Event{Kind: link.Opened}) },
		Closed: func() { c.talking.Store(false); c.core.Converse(link.Event{Kind: link.Ended}) }}, m.Payload)
	if conversation == nil {
		c.talking.Store(false)
		return false
	}
	c.edge.stats.hellos.Add(1)
	c.conversation = conversation
	return true
}

// converse handles a message of the device's conversation.
func (c *connection) converse(m dialect.Message) {
	over := m.Kind == dialect.Goodbye
	if c.conversation != nil {
		over = c.conversation.Receive(m.Type, m.Session, m.Payload)
	}
	if over {
		c.talking.Store(false)
		c.core.Converse(link.Event{Kind: link.Ended})
	}
}

// hangUp sends the device a goodbye for a conversation that was never answered.
func (c *connection) hangUp() {
	message, closes := c.dialect.Goodbye("")
	if message != nil {
		_ = c.deliver(message) // an error means that the connection is lost
	}
	if closes {
		c.carrier.Finish()
	}
}
