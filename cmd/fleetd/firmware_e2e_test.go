package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"image"
	_ "image/jpeg"
	_ "image/png"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetd/fleet/enrolment"
)

const consolePassword = "correct horse battery"

// newUnitDaemon starts a fleetd that requires claim codes.
func newUnitDaemon(t *testing.T, flags ...string) *daemon {
	t.Helper()
	virtualPrograms(t)
	return newDaemon(t, append([]string{"--enrolment", "code", "--admin-password", consolePassword}, flags...)...)
}

// joined claims a running unit, and waits until its tools are listed.
func (d *daemon) joined(u *unit) {
	d.t.Helper()
	d.claimed(u)
	d.online(u)
}

// claimed claims a running unit by the code on its screen.
func (d *daemon) claimed(u *unit) {
	d.t.Helper()
	code := u.reads(d, `(?:screen|serial): (\d{6}) `)
	var v deviceView
	if status := d.rest("POST", "/devices/claim", map[string]any{"code": code}, &v); status != http.StatusOK ||
		v.ID != u.id {
		d.t.Fatalf("claiming with %s: %d, %+v", code, status, v)
	}
}

func (d *daemon) online(u *unit) (v deviceView) {
	d.t.Helper()
	d.eventually("online with tools: "+u.id, func() bool {
		d.rest("GET", "/devices/"+u.id, nil, &v)
		return v.Presence == "online" && v.ToolsCount > 0
	})
	return v
}

// call calls a tool as an operator and returns the outcome, and its first text.
func (d *daemon) call(u *unit, tool string, args any) (c callJSON, text string) {
	d.t.Helper()
	if args == nil {
		args = map[string]any{}
	}
	d.rest("POST", "/devices/"+u.id+"/calls", map[string]any{"tool": tool, "arguments": args}, &c)
	if len(c.Result.Content) > 0 {
		text = c.Result.Content[0].Text
	}
	return c, text
}

// TestFirmware runs the included firmware with a real fleetd: processes, sockets, flash
// in files, PostgreSQL. Units share little more than the server, so one can run while
// another waits.
func TestFirmware(t *testing.T) {
	d := newUnitDaemon(t)
	t.Run("units", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *daemon){
			"joins and is called": unitJoins, "upgrades": unitUpgrades, "takes signed images": unitTakesSignedImages,
			"goes back": unitGoesBack, "loses power": unitLosesPower, "guards itself": unitGuardsItself,
			"is configured": unitIsConfigured, "takes photos": unitTakesPhotos,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, d.in(t))
			})
		}
	})
}

// in returns the same daemon for a part of a test.
func (d *daemon) in(t *testing.T) *daemon {
	part := *d
	part.t = t
	return &part
}

func unitJoins(t *testing.T, d *daemon) {
	u := newUnit(t, d, 1)
	u.start()
	d.joined(u)
	t.Run("tools", func(t *testing.T) { unitTools(t, d.in(t), u) })
	t.Run("calls", func(t *testing.T) { unitCalls(t, d.in(t), u) })
	t.Run("a snapshot is seen in the console", func(t *testing.T) { unitSnapshot(t, d.in(t), u) })
	t.Run("vitals", func(t *testing.T) { unitVitals(t, d.in(t), u) })
	t.Run("logs", func(t *testing.T) { unitLogs(t, d.in(t), u) })
	t.Run("a core dump is fetched", func(t *testing.T) { unitCoreDump(t, d.in(t), u) })
}

// The tools that stock firmware also has, and some that only this firmware has.
func unitTools(t *testing.T, d *daemon, u *unit) {
	want := map[string]string{
		"self.get_device_status": "model", "self.audio_speaker.set_volume": "model", "self.screen.set_brightness": "model",
		"self.screen.snapshot": "user", "self.upgrade_firmware": "user", "self.reboot": "user", "self.rollback": "user",
		"self.config.set": "user", "self.logs.tail": "user", "self.core_dump.upload": "user", "self.get_system_info": "user",
	}
	var tools list[struct{ Name, Audience string }]
	d.rest("GET", "/devices/"+u.id+"/tools?audience=all", nil, &tools)
	for _, tool := range tools.Items {
		if audience, ok := want[tool.Name]; ok && audience == tool.Audience {
			delete(want, tool.Name)
		}
	}
	if len(want) != 0 {
		t.Errorf("%v is missing in %+v", want, tools.Items)
	}
}

func unitCalls(t *testing.T, d *daemon, u *unit) {
	if c, text := d.call(u, "self.audio_speaker.set_volume", map[string]any{"volume": 37}); c.State != "succeeded" ||
		text != "true" {
		t.Errorf("set_volume: %+v", c)
	}
	var status struct {
		Speaker struct{ Volume int } `json:"audio_speaker"`
	}
	c, text := d.call(u, "self.get_device_status", nil)
	if err := json.Unmarshal([]byte(text), &status); err != nil || status.Speaker.Volume != 37 {
		t.Errorf("get_device_status: %v, %+v", err, c)
	}
	if c, _ := d.call(u, "self.audio_speaker.set_volume", map[string]any{"volume": 137}); c.State != "invalid" {
		t.Errorf("a volume of 137: %+v", c)
	}
	var info map[string]any
	if c, text := d.call(u, "self.get_system_info", nil); c.State != "succeeded" || json.Unmarshal([]byte(text),
		&info) != nil {
		t.Errorf("a tool for people, called by one: %+v", c)
	}
}

func unitSnapshot(t *testing.T, d *daemon, u *unit) {
	for args, format := range map[string]string{`{"quality":80}`: "jpeg", `{"format":"png"}`: "png"} {
		var given map[string]any
		_ = json.Unmarshal([]byte(args), &given)
		if c, _ := d.call(u, "self.screen.snapshot", given); c.State != "succeeded" {
			t.Fatalf("snapshot %s: %+v", args, c)
		}
		browser := signedIn(t, d)
		page := get(t, browser, "http://"+d.http+"/devices/"+u.id+"/screen")
		src := regexp.MustCompile(`<img src="(/snapshots/[^"]+)" width="320" height="240"`).FindSubmatch(page)
		if src == nil {
			t.Fatalf("no picture of 320 x 240 in the page:\n%s", page)
		}
		shot, got, err := image.DecodeConfig(bytes.NewReader(get(t, browser, "http://"+d.http+string(src[1]))))
		if err != nil || got != format || shot.Width != 320 || shot.Height != 240 {
			t.Errorf("the picture is %s %+v, %v; want %s", got, shot, err, format)
		}
	}
}

// The photo goes to the address that fleetd gives at initialize, and stays with the call.
func unitTakesPhotos(t *testing.T, d *daemon) {
	u := newUnit(t, d, 0x20, "--board", "esp32s3-cam") // the last --board counts
	u.start()
	d.joined(u)
	c, text := d.call(u, "self.camera.take_photo", map[string]any{"question": "what is there?"})
	var answer struct {
		Success bool
		Action  string
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || c.State != "succeeded" || !answer.Success {
		t.Fatalf("take_photo: %v, %q, %+v", err, text, c)
	}
	page := get(t, signedIn(t, d), "http://"+d.http+"/calls/"+c.ID)
	src := regexp.MustCompile(`<img [^>]*src="(/snapshots/[^"]+)"`).FindSubmatch(page)
	if src == nil {
		t.Fatalf("no photo on the call's page:\n%s", page)
	}
	shot, format, err := image.DecodeConfig(bytes.NewReader(get(t, signedIn(t, d), "http://"+d.http+string(src[1]))))
	if err != nil || format != "jpeg" || shot.Width != 640 || shot.Height != 480 {
		t.Errorf("the photo is %s %+v, %v", format, shot, err)
	}
}

// signedIn returns a browser with a session of the first operator.
func signedIn(t *testing.T, d *daemon) *http.Client {
	t.Helper()
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar}
	resp, err := browser.PostForm("http://"+d.http+"/sign-in", url.Values{"name": {"admin"},
		"password": {consolePassword}})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return browser
}

func get(t *testing.T, browser *http.Client, address string) []byte {
	t.Helper()
	resp, err := browser.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", address, resp.Status, err)
	}
	return data
}

func unitVitals(t *testing.T, d *daemon, u *unit) {
	var v struct {
		Version string
		Boots   int
		Heap    struct{ Free int64 }
		Slot    struct{ Label, State string }
	}
	d.eventually("vitals", func() bool { return d.rest("GET", "/devices/"+u.id+"/vitals", nil, &v) == http.StatusOK })
	if v.Version != "1.0.0" || v.Boots < 1 || v.Heap.Free <= 0 || v.Slot.State != "valid" {
		t.Errorf("vitals: %+v", v)
	}
}

func unitLogs(t *testing.T, d *daemon, u *unit) {
	c, text := d.call(u, "self.logs.tail", map[string]any{"lines": 50})
	if c.State != "succeeded" || !strings.Contains(text, "fleet_unit 1.0.0") {
		t.Errorf("the log by a call: %+v", c)
	}
}

func unitCoreDump(t *testing.T, d *daemon, u *unit) {
	if err := u.process.Signal(syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	var dumps list[struct {
		Bytes                int64
		SHA256, URL, Version string
		Reason               string `json:"reset_reason"`
	}]
	d.eventually("a core dump", func() bool {
		d.rest("GET", "/devices/"+u.id+"/core-dumps", nil, &dumps)
		return len(dumps.Items) > 0
	})
	dump := dumps.Items[0]
	if dump.Bytes == 0 || dump.Version != "1.0.0" {
		t.Errorf("core dump %+v", dump)
	}
	browser := signedIn(t, d)
	if data := get(t, browser, "http://"+d.http+"/devices/"+u.id); len(data) == 0 {
		t.Error("the device's page is empty")
	}
	d.online(u)
}

// TestFirmwareKeyAtConnect: a client that has read the unit's credentials, and even its
// CONNECT, is refused, because it lacks the unit's key.
func TestFirmwareKeyAtConnect(t *testing.T) {
	t.Parallel()
	d := newUnitDaemon(t, "--enrolment", "open")
	u := newUnit(t, d, 0x72)
	u.start()
	d.online(u)
	stored := func(key, pattern string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(u.dir, "kv", "k"+key))
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if err != nil || m == nil {
			t.Fatalf("%s of the unit: %q, %v", key, text, err)
		}
		return string(m[1])
	}
	clientID, username := stored("broker", `"client_id":"([^"]*)"`), stored("broker", `"username":"([^"]*)"`)
	password, topic := stored("broker", `"password":"([^"]*)"`), stored("broker", `"publish_topic":"([^"]*)"`)
	seed, err := hex.DecodeString(stored("device_key", `([0-9a-f]{64})`))
	if err != nil {
		t.Fatal(err)
	}
	connects := func(password string) (bool, string) {
		host, port, _ := net.SplitHostPort(d.mqtt)
		out, err := exec.CommandContext(t.Context(), "mosquitto_pub", "-h", host, "-p", port, "-i", clientID,
			"-u", username, "-P", password, "-t", topic, "-m", "{}").CombinedOutput()
		return err == nil, string(out)
	}
	sign := func(key ed25519.PrivateKey, at time.Time) string {
		signature := ed25519.Sign(key, enrolment.ConnectMessage(clientID, username, at.UnixMilli()))
		return fmt.Sprintf("%s.%d.%s", password, at.UnixMilli(), base64.StdEncoding.EncodeToString(signature))
	}
	own, other := ed25519.NewKeyFromSeed(seed), ed25519.NewKeyFromSeed(make([]byte, 32))
	var evidence []string
	turnedAway := func(password, want string) {
		t.Helper()
		if ok, out := connects(password); ok || !strings.Contains(out, "not authorised") {
			t.Errorf("it was let in, or failed otherwise: %s", out)
		}
		if want != "" {
			evidence = append(evidence, want)
		}
		d.eventually("a conflict", func() bool {
			var v struct{ Conflict *struct{ Evidence []string } }
			d.rest("GET", "/devices/"+u.id, nil, &v)
			for _, e := range evidence {
				if v.Conflict == nil || !slices.Contains(v.Conflict.Evidence, e) {
					return false
				}
			}
			return true
		})
	}
	turnedAway(password, "device_key_missing")
	turnedAway(sign(other, time.Now()), "device_key_wrong")
	d.online(u) // and stays online
	u.cutPower()
	turnedAway(password, "")
	good := sign(own, time.Now())
	if ok, out := connects(good); !ok {
		t.Fatalf("with the unit's key: %s", out)
	}
	turnedAway(good, "")
	u.start()
	d.online(u)
}

// TestFirmwareKey: a unit proves its key. Another unit with the same Client-Id gets
// nothing, even while the first is off, and the first returns with its own credentials.
func TestFirmwareKey(t *testing.T) {
	t.Parallel()
	d := newUnitDaemon(t, "--enrolment", "open")
	u := newUnit(t, d, 0x71)
	u.start()
	d.online(u)
	u.cutPower()
	uuid, err := os.ReadFile(filepath.Join(u.dir, "kv", "kuuid"))
	if err != nil {
		t.Fatal(err)
	}
	clientID := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).FindString(string(uuid))
	req, _ := http.NewRequest("POST", "http://"+d.http+"/xiaozhi/ota/", strings.NewReader(`{"version":2}`))
	req.Header.Set("Device-Id", colons(u.id))
	req.Header.Set("Client-Id", clientID)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if clientID == "" || resp.StatusCode != http.StatusOK || bytes.Contains(answer, []byte("password")) {
		t.Fatalf("the Client-Id %q alone was answered %s: %s", clientID, resp.Status, answer)
	}
	var v struct{ Conflict *struct{ Evidence []string } }
	d.eventually("a conflict", func() bool {
		d.rest("GET", "/devices/"+u.id, nil, &v)
		return v.Conflict != nil && slices.Contains(v.Conflict.Evidence, "device_key_missing")
	})
	u.start()
	d.online(u)
}
