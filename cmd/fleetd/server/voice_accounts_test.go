package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"fleetd/broker/sim"
	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/outbound"
)

// A voice server is found through its OTA address: fleetd repeats the boot poll,
// shows the code, does not pass on firmware and broker, and boards talk.
func TestVoiceServerByOTA(t *testing.T) {
	t.Parallel()
	up := voicetest.Start(voicetest.Options{Token: "of-the-server"})
	defer up.Close()
	o := voicetest.StartOTA(voicetest.OTAAnswer{URL: up.URL(false), Token: "of-the-server", Code: "482913"})
	defer o.Close()
	d := startVoiceServer(t, "", func(cfg *Config) { cfg.AllowOutbound = []string{outbound.HostPort(up.URL(false))} })
	var made struct{ ID, Code string }
	if status := d.rest("POST", "/upstreams", map[string]any{"name": "accounts", "kind": "ota", "url": o.URL()},
		&made); status != 201 {
		t.Fatalf("%d, %+v", status, made)
	}
	board := sim.Options{Devices: 1, Seed: 7, TimeScale: 0.2, BootDelay: 100 * time.Millisecond}
	f, off := d.simulateFor(board)
	d.listed(1)
	one := f.Device(0)
	id, _ := fleet.ParseDeviceID(one.ID())
	d.eventually("the boot poll is repeated", func() bool { return len(o.Polls()) > 0 })
	if p := o.Polls()[0]; p.Header.Get("Device-Id") != one.ID() || p.Header.Get("Client-Id") != one.ClientID() ||
		!strings.Contains(p.Body, one.ID()) {
		t.Errorf("repeated as %v %s", p.Header, p.Body)
	}
	var m struct {
		Account *struct{ Code, URL string }
		Voice   bool
	}
	d.eventually("the code is known", func() bool {
		d.rest("GET", "/upstreams/match?device="+string(id), nil, &m)
		return m.Account != nil && m.Account.Code == "482913"
	})

	off()
	d.eventually("the board is off", func() bool { _, connected := d.connection(id); return !connected })

	// The board's next start: it polls, and requests whether it was activated.
	poll := func(path string) (int, string) {
		t.Helper()
		r, err := http.NewRequest("POST", d.URL()+"/xiaozhi/ota/"+path, strings.NewReader(o.Polls()[0].Body))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"Device-Id", "Client-Id", "User-Agent", "Activation-Version"} {
			r.Header.Set(name, o.Polls()[0].Header.Get(name))
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	status, body := poll("")
	if status != 200 || !strings.Contains(body, `"code":"482913"`) || !strings.Contains(body, `"mqtt"`) ||
		strings.Contains(body, "9.9.9") || strings.Contains(body, "192.0.2.9") || strings.Contains(body, "websocket") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := poll("activate"); status != 202 {
		t.Errorf("the code is not shown for long: %d %s", status, body)
	}
	if _, body := poll(""); strings.Contains(body, "activation") || !strings.Contains(body, `"mqtt"`) {
		t.Errorf("the device never gets further: %s", body)
	}

	one = d.simulate(board).Device(0)
	d.listed(1)
	one.Talk()
	d.eventually("a conversation", func() bool { return len(up.Sessions()) == 1 })
	if up.Refused() != 0 {
		t.Error("the token is not the one that was handed out")
	}
	one.EndTalk()
	var check struct {
		OK   bool
		Code string
	}
	d.rest("POST", "/upstreams/"+made.ID+"/check", map[string]any{}, &check)
	if !check.OK {
		t.Errorf("%+v", check)
	}
}

// The answers to boot polls are as fast if an OTA address never answers.
func TestBootPollsDoNotWaitForVoiceServers(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	o := voicetest.StartOTA(voicetest.OTAAnswer{Instead: func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	}})
	defer o.Close()
	defer close(stop)
	d := startVoiceServer(t, "", nil)
	var made struct{ ID string }
	d.rest("POST", "/upstreams", map[string]any{"name": "dead", "kind": "ota", "url": o.URL()}, &made)
	d.simulate(sim.Options{Devices: 50, Seed: 7, TimeScale: 0.1, BootDelay: 100 * time.Millisecond})
	begin := time.Now()
	d.listed(50)
	fleettest.Within(t, "joining of 50 devices", time.Since(begin), askTimeoutOfVoice)
}

// askTimeoutOfVoice is a lower limit of the timeout for an OTA address.
const askTimeoutOfVoice = 10 * time.Second

// A picture that the server's model requested goes to the server; others do not.
// Both are stored.
func TestVoiceServerExplainsItsPictures(t *testing.T) {
	t.Parallel()
	const answer = `{"success":true,"action":"RESPONSE","response":"a <cat>"}`
	asked := make(chan string, 8)
	explain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		form, err := r.MultipartReader()
		if err != nil {
			t.Error(err)
			return
		}
		var parts []string
		for {
			part, err := form.NextPart()
			if err != nil {
				break
			}
			data, _ := io.ReadAll(part)
			if part.FormName() == "question" {
				parts = append(parts, "question="+string(data))
			} else {
				parts = append(parts, part.FormName()+"="+part.FileName()+" "+http.DetectContentType(data))
			}
		}
		asked <- fmt.Sprint(parts, r.Header.Get("Authorization"), r.Header.Get("Device-Id"), r.Header.Get("Client-Id"))
		fmt.Fprint(w, answer)
	}))
	defer explain.Close()
	up := voicetest.Start(voicetest.Options{Secret: "s3cret", MCP: true, Vision: explain.URL})
	defer up.Close()
	allow := []string{outbound.HostPort(explain.URL)}
	d := startVoiceServer(t, up.URL(true), func(cfg *Config) { cfg.AllowOutbound = allow })
	f := d.simulate(sim.Options{Devices: 1, Boards: []string{"custom-cam-s3"}, Seed: 7, TimeScale: 0.1})
	id := d.listed(1)[0].ID
	one := f.Device(0)
	one.Talk()
	d.eventually("the tools are listed", func() bool { return len(up.Sessions()) == 1 && up.Sessions()[0].Listed() })
	a, err := up.Sessions()[0].Call(fleet.ToolTakePhoto, `{"question":"What is this?"}`, time.Minute)
	if err != nil || a.Error != nil || fleet.ResultText(a.Result) != answer {
		t.Fatalf("%+v, %v", a, err)
	}
	want := "[question=What is this? file=camera.jpg image/jpeg]Bearer t" + one.ID() + one.ClientID()
	if got := <-asked; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	var shots list[pictureJSON]
	d.rest("GET", "/snapshots?device="+id, nil, &shots)
	if len(shots.Items) != 1 || shots.Items[0].Question != "What is this?" || shots.Items[0].CallID == nil {
		t.Errorf("kept %+v", shots.Items)
	}
	if _, text := d.takePhoto(id, "Mine?"); !strings.Contains(text, `"success":true`) || len(asked) != 0 {
		t.Errorf("a person's picture: %s, asked %d", text, len(asked))
	}
}
