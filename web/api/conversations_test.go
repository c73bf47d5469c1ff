package api

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

func TestConversations(t *testing.T) {
	w := newWorld(t)
	begin := time.Date(2026, 8, 8, 8, 0, 0, 0, time.UTC)
	end := begin.Add(90 * time.Second)
	c := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: unit, Upstream: "lab", Begin: begin, End: &end,
		Ended: fleet.EndedLost, Calls: 2, HelloIn: 30 * time.Millisecond,
		Audio: fleet.AudioCounts{Received: 9, Lost: 1, Jitter: 2500 * time.Microsecond}}
	open := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: unit, Upstream: "lab", Begin: begin}
	if err := w.store.SaveConversations(t.Context(), []fleet.Conversation{c, open}); err != nil {
		t.Fatal(err)
	}
	found := decode[list[conversationView]](t, w.get(t, "/conversations?device="+unit.MAC()), 200).Items
	if len(found) != 2 || found[0].EndAt != nil || found[0].Ended != "" || found[0].DurationMs != nil {
		t.Fatalf("%+v", found)
	}
	if v := found[1]; v.ID != c.ID || v.DeviceID != unit || v.Ended != fleet.EndedLost || *v.DurationMs != 90_000 ||
		v.HelloMs != 30 || v.Calls != 2 || v.Audio.Received != 9 || v.Audio.JitterMs != 2.5 {
		t.Errorf("%+v", v)
	}
	if none := decode[list[conversationView]](t, w.get(t, "/conversations?device=a085e3112244"), 200); none.Items == nil ||
		len(none.Items) != 0 {
		t.Errorf("%+v", none)
	}
	if p := w.get(t, "/conversations?device=%20x%20y").problem(t); p.Status != 422 && p.Status != 400 {
		t.Errorf("%+v", p)
	}
}
