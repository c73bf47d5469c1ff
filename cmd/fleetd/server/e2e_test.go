package server

import (
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet"
)

type callJSON struct {
	ID, State, Tool string
	Actor           struct{ Kind, Name string }
	Result          struct {
		Content []struct{ Type, Text string }
	}
	Error *struct{ Code, Message string }
}

func TestFromPollToOutcome(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	f := d.simulate(sim.Options{Devices: 6, Seed: 7, TimeScale: 0.1, BootDelay: 200 * time.Millisecond})
	device := d.listed(6)[0].ID

	var call callJSON
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": "self.audio_speaker.set_volume",
		"arguments": map[string]any{"volume": 37}}, &call)
	if call.State != "succeeded" || call.Actor.Name != "e2e" || call.Result.Content[0].Text != "true" {
		t.Errorf("set_volume: %+v", call)
	}
	if v := deviceNamed(t, f, 6, device); v.State().Volume != 37 {
		t.Errorf("the device's volume is %d", v.State().Volume)
	}
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": "self.audio_speaker.set_volume",
		"arguments": map[string]any{"volume": 137}}, &call)
	if call.State != "invalid" || call.Error == nil || call.Error.Code != "invalid_arguments" {
		t.Errorf("a volume of 137: %+v", call)
	}
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": "self.reboot"}, &call)
	if call.State != "succeeded" {
		t.Errorf("reboot: %+v", call)
	}
	var calls list[callJSON]
	d.rest("GET", "/calls?device="+device, nil, &calls)
	if len(calls.Items) != 3 || calls.Items[0].Tool != "self.reboot" {
		t.Errorf("calls on record: %+v", calls.Items)
	}
	if n := f.Stats().Crashes; n != 0 {
		t.Errorf("%d devices crashed on an answer", n)
	}
}

func deviceNamed(t *testing.T, f *sim.Fleet, n int, id string) *sim.Device {
	t.Helper()
	for i := range n {
		if got, err := fleet.ParseDeviceID(f.Device(i).ID()); err == nil && string(got) == id {
			return f.Device(i)
		}
	}
	t.Fatalf("no simulated device %s", id)
	return nil
}

func TestSnapshotReachesTheConsole(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	d.simulate(sim.Options{Devices: 1, Boards: []string{"esp-box-3"}, Seed: 7, TimeScale: 0.1})
	device := d.listed(1)[0].ID
	var call callJSON
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": "self.screen.snapshot",
		"arguments": map[string]any{"quality": 60}}, &call)
	if call.State != "succeeded" {
		t.Fatalf("snapshot: %+v", call)
	}
	var pictures list[struct {
		ID, CallID    string
		Width, Height int
	}]
	d.rest("GET", "/snapshots?device="+device, nil, &pictures)
	if len(pictures.Items) != 1 || pictures.Items[0].Width != 320 || pictures.Items[0].Height != 240 {
		t.Errorf("snapshots: %+v", pictures.Items)
	}
}
