package broker

import (
	"context"
	"errors"
	"fmt"

	"fleetd/fleet"
	"fleetd/mcp"
)

// Ping asks the device for a sign of life over its connection, and returns that
// connection's epoch with the answer. A device answers it while a call runs, but
// not while it installs firmware or restarts. Errors: [fleet.ErrOffline] if
// there is no connection, [fleet.ErrNoAnswer] if no answer came over it.
func (b *Broker) Ping(ctx context.Context, id fleet.DeviceID) (epoch int64, err error) {
	c := b.registry.connection(id)
	if c == nil {
		return 0, fleet.ErrOffline
	}
	err = c.session.Ping(ctx)
	switch {
	case err == nil:
		c.answered()
		return c.Epoch, nil
	case errors.Is(err, mcp.ErrNotSent):
		return c.Epoch, fmt.Errorf("%w: %w", fleet.ErrOffline, err)
	}
	return c.Epoch, fmt.Errorf("%w: %w", fleet.ErrNoAnswer, err)
}

// Epoch returns the epoch of the device's connection, false if it has none.
func (b *Broker) Epoch(id fleet.DeviceID) (int64, bool) {
	c := b.registry.connection(id)
	if c == nil {
		return 0, false
	}
	return c.Epoch, true
}
