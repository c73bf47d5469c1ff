package sim

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fleet/fleettest"
)

// TestSerialExecution: calls run one after another in order; while one blocks, even an error
// waits behind it.
func TestSerialExecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := faulty(t, "slow=3s")
		s := attach(t, d)
		start := time.Now()
		for id := 1; id <= 3; id++ {
			s.send(toolCall(id, "self.audio_speaker.set_volume", `{"volume":5}`))
		}
		s.send(request(4, "ping", "{}"))
		// The answer of a call is queued when the call has run, behind everything that arrived
		// meanwhile, so the answer to ping overtakes it.
		for _, want := range []string{"4", "1", "2", "3"} {
			pub, err := parsePublish(<-s.packets)
			if err != nil {
				t.Fatal(err)
			}
			if id := string(value(pub.payload).field("payload").field("id")); id != want {
				t.Errorf("answer to call %s, want %s", id, want)
			}
			if got := time.Since(start); got != 9*time.Second {
				t.Errorf("answer after %v; three calls take 9 s", got)
			}
		}
		var ran []int
		for _, c := range d.Calls() {
			ran = append(ran, c.ID)
		}
		if !slices.Equal(ran, []int{1, 2, 3}) {
			t.Errorf("ran %v", ran)
		}
	})
}

// TestLateAnswerOnALaterConnection covers trap 6 of the protocol.
func TestLateAnswerOnALaterConnection(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	faults, _ := ParseFaults("slow=200s") // 4 s, in which it connects again
	f := b.start(Options{Faults: faults, TimeScale: 0.02})
	d := f.Device(0)
	b.connected(d)
	b.send(d, 1, toolCall(77, "self.audio_speaker.set_volume", `{"volume":5}`))
	fleettest.Eventually(t, "the device has the call", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.acks == 1
	})
	b.mu.Lock()
	b.clients[d.ID()].Net.Conn.Close()
	b.mu.Unlock()
	if got := b.next(); string(value(got).field("payload").field("id")) != "77" {
		t.Errorf("got %s", got)
	}
	if s := f.Stats(); s.Connects != 2 || s.Calls != 1 {
		t.Errorf("%+v", s)
	}
}
