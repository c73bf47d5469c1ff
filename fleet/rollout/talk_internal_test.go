package rollout

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
)

// A turn of the loop may last for seconds. If a conversation begins during it, the wait counts
// from the beginning of the conversation, not of the turn.
func TestConversationOfALongTurn(t *testing.T) {
	begin := time.Now()
	open := fleet.NewOpenConversations(fleet.OpenConversationsOptions{})
	talks := &call.Interruptions{Open: open, Bound: time.Minute}
	l := &loop{o: &Options{Conversations: talks}, now: begin.Add(-2 * time.Second)}
	d := &deployment{Deployment: campaign.Deployment{Device: "a085e3112233"}}
	c := fleet.Conversation{ID: uuid.New(), Device: d.Device, Begin: begin}
	open.Begin(c)
	if _, waits := l.conversation(d); !waits {
		t.Fatal("the deployment does not wait")
	}
	for after, want := range map[time.Duration]uuid.UUID{59 * time.Second: uuid.Nil, 61 * time.Second: c.ID} {
		if l.now = begin.Add(after); l.outwaited(d) != want {
			t.Errorf("after %v of a minute it may interrupt %v, want %v", after, l.outwaited(d), want)
		}
	}
}
