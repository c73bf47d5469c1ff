package server

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

// A spoken "volume up" gets its answer within 300 ms while a fan-out goes to the
// whole fleet, and programs keep the same device's line full: each call takes the
// device 30 ms, and 16 are always waiting.
func TestSpokenCallAmongOthers(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{MCP: true})
	defer up.Close()
	d := startVoiceServer(t, up.URL(false), nil)
	const devices, callers, spoken, target = 60, 17, 30, 300 * time.Millisecond
	faults, err := sim.ParseFaults("slow=30ms:100%")
	if err != nil {
		t.Fatal(err)
	}
	f := d.simulate(sim.Options{Devices: devices, Seed: 7, BootDelay: 100 * time.Millisecond, Faults: faults})
	d.listed(devices)
	f.Device(0).Talk()
	d.eventually("the voice server lists the tools", func() bool {
		return len(up.Sessions()) == 1 && up.Sessions()[0].Listed()
	})
	id, _ := fleet.ParseDeviceID(f.Device(0).ID())

	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	program := fleet.Principal{Kind: fleet.KindProgram, Name: "bulk", Role: fleet.RoleAdmin}
	var mu sync.Mutex
	bulk := 0
	for range callers {
		others.Go(func() {
			for ctx.Err() == nil {
				c, _ := d.Calls.Make(ctx, call.Request{Actor: program, Device: id, Tool: "self.get_device_status"})
				if c.State != fleet.CallSucceeded {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				mu.Lock()
				bulk++
				mu.Unlock()
			}
		})
	}
	s := up.Sessions()[0]
	var took []time.Duration
	for i := range spoken {
		if i%10 == 0 {
			var fanOut struct{ ID string }
			d.rest("POST", "/fanouts", map[string]any{"q": "", "tool": "self.get_device_status"}, &fanOut)
		}
		begin := time.Now()
		a, err := s.Call("self.audio_speaker.set_volume", `{"volume":60}`, time.Minute)
		if err != nil || a.Error != nil {
			t.Fatalf("%+v, %v", a, err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	p50, p90 := took[spoken/2], took[spoken*9/10]
	mu.Lock()
	defer mu.Unlock()
	t.Logf("spoken calls: p50 %v, p90 %v, longest %v; %d others meanwhile", p50, p90, took[spoken-1], bulk)
	fleettest.Within(t, "half of the spoken calls", p50, target)
	if bulk < spoken/2 {
		t.Errorf("only %d other calls: spoken ones took all turns, or the line was empty", bulk)
	}
}

// Floods at the UDP port (noise, unknown conversations, forged packets of an open
// one) neither slow down calls nor end conversations.
func TestCallsDuringFlood(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{Echo: true})
	defer up.Close()
	d := startVoiceServer(t, up.URL(true), nil)
	const devices = 4
	f := d.simulate(sim.Options{Devices: devices, Seed: 7, BootDelay: 100 * time.Millisecond,
		Speech: func(string, int) []byte { return []byte("goes on and on") }})
	d.listed(devices)
	f.Device(0).Talk()
	d.eventually("it hears", func() bool { return f.Stats().AudioHeard > 3 })
	var ids []fleet.DeviceID
	for i := range devices {
		id, _ := fleet.ParseDeviceID(f.Device(i).ID())
		ids = append(ids, id)
	}
	calls := func() (p50, p99 time.Duration) {
		var took []time.Duration
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			begin := time.Now()
			c, err := d.Calls.Make(t.Context(), call.Request{Actor: fleet.Principal{Kind: fleet.KindProgram, Name: "p",
				Role: fleet.RoleAdmin}, Device: ids[len(took)%devices], Tool: "self.get_device_status",
				Arguments: json.RawMessage(`{}`)})
			if err != nil || c.State != fleet.CallSucceeded {
				t.Fatalf("%+v, %v", c, err)
			}
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		return took[len(took)/2], took[len(took)*99/100]
	}
	quiet50, quiet99 := calls()
	before := d.voice.Load().Stats()
	heard := f.Stats().AudioHeard

	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		conn, err := net.Dial("udp", d.VoiceAddr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		b := make([]byte, 200)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			for range 500 {
				binary.BigEndian.PutUint32(b[4:], rand.Uint32())
				b[0], b[2], b[3] = byte(n%2), 0, byte(len(b)-16)
				_, _ = conn.Write(b)
			}
			time.Sleep(10 * time.Millisecond) // some 50,000 a second
		}
	})
	flooded50, flooded99 := calls()
	var dropped int64
	d.eventually("2,000 datagrams of the flood arrived", func() bool {
		after := d.voice.Load().Stats()
		dropped = after.Unknown + after.Malformed - before.Unknown - before.Malformed
		return dropped >= 2000
	})
	close(stop)
	flood.Wait()
	t.Logf("calls: p50 %v, p99 %v; with %d datagrams a second p50 %v, p99 %v", quiet50, quiet99, dropped, flooded50,
		flooded99)
	fleettest.Within(t, "99 % of the calls during the flood", flooded99, max(20*quiet99, 300*time.Millisecond))
	d.eventually("the conversation goes on", func() bool { return f.Stats().AudioHeard > heard+10 })
	if open := d.voice.Load().Stats().Open; open != 1 {
		t.Errorf("%d conversations are open", open)
	}
}
