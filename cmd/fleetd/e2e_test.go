package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/broker/sim"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres/embedded"
	"fleetd/fleet/postgres/pgtest"
)

// The test binary runs as fleetd if a test needs a process to kill.
const beFleetd = "FLEETD_TEST_BE_FLEETD"

func TestMain(m *testing.M) {
	if os.Getenv(beFleetd) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A daemon is a real fleetd process with an embedded PostgreSQL.
type daemon struct {
	t          *testing.T
	dir        string
	http, mqtt string
	admin      string
	token      string
	cmd        *exec.Cmd
	out        *output
}

// newDaemon starts a fleetd on free ports of the loopback interface.
func newDaemon(t *testing.T, flags ...string) *daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a PostgreSQL cluster")
	}
	d := &daemon{t: t, dir: pgtest.TempDir(t), http: freeAddr(t), mqtt: freeAddr(t), admin: freeAddr(t)}
	t.Cleanup(func() { d.stop() })
	d.start(flags...)
	var made struct{ Token string }
	if err := json.Unmarshal(d.run("token", "create", "e2e", "--role", "admin", "--json"), &made); err != nil {
		t.Fatal(err)
	}
	d.token = made.Token
	return d
}

func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := fleettest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func (d *daemon) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), beFleetd+"=1", "FLEETD_DATA_DIR="+filepath.Join(d.dir, "data"),
		"FLEETD_URL=http://"+d.http, "FLEETD_TOKEN="+d.token)
	return cmd
}

// An output is the output of a process, which a test may read at the same time.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (d *daemon) start(flags ...string) {
	d.t.Helper()
	d.out = &output{}
	args := append([]string{"serve", "--http-addr", d.http, "--mqtt-addr", d.mqtt, "--admin-addr", d.admin, "--enrolment",
		"open"}, flags...)
	d.cmd = d.command(args...)
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.eventually("ready", func() bool {
		resp, err := http.Get("http://" + d.admin + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// stop ends the process as Ctrl-C does and checks its exit.
func (d *daemon) stop() {
	if d.cmd.ProcessState != nil {
		return
	}
	_ = d.cmd.Process.Signal(os.Interrupt)
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("fleetd ended with %v:\n%s", err, d.out)
	}
}

// kill ends the process as a power cut would.
func (d *daemon) kill() {
	_ = d.cmd.Process.Signal(syscall.SIGKILL)
	_ = d.cmd.Wait()
}

// slowWrites slows down writes to the tables, so a kill hits data that is not stored yet.
func (d *daemon) slowWrites(tables ...string) {
	d.t.Helper()
	url, _, err := embedded.Join(filepath.Join(d.dir, "data"))
	if err != nil {
		d.t.Fatal(err)
	}
	db, err := pgx.Connect(d.t.Context(), url)
	if err != nil {
		d.t.Fatal(err)
	}
	defer db.Close(context.Background())
	statements := `CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END';`
	for _, table := range tables {
		statements += `CREATE TRIGGER take_time BEFORE INSERT OR UPDATE ON ` + table +
			` FOR EACH STATEMENT EXECUTE FUNCTION take_time();`
	}
	if _, err := db.Exec(d.t.Context(), statements); err != nil {
		d.t.Fatal(err)
	}
}

// run runs another command of fleetd on the same data.
func (d *daemon) run(args ...string) []byte {
	d.t.Helper()
	cmd := d.command(args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("fleetd %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return out
}

// rest sends a request and decodes the answer, whatever its status.
func (d *daemon) rest(method, path string, body, answer any) int {
	d.t.Helper()
	var r io.Reader
	if body != nil {
		data, _ := json.Marshal(body)
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, "http://"+d.http+"/api/v1"+path, r)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(data, answer); err != nil {
		d.t.Fatalf("%s %s: %s: %v: %s", method, path, resp.Status, err, data)
	}
	return resp.StatusCode
}

func (d *daemon) eventually(what string, ok func() bool) {
	d.t.Helper()
	d.within(3*time.Minute, what, ok)
}

func (d *daemon) within(limit time.Duration, what string, ok func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	d.t.Fatalf("not %s after %v:\n%s", what, limit, d.out)
}

// simulate runs devices against the daemon until the test ends.
func (d *daemon) simulate(o sim.Options) *sim.Fleet {
	d.t.Helper()
	f, off := d.switchedOn(o)
	d.t.Cleanup(off)
	return f
}

// switchedOn runs devices against the daemon until they are switched off.
func (d *daemon) switchedOn(o sim.Options) (f *sim.Fleet, off func()) {
	d.t.Helper()
	o.OTAURL = "http://" + d.http + "/xiaozhi/ota/"
	f, err := sim.New(o)
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	return f, func() {
		cancel()
		<-done
	}
}

type list[T any] struct {
	Items      []T
	NextCursor string `json:"next_cursor"`
}

// A deviceView has the fields of a device that tests read.
type deviceView struct {
	ID, Version, Slot, Presence string
	ELF                         string `json:"elf_sha256"`
	ToolsCount                  int    `json:"tools_count"`
}

// register returns every device on record, by id.
func (d *daemon) register() map[string]deviceView {
	d.t.Helper()
	all := map[string]deviceView{}
	for cursor := ""; ; {
		var page list[deviceView]
		d.rest("GET", "/devices?limit=500&cursor="+cursor, nil, &page)
		for _, v := range page.Items {
			all[v.ID] = v
		}
		if cursor = page.NextCursor; cursor == "" {
			return all
		}
	}
}

type callJSON struct {
	ID, State, Tool string
	DeviceID        string `json:"device_id"`
	Actor           struct{ Kind, Name string }
	Result          struct {
		Content []struct{ Type, Text string }
	}
	Error *struct{ Code, Message string }
}

// listed waits until n devices are online with their tools listed.
func (d *daemon) listed(n int) []deviceView {
	d.t.Helper()
	var devices list[deviceView]
	var ready int
	defer func() { d.t.Logf("%d devices online, %d of them with tools", len(devices.Items), ready) }()
	d.eventually(fmt.Sprintf("%d devices listed", n), func() bool {
		d.rest("GET", "/devices?q=presence:online&limit=500", nil, &devices)
		ready = 0
		for _, v := range devices.Items {
			if v.ToolsCount > 0 {
				ready++
			}
		}
		return ready >= n
	})
	return devices.Items
}

func TestClientCommands(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.simulate(sim.Options{Devices: 3, Seed: 7})
	device := d.listed(3)[0].ID
	var items []deviceView
	if err := json.Unmarshal(d.run("device", "list", "presence:online"), &items); err != nil || len(items) != 3 {
		t.Errorf("device list: %d devices, %v", len(items), err)
	}
	if out := d.run("device", "call", device, "self.audio_speaker.set_volume", `{"volume":12}`); !bytes.Contains(out,
		[]byte("succeeded")) {
		t.Errorf("device call printed %s", out)
	}
	if out := d.run("device", "hold", device, "on the bench"); !bytes.Contains(out, []byte("on the bench")) {
		t.Errorf("device hold printed %s", out)
	}
	d.run("device", "release", device)
	if out := d.run("device", "show", device); !bytes.Contains(out, []byte("self.reboot")) {
		t.Errorf("device show printed %.300s", out)
	}
	if out := d.run("user", "list"); !bytes.Contains(out, []byte("admin")) {
		t.Errorf("user list printed %s", out)
	}
}

// A board that enters its Wi-Fi setup leaves without an answer. Its departure is the
// outcome, and it returns after a person has configured it.
func TestReconfigureWiFi(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	f := d.simulate(sim.Options{Devices: 1, Boards: []string{"lichuang-dev"}, Seed: 7, TimeScale: 0.1,
		BootDelay: 200 * time.Millisecond})
	device := d.listed(1)[0].ID
	var call callJSON
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": "self.system.reconfigure_wifi"}, &call)
	if call.State != "succeeded" || call.Error != nil {
		t.Errorf("reconfigure_wifi: %+v", call)
	}
	var v struct {
		Presence, Transport string
		LastSeen            *time.Time `json:"last_seen"`
	}
	d.rest("GET", "/devices/"+device, nil, &v)
	if v.Presence != "offline" || v.Transport != "mqtt" || v.LastSeen == nil {
		t.Errorf("the device is %+v", v)
	}
	picture := filepath.Join(d.dir, "a.png")
	var b bytes.Buffer
	_ = png.Encode(&b, image.NewGray(image.Rect(0, 0, 64, 48)))
	if err := os.WriteFile(picture, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Device(0).SetUpWiFi()
	d.listed(1)
	if out := d.run("device", "call", device, "self.screen.preview_image", "--picture", picture); !bytes.Contains(out,
		[]byte("succeeded")) {
		t.Errorf("device call --picture printed %s", out)
	}
}

// A kill -9 during a fan-out loses nothing: unsent calls are canceled, sent calls are
// unknown, the fan-out continues, and no device gets the call twice.
func TestKillNineInAFanOut(t *testing.T) {
	t.Parallel()
	states := restartInAFanOut(t, (*daemon).kill)
	if states["unknown"] == 0 || states["canceled"] == 0 || states["succeeded"] == 0 {
		t.Errorf("states after the restart: %v; want unknown, canceled and succeeded", states)
	}
}

func TestRestartInAFanOut(t *testing.T) {
	t.Parallel()
	restartInAFanOut(t, (*daemon).stop)
}

// restartInAFanOut ends fleetd during a fan-out and starts it again. The devices need
// seconds to return: none of them counts as offline.
func restartInAFanOut(t *testing.T, end func(*daemon)) map[string]int {
	t.Helper()
	const devices = 40
	d := newDaemon(t)
	// On a busy machine, seconds pass between the list that shows a sent call and the end.
	slow, err := sim.ParseFaults("slow=4s")
	if err != nil {
		t.Fatal(err)
	}
	f := d.simulate(sim.Options{Devices: devices, Seed: 7, Faults: slow, RecordCalls: 20})
	audience := d.listed(devices)

	var fanout struct{ ID, State string }
	const volumeTool = "self.audio_speaker.set_volume"
	d.rest("POST", "/fanouts", map[string]any{"q": "presence:online", "tool": volumeTool,
		"arguments": map[string]any{"volume": 5}, "max_in_flight": 16}, &fanout)
	// One device gets further calls, so some wait in its line.
	for range 4 {
		d.async(audience[0].ID)
	}
	d.eventually("some answered, some in flight, some not yet sent", func() bool {
		var calls list[callJSON]
		d.rest("GET", "/calls?limit=500", nil, &calls)
		in := func(state string) bool {
			return slices.ContainsFunc(calls.Items, func(c callJSON) bool { return c.State == state })
		}
		return in("succeeded") && in("sent") && in("pending")
	})
	end(d)
	d.start()

	d.within(2*time.Minute, "completed", func() bool {
		d.rest("GET", "/fanouts/"+fanout.ID, nil, &fanout)
		return fanout.State == "completed"
	})
	open, offline := 0, 0
	states := map[string]int{}
	var calls list[callJSON]
	d.rest("GET", "/calls?limit=500", nil, &calls)
	for _, c := range calls.Items {
		states[c.State]++
		if c.State == "pending" || c.State == "sent" {
			open++
		}
		if c.State == "offline" && c.Tool == volumeTool { // a further call may be next when the connections end
			offline++
		}
	}
	if open != 0 || offline != 0 {
		t.Errorf("states after the restart: %v; want none open, and none of the fan-out offline", states)
		for _, c := range calls.Items {
			if c.State != "succeeded" {
				t.Logf("%+v", c)
			}
		}
	}
	for i := range devices {
		volume := 0
		for _, c := range f.Device(i).Calls() {
			if strings.Contains(c.Arguments, `"volume":5}`) {
				volume++
			}
		}
		if volume > 1 {
			t.Errorf("device %d ran the call %d times", i, volume)
		}
	}
	return states
}

// async starts a call without waiting for it.
func (d *daemon) async(device string) {
	d.t.Helper()
	req, _ := http.NewRequest("POST", "http://"+d.http+"/api/v1/devices/"+device+"/calls",
		strings.NewReader(`{"tool":"self.get_device_status"}`))
	req.Header.Set("Authorization", "Bearer "+d.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Prefer", "respond-async")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		d.t.Errorf("Prefer: respond-async answered %s", resp.Status)
	}
}

func TestStartUpErrors(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		flags []string
		exit  int
		want  string
	}{
		{"port in use", []string{"--http-addr", taken.Addr().String()}, 1, "in use"},
		{"MQTT port in use", []string{"--mqtt-addr", taken.Addr().String()}, 1, "--mqtt-addr"},
		{"data directory is a file", []string{"--data-dir", file}, 1, "file"},
		{"no such database", []string{"--database-url", "postgres://x@127.0.0.1:1/x"}, 1, "database"},
		{"an endpoint that crashes devices", []string{"--mqtt-endpoint", "mqtt://h:1883"}, 2, "host:port"},
		{"TLS without a key", []string{"--mqtts-addr", ":0"}, 2, "--tls-cert"},
		{"no such way to enrol", []string{"--enrolment", "maybe"}, 2, "maybe"},
		{"weak password", []string{"--admin-password", "short"}, 2, "password"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			args := append([]string{"serve", "--data-dir", filepath.Join(dir, "data"), "--http-addr", "127.0.0.1:0",
				"--mqtt-addr", freeAddr(t), "--admin-addr", "127.0.0.1:0"}, tt.flags...)
			cmd := exec.Command(os.Args[0], args...)
			cmd.Env = append(os.Environ(), beFleetd+"=1")
			out, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != tt.exit || !bytes.Contains(out, []byte(tt.want)) {
				t.Errorf("exit %d: %s; want exit %d and %q", cmd.ProcessState.ExitCode(), out, tt.exit, tt.want)
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left on disk: %v", left)
			}
		})
	}
}
