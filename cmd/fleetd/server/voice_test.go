package server

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
)

// startVoiceServer starts a server whose devices talk to up.
func startVoiceServer(t *testing.T, url string, change func(*Config)) *testServer {
	t.Helper()
	return startTestServer(t, func(c *Config) {
		c.VoiceUpstream, c.VoiceSecret = url, "s3cret"
		c.VoiceUDPAddr, c.VoiceUDPEndpoint = "127.0.0.1:0", "127.0.0.1:0"
		if change != nil {
			change(c)
		}
	})
}

type conversationJSON struct {
	ID         string `json:"id"`
	Device     string `json:"device_id"`
	Upstream   string `json:"upstream"`
	Ended      string `json:"ended"`
	Calls      int    `json:"calls"`
	DurationMs *int64 `json:"duration_ms"`
	Audio      struct{ Received, Lost, Sent, Refused int }
}

// Simulated boards talk through a complete server with a voice server that echoes audio:
// each hears only its own audio, the server's model calls their tools, and everything is
// on record.
func TestBoardsTalk(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{Secret: "s3cret", Echo: true, MCP: true})
	defer up.Close()
	d := startVoiceServer(t, up.URL(true), nil)
	const devices, frames = 12, 20
	words := func(mac string, n int) []byte {
		if n >= frames {
			return nil
		}
		return fmt.Appendf(nil, "%s says %d", mac, n)
	}
	var mu sync.Mutex
	heard := make(map[string]int)
	f := d.simulate(sim.Options{Devices: devices, Seed: 7, TimeScale: 0.2, BootDelay: 100 * time.Millisecond,
		Speech: words, Hear: func(mac string, sound []byte) {
			mu.Lock()
			defer mu.Unlock()
			if !strings.HasPrefix(string(sound), mac+" says ") {
				t.Errorf("%s heard %q", mac, sound)
			}
			heard[mac]++
		}})
	d.listed(devices)
	for i := range devices {
		f.Device(i).Talk()
	}
	d.heardAll(&mu, heard, devices, frames)

	one := f.Device(0)
	id, _ := fleet.ParseDeviceID(one.ID())
	var s *voicetest.Session
	for _, c := range up.Sessions() {
		if c.Header.Get("Device-Id") == one.ID() {
			s = c
		}
	}
	if s == nil {
		t.Fatal("the voice server has no conversation of the device")
	}
	if s.Header.Get("Client-Id") != one.ClientID() {
		t.Errorf("Client-Id %q, want %q", s.Header.Get("Client-Id"), one.ClientID())
	}
	d.eventually("the tools are listed", s.Listed)
	tools := strings.Join(s.Tools(), " ")
	if !strings.Contains(tools, "self.audio_speaker.set_volume") || strings.Contains(tools, "self.reboot") {
		t.Errorf("tools of the voice server: %s", tools)
	}
	a, err := s.Call("self.audio_speaker.set_volume", `{"volume":33}`, time.Minute)
	if err != nil || a.Error != nil || fleet.ResultText(a.Result) != "true" {
		t.Fatalf("%+v, %v", a, err)
	}
	if got := one.State().Volume; got != 33 {
		t.Errorf("the device's volume is %d", got)
	}
	a, err = s.Call("self.reboot", `{}`, time.Minute)
	if err != nil || a.Error == nil || !strings.Contains(a.Error.Message, "language models may not call it") {
		t.Errorf("reboot: %+v, %v", a, err)
	}
	a, err = s.Call("self.audio_speaker.set_volume", `{"volume":133}`, time.Minute)
	if err != nil || a.Error == nil {
		t.Errorf("a volume of 133: %+v, %v", a, err)
	}

	var open list[conversationJSON]
	d.rest("GET", "/conversations?device="+string(id), nil, &open)
	if len(open.Items) != 1 || open.Items[0].DurationMs != nil {
		t.Fatalf("%+v", open.Items)
	}
	var calls list[struct {
		Tool, State string
		Actor       struct{ Kind, Name string }
	}]
	d.rest("GET", "/calls?device="+string(id), nil, &calls)
	if len(calls.Items) != 3 || calls.Items[2].State != "succeeded" || calls.Items[1].State != "refused" ||
		calls.Items[0].State != "invalid" {
		t.Fatalf("%+v", calls.Items)
	}
	for _, c := range calls.Items {
		if c.Actor.Kind != "voice" || c.Actor.Name != "127.0.0.1" {
			t.Errorf("%+v", c)
		}
	}

	one.EndTalk()
	d.eventually("the voice server's socket is closed", s.Closed)
	f.Device(1).EndTalk()
	d.eventually("the ends are on record", func() bool {
		var all list[conversationJSON]
		d.rest("GET", "/conversations", nil, &all)
		ended := 0
		for _, c := range all.Items {
			if c.Ended == "device_goodbye" {
				ended++
				if c.Audio.Received != frames || c.Audio.Lost != 0 || c.Audio.Sent != frames || c.DurationMs == nil {
					t.Errorf("%+v", c)
				}
			}
			if c.ID == open.Items[0].ID && c.Ended != "" && c.Calls != 3 {
				t.Errorf("%+v", c)
			}
		}
		return ended == 2 && len(all.Items) == devices
	})
	for _, s := range up.Sessions() {
		if faults := s.Faults(); len(faults) > 0 {
			t.Error(faults)
		}
	}
	var device deviceView
	if d.rest("GET", "/devices/"+string(id), nil, &device); device.Presence != "online" {
		t.Errorf("after its conversation the device is %s", device.Presence)
	}
	metrics := d.scrape()
	for _, line := range []string{"fleetd_voice_conversations 10\n", `ended_total{end="device_goodbye"} 2` + "\n",
		fmt.Sprintf("fleetd_voice_audio_up_total %d\n", devices*frames), "fleetd_voice_hello_seconds_count 12\n",
		`fleetd_voice_upstream_conversations{id="`, `upstream="127.0.0.1`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics have no %q", line)
		}
	}
	if n := f.Stats(); n.Crashes != 0 || n.AudioDropped != 0 {
		t.Errorf("%+v", n)
	}
}

func (d *testServer) scrape() string {
	d.t.Helper()
	resp, err := http.Get("http://" + d.admin + "/metrics")
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(text)
}

// If the voice server is down, a board returns to idle at once, shows the reason in the
// configured language, and can still be managed.
func TestVoiceServerIsDown(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{})
	url := up.URL(false)
	up.Close()
	d := startVoiceServer(t, url, func(c *Config) { c.VoiceLanguage = "zh-CN" })
	f := d.simulate(sim.Options{Devices: 1, Seed: 7, BootDelay: 100 * time.Millisecond})
	device := d.listed(1)[0].ID
	f.Device(0).Talk()
	d.eventually("the reason is on the screen", func() bool {
		return f.Device(0).State().Message == "无法连接语音服务器。"
	})
	d.eventually("the device talks no more", func() bool { return !f.Device(0).Talking() })
	var call callJSON
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": "self.get_device_status"}, &call)
	if call.State != "succeeded" {
		t.Errorf("%+v", call)
	}
	d.eventually("the failure is on record", func() bool {
		var all list[conversationJSON]
		d.rest("GET", "/conversations", nil, &all)
		return len(all.Items) == 1 && all.Items[0].Ended == "upstream_unreachable"
	})
}

// A program that acts as a board connects for its conversation: it is listed during it,
// and people and the voice server can call its tools.
func TestProgramTalks(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{Echo: true, MCP: true})
	defer up.Close()
	d := startVoiceServer(t, up.URL(false), nil)
	f := d.simulate(sim.Options{Devices: 1, Boards: []string{"py-desktop"}, Seed: 7, TimeScale: 0.2,
		BootDelay: 100 * time.Millisecond, Speech: func(string, int) []byte { return []byte("hello") }})
	d.eventually("boot", func() bool { return f.Stats().Booted == 1 })
	f.Device(0).Talk()
	id, _ := fleet.ParseDeviceID(f.Device(0).ID())
	d.eventually("it is listed while it talks", func() bool {
		var v deviceView
		d.rest("GET", "/devices/"+string(id), nil, &v)
		return v.ToolsCount == 2 && v.Presence == "online" && f.Stats().AudioHeard > 20
	})
	var s, over *voicetest.Session
	d.eventually("the voice server has its tools", func() bool {
		all := up.Sessions()
		switch s = all[len(all)-1]; {
		case s.Listed() && len(s.Tools()) == 2:
			return true
		case s.Closed() && s != over:
			over = s
			f.Device(0).Talk()
		case s.Listed(): // before fleetd, on a busy machine; the next conversation has them
			f.Device(0).EndTalk()
		}
		return false
	})
	a, err := s.Call("self.audio_speaker.set_volume", `{"volume":12}`, time.Minute)
	if err != nil || a.Error != nil {
		t.Errorf("%+v, %v", a, err)
	}
	f.Device(0).EndTalk()
	d.eventually("it left", func() bool { return !f.Device(0).Connected() && s.Closed() })
}

// When fleetd stops, boards leave their conversations.
func TestStopEndsConversations(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{})
	defer up.Close()
	d := startVoiceServer(t, up.URL(false), nil)
	f := d.simulate(sim.Options{Devices: 3, Seed: 7, BootDelay: 100 * time.Millisecond})
	d.listed(3)
	for i := range 3 {
		f.Device(i).Talk()
	}
	d.eventually("all talk", func() bool { return f.Device(0).Talking() && f.Device(1).Talking() && f.Device(2).Talking() })
	d.restart()
	d.eventually("no device is left in a conversation", func() bool {
		return !f.Device(0).Talking() && !f.Device(1).Talking() && !f.Device(2).Talking()
	})
	var all list[conversationJSON]
	d.rest("GET", "/conversations", nil, &all)
	for _, c := range all.Items {
		if c.Ended != "fleetd_stopping" {
			t.Errorf("%+v", c)
		}
	}
}

func TestVoiceConfiguration(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string // "": no error
	}{
		{"off", func(c *Config) {}, ""},
		{"no address, for later", func(c *Config) { c.VoiceUDPAddr = "nonsense" }, "--voice-udp-addr"},
		{"on", func(c *Config) { c.VoiceUpstream = "ws://voice:8000/xiaozhi/v1/" }, ""},
		{"no WebSocket", func(c *Config) { c.VoiceUpstream = "http://voice:8000/" }, "--voice-upstream"},
		{"no port", func(c *Config) {
			c.VoiceUpstream, c.VoiceUDPEndpoint = "ws://voice:8000/", "fleet.example.org"
		}, "--voice-udp-endpoint"},
		{"no address", func(c *Config) { c.VoiceUpstream, c.VoiceUDPAddr = "ws://voice:8000/", "8884" },
			"--voice-udp-addr"},
		{"language", func(c *Config) { c.VoiceUpstream, c.VoiceLanguage = "ws://voice:8000/", "fr" },
			"--voice-language"},
	} {
		c := Config{PublicURL: "http://fleet.example.org:8080"}
		tt.change(&c)
		err := c.check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.name == "on" && c.VoiceUDPEndpoint != "fleet.example.org:8884" {
			t.Errorf("devices are sent to %s", c.VoiceUDPEndpoint)
		}
	}
}

// heardAll waits until each device has heard its frames. The relay drops audio that waited
// too long, which happens on a busy machine: it counts these packets, and those that it
// missed.
func (d *testServer) heardAll(mu *sync.Mutex, heard map[string]int, devices, frames int) {
	d.t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if d.t.Failed() {
			d.t.Logf("frames heard, of %d each: %v; the relay: %+v", frames, heard, d.voice.Load().Stats())
		}
	})
	d.eventually("all are heard and hear", func() bool {
		mu.Lock()
		defer mu.Unlock()
		all := 0
		for _, n := range heard {
			all += n
		}
		s := d.voice.Load().Stats()
		return len(heard) == devices && all+int(s.Late+s.Lost) >= devices*frames
	})
}

// Devices with the transport WebSocket talk over it through a complete server, together
// with devices on MQTT: each hears its own audio, the voice server's model calls their
// tools, and between conversations they do not count as lost.
func TestBoardsTalkOverWebSocket(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{Secret: "s3cret", Echo: true, MCP: true})
	defer up.Close()
	d := startVoiceServer(t, up.URL(true), nil)
	const devices, frames = 6, 20
	var mu sync.Mutex
	heard := make(map[string]int)
	f := d.simulate(sim.Options{Devices: devices, Seed: 7, TimeScale: 0.2, BootDelay: 100 * time.Millisecond,
		Speech: func(mac string, n int) []byte {
			if n >= frames {
				return nil
			}
			return fmt.Appendf(nil, "%s says %d", mac, n)
		}, Hear: func(mac string, sound []byte) {
			mu.Lock()
			defer mu.Unlock()
			if !strings.HasPrefix(string(sound), mac+" says ") {
				t.Errorf("%s heard %q", mac, sound)
			}
			heard[mac]++
		}})
	d.listed(devices)
	ids := make([]string, devices)
	for i := range devices {
		id, _ := fleet.ParseDeviceID(f.Device(i).ID())
		ids[i] = string(id)
	}
	const sockets = devices / 2 // the others use MQTT
	var device socketDeviceView
	for _, id := range ids[:sockets] {
		d.rest("PATCH", "/devices/"+id, map[string]any{"transport_choice": "ws"}, &device)
		var call callJSON
		d.rest("POST", "/devices/"+id+"/calls", map[string]any{"tool": "self.reboot"}, &call)
	}
	for _, id := range ids[:sockets] {
		d.eventually("it started as one that connects for conversations", func() bool {
			d.rest("GET", "/devices/"+id, nil, &device)
			return device.ForConversations && device.Presence == "offline"
		})
	}
	var call callJSON
	d.rest("POST", "/devices/"+ids[0]+"/calls", map[string]any{"tool": "self.audio_speaker.set_volume",
		"arguments": map[string]any{"volume": 5}}, &call)
	if call.State != "offline" || call.Error == nil || !strings.Contains(call.Error.Message, "only during conversations") {
		t.Errorf("a call between conversations: %+v %+v", call, call.Error)
	}

	for i := range devices {
		f.Device(i).Talk()
	}
	d.heardAll(&mu, heard, devices, frames)
	d.rest("GET", "/devices/"+ids[0], nil, &device)
	if device.Presence != "online" || device.Transport != "ws" {
		t.Errorf("in its conversation: %+v", device)
	}
	one := f.Device(0)
	var s *voicetest.Session
	for _, c := range up.Sessions() {
		if c.Header.Get("Device-Id") == one.ID() {
			s = c
		}
	}
	if s == nil {
		t.Fatal("the voice server has no conversation of the device")
	}
	d.eventually("the tools are listed", s.Listed)
	a, err := s.Call("self.audio_speaker.set_volume", `{"volume":33}`, time.Minute)
	if err != nil || a.Error != nil || fleet.ResultText(a.Result) != "true" || one.State().Volume != 33 {
		t.Errorf("%+v, %v, volume %d", a, err, one.State().Volume)
	}
	if s.Texts()[0] == "" || !strings.Contains(s.Texts()[0], `"listen"`) {
		t.Errorf("texts %q", s.Texts())
	}
	one.EndTalk()
	d.eventually("the voice server's socket is closed", s.Closed)
	d.eventually("the end is on record", func() bool {
		var list list[conversationJSON]
		d.rest("GET", "/conversations?device="+ids[0], nil, &list)
		c := list.Items[0]
		if c.Ended == "" {
			return false
		}
		if c.Ended != "device_goodbye" || c.Audio.Received != frames || c.Audio.Sent != frames || c.Audio.Refused != 0 {
			t.Errorf("%+v", c)
		}
		return true
	})
	d.eventually("it is between conversations", func() bool {
		d.rest("GET", "/devices/"+ids[0], nil, &device)
		return device.Presence == "offline" && device.EvidenceCode == "conversation_ended"
	})
	var stats struct {
		Presence struct {
			Offline int
			Between int `json:"between_conversations"`
		}
	}
	if d.rest("GET", "/stats", nil, &stats); stats.Presence.Offline != 0 || stats.Presence.Between != 1 {
		t.Errorf("%+v", stats)
	}
	// If the voice server ends a conversation, the device's socket closes, and the device
	// is idle.
	for _, c := range up.Sessions() {
		if c.Header.Get("Device-Id") == f.Device(1).ID() {
			c.Close()
		}
	}
	d.eventually("its conversation is over", func() bool { return !f.Device(1).Connected() })
	if n := f.Stats(); n.Crashes != 0 || n.AudioDropped != 0 {
		t.Errorf("%+v", n)
	}
}

type socketDeviceView struct {
	Presence, Transport string
	EvidenceCode        string `json:"presence_evidence_code"`
	ForConversations    bool   `json:"for_conversations"`
}

// Voice servers come and go while fleetd runs: the audio port opens with the first one,
// and at its next conversation a board uses the server that its tags select.
func TestVoiceServersByDevice(t *testing.T) {
	t.Parallel()
	one, two := voicetest.Start(voicetest.Options{Secret: "first", MCP: true}), voicetest.Start(voicetest.Options{})
	defer one.Close()
	defer two.Close()
	d := startVoiceServer(t, "", nil)
	if d.VoiceAddr() != nil {
		t.Fatal("the audio port is open without a voice server")
	}
	f := d.simulate(sim.Options{Devices: 1, Seed: 7, TimeScale: 0.2, BootDelay: 100 * time.Millisecond})
	d.listed(1)
	id, _ := fleet.ParseDeviceID(f.Device(0).ID())

	var made struct{ ID, Code string }
	if status := d.rest("POST", "/upstreams", map[string]any{"name": "first", "url": one.URL(true), "auth": "secret",
		"secret": "first"}, &made); status != 201 {
		t.Fatalf("%d, %+v", status, made)
	}
	d.eventually("the audio port is open", func() bool { return d.VoiceAddr() != nil })
	talk := func(s *voicetest.Server, n int) {
		t.Helper()
		f.Device(0).Talk()
		d.eventually("a conversation", func() bool { return len(s.Sessions()) == n && f.Device(0).Talking() })
		f.Device(0).EndTalk()
		d.eventually("its end", func() bool { return s.Sessions()[n-1].Closed() })
	}
	talk(one, 1)
	if one.Refused() != 0 {
		t.Error("the first server refused the token")
	}
	if status := d.rest("POST", "/upstreams", map[string]any{"name": "second", "url": two.URL(false),
		"devices": "tag:lab", "position": 0}, &made); status != 201 {
		t.Fatalf("%d, %+v", status, made)
	}
	talk(one, 2)
	if status := d.rest("PATCH", "/devices/"+string(id), map[string]any{"tags": []string{"lab"}}, &made); status != 200 {
		t.Fatalf("%d, %+v", status, made)
	}
	d.eventually("the tag chooses", func() bool {
		var m struct{ Upstream struct{ Name string } }
		d.rest("GET", "/upstreams/match?device="+string(id), nil, &m)
		return m.Upstream.Name == "second"
	})
	talk(two, 1)
	var log list[conversationJSON]
	d.eventually("all are on record", func() bool {
		d.rest("GET", "/conversations", nil, &log)
		return len(log.Items) == 3 && log.Items[0].Upstream == "second" && log.Items[1].Upstream == "first" &&
			!slices.ContainsFunc(log.Items, func(c conversationJSON) bool { return c.Ended == "" })
	})
	var all list[struct {
		Name   string
		Health struct {
			LastSuccess *time.Time `json:"last_success"`
		}
	}]
	d.rest("GET", "/upstreams", nil, &all)
	if len(all.Items) != 2 || all.Items[0].Name != "second" || all.Items[0].Health.LastSuccess == nil {
		t.Errorf("%+v", all.Items)
	}
}
