package broker

import (
	"context"
	"encoding/json"

	"fleetd/fleet"
)

// Devices is the broker's interface to the domain: queries and notifications. All methods except
// SaveListing and AnsweredLate are served from memory if the device is cached: they run on the goroutine that
// reads a device's socket, and a storm of reconnects calls them thousands of times a second.
type Devices interface {
	// Authenticate returns the device that the credentials of a CONNECT belong to. An
	// [enrolment.CredentialsError] gives the reason for a refusal. If the device is not yet on
	// record, Authenticate may wait some seconds for it.
	Authenticate(clientID, username string, password []byte, remoteAddr string) (fleet.DeviceID, error)

	// AuthenticateToken checks the token of a WebSocket, and returns the client id that the
	// device would have on MQTT. Its errors are those of Authenticate.
	AuthenticateToken(id fleet.DeviceID, clientID, token, remoteAddr string) (mqttClientID string, err error)

	Connected(c fleet.Connection)
	// Adopted reports a connection that another process admitted.
	Adopted(c fleet.Connection)
	// Disconnected is called once for each Connected, possibly after the next Connected of the
	// same device. clean means that the device sent DISCONNECT, as it does before it restarts.
	Disconnected(c fleet.Connection, clean bool, cause fleet.Cause)
	// Seen reports that packets arrive. It is called at most every few seconds per connection.
	Seen(id fleet.DeviceID)
	// Responded reports the first answer on a connection, and the first answer after
	// Unresponsive.
	Responded(id fleet.DeviceID)
	// Unresponsive reports that a request went unanswered.
	Unresponsive(c fleet.Connection, cause fleet.Cause)

	// AnsweredLate reports an answer to a request that this process did not make, and returns whether
	// an earlier process made a call with the id. as converts the answer, given the call's tool.
	// AnsweredLate may block.
	AnsweredLate(id fleet.DeviceID, rpcID int32, as func(tool string) fleet.Answer) bool

	// IsSoftware reports whether the device is a program on a computer rather than a board: its
	// boot poll, read in full, named no hardware.
	IsSoftware(id fleet.DeviceID) bool
	// NeedsListing reports whether the device's tools must be listed.
	NeedsListing(id fleet.DeviceID) bool
	// SaveListing stores the tools that the device offers. It may block until ctx ends.
	SaveListing(ctx context.Context, l fleet.ToolListing) error
	// Notified passes on a notification from the device. Its content is untrusted, but cleaned
	// and bounded.
	Notified(id fleet.DeviceID, method string, params json.RawMessage)
}
