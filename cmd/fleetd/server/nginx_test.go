package server

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
)

// nginxExample returns the nginx location in docs/voice.md.
func nginxExample(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../../../docs/voice.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(doc), "```") {
		if i%2 == 1 && strings.Contains(part, "# nginx") {
			return part
		}
	}
	t.Fatal("docs/voice.md has no example for nginx")
	return ""
}

// startNginx runs nginx with a location at an address. It returns a function that reads
// its access log.
func startNginx(t *testing.T, addr, location string) (requests func() string) {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			t.Skip("nginx is not installed (Debian: nginx; scripts/setup test installs it)")
		}
	}
	dir := t.TempDir()
	config := fmt.Sprintf(`
daemon off;
master_process off;
pid %[1]s/pid;
events {}
http {
	access_log %[1]s/requests;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server {
		listen %[2]s;
		%[3]s
	}
}
`, dir, addr, location)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-p", dir, "-e", filepath.Join(dir, "errors"), "-c", file)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			said, _ := os.ReadFile(filepath.Join(dir, "errors"))
			t.Logf("nginx: %s", said)
		}
	})
	return func() string {
		said, _ := os.ReadFile(filepath.Join(dir, "requests"))
		return string(said)
	}
}

// The nginx example in docs/voice.md runs unchanged except for fleetd's address: a board
// talks and is called through it, fleetd sees the board's address, and each side notices
// the end of the other.
func TestBoardTalksThroughNginx(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{Secret: "s3cret", Echo: true, MCP: true})
	defer up.Close()
	proxy := freeAddr(t)
	d := startVoiceServer(t, up.URL(true), func(c *Config) { c.PublicURL = "http://" + proxy })
	example := nginxExample(t)
	location := strings.Replace(example, "http://127.0.0.1:8080", "http://"+d.http, 1)
	if location == example {
		t.Fatalf("the example passes nothing to fleetd's default address:\n%s", example)
	}
	requests := startNginx(t, proxy, location)

	const frames, board = 20, "127.0.0.2"
	var heard atomic.Int64
	f := d.simulate(sim.Options{Devices: 1, Seed: 3, TimeScale: 0.2, BootDelay: 100 * time.Millisecond,
		LocalAddrs: []string{board}, Speech: func(_ string, n int) []byte {
			if n >= frames {
				return nil
			}
			return fmt.Appendf(nil, "word %d", n)
		}, Hear: func(string, []byte) { heard.Add(1) }})
	id := d.listed(1)[0].ID
	var device socketDeviceView
	d.rest("PATCH", "/devices/"+id, map[string]any{"transport_choice": "ws"}, &device)
	var call callJSON
	d.rest("POST", "/devices/"+id+"/calls", map[string]any{"tool": "self.reboot"}, &call)
	d.eventually("it started as one that connects for conversations", func() bool {
		d.rest("GET", "/devices/"+id, nil, &device)
		return device.ForConversations && device.Presence == "offline"
	})

	one := f.Device(0)
	one.Talk()
	d.eventually("it is heard and hears", func() bool { return heard.Load() == frames })
	s := up.Sessions()[0]
	if got := s.Header.Get("X-Forwarded-For"); got != board {
		t.Errorf("the board's address is %q, want %q", got, board)
	}
	d.eventually("the tools are listed", s.Listed)
	a, err := s.Call("self.audio_speaker.set_volume", `{"volume":33}`, time.Minute)
	if err != nil || a.Error != nil || fleet.ResultText(a.Result) != "true" || one.State().Volume != 33 {
		t.Errorf("%+v, %v, volume %d", a, err, one.State().Volume)
	}
	one.EndTalk()
	d.eventually("the voice server's socket is closed", s.Closed)
	d.eventually("nginx passed the board's socket on", func() bool {
		return strings.Count(requests(), `"GET /xiaozhi/v1/ HTTP/1.1" 101`) == 1
	})

	one.Talk()
	d.eventually("it talks again", func() bool { return len(up.Sessions()) == 2 && heard.Load() > frames })
	up.Sessions()[1].Close()
	d.eventually("its conversation is over", func() bool { return !one.Connected() })
}
