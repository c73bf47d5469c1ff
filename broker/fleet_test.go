package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// admit answers boot polls with credentials for the broker.
func admit(t *testing.T, b *system) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clientID := "GID_default@@@" + strings.ReplaceAll(r.Header.Get("Device-Id"), ":", "_") + "@@@" +
			r.Header.Get("Client-Id")
		body, _ := json.Marshal(map[string]any{"mqtt": map[string]any{
			"endpoint": b.Addr().String(), "client_id": clientID, "username": "user", "password": passwordOf(clientID),
			"publish_topic": upTopic(deviceOfClientID(clientID)), "keepalive": 60,
		}})
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)
	return s
}

// switchOn runs simulated devices until the test ends.
func switchOn(t *testing.T, b *system, o sim.Options) *sim.Fleet {
	t.Helper()
	o.OTAURL = admit(t, b).URL + "/xiaozhi/ota/"
	o.TimeScale = 0.1 // a device that gives up after 10 s does so after 1 s
	f, err := sim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// A hundred devices with stock behaviour join, list their tools, and answer
// calls made to all of them at once.
func TestSimulatedFleet(t *testing.T) {
	const devices, each = 100, 10
	b, dom := start(t, func(o *options) { o.Devices.(*domain).fresh = false })
	f := switchOn(t, b, sim.Options{Devices: devices, RecordCalls: each})
	fleettest.Eventually(t, "all tools are listed", func() bool { return b.Stats().Listings == devices })

	inventories := make(map[string]bool)
	for _, l := range dom.listed() {
		inventories[l.Inventory.ID] = true
		if tool, ok := l.Inventory.Tool("self.reboot"); l.Partial || !ok || tool.Audience != fleet.AudienceUser {
			t.Errorf("device %s: partial %v, self.reboot %v", l.Device, l.Partial, tool)
		}
		if tool, ok := l.Inventory.Tool("self.get_device_status"); !ok || tool.Audience != fleet.AudienceModel {
			t.Errorf("device %s: self.get_device_status %v", l.Device, tool)
		}
	}
	if len(inventories) != len(sim.DefaultBoards) {
		t.Errorf("%d different inventories of %d boards", len(inventories), len(sim.DefaultBoards))
	}

	var wg sync.WaitGroup
	for i := range devices {
		wg.Go(func() { setVolumes(t, b, f.Device(i), each) })
	}
	wg.Wait()
	if s := b.Stats(); s.Unmatched != 0 || s.Late != 0 || s.Unreadable != 0 || s.ForeignTopics != 0 ||
		s.Connections != devices {
		t.Errorf("%+v", s)
	}
}

// setVolumes calls one device and checks the effect.
func setVolumes(t *testing.T, b *system, d *sim.Device, n int) {
	id, err := fleet.ParseDeviceID(d.ID())
	if err != nil {
		t.Error(err)
		return
	}
	for i := range n {
		a, err := makeCall(b, id, "self.audio_speaker.set_volume", fmt.Sprintf(`{"volume":%d}`, i), deadline, nil)
		if err != nil || a.Text != "true" {
			t.Errorf("device %s: %q, %v", id, a.Text, err)
		}
	}
	if calls := d.Calls(); len(calls) != n {
		t.Errorf("device %s executed %d calls, want %d", id, len(calls), n)
	}
}

// A reboot call is not answered. It is proved by the clean end of the connection and the next
// connection.
func TestSimulatedReboot(t *testing.T) {
	b, dom := start(t, nil)
	f := switchOn(t, b, sim.Options{Devices: 1})
	id, _ := fleet.ParseDeviceID(f.Device(0).ID())
	fleettest.Eventually(t, "the device connects", func() bool { return dom.count("responded") == 1 })
	if _, err := makeCall(b, id, "self.reboot", `{}`, deadline, nil); err == nil {
		t.Error("a reboot was answered")
	}
	fleettest.Eventually(t, "DISCONNECT", func() bool {
		return dom.count("disconnected "+string(id)+" clean=true") == 1
	})
	fleettest.Eventually(t, "the device is back", func() bool { return dom.count("connected") == 2 })
	if _, err := makeCall(b, id, "self.get_device_status", `{}`, time.Minute, nil); err != nil {
		t.Error(err)
	}
}

// A call that the device performed does not fail because its answer is too large.
func TestAnswerTooLargeToKeepIsNoFailure(t *testing.T) {
	b, dom := start(t, nil)
	f := switchOn(t, b, sim.Options{Devices: 1, Boards: []string{"custom-cam-s3"}})
	id, _ := fleet.ParseDeviceID(f.Device(0).ID())
	fleettest.Eventually(t, "the device connects", func() bool { return dom.count("responded") == 1 })
	for _, tt := range []struct {
		bytes int
		code  string
	}{{200_000, ""}, {262_144, "result_too_large"}, {480_000, "result_too_large"}} {
		a, err := makeCall(b, id, "self.file.read", fmt.Sprintf(`{"bytes":%d}`, tt.bytes), deadline, nil)
		if err != nil {
			t.Fatalf("%d bytes: %v", tt.bytes, err)
		}
		if tt.code == "" {
			if a.Omitted != nil || len(a.Result) < tt.bytes {
				t.Errorf("%d bytes: a result of %d, %+v", tt.bytes, len(a.Result), a.Omitted)
			}
			continue
		}
		if size, _ := a.Omitted.Params["bytes"].(int64); a.Omitted.Code != tt.code || a.Result != nil || a.IsError ||
			size <= int64(tt.bytes) ||
			a.Omitted.Params["limit"] != int64(256<<10) {
			t.Errorf("%d bytes: %+v", tt.bytes, a.Omitted)
		}
	}
}

func TestSimulatedHello(t *testing.T) {
	b, dom := start(t, nil)
	f := switchOn(t, b, sim.Options{Devices: 1})
	fleettest.Eventually(t, "the device connects", func() bool { return dom.count("responded") == 1 })
	f.Device(0).Talk()
	fleettest.Eventually(t, "hello is answered", func() bool { return b.Stats().Hellos == 1 })
	fleettest.Eventually(t, "the channel is closed again", func() bool { return !f.Device(0).Talking() })
	id, _ := fleet.ParseDeviceID(f.Device(0).ID())
	if _, err := makeCall(b, id, "self.get_device_status", `{}`, deadline, nil); err != nil {
		t.Error(err)
	}
}
