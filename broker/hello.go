package broker

import (
	"net"
	"strconv"
	"time"

	"fleetd/broker/dialect"
)

// helloEvery is the minimum interval between replies to the hellos of one device.
const helloEvery = time.Second

// answerHello replies to the hello that a device sends when a person starts to talk to it.
// Without a voice server no message can refuse the conversation, and a device that gets no reply
// freezes for ten seconds. answerHello therefore opens the channel with an unused address and
// closes it at once, unless that would make the device disconnect: see keepsChannel.
func (c *connection) answerHello(m dialect.Message, now time.Time) {
	if c.greeted { // in vain
		c.greeted, c.lastHello = false, c.earlierHello
	}
	if now.Sub(c.lastHello) < helloEvery {
		return
	}
	keep := c.keepsChannel(m.Greeting, now)
	c.lastHello = now
	c.broker.stats.hellos.Add(1)
	session, hello := c.dialect.Answer(c.voiceAddr())
	if c.deliver(hello) != nil {
		return
	}
	if keep > 0 {
		c.openChannel(session, keep)
		return
	}
	c.sayGoodbye(session)
}

const discardPort = 9

// voiceAddr returns the UDP address for the server hello. The device sends its voice there.
func (c *connection) voiceAddr() (host string, port int) {
	host, text, err := net.SplitHostPort(c.broker.o.VoiceAddr)
	if err == nil {
		if port, err = strconv.Atoi(text); err == nil {
			return host, port
		}
	}
	return c.localHost, discardPort
}
