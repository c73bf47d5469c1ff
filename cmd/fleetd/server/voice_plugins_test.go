package server

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
)

// A board's voice assistant uses the weather plug-in and the board's tools. What the model
// may not use is neither listed nor called.
func TestBoardAsksAPlugin(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{MCP: true})
	defer up.Close()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // if the test runs as root, a plug-in has another user
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "weather")
	if out, err := exec.Command("go", "build", "-ldflags=-w", "-o", program, "fleetd/examples/plugins/weather").
		CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	write := func(name, more string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), fmt.Appendf(nil, "command: %s\n%s\n", program, more),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("weather", "offer_to_voice: true")
	write("staff", "audience: user")
	write("quiet", "offer_to_voice: false")
	d := startVoiceServer(t, up.URL(false), func(c *Config) { c.VoiceSecret, c.PluginsDir = "", dir })
	f := d.simulate(sim.Options{Devices: 1, Seed: 7, TimeScale: 0.2, BootDelay: 100 * time.Millisecond})
	d.listed(1)
	d.eventually("the plug-ins are listed", func() bool {
		return d.host.Introduced("plugin.weather") && d.host.Introduced("plugin.staff") && d.host.Introduced("plugin.quiet")
	})
	talk := func() *voicetest.Session { t.Helper(); return d.talk(f, up) }
	end := func(s *voicetest.Session) {
		t.Helper()
		f.Device(0).EndTalk()
		d.eventually("its end", s.Closed)
	}
	ofPlugins := func(s *voicetest.Session) []string {
		return slices.DeleteFunc(s.Tools(), func(name string) bool { return strings.HasPrefix(name, "self.") })
	}

	s := talk()
	if got := ofPlugins(s); !slices.Equal(got, []string{"weather_get_weather", "weather_list_cities"}) {
		t.Fatalf("the model gets %v of %v", got, s.Tools())
	}
	a, err := s.Call("weather_get_weather", `{"city":"北京"}`, time.Minute)
	if err != nil || a.Error != nil || !strings.Contains(a.Heard(), "Beijing") {
		t.Fatalf("%+v, %v", a, err)
	}
	a, err = s.Call("weather_get_weather", `{"city":"Atlantis"}`, time.Minute)
	if err != nil || !strings.Contains(a.Heard(), "unknown city") {
		t.Errorf("%s, %v", a.Heard(), err)
	}
	for _, name := range []string{"staff_get_weather", "quiet_get_weather", "get_weather"} {
		if a, err := s.Call(name, `{"city":"Paris"}`, time.Minute); err != nil || a.Error == nil {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	if a, err := s.Call("self.audio_speaker.set_volume", `{"volume":33}`, time.Minute); err != nil || a.Error != nil ||
		f.Device(0).State().Volume != 33 {
		t.Errorf("%+v, %v", a, err)
	}
	var open list[conversationJSON]
	d.rest("GET", "/conversations", nil, &open)
	type callView struct {
		Tool, State string
		Device      string `json:"device_id"`
		Actor       struct{ Kind, ID string }
	}
	var calls list[callView]
	d.rest("GET", "/calls?conversation="+open.Items[0].ID, nil, &calls)
	n := map[string]int{}
	for _, c := range calls.Items {
		n[c.Device+" "+c.Tool+" "+c.State]++
		if c.Actor.Kind != "voice" {
			t.Errorf("%+v", c)
		}
	}
	if len(calls.Items) != 6 || n["plugin.weather get_weather succeeded"] != 1 ||
		n["plugin.weather get_weather tool_error"] != 1 {
		t.Errorf("calls of the conversation: %v", n)
	}
	end(s)

	// In a conversation: no longer offered, then gone.
	s = talk()
	write("weather", "offer_to_voice: false")
	d.eventually("it is no longer offered", func() bool { return len(d.Plugins.OfferedToVoice()) == 0 })
	if a, err := s.Call("weather_list_cities", `{}`, time.Minute); err != nil || a.Error == nil ||
		!strings.Contains(a.Error.Message, "no longer offered") {
		t.Errorf("%+v, %v", a, err)
	}
	end(s)
	if s = talk(); len(ofPlugins(s)) != 0 {
		t.Errorf("the model gets %v", s.Tools())
	}
	end(s)

	// A policy that denies it to voice servers hides it, and one of another plug-in does not.
	write("weather", "offer_to_voice: true")
	write("other", "offer_to_voice: true")
	d.eventually("both are offered", func() bool {
		ids, err := voicePrograms{d.Server}.OfferedToVoice(t.Context(), fleet.Principal{})
		return err == nil && len(ids) == 2
	})
	var made struct{ ID, Code string }
	if status := d.rest("POST", "/policies", map[string]any{"name": "no weather", "kinds": []string{"voice"},
		"devices": "id:plugin.weather", "tools": []string{"*"}, "decision": "deny"}, &made); status != 201 {
		t.Fatalf("%d, %+v", status, made)
	}
	d.eventually("the policy hides it", func() bool {
		s := talk()
		defer end(s)
		return slices.Equal(ofPlugins(s), []string{"other_get_weather", "other_list_cities"})
	})
}

// talk begins a conversation with the first device, and returns it once its tools are listed.
func (d *testServer) talk(f *sim.Fleet, up *voicetest.Server) *voicetest.Session {
	d.t.Helper()
	before := len(up.Sessions())
	f.Device(0).Talk()
	d.eventually("the tools are listed", func() bool {
		all := up.Sessions()
		return len(all) == before+1 && all[before].Listed()
	})
	return up.Sessions()[before]
}
