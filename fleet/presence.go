package fleet

import (
	"context"
	"time"
)

// A Connection is a device's connection to the broker, from CONNECT until the socket closes.
// A later connection of the same device has a higher epoch; reports of an earlier connection
// then change nothing.
type Connection struct {
	Device     DeviceID
	Node       string
	Epoch      int64
	ClientID   string // the MQTT client id
	Transport  string // "mqtt", "mqtts", "ws"
	RemoteAddr string // without port
	At         time.Time

	// The previous connection, which this one took over from; "" if the device had none.
	OverClientID, OverRemoteAddr string
}

// Codes of the evidence for a presence.
const (
	PresenceConnected    = "connected"
	PresenceDisconnected = "disconnected"         // the device sent an MQTT DISCONNECT
	PresenceLeft         = "disconnected_because" // the same, with a reason from the connection
	PresenceLost         = "connection_lost"
	PresenceBroke        = "connection_lost_because"
	PresenceSilent       = "does_not_answer"
	PresenceTalked       = "conversation_ended" // the device connects only for conversations
	PresenceAnswered     = "answered_again"
	PresenceEdgeSilent   = "edge_silent"    // its edge may still hold the connection
	PresenceUnwatched    = "fleetd_started" // no connection outlives the process
	// only in time lines: the device reconnected soon after fleetd was away since since_at
	PresenceWatched = "fleetd_was_away"
)

// PresenceReasons maps the codes of presence to the names of their parameters. Detail is a
// code of [CauseReasons]; in records of older versions it is text.
var PresenceReasons = map[string][]string{
	PresenceConnected: {"address"}, PresenceDisconnected: {}, PresenceLeft: {"detail"}, PresenceLost: {},
	PresenceBroke: {"detail"}, PresenceTalked: {}, PresenceSilent: {"detail"}, PresenceAnswered: {}, PresenceUnwatched: {},
	PresenceEdgeSilent: {"edge"}, PresenceWatched: {"address", "since_at"},
}

// Codes of the causes for which a connection ended or is silent. They are the parameter
// "detail" of the codes above, and campaigns record them.
const (
	CauseTakenOver        = "taken_over_by_device" // the device connected again
	CauseStopping         = "fleetd_stopping"
	CauseNotTaken         = "takes_no_bytes"
	CauseRetired          = "kicked_retired"      // the device was retired
	CauseRevoked          = "credentials_revoked" // the device must reconnect with new credentials
	CauseKicked           = "connection_kicked"   // in records of older versions: why is text
	CauseViolation        = "mqtt_violation"
	CauseSocketMisused    = "websocket_misused"
	CauseNoPong           = "pings_unanswered"
	CauseConversationOver = "conversation_over" // the device connects only for conversations
	CauseNoKeepalive      = "keepalive_missed"
	CauseInternal         = "internal_error"
	CauseSocketClosed     = "socket_closed"
	CauseSocketError      = "socket_error"
	CauseReplaced         = "replaced_by_newer"
	CauseDisabled         = "endpoint_disabled"
	CauseNoAnswer         = "no_answer_to"
	CauseEdgeLost         = "edge_lost"    // the process that held the connection is gone
	CauseEdgeDrained      = "edge_drained" // the device was asked to connect to another edge
)

// CauseReasons maps the codes of causes to the names of their parameters. A detail is foreign
// text.
var CauseReasons = map[string][]string{
	CauseTakenOver: {}, CauseStopping: {}, CauseNotTaken: {}, CauseRetired: {}, CauseRevoked: {},
	CauseSocketMisused: {"detail"}, CauseNoPong: {}, CauseConversationOver: {},
	CauseKicked: {"detail"}, CauseViolation: {"detail"}, CauseNoKeepalive: {}, CauseInternal: {},
	CauseSocketClosed: {}, CauseSocketError: {"detail"}, CauseReplaced: {}, CauseDisabled: {},
	CauseNoAnswer: {"request"}, CauseEdgeLost: {}, CauseEdgeDrained: {},
}

// A Cause is the reason why a connection ended or is silent. The zero Cause has none.
type Cause struct {
	Reason Reason // a code of [CauseReasons]; zero if the cause has no code
	Text   string // in English, for logs and for the evidence of calls
}

// detail returns the cause as the parameter of a reason: its code or, if it has no code, its
// text.
func (c Cause) detail() any {
	if c.Reason.Is("") {
		return CleanText(c.Text, 120)
	}
	return c.Reason
}

// A PresenceChange is a device's presence to be stored. Changes are coalesced: only the
// newest one of each device is written.
type PresenceChange struct {
	Device     DeviceID
	Presence   Presence
	Since      time.Time
	Evidence   Reason // a code of [PresenceReasons]
	LastSeen   time.Time
	Connection *Connection // the connection that now owns the device; nil leaves it unchanged
}

// A PresenceSample counts the fleet's devices by presence at one moment.
type PresenceSample struct {
	At                                                  time.Time
	Online, Unresponsive, UnknownEdge, Offline, Pending int
	// Between is the number of devices that are not connected because they connect only for
	// conversations; Offline excludes them. Stored samples do not have it.
	Between int `db:"-"`
}

// Joined returns the number of devices that were ever online, without those counted in
// Between.
func (p PresenceSample) Joined() int { return p.Online + p.Unresponsive + p.UnknownEdge + p.Offline }

// Held returns the sample with the devices at silent edges counted as online.
func (p PresenceSample) Held() PresenceSample {
	p.Online, p.UnknownEdge = p.Online+p.UnknownEdge, 0
	return p
}

// Away returns the number of joined devices that cannot be reached.
func (p PresenceSample) Away() int { return p.Unresponsive + p.Offline }

// Add adds n devices of a presence, or of [CountedBetween].
func (p *PresenceSample) Add(presence Presence, n int) {
	switch presence {
	case PresenceOnline:
		p.Online += n
	case PresenceUnresponsive:
		p.Unresponsive += n
	case PresenceUnknownEdge:
		p.UnknownEdge += n
	case PresenceOffline:
		p.Offline += n
	case PresencePending:
		p.Pending += n
	case CountedBetween:
		p.Between += n
	}
}

// PresenceStore stores presence for lists and for the next start.
type PresenceStore interface {
	SavePresence(ctx context.Context, changes []PresenceChange) error
	// ResetPresence sets every device that was connected to offline, except those listed. It is called
	// at the start, when the others cannot have a connection yet. Devices whose connection was at a
	// silent edge get [PresenceUnknownEdge].
	ResetPresence(ctx context.Context, except []DeviceID, silent []string, evidence Reason, at time.Time) (int64, error)
	// LoseEdge sets the devices whose connection was at an edge that is gone from [PresenceUnknownEdge]
	// to offline, except those listed, and returns them.
	LoseEdge(ctx context.Context, edge string, except []DeviceID, evidence Reason, at time.Time) ([]DeviceID, error)
	SavePresenceSample(ctx context.Context, at time.Time) error // counts devices in service now
	PresenceSampleRecords
}

// PresenceSampleRecords reads the stored samples.
type PresenceSampleRecords interface {
	PresenceSamples(ctx context.Context, since time.Time) ([]PresenceSample, error)
}
