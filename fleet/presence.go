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
	Transport  string // "mqtt", "mqtts", "ws"
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
	PresenceTalked       = "conversation_ended" // of a device that connects for conversations
	PresenceAnswered     = "answered_again"
	PresenceUnwatched    = "fleetd_started" // no connection outlives the process
	// of time lines only: connected again soon after fleetd was away, since since_at
	PresenceWatched = "fleetd_was_away"
)

// PresenceReasons are the codes of presence with the names of their parameters.
// Detail is a code of [CauseReasons]; on records of older versions it is text.
var PresenceReasons = map[string][]string{
	PresenceConnected: {"address"}, PresenceDisconnected: {}, PresenceLeft: {"detail"}, PresenceLost: {},
	PresenceBroke: {"detail"}, PresenceTalked: {}, PresenceSilent: {"detail"}, PresenceAnswered: {}, PresenceUnwatched: {},
	PresenceWatched: {"address", "since_at"},
}

// Codes of why a connection ended or is silent: the parameter "detail" of the
// codes above, and of what a campaign records of it.
const (
	CauseTakenOver        = "taken_over_by_device" // the device connected again
	CauseStopping         = "fleetd_stopping"
	CauseNotTaken         = "takes_no_bytes"
	CauseRetired          = "kicked_retired"      // the device was retired
	CauseRevoked          = "credentials_revoked" // the device must come back with others
	CauseKicked           = "connection_kicked"   // on records of older versions: why is text
	CauseViolation        = "mqtt_violation"
	CauseSocketMisused    = "websocket_misused"
	CauseNoPong           = "pings_unanswered"
	CauseConversationOver = "conversation_over" // of a device that connects for conversations
	CauseNoKeepalive      = "keepalive_missed"
	CauseInternal         = "internal_error"
	CauseSocketClosed     = "socket_closed"
	CauseSocketError      = "socket_error"
	CauseReplaced         = "replaced_by_newer"
	CauseNoAnswer         = "no_answer_to"
)

// CauseReasons are the codes of causes with the names of their parameters. A
// detail is foreign text.
var CauseReasons = map[string][]string{
	CauseTakenOver: {}, CauseStopping: {}, CauseNotTaken: {}, CauseRetired: {}, CauseRevoked: {},
	CauseSocketMisused: {"detail"}, CauseNoPong: {}, CauseConversationOver: {},
	CauseKicked: {"detail"}, CauseViolation: {"detail"}, CauseNoKeepalive: {}, CauseInternal: {},
	CauseSocketClosed: {}, CauseSocketError: {"detail"}, CauseReplaced: {}, CauseNoAnswer: {"request"},
}

// A Cause says why a connection ended or is silent. The zero Cause says nothing.
type Cause struct {
	Reason Reason // a code of [CauseReasons]; zero if the cause has no code
	Text   string // in English, for logs and for the evidence of calls
}

// detail is the cause as the parameter of a reason, "" without one.
func (c Cause) detail() any {
	if c.Reason.Is("") {
		return CleanText(c.Text, 120)
	}
	return c.Reason
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
	// Between is how many are not connected because they connect for conversations
	// only; they are not among Offline. Samples on record do not count them.
	Between int `db:"-"`
}

// Joined is how many devices were ever on line, without those between conversations.
func (p PresenceSample) Joined() int { return p.Online + p.Unresponsive + p.Offline }

// Away is how many of them cannot be reached.
func (p PresenceSample) Away() int { return p.Unresponsive + p.Offline }

// Add adds devices of a presence, or [CountedBetween].
func (p *PresenceSample) Add(presence Presence, n int) {
	switch presence {
	case PresenceOnline:
		p.Online += n
	case PresenceUnresponsive:
		p.Unresponsive += n
	case PresenceOffline:
		p.Offline += n
	case PresencePending:
		p.Pending += n
	case CountedBetween:
		p.Between += n
	}
}

// PresenceStore keeps presence for lists and for the next start.
type PresenceStore interface {
	SavePresence(ctx context.Context, changes []PresenceChange) error
	// ResetPresence turns every online or unresponsive device of the node to
	// offline, of any node if that is "": called at start, when no connection can
	// exist yet. The node of a process may change with each start.
	ResetPresence(ctx context.Context, node string, evidence Reason, at time.Time) (int64, error)
	SavePresenceSample(ctx context.Context, at time.Time) error // counts devices in service now
	PresenceSampleRecords
}

// PresenceSampleRecords are the samples on record.
type PresenceSampleRecords interface {
	PresenceSamples(ctx context.Context, since time.Time) ([]PresenceSample, error)
}
