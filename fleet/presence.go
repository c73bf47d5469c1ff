package fleet

import (
	"context"
	"time"
)

// A Connection is one device's hold on the broker, from CONNECT to the end of
// the socket. A later connection of the same device has a higher epoch; what
// an earlier one reports afterwards changes nothing.
type Connection struct {
	Device     DeviceID
	Node       string
	Epoch      int64
	ClientID   string // the MQTT client id
	Transport  string // "mqtt", "mqtts"
	RemoteAddr string // without port
	At         time.Time

	// The connection that it took over from; "" if the device had none.
	OverClientID, OverRemoteAddr string
}

// Codes of what a presence was concluded from.
const (
	PresenceConnected    = "connected"
	PresenceDisconnected = "disconnected"         // with an MQTT DISCONNECT
	PresenceLeft         = "disconnected_because" // the same, and the connection gave a reason
	PresenceLost         = "connection_lost"
	PresenceBroke        = "connection_lost_because"
	PresenceSilent       = "does_not_answer"
	PresenceAnswered     = "answered_again"
	PresenceUnwatched    = "fleetd_started" // no connection outlives the process
)

// PresenceReasons are the codes of presence with the names of their parameters.
// Detail is what the connection reported; it may be foreign text.
var PresenceReasons = map[string][]string{
	PresenceConnected: {"address"}, PresenceDisconnected: {}, PresenceLeft: {"detail"}, PresenceLost: {},
	PresenceBroke: {"detail"}, PresenceSilent: {"detail"}, PresenceAnswered: {}, PresenceUnwatched: {},
}

// A PresenceChange is one device's presence to be stored. Changes are
// coalesced: only the newest of a device is written.
type PresenceChange struct {
	Device     DeviceID
	Presence   Presence
	Since      time.Time
	Evidence   Reason // a code of [PresenceReasons]
	LastSeen   time.Time
	Connection *Connection // the connection that now owns the device; nil leaves it
}

// A PresenceSample counts the fleet's devices by presence at one moment.
type PresenceSample struct {
	At                                     time.Time
	Online, Unresponsive, Offline, Pending int
}

// PresenceStore keeps presence for lists and for the next start.
type PresenceStore interface {
	SavePresence(ctx context.Context, changes []PresenceChange) error
	// ResetPresence turns every online or unresponsive device of the node to
	// offline, of any node if that is "": called at start, when no connection can
	// exist yet. The node of a process may change with each start.
	ResetPresence(ctx context.Context, node string, evidence Reason, at time.Time) (int64, error)
	SavePresenceSample(ctx context.Context, at time.Time) error // counts devices in service now
	PresenceSamples(ctx context.Context, since time.Time) ([]PresenceSample, error)
}
