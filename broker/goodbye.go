package broker

import (
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/sync/errgroup"
)

// stopConnections ends every device's connection. Those that speak MQTT 5 are
// told why, as far as they listen within d; earlier versions know no such packet.
func (b *Broker) stopConnections(d time.Duration) {
	all := b.registry.connections()
	var g errgroup.Group
	g.SetLimit(64)
	within(d, func() {
		for _, c := range all {
			if c.client.Properties.ProtocolVersion >= 5 {
				g.Go(c.sayStopping)
			}
		}
		_ = g.Wait()
	})
	for _, c := range all {
		c.stop(errStopping)
	}
}

func (c *connection) sayStopping() error {
	return c.client.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Disconnect},
		ReasonCode:  packets.ErrServerShuttingDown.Code,
	})
}
