package fleet_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

func TestOpenConversations(t *testing.T) {
	events := &fleet.Events{}
	seen := events.Subscribe(16, nil, fleet.EventConversation)
	var free []fleet.DeviceID
	open := fleet.NewOpenConversations(fleet.OpenConversationsOptions{Events: events,
		Free: func(id fleet.DeviceID) { free = append(free, id) }})
	begin := time.Date(2026, 8, 8, 8, 0, 0, 0, time.UTC)
	first := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: "a085e3000001", Begin: begin}
	second := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: "a085e3000001", Begin: begin.Add(time.Minute)}

	if _, ok := open.Of(first.Device); ok {
		t.Error("in conversation before any began")
	}
	open.Begin(first)
	c, ok := open.Of(first.Device)
	if !ok || c.ID != first.ID || !c.Since.Equal(begin) {
		t.Errorf("%+v", c)
	}
	if _, other := open.Of("a085e3000002"); other {
		t.Error("another device is in it, too")
	}
	open.Begin(second) // the device said hello again
	select {
	case <-c.Ended:
	default:
		t.Error("a conversation that was replaced did not end")
	}
	open.End(first.Device, first.ID) // late
	if c, ok = open.Of(first.Device); !ok || c.ID != second.ID || len(free) != 0 {
		t.Errorf("the end of the first one ended the second: %+v, %v", c, free)
	}
	open.End(first.Device, second.ID)
	open.End(first.Device, second.ID)
	select {
	case <-c.Ended:
	default:
		t.Error("it did not end")
	}
	if _, ok := open.Of(first.Device); ok || open.Count() != 0 || len(free) != 1 {
		t.Errorf("still in conversation: %v, %d, %v", ok, open.Count(), free)
	}
	for _, want := range []uuid.UUID{first.ID, second.ID, second.ID} {
		if e := <-seen.C; e.Subject != want.String() || e.Device != first.Device {
			t.Errorf("%+v, want %s", e, want)
		}
	}
	var none *fleet.OpenConversations
	if _, ok := none.Of(first.Device); ok {
		t.Error("without a relay a device is in conversation")
	}
}
