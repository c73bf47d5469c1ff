package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
)

// A Conversation is one voice session between a device and a voice server. Only
// its circumstances are on record: no audio and no words.
type Conversation struct {
	ID       uuid.UUID // version 7; the id of the principal that made its calls
	Device   DeviceID
	Upstream string // name of the voice server
	Begin    time.Time
	End      *time.Time // nil while it is open
	Ended    ConversationEnd
	Calls    int64         // tool calls that the voice server's model asked for
	HelloIn  time.Duration // until the voice server's hello; 0 without one
	Audio    AudioCounts
}

// AudioCounts are the audio packets of a conversation.
type AudioCounts struct {
	Received int64         // from the device
	Lost     int64         // from the device, by their sequence numbers
	Refused  int64         // replayed, forged, damaged or not Opus; never relayed
	Dropped  int64         // in both directions: too late, or before the device's address was known
	Sent     int64         // to the device
	Moves    int64         // changes of the device's address
	Jitter   time.Duration // of packets from the device, smoothed as in RFC 3550
}

// A ConversationEnd is how a conversation ended.
type ConversationEnd string

const (
	EndedByDevice     ConversationEnd = "device_goodbye"
	EndedByNewHello   ConversationEnd = "device_hello" // the device began another one
	EndedByDeviceLost ConversationEnd = "device_lost"  // the device's connection ended
	EndedByUpstream   ConversationEnd = "upstream_closed"
	EndedByStop       ConversationEnd = "fleetd_stopping"
	EndedByCrash      ConversationEnd = "fleetd_stopped" // found open at the next start

	// The voice server failed, there was no room, or the device cannot be
	// understood. The device shows why.
	EndedUnreachable ConversationEnd = "upstream_unreachable" // no connection
	EndedNoWebSocket ConversationEnd = "upstream_no_websocket"
	EndedRefused     ConversationEnd = "upstream_refused"   // the token
	EndedNoHello     ConversationEnd = "upstream_no_hello"  // in time
	EndedBadHello    ConversationEnd = "upstream_bad_hello" // or something else first
	EndedTooLarge    ConversationEnd = "upstream_too_large" // a message longer than fleetd accepts
	EndedSlow        ConversationEnd = "upstream_slow"      // accepts no more bytes
	EndedLost        ConversationEnd = "upstream_lost"      // the connection broke
	EndedFull        ConversationEnd = "too_many_conversations"
	EndedBadAudio    ConversationEnd = "device_bad_audio" // frames that cannot be relayed, and no others
)

// ConversationEnds lists every end.
var ConversationEnds = []ConversationEnd{EndedByDevice, EndedByNewHello, EndedByDeviceLost, EndedByUpstream,
	EndedByStop, EndedByCrash, EndedUnreachable, EndedNoWebSocket, EndedRefused, EndedNoHello, EndedBadHello,
	EndedTooLarge, EndedSlow, EndedLost, EndedFull, EndedBadAudio}

// Failed reports whether something other than the wish of either side ended the
// conversation: the device shows why.
func (e ConversationEnd) Failed() bool {
	switch e {
	case EndedUnreachable, EndedNoWebSocket, EndedRefused, EndedNoHello, EndedBadHello, EndedTooLarge, EndedSlow,
		EndedLost, EndedFull, EndedBadAudio:
		return true
	}
	return false
}

// Duration is how long the conversation took, 0 while it is open.
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
	Ends     []ConversationEnd // "" for those that are open
	Since    time.Time         // begun then or later
	Until    time.Time         // begun before
	Limit    int
	Cursor   string
}

// ParseConversationEnds reads which conversations a list shows: the code of an end,
// "open", or "failed" for all ends that [ConversationEnd.Failed]. "" is every
// conversation, nil.
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

// ConversationStore keeps the record of conversations.
type ConversationStore interface {
	ConversationRecords
	// SaveConversations stores conversations, or what became of them.
	SaveConversations(ctx context.Context, list []Conversation) error
	// RecoverConversations ends what a dead process left open.
	RecoverConversations(ctx context.Context, at time.Time) (int64, error)
}

// ConversationRecords are the conversations on record.
type ConversationRecords interface {
	Conversation(ctx context.Context, id uuid.UUID) (Conversation, error)
	Conversations(ctx context.Context, f ConversationFilter) (Page[Conversation], error) // newest first
}
