package broker

import (
	"time"

	"golang.org/x/sync/errgroup"
)

// stopConnections ends every device's connection. Devices that speak MQTT 5 get a DISCONNECT with
// the reason, if they read it within d; earlier versions define no DISCONNECT from the server.
func (b *Broker) stopConnections(d time.Duration) {
	all := b.registry.connections()
	var g errgroup.Group
	g.SetLimit(64)
	within(d, func() {
		for _, c := range all {
			g.Go(func() error { c.carrier.farewell(errStopping, d); return nil })
		}
		_ = g.Wait()
	})
	for _, c := range all {
		c.stop(errStopping)
	}
}
