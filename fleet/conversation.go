package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
)

// A Conversation is one voice session between a device and a voice server. Its record holds
// neither audio nor speech.
type Conversation struct {
	ID       uuid.UUID // version 7; also the id of the principal of its calls
	Device   DeviceID
	Upstream string // name of the voice server
	Begin    time.Time
	End      *time.Time // nil while it is open
	Ended    ConversationEnd
	Calls    int64         // tool calls by the voice server's model
	HelloIn  time.Duration // time until the voice server's hello; 0 if none came
	Audio    AudioCounts
}

// AudioCounts counts the audio packets of a conversation.
type AudioCounts struct {
	Received int64         // from the device
	Lost     int64         // missing from the device's sequence numbers
	Refused  int64         // replayed, forged, damaged or not Opus; never relayed
	Dropped  int64         // in both directions: late, or before the device's address was known
	Sent     int64         // to the device
	Moves    int64         // changes of the device's address
	Jitter   time.Duration // of the device's packets, smoothed as in RFC 3550
}

// A ConversationEnd is the way in which a conversation ended.
type ConversationEnd string

const (
	EndedByDevice     ConversationEnd = "device_goodbye"
	EndedByNewHello   ConversationEnd = "device_hello" // the device began another conversation
	EndedByDeviceLost ConversationEnd = "device_lost"  // the device's connection ended
	EndedByUpstream   ConversationEnd = "upstream_closed"
	EndedByStop       ConversationEnd = "fleetd_stopping"
	EndedByCrash      ConversationEnd = "fleetd_stopped" // still open when fleetd started again

	// The voice server failed, fleetd had no room, or fleetd could not understand the device.
	// The device displays the reason.
	EndedUnreachable ConversationEnd = "upstream_unreachable" // no connection
	EndedNoWebSocket ConversationEnd = "upstream_no_websocket"
	EndedRefused     ConversationEnd = "upstream_refused"   // the voice server refused the token
	EndedNoHello     ConversationEnd = "upstream_no_hello"  // no hello in time
	EndedBadHello    ConversationEnd = "upstream_bad_hello" // a malformed hello, or another message first
	EndedTooLarge    ConversationEnd = "upstream_too_large" // a message longer than fleetd accepts
	EndedSlow        ConversationEnd = "upstream_slow"      // the voice server stopped reading
	EndedLost        ConversationEnd = "upstream_lost"      // the connection broke
	EndedFull        ConversationEnd = "too_many_conversations"
	EndedBadAudio    ConversationEnd = "device_bad_audio" // only frames that cannot be relayed
	EndedNoLeader    ConversationEnd = "no_leader"        // no core of the cluster could choose a voice server; not recorded
)

// ConversationEnds lists every end.
var ConversationEnds = []ConversationEnd{EndedByDevice, EndedByNewHello, EndedByDeviceLost, EndedByUpstream,
	EndedByStop, EndedByCrash, EndedUnreachable, EndedNoWebSocket, EndedRefused, EndedNoHello, EndedBadHello,
	EndedTooLarge, EndedSlow, EndedLost, EndedFull, EndedBadAudio, EndedNoLeader}

// Failed reports whether something other than the wish of either side ended the conversation.
// The device displays the reason.
func (e ConversationEnd) Failed() bool {
	switch e {
	case EndedUnreachable, EndedNoWebSocket, EndedRefused, EndedNoHello, EndedBadHello, EndedTooLarge, EndedSlow,
		EndedLost, EndedFull, EndedBadAudio, EndedNoLeader:
		return true
	}
	return false
}

// Duration returns how long the conversation lasted, 0 while it is open.
func (c Conversation) Duration() time.Duration {
	if c.End == nil {
		return 0
	}
	return c.End.Sub(c.Begin)
}

// A ConversationFilter narrows a list of conversations. Zero fields do not filter.
type ConversationFilter struct {
	Device   DeviceID
	Upstream string            // name
	Ends     []ConversationEnd // "" means open conversations
	Since    time.Time         // began at or after this time
	Until    time.Time         // began before this time
	Limit    int
	Cursor   string
}

// ParseConversationEnds parses a list's filter: the code of an end, "open", or "failed" for
// every end with [ConversationEnd.Failed]. For "", which means every conversation, it returns
// nil.
func ParseConversationEnds(s string) ([]ConversationEnd, error) {
	switch {
	case s == "":
		return nil, nil
	case s == "open":
		return []ConversationEnd{""}, nil
	case s == "failed":
		return slices.DeleteFunc(slices.Clone(ConversationEnds), func(e ConversationEnd) bool { return !e.Failed() }), nil
	case slices.Contains(ConversationEnds, ConversationEnd(s)):
		return []ConversationEnd{ConversationEnd(s)}, nil
	}
	return nil, Refuse(ErrInvalid, "invalid_end", "value", s).At("end")
}

// ConversationStore stores the records of conversations.
type ConversationStore interface {
	ConversationRecords
	// SaveConversations inserts or updates conversations.
	SaveConversations(ctx context.Context, list []Conversation) error
	// RecoverConversations ends the conversations that began before a time and that another process
	// left open. relayed are those that are open.
	RecoverConversations(ctx context.Context, at, before time.Time, relayed []uuid.UUID) (int64, error)
}

// ConversationRecords reads recorded conversations.
type ConversationRecords interface {
	Conversation(ctx context.Context, id uuid.UUID) (Conversation, error)
	Conversations(ctx context.Context, f ConversationFilter) (Page[Conversation], error) // newest first
}
