package broker

import (
	"context"
	"encoding/json"

	"fleetd/fleet"
)

// Devices is the broker's interface to the domain: queries and notifications.
// All methods but SaveListing answer from memory, as long as the device is known: they
// run on the goroutine that reads a device's socket, and a storm of reconnects calls them
// thousands of times a second.
type Devices interface {
	// Authenticate returns the device that the credentials of a CONNECT belong
	// to. An [enrolment.CredentialsError] says why they belong to none. For a device that
	// is not on record it may wait some seconds, until it is.
	Authenticate(clientID, username string, password []byte, remoteAddr string) (fleet.DeviceID, error)

	// AuthenticateToken checks the token of a WebSocket, and returns the client id
	// that the device would have on MQTT. Its errors are those of Authenticate.
	AuthenticateToken(id fleet.DeviceID, clientID, token, remoteAddr string) (mqttClientID string, err error)

	Connected(c fleet.Connection)
	// Disconnected follows each Connected once, maybe after the next Connected
	// of the same device. clean means that the device sent DISCONNECT, as it
	// does before it restarts.
	Disconnected(c fleet.Connection, clean bool, cause fleet.Cause)
	// Seen reports that packets arrive, at most every few seconds per connection.
	Seen(id fleet.DeviceID)
	// Responded reports an answer: the first on a connection, and the first
	// after Unresponsive.
	Responded(id fleet.DeviceID)
	// Unresponsive reports that a request went unanswered.
	Unresponsive(c fleet.Connection, cause fleet.Cause)

	// IsSoftware reports whether the device's boot poll, read in full, named no
	// hardware: a program on a computer, not a board.
	IsSoftware(id fleet.DeviceID) bool
	// NeedsListing reports whether the device's tools have to be listed.
	NeedsListing(id fleet.DeviceID) bool
	// SaveListing stores what the device offers. It may block until ctx ends.
	SaveListing(ctx context.Context, l fleet.ToolListing) error
	// Notified passes on what the device says unasked: foreign, but cleaned
	// and bounded.
	Notified(id fleet.DeviceID, method string, params json.RawMessage)
}
