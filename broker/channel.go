package broker

import (
	"encoding/json"
	"errors"
	"io"
	"time"
)

// Boards stay connected between conversations. Programs that play a board
// connect for a conversation, send hello at once, and leave MQTT with goodbye:
// ending the conversation at once leaves no time to list their tools, nor to
// call one. Their channel is kept open, without audio, until they leave.
//
// The two are distinguished by how their connections end and, until the first
// has ended, by whether the boot poll named any hardware.

const (
	helloAtOnce = 5 * time.Second  // after CONNECT: the connection was made for the conversation
	leaveWithin = 5 * time.Second  // after goodbye: the connection ended with the conversation
	idleBoard   = 30 * time.Second // without hello: the connection was not made for a conversation
)

// A habit is how a device uses its connections.
type habit int8

const (
	habitUnknown habit = iota
	habitStays         // stays connected between conversations
	habitLeaves        // connects for a conversation and leaves with it
)

// learn notes what a connection has shown, unless that is nothing.
func (d *device) learn(h habit) {
	if h == habitUnknown {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.habit = h
}

func (d *device) knownHabit() habit {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.habit
}

// habitShown is what the connection, which ended at the given time, says about
// the device.
func (c *connection) habitShown(end time.Time) habit {
	c.mu.Lock()
	cause, goodbye := c.cause, c.channel.goodbye
	c.mu.Unlock()
	switch {
	case !c.established, c.socket != nil:
		return habitUnknown
	case c.lastHello.IsZero() && end.Sub(c.At) >= idleBoard:
		return habitStays
	case goodbye.IsZero(): // it ended before anything could be seen
		return habitUnknown
	case end.Sub(goodbye) > leaveWithin:
		return habitStays
	case c.helloAtOnce && (c.clean || errors.Is(cause, io.EOF)):
		return habitLeaves
	}
	return habitUnknown
}

// A channel is the conversation of a connection, if it is kept open.
type channel struct { // under connection.mu
	session string      // "" unless it is open
	bound   *time.Timer // ends it
	goodbye time.Time   // the latest, of either side
	count   func(delta int64) int64
}

// end forgets the conversation.
func (ch *channel) end() {
	if ch.session == "" {
		return
	}
	ch.session = ""
	ch.bound.Stop()
	ch.count(-1)
}

// keepsChannel decides whether the conversation that the device's hello begins
// is kept open. It may be called before lastHello is set, on the reader's
// goroutine.
func (c *connection) keepsChannel(payload []byte, now time.Time) bool {
	var hello struct {
		Features struct {
			MCP bool `json:"mcp"`
		} `json:"features"`
	}
	if json.Unmarshal(payload, &hello) != nil || !hello.Features.MCP {
		return false // there is nothing to keep it for
	}
	if c.socket != nil {
		return true // its connection ends with it
	}
	if c.channelOpen() {
		return true // the answer was lost, or the program began again
	}
	if !c.lastHello.IsZero() {
		return false // it stayed after a conversation
	}
	c.helloAtOnce = now.Sub(c.At) <= helloAtOnce
	if !c.helloAtOnce {
		return false
	}
	switch c.device.knownHabit() {
	case habitStays:
		return false
	case habitLeaves:
		return true
	}
	return c.broker.devices.IsSoftware(c.Device)
}

func (c *connection) channelOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.channel.session != ""
}

// openChannel keeps the conversation open until the device ends it, its time is
// up, or the connection ends.
func (c *connection) openChannel(session string) {
	c.mu.Lock()
	ch := &c.channel
	switch {
	case c.cause != nil:
	case ch.session != "":
		ch.session = session // the time it has runs on
	default:
		ch.session, ch.count = session, c.broker.stats.channels.Add
		ch.count(1)
		ch.bound = time.AfterFunc(c.channelTimeout(), c.closeChannel)
	}
	c.mu.Unlock()
	c.startOnboarding(0) // if an earlier try was too early for the program
}

func (c *connection) channelTimeout() time.Duration {
	timeout := c.broker.o.ChannelTimeout
	if c.socket != nil && !c.broker.devices.IsSoftware(c.Device) {
		return min(timeout, boardChannel)
	}
	return timeout
}

// closeChannel ends the conversation, once the device has answered what it was
// asked: it will leave.
func (c *connection) closeChannel() {
	t, err := c.join(false, maxWaiting+1)
	if err == nil {
		defer t.Done()
		wait := time.NewTimer(turnTimeout)
		defer wait.Stop()
		select {
		case <-t.ready:
		case <-c.lost:
		case <-wait.C:
		}
	}
	c.mu.Lock()
	session := c.channel.session
	c.mu.Unlock()
	if session != "" {
		c.sayGoodbye(session)
	}
}

// endChannel notes that the device ended the conversation.
func (c *connection) endChannel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channel.end()
	c.channel.goodbye = time.Now()
}

// sayGoodbye ends a conversation.
func (c *connection) sayGoodbye(session string) {
	c.endChannel()
	if c.socket != nil {
		c.socket.Close()
		return
	}
	_ = c.deliver([]byte(`{"type":"goodbye","session_id":"` + session + `"}`)) // lost with the connection
}
