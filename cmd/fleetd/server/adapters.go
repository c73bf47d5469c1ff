package server

import (
	"context"
	"encoding/json"
	"errors"

	"fleetd/fleet"
)

// brokerDevices shows the domain to the broker.
type brokerDevices struct{ *Server }

func (d brokerDevices) Authenticate(clientID, username string, password []byte) (fleet.DeviceID, error) {
	return d.enrolments.Authenticate(clientID, username, password)
}

func (d brokerDevices) Connected(c fleet.Connection) {
	d.presences.Connected(c)
	d.enrolments.Connected(c)
}

func (d brokerDevices) Disconnected(c fleet.Connection, clean bool, reason string) {
	d.presences.Disconnected(c, clean, reason)
}

func (d brokerDevices) Seen(id fleet.DeviceID) {
	d.presences.Seen(id)
	d.enrolments.Heard(id)
}

func (d brokerDevices) Responded(id fleet.DeviceID) { d.presences.Responded(id) }

func (d brokerDevices) Unresponsive(c fleet.Connection, why string) {
	d.presences.Unresponsive(c, why)
}

func (d brokerDevices) IsSoftware(id fleet.DeviceID) bool { return d.enrolments.Running(id).Software }

func (d brokerDevices) NeedsListing(id fleet.DeviceID) bool {
	return !d.enrolments.Running(id).InventoryFresh
}

// SaveListing adds the build that the device said it runs, so that the same
// build need not be listed again.
func (d brokerDevices) SaveListing(ctx context.Context, l fleet.ToolListing) error {
	running := d.enrolments.Running(l.Device)
	l.ELFSHA256, l.Version = running.ELFSHA256, running.Version
	err := d.devices.Listed(ctx, l)
	if errors.Is(err, fleet.ErrNotFound) { // a device that joined a moment ago
		if err = d.enrolments.Stored(ctx); err == nil {
			err = d.devices.Listed(ctx, l)
		}
	}
	if err != nil {
		return err
	}
	if !l.Partial {
		d.enrolments.Listed(l.Device, l.ELFSHA256, l.At)
	}
	if engine := d.engine.Load(); engine != nil {
		engine.Listed(l.Device, l)
	}
	return nil
}

// Notified is what the included firmware and custom boards say unasked; stock
// firmware sends nothing.
func (d brokerDevices) Notified(id fleet.DeviceID, method string, params json.RawMessage) {
	d.reports.Notified(id, method, params)
}
