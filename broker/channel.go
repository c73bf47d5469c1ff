package broker

import (
	"time"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
)

// learn records the habit that a connection has shown, unless it is unknown.
func (d *device) learn(h dialect.Habit) {
	if h == dialect.HabitUnknown {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.habit = h
}

func (d *device) knownHabit() dialect.Habit {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.habit
}

// habitShown returns the habit that the device showed on the connection, which ended at the given
// time.
func (c *connection) habitShown(clean bool, cause fleet.Cause, end time.Time) dialect.Habit {
	if !c.established {
		return dialect.HabitUnknown
	}
	c.mu.Lock()
	goodbye := c.channel.goodbye
	c.mu.Unlock()
	return c.dialect.Closed(dialect.Ending{
		Connected: end.Sub(c.At), Greeted: !c.lastHello.IsZero(), Goodbye: !goodbye.IsZero(), SinceGoodbye: end.Sub(goodbye),
		ByDevice: clean || cause.Reason.Code == fleet.CauseSocketClosed,
	})
}

// A channel is the open conversation of a connection, if there is one.
type channel struct { // "" unless a conversation is open
	session string      // "" unless it is open
	bound   *time.Timer // ends the conversation
	goodbye time.Time   // time of the latest goodbye, from either side
	count   func(delta int64) int64

	// relayed means that the conversation with a voice server is one for which the device connected.
	relayed bool
}

// end clears the conversation.
func (ch *channel) end() {
	if ch.session == "" {
		return
	}
	ch.session = ""
	ch.bound.Stop()
	ch.count(-1)
}

// keepsChannel returns how long to keep open the conversation that the device's hello begins, or
// 0 not to keep it. It may be called before lastHello is set, on the reader's goroutine.
func (c *connection) keepsChannel(g dialect.Greeting, now time.Time) time.Duration {
	return c.dialect.Keep(g, dialect.History{
		Connected: now.Sub(c.At), Greeted: !c.lastHello.IsZero(), Kept: c.channelOpen(), Habit: c.device.knownHabit(),
		Software: c.broker.devices.IsSoftware(c.Device), Timeout: c.broker.o.ChannelTimeout,
	})
}

func (c *connection) channelOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.channel.session != ""
}

// openChannel keeps the conversation open until the device ends it, the timeout expires, or the
// connection ends.
func (c *connection) openChannel(session string, timeout time.Duration) {
	c.mu.Lock()
	ch := &c.channel
	switch {
	case c.cause != nil:
	case ch.session != "":
		ch.session = session // the timeout continues from the first hello
	default:
		ch.session, ch.count = session, c.broker.stats.channels.Add
		ch.count(1)
		ch.bound = time.AfterFunc(timeout, c.closeChannel)
	}
	c.mu.Unlock()
	c.startOnboarding(0) // in case an earlier try came too early for the program
}

// adoptedSession is the session of a conversation that another process opened, whose name is unknown.
const adoptedSession = "adopted"

// resumeChannel keeps the conversation open that an earlier process opened, or may have, and whose end it
// can no longer bring about.
func (c *connection) resumeChannel(g dialect.Greeting) {
	now := time.Now()
	keep := c.keepsChannel(g, now)
	c.lastHello = now
	if keep > 0 {
		c.openChannel(adoptedSession, keep)
		return
	}
	c.sayGoodbye(adoptedSession)
}

// closeChannel ends the conversation after the device has answered all earlier requests, because
// the device disconnects afterwards.
func (c *connection) closeChannel() {
	t, err := c.join(&turn{}, maxWaiting+1)
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

// endChannel records that the device ended the conversation.
func (c *connection) endChannel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channel.end()
	c.channel.goodbye = time.Now()
}

// sayGoodbye ends a conversation.
func (c *connection) sayGoodbye(session string) {
	c.endChannel()
	c.hangUp(session)
}

// hangUp sends only the device a goodbye.
func (c *connection) hangUp(session string) {
	message, closes := c.dialect.Goodbye(session)
	if message != nil {
		_ = c.deliver(message) // an error means that the connection is lost
	}
	if closes {
		c.carrier.Finish()
	}
}

// Converse implements [link.Connection].
func (c *connection) Converse(e link.Event) {
	switch e.Kind {
	case link.Greeted:
		now := time.Now()
		relayed := c.keepsChannel(e.Greeting, now) > 0
		c.greeted, c.earlierHello, c.lastHello = true, c.lastHello, now
		c.mu.Lock()
		c.channel.relayed = relayed
		c.mu.Unlock()
	case link.Opened:
		c.mu.Lock()
		relayed := c.channel.relayed
		c.mu.Unlock()
		if relayed {
			c.startOnboarding(0)
		}
	case link.Ended:
		c.endChannel()
	}
}
