package broker

import (
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/sync/errgroup"
)

// stopConnections ends every device's connection. Devices that speak MQTT 5 get
// a DISCONNECT with the reason, if they read it within d; earlier versions know
// no DISCONNECT from the server.
func (b *Broker) stopConnections(d time.Duration) {
	all := b.registry.connections()
	var g errgroup.Group
	g.SetLimit(64)
	within(d, func() {
		for _, c := range all {
			if c.v5() {
				g.Go(c.sayStopping)
			}
		}
		_ = g.Wait()
	})
	for _, c := range all {
		c.stop(errStopping)
	}
}

func (c *connection) sayStopping() error { return c.say(packets.ErrServerShuttingDown) }

// v5 reports whether the device speaks MQTT 5, and so knows a DISCONNECT from
// the server and reasons in what acknowledges its messages.
func (c *connection) v5() bool { return c.client != nil && c.client.Properties.ProtocolVersion >= 5 }

// say sends a device of MQTT 5 a DISCONNECT with the reason.
func (c *connection) say(why packets.Code) error {
	return c.client.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Disconnect},
		ReasonCode:  why.Code,
	})
}

// broken ends the connection of a device that breaks the rules of MQTT. It runs
// on the goroutine that reads.
func (c *connection) broken(how packets.Code, cause causeError) {
	b := c.broker
	b.stats.protocolErrors.Add(1)
	if ok, skipped := b.refusals.allow(c.ClientID+cause.Text, time.Now()); ok {
		b.log.Warn("connection ended: the device breaks the rules of MQTT", "device", c.Device, "remote", c.RemoteAddr,
			"code", how.Code, "reason", cause.Text, "not_logged", skipped)
	}
	if c.v5() && c.established {
		_ = c.say(how)
	}
	c.stop(cause)
}
