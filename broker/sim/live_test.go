package sim

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
)

func TestCallOverBroker(t *testing.T) {
	b := newBackend(t)
	f := b.start(Options{Boards: []string{"esp-box-3"}, TimeScale: 0.01, RecordCalls: 2})
	d := f.Device(0)
	b.connected(d)
	if got := text0(b.ask(d, toolCall(1, "self.audio_speaker.set_volume", `{"volume":33.9}`))); got != "true" {
		t.Errorf("set_volume: %s", got)
	}
	if got := text0(b.ask(d, toolCall(2, "self.get_device_status", `{}`))); !strings.Contains(got, `"volume":33`) {
		t.Errorf("status: %s", got)
	}
	b.send(d, 1, toolCall(3, "self.screen.set_theme", `{"theme":"dark"}`))
	b.next()
	if s := d.State(); s.Theme != "dark" || s.Volume != 33 {
		t.Errorf("state %+v", s)
	}
	if calls := d.Calls(); len(calls) != 2 || calls[0].ID != 2 || calls[1].Tool != "self.screen.set_theme" ||
		calls[1].Arguments != `{"theme":"dark"}` {
		t.Errorf("recorded %+v", calls)
	}
}

func TestRebootIsNotAnswered(t *testing.T) {
	b := newBackend(t)
	f := b.start(Options{TimeScale: 0.02})
	d := f.Device(0)
	b.connected(d)
	b.send(d, 0, toolCall(1, "self.reboot", `{}`))
	b.send(d, 0, toolCall(2, "self.get_device_status", `{}`))
	fleettest.Eventually(t, "second poll", func() bool { _, n := b.lastPoll(); return n == 2 })
	b.connected(d)
	b.left(d, 1)
	// The second call runs if it was queued before the restart; its answer comes after the
	// restart either way.
	if len(b.published) != 0 {
		t.Errorf("%d answers, %d calls executed", len(b.published), f.Stats().Calls)
	}
	if got := text0(b.ask(d, toolCall(3, "self.audio_speaker.set_volume", `{"volume":1}`))); got != "true" {
		t.Errorf("after the restart: %s", got)
	}
}

func TestReconnectsForEver(t *testing.T) {
	b := newBackend(t)
	f := b.start(Options{TimeScale: 0.005})
	d := f.Device(0)
	for i := range 3 {
		b.connected(d)
		b.mu.Lock()
		b.clients[d.ID()].Net.Conn.Close()
		delete(b.clients, d.ID())
		b.mu.Unlock()
		fleettest.Eventually(t, "reconnect", func() bool { return f.Stats().Connects == int64(i+2) })
	}
	if _, n := b.lastPoll(); n != 1 {
		t.Errorf("%d polls; only a boot polls", n)
	}
}

func TestRunEndsWithDisconnect(t *testing.T) {
	b := newBackend(t)
	f, err := New(Options{OTAURL: b.http.URL + "/ota/", Devices: 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		fleettest.Eventually(t, "all connected", func() bool { return f.Stats().Connected == 20 })
		cancel()
	}()
	if err := f.Run(ctx); err != nil {
		t.Fatal(err)
	}
	fleettest.Eventually(t, "20 DISCONNECTs", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.orderly) == 20
	})
	if f.Stats().Connected != 0 {
		t.Errorf("%+v", f.Stats())
	}
}

func TestTwoStartsAreTheSameFleet(t *testing.T) {
	make := func() (ids []string) {
		f, err := New(Options{OTAURL: "http://h/ota/", Devices: 300, Seed: 7, Boards: BoardNames()})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for i := range f.Len() {
			d := f.Device(i)
			if seen[d.ID()] || seen[d.ClientID()] {
				t.Fatalf("device %d has the identity of another", i)
			}
			seen[d.ID()], seen[d.ClientID()] = true, true
			ids = append(ids, fmt.Sprint(d.ID(), d.ClientID(), d.Board(), d.Firmware(), d.State()))
		}
		return ids
	}
	if a, b := make(), make(); strings.Join(a, "\n") != strings.Join(b, "\n") {
		t.Error("the same seed made two different fleets")
	}
}

// A device that is ordered to set up its Wi-Fi says goodbye, does not answer, and stays away
// until a person has set it up.
func TestReconfigureWiFiLeavesTheNetwork(t *testing.T) {
	b := newBackend(t)
	f := b.start(Options{Boards: []string{"lichuang-dev"}, TimeScale: 0.001})
	d := f.Device(0)
	b.connected(d)
	b.send(d, 0, toolCall(1, "self.system.reconfigure_wifi", `{}`))
	fleettest.Eventually(t, "gone", func() bool { return !d.Connected() })
	b.left(d, 1)
	time.Sleep(300 * time.Millisecond) // many times the wait before a reconnect
	if _, polls := b.lastPoll(); polls != 1 || d.Connected() || len(b.published) != 0 {
		t.Errorf("%d polls, connected %v, %d answers", polls, d.Connected(), len(b.published))
	}
	d.SetUpWiFi()
	fleettest.Eventually(t, "back", func() bool { _, polls := b.lastPoll(); return polls == 2 && d.Connected() })
}
