package broker

import (
	"net"
	"strconv"
	"time"

	"fleetd/broker/dialect"
)

// helloEvery is how often one device's hello is answered.
const helloEvery = time.Second

// answerHello answers a person who starts to talk to the device. Without a voice
// server there is no message that says so: a device that gets no answer freezes
// for ten seconds. So the channel is opened, to nowhere, and closed at once,
// unless the device would leave with it: see keepsChannel.
func (c *connection) answerHello(m dialect.Message, now time.Time) {
	if c.beginConversation(m, now) {
		return
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

// voiceAddr is the UDP address in the server hello, to which the device sends its
// voice.
func (c *connection) voiceAddr() (host string, port int) {
	host, text, err := net.SplitHostPort(c.broker.o.VoiceAddr)
	if err == nil {
		if port, err = strconv.Atoi(text); err == nil {
			return host, port
		}
	}
	return c.carrier.localHost(), discardPort
}
