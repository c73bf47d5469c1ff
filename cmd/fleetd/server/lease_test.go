package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/broker/sim"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

// A leaseProcess is a fleetd on a database that others use too.
type leaseProcess struct {
	t                 *testing.T
	program           string
	name, dir, url    string
	http, mqtt, admin string
	standby           bool
	args              []string // of serve, in place of the usual ones
	env               []string // added to that of the test
	cmd               *exec.Cmd
	out               *lockedBuffer
	ended             chan struct{}
}

// A lockedBuffer is the output of a process, which a test may read at the same time.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// newLeaseProcess prepares a fleetd. All processes of a test share the data directory,
// because they need the key in it.
func newLeaseProcess(t *testing.T, name, dir, url string) *leaseProcess {
	return &leaseProcess{t: t, program: os.Args[0], name: name, dir: dir, url: url, http: freeAddr(t), mqtt: freeAddr(t),
		admin: freeAddr(t)}
}

func (p *leaseProcess) start() {
	p.t.Helper()
	p.cmd = exec.Command(p.program, append([]string{"serve", "--admin-addr", p.admin}, p.args...)...)
	if p.args == nil {
		p.cmd.Args = append(p.cmd.Args, "--http-addr", p.http, "--mqtt-addr", p.mqtt, "--enrolment", "open", "--node-name",
			p.name, "--database-url", p.url)
	}
	if p.standby {
		p.cmd.Args = append(p.cmd.Args, "--standby", "--blobs-shared")
	}
	p.cmd.Env = slices.Concat(os.Environ(), p.env, []string{beFleetd + "=1", "FLEETD_DATA_DIR=" + p.dir})
	p.out = &lockedBuffer{}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.ended = make(chan struct{})
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	p.t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
		<-p.ended
		if p.t.Failed() {
			p.t.Logf("%s:\n%s", p.name, p.out.String())
		}
	})
}

func (p *leaseProcess) awaitReady() {
	p.t.Helper()
	fleettest.EventuallyWithin(p.t, time.Minute, p.name+" to be ready", func() bool {
		status, _ := p.readyz()
		return status == http.StatusOK
	})
}

// readyz returns the status and the reason; 0 if the process does not answer.
// loggedAt returns when the process logged a message.
func (p *leaseProcess) loggedAt(message string) time.Time {
	p.t.Helper()
	line := regexp.MustCompile(`time=(\S+) level=\S+ msg="` + regexp.QuoteMeta(message) + `"`)
	found := line.FindStringSubmatch(p.out.String())
	if found == nil {
		p.t.Fatalf("%s has not logged %q", p.name, message)
	}
	at, err := time.Parse(time.RFC3339Nano, found[1])
	if err != nil {
		p.t.Fatal(err)
	}
	return at
}

func (p *leaseProcess) readyz() (status int, reason string) {
	resp, err := http.Get("http://" + p.admin + "/readyz")
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// awaitEnd waits for the end of the process and returns its output.
func (p *leaseProcess) awaitEnd(limit time.Duration) string {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		p.t.Fatalf("%s did not end in %v", p.name, limit)
	}
	return p.out.String()
}

func (p *leaseProcess) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// A leaseWorld is a database, and the devices of the first process.
type leaseWorld struct {
	t             *testing.T
	db            *pgxpool.Pool
	token         string
	first, second *leaseProcess
	devices       *sim.Fleet
}

const leaseDevices = 30

// newLeaseWorld starts the first process; env is the environment of both.
func newLeaseWorld(t *testing.T, env ...string) *leaseWorld {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir, url := t.TempDir(), pgtest.URL(t)
	w := &leaseWorld{t: t, first: newLeaseProcess(t, "first", dir, url), second: newLeaseProcess(t, "second", dir, url)}
	w.first.env, w.second.env = env, env
	w.openDatabase(url)
	w.first.start()
	w.first.awaitReady()
	w.populate(w.first)
	return w
}

func (w *leaseWorld) openDatabase(url string) {
	w.t.Helper()
	verifyRecordAtEnd(w.t, url)
	var err error
	if w.db, err = postgres.Open(w.t.Context(), url); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.db.Close)
}

// newToken makes a token with the command, so that no one created it.
func (p *leaseProcess) newToken(name, role string) string {
	p.t.Helper()
	cmd := exec.Command(p.program, "token", "create", name, "--role", role, "--json", "--database-url", p.url)
	cmd.Env = append(os.Environ(), beFleetd+"=1", "FLEETD_DATA_DIR="+p.dir)
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatal(err)
	}
	var made struct{ Token string }
	if err := json.Unmarshal(out, &made); err != nil {
		p.t.Fatal(err)
	}
	return made.Token
}

// populate makes a token, and connects devices through the process.
func (w *leaseWorld) populate(door *leaseProcess) {
	w.t.Helper()
	if w.token == "" {
		w.token = door.newToken("lease", "admin")
	}
	w.connect(door, leaseDevices)
}

// connect connects simulated devices, which poll through the process.
func (w *leaseWorld) connect(door *leaseProcess, devices int) {
	t := w.t
	t.Helper()
	var err error
	w.devices, err = sim.New(sim.Options{OTAURL: "http://" + door.http + "/xiaozhi/ota/", Devices: devices, Seed: 1,
		Boards: []string{chaosBoard}, TimeScale: 0.1, BootDelay: 10 * time.Millisecond, RecordCalls: 1 << 12,
		Booting: 50}) // more at once take the processors from the renewals of leases
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.devices.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	fleettest.EventuallyWithin(t, 3*time.Minute, "all devices to be online with their tools", func() bool {
		return w.count(`SELECT count(*) FROM devices WHERE presence = 'online' AND tools_count > 0`) == devices
	})
}

func (w *leaseWorld) count(sql string, args ...any) (n int) {
	w.t.Helper()
	if err := w.db.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// call calls the i-th device through the process, and returns the call's state or the
// error.
func (w *leaseWorld) call(p *leaseProcess, i int) string {
	return w.callWith(p, i, `{"tool":"self.get_device_status"}`)
}

func (w *leaseWorld) callWith(p *leaseProcess, i int, body string) string {
	req, err := http.NewRequest("POST", "http://"+p.http+"/api/v1/devices/"+w.devices.Device(i).ID()+"/calls",
		strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	var call struct{ State string }
	if err := json.Unmarshal(text, &call); err != nil || call.State == "" {
		return fmt.Sprintf("%s: %s", resp.Status, text)
	}
	return call.State
}

// terms returns the terms on record.
func (w *leaseWorld) terms() (text string) {
	w.t.Helper()
	err := w.db.QueryRow(context.Background(), `SELECT string_agg(concat_ws(' ', term, node, reason,
		CASE WHEN ended IS NOT NULL THEN 'ended' END), ', ' ORDER BY term) FROM lease_terms`).Scan(&text)
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}

func (w *leaseWorld) term() int { return w.count(`SELECT term FROM lease`) }

// A second server refuses to start, and names the first one, whose devices and calls are
// not disturbed.
func TestSecondServerRefusesToStart(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var made int
	for i := range 8 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if state := w.call(w.first, (8*n+i)%leaseDevices); state != "succeeded" {
					t.Errorf("a call of the first server ended: %s", state)
				}
				if i == 0 {
					made++
				}
			}
		})
	}
	w.second.start()
	said := w.second.awaitEnd(time.Minute)
	cancel()
	callers.Wait()
	for _, want := range []string{"node first", fmt.Sprintf("process %d", w.first.cmd.Process.Pid), "stop it first", "--standby",
		"since " + time.Now().UTC().Format("2006-01-02")} {
		if !strings.Contains(said, want) {
			t.Errorf("the second server says %q, without %q", said, want)
		}
	}
	if w.second.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("the second server ended with %v", w.second.cmd.ProcessState)
	}
	if made == 0 {
		t.Error("no call was made meanwhile")
	}
	if n := w.count(`SELECT count(*) FROM presence_changes WHERE presence = 'offline' AND at > $1`, began); n != 0 {
		t.Errorf("%d devices went offline", n)
	}
	if n := w.count(`SELECT count(*) FROM calls WHERE state <> 'succeeded'`); n != 0 {
		t.Errorf("%d calls did not succeed", n)
	}
	if w.term() != 1 {
		t.Errorf("term %d, want 1", w.term())
	}

	// An orderly stop releases the lease at once.
	w.first.signal(syscall.SIGTERM)
	w.first.awaitEnd(time.Minute)
	w.second.start()
	w.second.awaitReady()
	if strings.Contains(w.second.out.String(), "waiting for the lease") {
		t.Error("after an orderly stop the next start waits")
	}
}

// After a crash on this machine the next start does not wait at all. If the start cannot
// check whether the process still runs, it waits for the end of the lease.
func TestServerStartsAfterACrash(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []bool{false, true} {
		t.Run(fmt.Sprintf("elsewhere=%v", elsewhere), func(t *testing.T) {
			t.Parallel()
			w := newLeaseWorld(t)
			w.first.signal(syscall.SIGKILL)
			w.first.awaitEnd(time.Minute)
			if elsewhere {
				w.count(`WITH moved AS (UPDATE lease SET process = 'another machine/1' RETURNING 1) SELECT count(*) FROM moved`)
			}
			w.second.start()
			w.second.awaitReady()
			if waits := strings.Contains(w.second.out.String(), "waiting for the lease"); waits != elsewhere {
				t.Errorf("the next start waits: %v", waits)
			}
			if w.term() != 2 {
				t.Errorf("term %d, want 2", w.term())
			}
			if n := w.count(`SELECT count(*) FROM devices WHERE presence = 'online'`); n != 0 {
				t.Errorf("%d devices of the dead server are online", n)
			}
		})
	}
}

// Another server replaces a server that is frozen for longer than its lease, whether it stood
// by or starts now. When the replaced server runs again, it writes nothing, calls nothing, and
// ends.
func TestReplacedServerEnds(t *testing.T) {
	t.Parallel()
	for _, standby := range []bool{false, true} {
		t.Run(fmt.Sprintf("standby=%v", standby), func(t *testing.T) {
			t.Parallel()
			testReplacedServerEnds(t, standby)
		})
	}
}

func testReplacedServerEnds(t *testing.T, standby bool) {
	w := newLeaseWorld(t)
	if w.second.standby = standby; standby {
		w.second.start()
		w.second.awaitStandby("first")
		for _, addr := range []string{w.second.http, w.second.mqtt} {
			if conn, err := net.Dial("tcp", addr); err == nil {
				conn.Close()
				t.Errorf("the standby listens on %s", addr)
			}
		}
	}
	if state := w.call(w.first, 0); state != "succeeded" {
		t.Fatal(state)
	}
	w.first.signal(syscall.SIGSTOP)
	// These requests wait in its sockets until it resumes.
	var callers sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]int{}
	for i := range leaseDevices {
		callers.Go(func() {
			state := w.call(w.first, i)
			mu.Lock()
			defer mu.Unlock()
			answers[state]++
		})
	}
	if frozen := time.Now(); standby {
		w.second.awaitReady()
		if took := time.Since(frozen); took > 10*time.Second {
			t.Errorf("the standby took %v", took)
		}
	} else {
		w.second.start()
		w.second.awaitReady()
	}
	if terms := w.terms(); terms != "1 first first ended, 2 second silent" {
		t.Fatalf("terms: %s", terms)
	}
	before := w.snapshot()
	calls := w.executed()
	w.first.signal(syscall.SIGCONT)
	said := w.first.awaitEnd(10 * time.Second)
	callers.Wait()
	for _, want := range []string{"node second", "took the database over", "has written and sent nothing since"} {
		if !strings.Contains(said, want) {
			t.Errorf("the first server says %q, without %q", said, want)
		}
	}
	if w.first.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("the first server ended with %v", w.first.cmd.ProcessState)
	}
	if after := w.snapshot(); after != before {
		t.Errorf("the first server wrote:\n%s\nbefore:\n%s", after, before)
	}
	if n := w.executed() - calls; n != 0 {
		t.Errorf("the first server made %d calls", n)
	}
	if answers["succeeded"] != 0 {
		t.Errorf("answers of the first server: %v", answers)
	}
}

// executed returns how many calls the devices executed.
func (w *leaseWorld) executed() (n int) {
	for i := range leaseDevices {
		n += len(w.devices.Device(i).Calls())
	}
	return n
}

// snapshot returns the data that a server writes about calls and devices.
func (w *leaseWorld) snapshot() (text string) {
	w.t.Helper()
	err := w.db.QueryRow(context.Background(), `SELECT concat_ws(E'\n',
		(SELECT string_agg(concat_ws(' ', id, state, error_code, finished_at), ', ' ORDER BY id) FROM calls),
		(SELECT string_agg(concat_ws(' ', id, presence, presence_since, last_seen, last_poll), ', ' ORDER BY id)
			FROM devices),
		(SELECT string_agg(concat_ws(' ', device_id, epoch, node), ', ' ORDER BY device_id) FROM connections),
		(SELECT count(*) FROM audit_entries))`).Scan(&text)
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}
