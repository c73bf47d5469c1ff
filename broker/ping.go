package broker

import (
	"context"
	"errors"
	"fmt"

	"fleetd/fleet"
	"fleetd/mcp"
)

// Ping pings the device over its connection and returns that connection's epoch. A device answers
// a ping while a call runs, but not while it installs firmware or restarts. It returns
// [fleet.ErrOffline] if there is no connection, and [fleet.ErrNoAnswer] if no answer came over
// it.
func (b *Broker) Ping(ctx context.Context, id fleet.DeviceID) (epoch int64, err error) {
	c := b.registry.connection(id)
	if c == nil {
		return 0, fleet.ErrOffline
	}
	err = c.probe(ctx)
	switch {
	case err == nil:
		c.answered()
		return c.Epoch, nil
	case errors.Is(err, mcp.ErrNotSent):
		return c.Epoch, fmt.Errorf("%w: %w", fleet.ErrOffline, err)
	}
	return c.Epoch, fmt.Errorf("%w: %w", fleet.ErrNoAnswer, err)
}

// Epoch returns the epoch of the device's connection, or false if it has no connection.
func (b *Broker) Epoch(id fleet.DeviceID) (int64, bool) {
	c := b.registry.connection(id)
	if c == nil {
		return 0, false
	}
	return c.Epoch, true
}
