package voice

import (
	"testing"
	"time"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A device is in conversation from its hello to the end of the conversation, whatever the cause of the end. The
// end of one conversation does not end the next one.
func TestOpenConversations(t *testing.T) {
	free := make(chan fleet.DeviceID, 16)
	open := fleet.NewOpenConversations(fleet.OpenConversationsOptions{Free: func(id fleet.DeviceID) { free <- id }})
	show := func(o *Options) { o.Open = open }
	ended := func(b *board) {
		t.Helper()
		for { // a device that sends hello again may be free for a moment
			select {
			case id := <-free:
				if _, in := open.Of(b.id); id == b.id && !in {
					return
				}
			case <-time.After(deadline):
				t.Fatal("the conversation did not end")
			}
		}
	}

	up := server(t, voicetest.Options{})
	w := start(t, up.URL(false), show)
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	if c, in := open.Of(b.id); !in || time.Since(c.Since) > time.Minute {
		t.Fatalf("not in conversation after hello: %+v", c)
	}
	b.open()
	before, _ := open.Of(b.id)
	b.conversation.End(fleet.EndedByNewHello)
	b.talk(w.Relay, boardHello)
	<-before.Ended
	fleettest.Eventually(t, "the first is on record", func() bool {
		n, _ := w.records.ended(fleet.EndedByNewHello)
		return n == 1
	})
	if now, in := open.Of(b.id); !in || now.ID == before.ID {
		t.Errorf("the end of the first conversation ended the second: %+v", now)
	}
	other := newBoard(t, 2)
	other.talk(w.Relay, boardHello)
	if !b.conversation.Receive("goodbye", "", []byte(`{"type":"goodbye"}`)) {
		t.Error("goodbye ended nothing")
	}
	ended(b)
	close(other.lost)
	ended(other)

	full := start(t, up.URL(false), func(o *Options) { o.Open, o.MaxConversations = open, 1 })
	other.lost = make(chan struct{})
	other.talk(full.Relay, boardHello)
	b = newBoard(t, 3)
	b.talk(full.Relay, boardHello)
	if _, in := open.Of(b.id); in {
		t.Error("a device without a place is in conversation")
	}
	fleettest.Eventually(t, "the device without a place is sent off", func() bool { return len(b.got()) == 3 })
	close(other.lost)
	ended(other)

	broken := start(t, server(t, voicetest.Options{Broken: voicetest.HTML}).URL(false), show)
	b = newBoard(t, 4)
	b.talk(broken.Relay, boardHello)
	ended(b)
}
