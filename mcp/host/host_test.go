package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
	"fleetd/mcp/host"
)

// devices records what the host reports.
type devices struct {
	mu       sync.Mutex
	versions map[fleet.DeviceID]string
	retired  map[fleet.DeviceID]bool
	presence map[fleet.DeviceID]string
	listings map[fleet.DeviceID][]fleet.ToolListing
}

func (d *devices) SaveProgram(_ context.Context, id fleet.DeviceID, _ fleet.DeviceKind, version string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.versions[id], d.retired[id] = version, false
	return nil
}

func (d *devices) RetireProgram(_ context.Context, id fleet.DeviceID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.retired[id] = true
	return nil
}

func (d *devices) set(id fleet.DeviceID, presence string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.presence[id] = presence
}

// Connected and Disconnected compare connections, as the fleet's presence does.
func (d *devices) Connected(c fleet.Connection) { d.set(c.Device, fmt.Sprint("online ", c.Epoch)) }

func (d *devices) Disconnected(c fleet.Connection, _ bool, _ fleet.Cause) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if strings.HasSuffix(d.presence[c.Device], fmt.Sprint(" ", c.Epoch)) {
		d.presence[c.Device] = "offline"
	}
}

func (d *devices) Unresponsive(c fleet.Connection, _ fleet.Cause) {
	d.set(c.Device, fmt.Sprint("unresponsive ", c.Epoch))
}
func (d *devices) Responded(id fleet.DeviceID) { d.set(id, "online") }

func (d *devices) SaveListing(_ context.Context, l fleet.ToolListing) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listings[l.Device] = append(d.listings[l.Device], l)
	return nil
}

func (d *devices) state(id fleet.DeviceID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	state, _, _ := strings.Cut(d.presence[id], " ")
	return state
}

func (d *devices) listing(id fleet.DeviceID) fleet.ToolListing {
	d.mu.Lock()
	defer d.mu.Unlock()
	if all := d.listings[id]; len(all) > 0 {
		return all[len(all)-1]
	}
	return fleet.ToolListing{}
}

func (d *devices) tools(id fleet.DeviceID) []string {
	var names []string
	for _, t := range d.listing(id).Inventory.Tools {
		names = append(names, t.Name)
	}
	return names
}

// A world is a host that runs.
type world struct {
	*testing.T
	*host.Host
	devices *devices
	list    []plugin.Plugin
}

func newWorld(t *testing.T, change ...func(*host.Options)) *world {
	t.Helper()
	d := &devices{versions: map[fleet.DeviceID]string{}, retired: map[fleet.DeviceID]bool{},
		presence: map[fleet.DeviceID]string{}, listings: map[fleet.DeviceID][]fleet.ToolListing{}}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	o := host.Options{Devices: d, Node: "node", Version: "test", HTTP: &http.Client{Transport: transport},
		PingEvery: 200 * time.Millisecond, PingTimeout: 500 * time.Millisecond,
		Delays: []time.Duration{50 * time.Millisecond, 100 * time.Millisecond}}
	for _, c := range change {
		c(&o)
	}
	w := &world{T: t, Host: host.New(o), devices: d}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = w.Host.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

// program returns a plug-in that runs the tests' binary in a role.
func program(name, role string) plugin.Plugin {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return plugin.Plugin{Name: name, Directory: filepath.Dir(self), Manifest: plugin.Manifest{Command: plugin.Words{self},
		Env: map[string]string{"HOST_ROLE": role, "GORACE": "atexit_sleep_ms=0"}, Audience: fleet.AudienceModel}}
}

func (w *world) apply(list ...plugin.Plugin) {
	w.list = list
	w.Apply(list)
}

// until waits for a condition.
func (w *world) until(what string, cond func() bool) {
	w.Helper()
	for end := time.Now().Add(30 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			var all []string
			for _, p := range w.list {
				st, _ := w.Status(p.Name)
				all = append(all, fmt.Sprintf("%s %s %v", p.Name, st.State, st.Reason))
				for _, l := range last(w.Lines(p.Name), 6) {
					all = append(all, "  "+string(l.Source)+": "+l.Text)
				}
			}
			w.Fatalf("not within 30 s: %s\n%s", what, strings.Join(all, "\n"))
		}
	}
}

func (w *world) running(name string) {
	w.Helper()
	w.until(name+" runs", func() bool { return w.state(name) == plugin.Running && w.Introduced(plugin.DeviceOf(name)) })
}

func (w *world) state(name string) plugin.State {
	st, _ := w.Status(name)
	return st.State
}

// call makes a call, and returns its text.
func (w *world) call(name, tool, arguments string) (string, error) {
	return w.callWith(context.Background(), name, fleet.Invocation{Tool: tool, Arguments: json.RawMessage(arguments)})
}

func (w *world) callWith(ctx context.Context, name string, inv fleet.Invocation) (string, error) {
	t, err := w.Queue(plugin.DeviceOf(name), fleet.KindProgram)
	if err != nil {
		return "", err
	}
	defer t.Done()
	select {
	case <-t.Ready():
	case <-t.Lost():
		return "", fleet.ErrLost
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	a, err := t.Send(ctx, inv, nil)
	if err != nil {
		return "", err
	}
	if a.Omitted != nil {
		return "", errors.New(a.Omitted.Code)
	}
	if a.IsError {
		return "", errors.New("tool error: " + a.Text)
	}
	return fleet.ResultText(a.Result), nil
}

func (w *world) must(name, tool, arguments string) string {
	w.Helper()
	text, err := w.call(name, tool, arguments)
	if err != nil {
		w.Fatalf("%s of %s: %v", tool, name, err)
	}
	return text
}

func alive(pid string) bool {
	n, err := strconv.Atoi(pid)
	return err == nil && syscall.Kill(n, 0) == nil
}

// A plug-in's tools become a listing; its calls get answers; its removal ends its processes.
func TestPluginServes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := program("a", "good")
	p.Manifest.Tools = []string{"e*", "pid"}
	w.apply(p)
	w.running("a")
	if got := w.devices.tools("plugin.a"); !slices.Equal(got, []string{"eat", "echo", "env", "exit", "pid"}) {
		t.Errorf("tools %q", got)
	}
	l := w.devices.listing("plugin.a")
	if l.ServerName != "good" || l.ServerVersion != "1.0.0" || len(l.ELFSHA256) != 64 || l.Partial {
		t.Errorf("listing %+v", l)
	}
	if got := w.must("a", "echo", `{"x":1}`); got != `{"x":1}` {
		t.Errorf("echo: %s", got)
	}
	if got := w.must("a", "echo", ``); got != `{}` {
		t.Errorf("echo without arguments: %s", got)
	}
	var refused *fleet.ToolError
	if _, err := w.call("a", "none", `{}`); !errors.As(err, &refused) {
		t.Errorf("unknown tool: %v", err)
	}
	pid := w.must("a", "pid", `{}`)
	if w.devices.state("plugin.a") != "online" {
		t.Error("it is not online")
	}
	w.apply()
	w.until("it is gone", func() bool { return !alive(pid) && w.devices.state("plugin.a") == "offline" })
	w.until("its device is retired", func() bool {
		w.devices.mu.Lock()
		defer w.devices.mu.Unlock()
		return w.devices.retired["plugin.a"]
	})
	if _, err := w.Queue("plugin.a", fleet.KindProgram); !errors.Is(err, fleet.ErrOffline) {
		t.Errorf("a call after that: %v", err)
	}
}

// Nothing of fleetd's environment reaches a program.
func TestEnvironment(t *testing.T) {
	t.Setenv("FLEETD_DATABASE_URL", "postgres://secret")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "vars"), []byte("# comment\nFROM_FILE=1\nexport QUOTED=\"a b\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	p := program("a", "good")
	p.Manifest.EnvFiles = []string{filepath.Join(dir, "vars")}
	p.Manifest.Env["FROM_FILE"] = "the manifest has the last word"
	w.apply(p)
	w.running("a")
	env := w.must("a", "env", `{}`)
	if strings.Contains(env, "secret") || strings.Contains(env, "DATABASE") {
		t.Errorf("fleetd's secrets: %s", env)
	}
	for _, want := range []string{"FROM_FILE=the manifest has the last word", "QUOTED=a b", "PATH=", "HOME=", "LANG="} {
		if !strings.Contains(env, want) {
			t.Errorf("no %s in %s", want, env)
		}
	}
}

// As root, each program has a user of fleetd's choice, and keeps it.
func TestOwnUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	state := filepath.Join(t.TempDir(), "plugins")
	for dir := state; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) { // reachable for other users
		_ = os.Chmod(dir, 0o755)
	}
	start := func() map[string]string {
		w := newWorld(t, func(o *host.Options) { o.OwnUsers, o.StateDir = true, state })
		self, _ := os.Executable()
		shared := filepath.Join(os.TempDir(), fmt.Sprintf("host-test-%d", os.Getpid()))
		data, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(shared, data, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(shared) })
		list := []plugin.Plugin{program("a", "good"), program("b", "good")}
		for i := range list {
			list[i].Manifest.Command, list[i].Directory = plugin.Words{shared}, "/"
		}
		w.apply(list...)
		users := map[string]string{}
		for _, name := range []string{"a", "b"} {
			w.running(name)
			users[name] = w.must(name, "user", `{}`)
		}
		w.apply()
		w.until("they end", func() bool { return w.devices.state("plugin.b") == "offline" })
		return users
	}
	first := start()
	if first["a"] == first["b"] || first["a"] == "0" || first["b"] == "0" {
		t.Errorf("users %v", first)
	}
	if again := start(); again["a"] != first["a"] || again["b"] != first["b"] {
		t.Errorf("users %v, then %v", first, again)
	}
}

// A plug-in that misbehaves is reported with its reason, and the others go on.
func TestMisbehaviour(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *host.Options) { o.StartTimeout = 2 * time.Second })
	missing := program("missing", "good")
	missing.Manifest.Command = plugin.Words{"/nowhere/program"}
	hungry := program("hungry", "good")
	hungry.Manifest.Limits.Memory = 100 << 20
	wrong := program("wrong", "good")
	wrong.Manifest, wrong.Problem = plugin.Manifest{}, fleet.Because("plugin_manifest.line", "line", 3)
	w.apply(program("fine", "good"), program("exit", "exit"), program("mute", "mute"), program("noise", "noise"),
		program("flood", "flood"), program("liar", "liar"), program("crowd", "crowd"), program("legacy", "legacy"), missing,
		hungry, wrong)
	w.running("fine")

	w.until("exit is a crash loop", func() bool { return w.state("exit") == plugin.Crashing })
	st, _ := w.Status("exit")
	if !st.Reason.Is("plugin_ended") || !strings.Contains(fmt.Sprint(st.Reason.Params["detail"]), "code 3") {
		t.Errorf("exit: %v", st.Reason)
	}
	if !hasLine(w.Lines("exit"), plugin.FromStderr, "the configuration is missing") {
		t.Errorf("exit: log %v", w.Lines("exit"))
	}
	w.until("missing is reported", func() bool { st, _ := w.Status("missing"); return st.Reason.Is("plugin_start") })
	w.until("mute is reported", func() bool { st, _ := w.Status("mute"); return st.Reason.Is("plugin_initialize") })
	if _, known := w.Status("wrong"); known {
		t.Error("a plug-in without a valid manifest runs")
	}

	w.running("noise")
	if got := w.must("noise", "echo", `{"x":2}`); got != `{"x":2}` {
		t.Errorf("noise: %s", got)
	}
	if !hasLine(w.Lines("noise"), plugin.FromStdout, "loading...") {
		t.Errorf("noise: log %v", w.Lines("noise"))
	}
	w.running("flood")
	w.must("flood", "echo", `{}`)

	w.running("liar")
	if got := w.devices.tools("plugin.liar"); !slices.Equal(got, []string{"fine", "text", "list"}) {
		t.Errorf("liar: tools %q", got)
	}
	for _, tool := range w.devices.listing("plugin.liar").Inventory.Tools {
		if string(tool.InputSchema) != `{"type":"object"}` {
			t.Errorf("liar: schema of %s: %.60s", tool.Name, tool.InputSchema)
		}
	}
	if name := w.devices.listing("plugin.liar").ServerName; len(name) > 100 {
		t.Errorf("liar: a name of %d bytes", len(name))
	}
	if text, err := w.call("liar", "fine", `{}`); err == nil {
		t.Errorf("liar: answered %q", text)
	}
	w.running("crowd")
	if l := w.devices.listing("plugin.crowd"); len(l.Inventory.Tools) != 512 || !l.Partial {
		t.Errorf("crowd: %d tools, partial %v", len(l.Inventory.Tools), l.Partial)
	}
	w.running("legacy")
	if got := w.must("legacy", "old", `{}`); got != "old answer" {
		t.Errorf("legacy: %s", got)
	}

	w.running("hungry")
	if _, err := w.call("hungry", "eat", `{}`); !errors.Is(err, fleet.ErrLost) {
		t.Errorf("hungry: %v", err)
	}
	w.until("the limit of memory is reported", func() bool {
		return hasLine(w.Lines("hungry"), plugin.FromFleetd, "its limit is 100 MiB")
	})
	w.running("hungry") // again

	if got := w.must("fine", "echo", `{"x":3}`); got != `{"x":3}` {
		t.Errorf("fine: %s", got)
	}
}

func hasLine(lines []plugin.Line, source plugin.Source, text string) bool {
	return slices.ContainsFunc(lines, func(l plugin.Line) bool {
		return l.Source == source && strings.Contains(l.Text, text)
	})
}

// An answer that is too long ends its call alone: others of the same program go on.
func TestLongAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *host.Options) { o.PingTimeout = 10 * time.Second })
	w.apply(program("a", "good"), program("huge", "huge"))
	w.running("a")
	if text := w.must("a", "big", `{"size":200000}`); len(text) != 200000 {
		t.Errorf("200 kB: %d bytes", len(text))
	}
	if _, err := w.call("a", "big", `{"size":1000000}`); err == nil || err.Error() != fleet.CodeTooLarge {
		t.Errorf("1 MB: %v", err)
	}
	w.running("huge")
	small := make(chan error, 1)
	go func() { _, err := w.call("huge", "small", `{}`); small <- err }()
	var refused *fleet.ToolError
	if _, err := w.call("huge", "huge", `{}`); !errors.As(err, &refused) || !strings.Contains(refused.Message, "fleetd reads at most") {
		t.Errorf("100 MB: %v", err)
	}
	if err := <-small; err != nil {
		t.Errorf("the call beside it: %v", err)
	}
	if st, _ := w.Status("huge"); st.Starts != 1 {
		t.Error("the program was started again", w.Lines("huge"))
	}
}

// A program that ends while it works leaves its calls unknown; it is started again.
func TestEndDuringCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(program("a", "good"))
	w.running("a")
	pid := w.must("a", "pid", `{}`)
	if _, err := w.call("a", "exit", `{}`); !errors.Is(err, fleet.ErrLost) {
		t.Errorf("the call that ended it: %v", err)
	}
	w.until("it runs again", func() bool {
		again, err := w.call("a", "pid", `{}`)
		return err == nil && again != pid
	})
	if st, _ := w.Status("a"); st.Starts != 2 {
		t.Errorf("%d starts", st.Starts)
	}
}

// A program that hangs with everything answers no ping: it is killed and started again.
func TestHang(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(program("a", "good"))
	w.running("a")
	pid := w.must("a", "pid", `{}`)
	done := make(chan error, 1)
	go func() { _, err := w.call("a", "hang", `{}`); done <- err }()
	w.until("it is unresponsive", func() bool { return w.devices.state("plugin.a") == "unresponsive" })
	w.until("it is killed", func() bool { return !alive(pid) })
	if err := <-done; !errors.Is(err, fleet.ErrLost) {
		t.Errorf("its call: %v", err)
	}
	w.running("a")
	if again := w.must("a", "pid", `{}`); again == pid {
		t.Error("the same process answers")
	}
	if !hasLine(w.Lines("a"), plugin.FromFleetd, "no ping") {
		t.Errorf("log %v", w.Lines("a"))
	}
}

// A stubborn program, and what a program forked, end when the plug-in is removed.
func TestAllProcessesEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(program("a", "stubborn"))
	w.running("a")
	pid, child := w.must("a", "pid", `{}`), w.must("a", "fork", `{}`)
	if !alive(pid) || !alive(child) {
		t.Fatalf("processes %s and %s", pid, child)
	}
	w.apply()
	w.until("both are gone", func() bool { return !alive(pid) && !alive(child) })
}

// A changed manifest, and a replaced program, take effect within 2 s; calls in flight finish on
// the old program.
func TestHotReload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "plugin.sh")
	write := func(role string) {
		text := "#!/bin/sh\nHOST_ROLE=" + role + " exec " + self + "\n"
		if err := os.WriteFile(script+".new", []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(script+".new", script); err != nil {
			t.Fatal(err)
		}
	}
	write("good")
	p := program("a", "")
	p.Manifest.Command, p.Manifest.Env["HOST_ROLE"] = plugin.Words{script}, "none"
	w.apply(p)
	w.running("a")
	pid := w.must("a", "pid", `{}`)
	first := w.devices.listing("plugin.a")

	slow := make(chan error, 1)
	go func() {
		text, err := w.call("a", "slow", `{"millis":4000}`)
		if err == nil && text != "done" {
			err = errors.New(text)
		}
		slow <- err
	}()
	time.Sleep(200 * time.Millisecond) // it is in flight
	write("second")
	replaced := time.Now()
	w.until("the new program serves", func() bool { return slices.Contains(w.devices.tools("plugin.a"), "added") })
	took := time.Since(replaced)
	t.Logf("a replaced program took effect after %v", took.Round(time.Millisecond))
	if took > 10*time.Second { // 2 s on a machine with nothing else to do
		t.Errorf("that is too long")
	}
	if second := w.devices.listing("plugin.a"); second.ServerVersion != "2.0.0" || second.ELFSHA256 == first.ELFSHA256 {
		t.Errorf("listing %s of build %s", second.ServerVersion, second.ELFSHA256)
	}
	if got := w.must("a", "added", `{}`); got != "new" {
		t.Errorf("added: %s", got)
	}
	if !alive(pid) {
		t.Error("the old program ended before its call")
	}
	if err := <-slow; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	w.until("the old program ends", func() bool { return !alive(pid) })
	if w.devices.state("plugin.a") != "online" {
		t.Errorf("presence %s", w.devices.state("plugin.a"))
	}

	// A program that does not work leaves the old one in service.
	pid = w.must("a", "pid", `{}`)
	write("exit")
	w.until("the failure is reported", func() bool { st, _ := w.Status("a"); return st.Reason.Is("plugin_ended") })
	if w.state("a") != plugin.Running || w.must("a", "pid", `{}`) != pid {
		t.Error("the working program is not in service")
	}
	write("good")
	w.until("a working one takes over", func() bool { return w.must("a", "pid", `{}`) != pid })

	p.Manifest.Audience, p.Manifest.Tools = fleet.AudienceUser, []string{"echo"}
	w.apply(p)
	w.until("the manifest takes effect", func() bool {
		l := w.devices.listing("plugin.a")
		return len(l.Inventory.Tools) == 1 && l.Inventory.Tools[0].Audience == fleet.AudienceUser
	})
	p.Manifest.Disabled = true
	w.apply(p)
	w.until("it is disabled", func() bool { return w.state("a") == plugin.Disabled && w.devices.state("plugin.a") == "offline" })
	p.Manifest.Disabled = false
	w.apply(p)
	w.running("a")
}

// Progress reaches the caller, and cancellation the program.
func TestProgressAndCancellation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(program("a", "good"))
	w.running("a")
	var reports atomic.Int32
	var wrote atomic.Int32
	text, err := w.callWith(context.Background(), "a", fleet.Invocation{Tool: "slow",
		Arguments: json.RawMessage(`{"millis":300}`),
		OnProgress: func(p fleet.Progress) {
			if p.Total == 10 {
				reports.Add(1)
			}
		}, OnWritten: func() { wrote.Add(1) }})
	if err != nil || text != "done" || wrote.Load() != 1 {
		t.Fatalf("%q, %v, written %d times", text, err, wrote.Load())
	}
	if n := reports.Load(); n < 5 || n > 10 { // the answer may overtake the last ones
		t.Errorf("%d reports", n)
	}

	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(200*time.Millisecond, cancel)
	if _, err := w.callWith(ctx, "a", fleet.Invocation{Tool: "slow", Arguments: json.RawMessage(`{"millis":60000}`)}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	w.until("the program knows", func() bool { return hasLine(w.Lines("a"), plugin.FromStderr, "slow was cancelled") })

	ctx, cancel = context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := w.callWith(ctx, "a", fleet.Invocation{Tool: "slow", Arguments: json.RawMessage(`{"millis":60000}`)}); !errors.Is(err, fleet.ErrNoAnswer) {
		t.Errorf("timed out: %v", err)
	}
}

// Sampling and elicitation are refused by name.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(program("a", "good"))
	w.running("a")
	text := w.must("a", "sample", `{}`)
	t.Log(text)
	for _, want := range []string{"sampling", "elicitation"} {
		if !strings.Contains(text, want) {
			t.Errorf("the refusal does not name %s: %s", want, text)
		}
	}
}

// A unit works on several calls at a time; more of them wait, and then are refused.
func TestQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(program("a", "good"))
	w.running("a")
	var turns []fleet.Turn
	ready := 0
	for {
		turn, err := w.Queue("plugin.a", fleet.KindProgram)
		if err != nil {
			if !errors.Is(err, fleet.ErrBusy) {
				t.Fatal(err)
			}
			break
		}
		turns = append(turns, turn)
		select {
		case <-turn.Ready():
			ready++
		default:
		}
	}
	if ready != 32 || len(turns) != 96 {
		t.Errorf("%d turns, %d ready", len(turns), ready)
	}
	turns[40].Done() // it waited
	turns[0].Done()
	turns[0].Done()
	select {
	case <-turns[32].Ready():
	default:
		t.Error("the first that waits is not ready")
	}
	select {
	case <-turns[33].Ready():
		t.Error("two are ready")
	default:
	}
	for _, turn := range turns {
		turn.Done()
	}
	w.must("a", "echo", `{}`)
}

// A list that changes while the program runs is stored.
func TestToolListChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(program("a", "changing"))
	w.running("a")
	w.until("the new tool is listed", func() bool { return slices.Contains(w.devices.tools("plugin.a"), "later") })
	if got := w.must("a", "later", `{}`); got != "here" {
		t.Errorf("later: %s", got)
	}
}

// A plug-in by URL: headers from a file, restarts of the server, answers that are too long.
func TestRemote(t *testing.T) {
	t.Parallel()
	var secret atomic.Value
	secret.Store("Bearer one")
	var down atomic.Bool
	server := newServer("remote", "3")
	mcp := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != secret.Load() {
			http.Error(rw, "who are you?", http.StatusUnauthorized)
			return
		}
		if down.Load() {
			http.Error(rw, "out of order", http.StatusServiceUnavailable)
			return
		}
		mcp.ServeHTTP(rw, r)
	}))
	t.Cleanup(web.Close)
	t.Cleanup(web.CloseClientConnections)
	t.Cleanup(func() {
		for session := range server.Sessions() { // of connections that broke
			session.Close()
		}
	})
	w := newWorld(t)
	dir := t.TempDir()
	headers := func(value string) {
		if err := os.WriteFile(filepath.Join(dir, "headers"), []byte("Authorization: "+value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	headers("Bearer wrong")
	p := plugin.Plugin{Name: "r", Directory: dir, Manifest: plugin.Manifest{URL: web.URL, HeadersFile: "headers",
		Audience: fleet.AudienceModel}}
	w.apply(p)
	w.until("the wrong token is reported", func() bool { st, _ := w.Status("r"); return st.Reason.Is("plugin_initialize") })
	headers("Bearer one")
	w.running("r")
	if got := w.must("r", "echo", `{"x":4}`); got != `{"x":4}` {
		t.Errorf("echo: %s", got)
	}
	if _, err := w.call("r", "big", `{"size":8000000}`); err == nil {
		t.Error("an answer of 8 MB was read")
	}
	w.running("r")
	w.until("it answers", func() bool { _, err := w.call("r", "echo", `{}`); return err == nil })

	down.Store(true)
	web.CloseClientConnections()
	w.until("it is noticed", func() bool { return w.devices.state("plugin.r") != "online" })
	down.Store(false)
	w.until("it is back", func() bool { _, err := w.call("r", "echo", `{}`); return err == nil })
	w.running("r")
}

func last(lines []plugin.Line, n int) []plugin.Line { return lines[max(0, len(lines)-n):] }
