package ui

import (
	"context"
	"net/url"
	"time"

	"fleetd/fleet"
)

// PathConversations lists conversations: GET device, upstream, end, since, until,
// limit, cursor.
const PathConversations = "/conversations"

// ConversationPath is the page of one conversation.
func ConversationPath(id string) string { return PathConversations + "/" + url.PathEscape(id) }

// A ConversationsPage is the record of conversations: GET [PathConversations].
type ConversationsPage struct {
	List       ListURL
	Rows       []ConversationRow
	Prev, Next string
	Bad        string // why the filter is invalid; "" if it is valid
}

func (v ConversationsPage) eventsURL() string { return listEvents(v.Bad, ViewConversations, v.List) }

// A ConversationRow is one conversation in a list. A live stream sends it as a patch.
type ConversationRow struct {
	Conversation fleet.Conversation
	DeviceName   string
}

func (c ConversationRow) id() string { return c.Conversation.ID.String() }

// A ConversationPage is one recorded conversation: GET [ConversationPath].
type ConversationPage struct{ View ConversationView }

func (v ConversationPage) eventsURL() string {
	return EventsURL(ViewConversation, url.Values{"id": {v.View.id()}})
}

// A ConversationView is one conversation with all its details. A live stream sends it as a patch.
type ConversationView struct {
	ConversationRow
	Calls []CallRow // made by the voice server's model, newest first
	More  bool      // there are more
}

func (v ConversationView) callsURL() string {
	return PathCalls + "?" + url.Values{"conversation": {v.id()}}.Encode()
}

// endTone returns the tone of the end of a conversation.
func (c ConversationRow) endTone() tone {
	switch e := c.Conversation.Ended; {
	case c.Conversation.End == nil:
		return toneBusy
	case e.Failed():
		return toneBad
	case e == fleet.EndedByDeviceLost, e == fleet.EndedByCrash, e == fleet.EndedByStop:
		return toneWarn
	}
	return toneGood
}

func (c ConversationRow) endText(ctx context.Context) string {
	if c.Conversation.End == nil {
		return t(ctx, "conversation.open")
	}
	return t(ctx, "conversation.end."+string(c.Conversation.Ended))
}

// loss returns the share of the device's packets that did not arrive.
func (c ConversationRow) loss() float64 {
	a := c.Conversation.Audio
	if a.Received+a.Lost == 0 {
		return 0
	}
	return float64(a.Lost) / float64(a.Received+a.Lost)
}

// conversationEnds returns the choices of the list's filter.
func conversationEnds() []string {
	all := []string{"open", "failed"}
	for _, e := range fleet.ConversationEnds {
		all = append(all, string(e))
	}
	return all
}

func endName(ctx context.Context, end string) string {
	if end == "open" || end == "failed" {
		return t(ctx, "conversation."+end)
	}
	return t(ctx, "conversation.end."+end)
}

// milliseconds formats a duration that is too short for [duration].
func milliseconds(ctx context.Context, d time.Duration) string {
	return t(ctx, "conversation.ms", "ms", int(d.Round(time.Millisecond).Milliseconds()))
}
