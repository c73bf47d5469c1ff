package server

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// talkers are devices that speak numbered frames, which the voice server sends back.
type talkers struct {
	*sim.Fleet
	quiet atomic.Bool // they stop speaking

	mu    sync.Mutex
	said  map[string]int
	heard map[string]int
	wrong []string
}

func (s *talkers) speech(mac string, n int) []byte {
	if s.quiet.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said[mac] = n + 1
	return fmt.Appendf(nil, "%s says %d", mac, n)
}

func (s *talkers) hear(mac string, sound []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if want := fmt.Sprintf("%s says %d", mac, s.heard[mac]); string(sound) != want {
		s.wrong = append(s.wrong, fmt.Sprintf("%q, want %q", sound, want))
	}
	s.heard[mac]++
}

func (s *talkers) counts(mac string) (said, heard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said[mac], s.heard[mac]
}

// talk opens a conversation. A device that is still starting ignores its button, which is therefore pressed
// again, once the device waits for no hello any more.
func (s *talkers) talk(t *testing.T, i int) {
	t.Helper()
	var pressed time.Time
	fleettest.EventuallyWithin(t, time.Minute, "the device to talk", func() bool {
		if time.Since(pressed) > 15*time.Second {
			pressed = time.Now()
			s.Device(i).Talk()
		}
		return s.Device(i).Talking()
	})
}

// startTalkers starts devices at the first edge. Those before sockets use a WebSocket.
func (w *clusterWorld) startTalkers(devices, sockets int) *talkers {
	w.t.Helper()
	s := &talkers{said: make(map[string]int), heard: make(map[string]int)}
	var err error
	s.Fleet, err = sim.New(sim.Options{OTAURL: "http://" + w.edges[0].http + "/xiaozhi/ota/", Devices: devices, Seed: 7,
		Boards: []string{chaosBoard}, BootDelay: 10 * time.Millisecond, Speech: s.speech, Hear: s.hear, RecordCalls: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	w.t.Cleanup(func() { cancel(); <-done })
	fleettest.EventuallyWithin(w.t, time.Minute, "the devices to be online with their tools", func() bool {
		return w.count(`SELECT count(*) FROM devices WHERE presence = 'online' AND tools_count > 0`) == leaseDevices+devices
	})
	for i := range sockets {
		id := w.idOf(s, i)
		var device socketDeviceView
		w.rest(w.edges[1], w.token, "PATCH", "/devices/"+id, map[string]any{"transport_choice": "ws"}, &device)
		var call callJSON
		w.rest(w.edges[1], w.token, "POST", "/devices/"+id+"/calls", map[string]any{"tool": "self.reboot"}, &call)
		fleettest.EventuallyWithin(w.t, time.Minute, "the device to connect for conversations", func() bool {
			w.rest(w.edges[1], w.token, "GET", "/devices/"+id, nil, &device)
			return device.ForConversations && device.Presence == "offline"
		})
	}
	return s
}

func (w *clusterWorld) idOf(s *talkers, i int) string {
	id, err := fleet.ParseDeviceID(s.Device(i).ID())
	if err != nil {
		w.t.Fatal(err)
	}
	return string(id)
}

// sessionOf waits until the voice server has a conversation of the device, and its tools.
func sessionOf(t *testing.T, up *voicetest.Server, d *sim.Device) (s *voicetest.Session) {
	t.Helper()
	defer func() {
		if s == nil {
			for _, c := range up.Sessions() {
				t.Logf("%s waits for its tools: of %s, tools %q, faults %q", d.ID(), c.Header.Get("Device-Id"), c.Tools(), c.Faults())
			}
		}
	}()
	fleettest.EventuallyWithin(t, time.Minute, "the conversation to be open with its tools", func() bool {
		for _, c := range up.Sessions() {
			if c.Header.Get("Device-Id") == d.ID() && c.Listed() {
				s = c
				return true
			}
		}
		return false
	})
	return s
}

// A core is killed while devices at an edge are in conversations, over MQTT with UDP and over a
// WebSocket. No frame is missing in either direction, and no message. A tool call of the voice server
// waits for the next core, and is made once. A device that says hello meanwhile gets its conversation,
// and the record of one that ends meanwhile is kept.
func TestConversationsOutliveTheCore(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{Secret: "s3cret", Echo: true, MCP: true})
	defer up.Close()
	w := newClusterWorld(t, "--voice-upstream", up.URL(true), "--voice-secret", "s3cret")
	const devices, sockets = 4, 1
	const onSocket, onUDP, leaves, comes = 0, 1, 2, 3
	f := w.startTalkers(devices, sockets)
	for _, i := range []int{onSocket, onUDP, leaves} {
		f.talk(t, i)
	}
	var sessions [devices]*voicetest.Session
	for _, i := range []int{onSocket, onUDP, leaves} {
		sessions[i] = sessionOf(t, up, f.Device(i))
		if tools := strings.Join(sessions[i].Tools(), " "); !strings.Contains(tools, "self.audio_speaker.set_volume") {
			t.Fatalf("tools: %s", tools)
		}
	}
	fleettest.EventuallyWithin(t, time.Minute, "the conversations to be on record", func() bool {
		return w.count(`SELECT count(*) FROM conversations WHERE end_at IS NULL`) == 3
	})
	// The voice server's texts reach the device one after the other.
	texting, texted := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		defer func() { texted <- n }()
		for ; ; n++ {
			select {
			case <-texting:
				return
			case <-time.After(20 * time.Millisecond):
			}
			text := "text " + strconv.Itoa(n)
			_ = sessions[onUDP].Send(`{"type":"alert","status":"x","emotion":"neutral","message":"` + text + `"}`)
			for end := time.Now().Add(10 * time.Second); f.Device(onUDP).State().Message != text; {
				if time.Now().After(end) {
					t.Errorf("the device did not show %q", text)
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	}()
	connects, since := w.connects(), time.Now()

	w.cores[1].signal(syscall.SIGSTOP) // so that no core leads for some time
	w.cores[0].signal(syscall.SIGKILL)
	w.cores[0].awaitEnd(time.Minute)
	f.Device(leaves).EndTalk()
	w.awaitMetrics(w.edges[0], `fleetd_door_held{kind="edge"} 2`) // its record, and the report that it has ended
	called := make(chan voicetest.RPC, 2)
	for _, i := range []int{onSocket, onUDP} {
		go func() {
			a, err := sessions[i].Call("self.audio_speaker.set_volume", `{"volume":4`+strconv.Itoa(i)+`}`, time.Minute)
			if err != nil {
				t.Error(err)
			}
			called <- a
		}()
	}
	f.Device(comes).Talk()
	time.Sleep(3 * time.Second) // without a core
	if n := len(called); n != 0 {
		t.Errorf("%d calls were answered without a core", n)
	}
	w.cores[1].signal(syscall.SIGCONT)
	w.cores[1].awaitReady()
	took := time.Since(since)
	for range 2 {
		if a := <-called; a.Error != nil || fleet.ResultText(a.Result) != "true" {
			t.Errorf("a call while no core led: %+v", a)
		}
	}
	answered := time.Since(since)
	sessions[comes] = sessionOf(t, up, f.Device(comes))

	// The new core knows what is open: what would interrupt a conversation waits.
	for _, i := range []int{onSocket, onUDP, comes} {
		fleettest.EventuallyWithin(t, time.Minute, "a call that would interrupt to wait", func() bool {
			var all list[conversationJSON]
			w.rest(w.edges[1], w.token, "GET", "/conversations?end=open&device="+w.idOf(f, i), nil, &all)
			if len(all.Items) != 1 {
				return false
			}
			var call struct {
				ID, State string
				Waits     struct{ Code string }
			}
			w.rest(w.edges[1], w.token, "POST", "/devices/"+w.idOf(f, i)+"/calls?wait=0", map[string]any{"tool": "self.reboot"}, &call)
			if call.State != "pending" || call.Waits.Code != "in_conversation" {
				t.Fatalf("%+v", call)
			}
			w.rest(w.edges[1], w.token, "POST", "/calls/"+call.ID+"/cancel", nil, &call)
			return true
		})
	}
	time.Sleep(endTalksEvery + time.Second) // open conversations would have ended on record by now
	if n := w.count(`SELECT count(*) FROM conversations WHERE end_at IS NULL`); n != 3 {
		t.Errorf("%d conversations are open on record", n)
	}
	close(texting)
	texts := <-texted
	f.quiet.Store(true)
	for _, i := range []int{onSocket, onUDP, comes} {
		mac := f.Device(i).ID()
		fleettest.EventuallyWithin(t, time.Minute, "all frames to come back", func() bool {
			said, heard := f.counts(mac)
			return said > 0 && heard >= said
		})
		f.Device(i).EndTalk()
	}
	f.mu.Lock()
	if len(f.wrong) > 0 {
		t.Errorf("%d frames are missing or not in order: %v", len(f.wrong), f.wrong[:min(len(f.wrong), 5)])
	}
	f.mu.Unlock()
	fleettest.EventuallyWithin(t, time.Minute, "all ends to be on record", func() bool {
		return w.count(`SELECT count(*) FROM conversations WHERE ended = 'device_goodbye'`) == devices
	})
	if n := w.count(`SELECT count(*) FROM conversations`); n != devices {
		t.Errorf("%d conversations are on record", n)
	}
	frames := 0
	for i := range devices {
		id := w.idOf(f, i)
		said, heard := f.counts(f.Device(i).ID())
		var received, lost, sent, calls int
		err := w.db.QueryRow(t.Context(), `SELECT received, lost, sent, calls FROM conversations WHERE device_id = $1`, id).
			Scan(&received, &lost, &sent, &calls)
		if err != nil {
			t.Fatal(err)
		}
		wantCalls := 0
		if i == onSocket || i == onUDP {
			wantCalls = 1
		}
		if calls != wantCalls {
			t.Errorf("device %d: %d calls in the record of the conversation, want %d", i, calls, wantCalls)
		}
		if n := w.count(`SELECT count(*) FROM calls WHERE device_id = $1 AND tool = 'self.audio_speaker.set_volume'
			AND actor_kind = 'voice' AND state = 'succeeded'`, id); n != wantCalls {
			t.Errorf("device %d: %d calls on record, want %d", i, n, wantCalls)
		}
		made := 0
		for _, c := range f.Device(i).Calls() {
			if c.Tool == "self.audio_speaker.set_volume" {
				made++
			}
		}
		if made != wantCalls {
			t.Errorf("device %d executed %d calls, want %d", i, made, wantCalls)
		}
		if i == leaves {
			continue // it hung up in the middle of a word
		}
		frames += said
		if heard != said || received != said || sent != said || lost != 0 {
			t.Errorf("device %d said %d frames and heard %d; on record: %d received, %d lost, %d sent", i, said, heard, received,
				lost, sent)
		}
		for n, frame := range sessions[i].Frames() {
			if want := fmt.Sprintf("%s says %d", f.Device(i).ID(), n); !strings.HasSuffix(frame.Data, want) {
				t.Errorf("the voice server heard %q as frame %d of device %d", frame.Data, n, i)
				break
			}
		}
		if got := len(sessions[i].Frames()); got != said {
			t.Errorf("the voice server heard %d of %d frames of device %d", got, said, i)
		}
	}
	if n := w.connects(); n != connects {
		t.Errorf("devices connected %d times more", n-connects)
	}
	for _, s := range sessions {
		if faults := s.Faults(); len(faults) > 0 {
			t.Error(faults)
		}
	}

	// The conversations of an edge that dies end on record.
	f.quiet.Store(false)
	f.talk(t, onUDP)
	fleettest.EventuallyWithin(t, time.Minute, "the conversation to be on record", func() bool {
		return w.count(`SELECT count(*) FROM conversations WHERE end_at IS NULL`) == 1
	})
	w.edges[0].signal(syscall.SIGKILL)
	fleettest.EventuallyWithin(t, time.Minute, "the conversation to end", func() bool {
		return w.count(`SELECT count(*) FROM conversations WHERE ended = 'fleetd_stopped'`) == 1
	})
	t.Logf("no core for %v; calls of the voice server answered after %v; %d frames in each direction, %d texts", took, answered,
		frames, texts)
}
