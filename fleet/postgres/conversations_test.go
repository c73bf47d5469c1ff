package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

func TestConversations(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	begin := now()
	open := func(device fleet.DeviceID) fleet.Conversation {
		return fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: device, Upstream: "lab", Begin: begin}
	}
	first, second, other := open(unit), open(unit), open("020000000099")
	check(t, s.SaveConversations(ctx, []fleet.Conversation{first, second, other}))
	end := begin.Add(time.Minute)
	first.End, first.Ended, first.Calls, first.HelloIn = &end, fleet.EndedByDevice, 2, 12*time.Millisecond
	first.Audio = fleet.AudioCounts{Received: 10, Lost: 1, Refused: 2, Dropped: 3, Sent: 4, Moves: 5,
		Jitter: 1500 * time.Microsecond}
	check(t, s.SaveConversations(ctx, []fleet.Conversation{first}))

	page, err := s.Conversations(ctx, fleet.ConversationFilter{Device: unit})
	check(t, err)
	same(t, page.Items, []fleet.Conversation{second, first})

	// A late record does not open the conversation again.
	again := open(unit)
	again.ID = first.ID
	check(t, s.SaveConversations(ctx, []fleet.Conversation{again}))
	page, err = s.Conversations(ctx, fleet.ConversationFilter{Limit: 2})
	check(t, err)
	if len(page.Items) != 2 || page.Items[0].ID != other.ID || page.Next == "" {
		t.Fatalf("%+v", page)
	}
	page, err = s.Conversations(ctx, fleet.ConversationFilter{Limit: 2, Cursor: page.Next})
	check(t, err)
	same(t, page.Items, []fleet.Conversation{first})
	_, err = s.Conversations(ctx, fleet.ConversationFilter{Cursor: "x"})
	wantKind(t, err, fleet.ErrInvalid)

	// Conversations that are relayed, or have just begun, do not end.
	n, err := s.RecoverConversations(ctx, end, end.Add(time.Hour), []uuid.UUID{second.ID, other.ID})
	check(t, err)
	young, err := s.RecoverConversations(ctx, end, begin, nil)
	check(t, err)
	if n != 0 || young != 0 {
		t.Errorf("%d relayed and %d young conversations ended", n, young)
	}
	n, err = s.RecoverConversations(ctx, end, end.Add(time.Hour), nil)
	check(t, err)
	if n != 2 {
		t.Errorf("%d were open", n)
	}
	page, err = s.Conversations(ctx, fleet.ConversationFilter{Device: unit})
	check(t, err)
	if c := page.Items[0]; c.Ended != fleet.EndedByCrash || c.End == nil || !c.End.Equal(end) {
		t.Errorf("%+v", c)
	}
	same(t, page.Items[1], first)

	// The process of one was alive after all: its record counts, once.
	later, latest := end.Add(time.Minute), end.Add(time.Hour)
	second.End, second.Ended, second.Calls = &later, fleet.EndedByUpstream, 7
	check(t, s.SaveConversations(ctx, []fleet.Conversation{second}))
	repeated := second
	repeated.End, repeated.Ended = &latest, fleet.EndedByDeviceLost
	check(t, s.SaveConversations(ctx, []fleet.Conversation{repeated}))
	got, err := s.Conversation(ctx, second.ID)
	check(t, err)
	same(t, got, second)

	scope, err := fleet.NewScope("id:020000000099", "", nil)
	check(t, err)
	page, err = s.Conversations(fleet.WithScope(ctx, fleet.Principal{Kind: fleet.KindProgram, Role: fleet.RoleViewer,
		Scope: scope}), fleet.ConversationFilter{})
	check(t, err)
	for _, c := range page.Items {
		if c.Device != "020000000099" {
			t.Errorf("a conversation outside of the scope: %+v", c)
		}
	}
}
