package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/lease"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/migrations"
)

// readiness returns the status and body of /readyz at an admin address; 0 if none answers.
func readiness(admin string) (status int, body string) {
	resp, err := http.Get("http://" + admin + "/readyz")
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// awaitStanding waits until /readyz contains each text, with 503.
func awaitStanding(t *testing.T, admin string, texts ...string) {
	t.Helper()
	var status int
	var body string
	fleettest.EventuallyWithin(t, time.Minute, fmt.Sprintf("%s to stand by (%q)", admin, texts), func() bool {
		status, body = readiness(admin)
		for _, text := range texts {
			if !strings.Contains(body, text) {
				return false
			}
		}
		return status == http.StatusServiceUnavailable
	})
}

// awaitStandby waits until the process stands by for a leader.
func (p *leaseProcess) awaitStandby(leader string) {
	p.t.Helper()
	awaitStanding(p.t, p.admin, "standing by: ", "node "+leader+",", "since "+time.Now().UTC().Format("2006-01-02"))
	resp, err := http.Get("http://" + p.admin + "/healthz")
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.t.Errorf("/healthz of a standby: %s", resp.Status)
	}
}

// A standbyLoad makes calls with different arguments. It ends with its test.
type standbyLoad struct {
	w    *leaseWorld
	next atomic.Int64
	stop context.CancelFunc
	all  sync.WaitGroup

	mu     sync.Mutex
	states map[string]string // of the calls, by their arguments
	made   int               // succeeded calls
}

// startLoad calls devices through the address of a process, whichever process listens there.
func (w *leaseWorld) startLoad(p *leaseProcess) *standbyLoad {
	ctx, cancel := context.WithCancel(context.Background())
	l := &standbyLoad{w: w, stop: cancel, states: make(map[string]string)}
	for i := range 4 {
		l.all.Go(func() {
			for n := i; ctx.Err() == nil; n += 4 {
				marker, _ := json.Marshal(newMarker(l.next.Add(1)))
				state := w.callWith(p, n%leaseDevices, fmt.Sprintf(`{"tool":%q,"timeout_ms":3000,"arguments":%s}`, chaosTool,
					marker))
				l.mu.Lock()
				l.states[string(marker)] = state
				if state == string(fleet.CallSucceeded) {
					l.made++
				}
				l.mu.Unlock()
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	w.t.Cleanup(l.end)
	return l
}

func (l *standbyLoad) end() {
	l.stop()
	l.all.Wait()
}

func (l *standbyLoad) succeeded() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made
}

// check compares what callers were answered, what the devices executed and what is on record.
func (l *standbyLoad) check() {
	t := l.w.t
	t.Helper()
	executed := make(map[string]int)
	for i := range leaseDevices {
		for _, c := range l.w.devices.Device(i).Calls() {
			if c.Tool == chaosTool {
				var m chaosMarker
				if err := json.Unmarshal([]byte(c.Arguments), &m); err != nil {
					t.Fatal(err)
				}
				marker, _ := json.Marshal(m)
				executed[string(marker)]++
			}
		}
	}
	states := make(map[string]fleet.CallState)
	rows, err := l.w.db.Query(t.Context(), `SELECT arguments::text, state FROM calls WHERE tool = $1`, chaosTool)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var arguments string
		var state fleet.CallState
		var m chaosMarker
		if err := rows.Scan(&arguments, &state); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(arguments), &m); err != nil {
			t.Fatal(err)
		}
		marker, _ := json.Marshal(m)
		if _, twice := states[string(marker)]; twice {
			t.Errorf("call %s is on record twice", marker)
		}
		states[string(marker)] = state
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for marker, state := range l.states {
		n := executed[marker]
		if n > 1 || n > 0 && states[marker] == "" {
			t.Errorf("call %s, answered %s, on record %q, was executed %d times", marker, state, states[marker], n)
		}
		if state == string(fleet.CallSucceeded) && (n != 1 || states[marker] != fleet.CallSucceeded) {
			t.Errorf("call %s was acknowledged, on record %q, and was executed %d times", marker, states[marker], n)
		}
	}
	for marker, state := range states {
		if state == fleet.CallPending || state == fleet.CallSent {
			t.Errorf("call %s is still %s", marker, state)
		}
	}
}

// Of two processes that stand by, one takes over when the first one is killed, on the first
// one's addresses, and the other stands by for that one. The devices come back. An orderly
// stop hands over to the last one. No acknowledged call is lost, and none is made twice. Each new
// leader continues the log stream.
func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	stream := newStreamReceiver(t)
	allow := "FLEETD_ALLOW_OUTBOUND=" + stream.Listener.Addr().String()
	w := newLeaseWorld(t, allow)
	stream.follow(w)
	third := newLeaseProcess(t, "third", w.first.dir, w.first.url)
	third.env = w.first.env
	for _, p := range []*leaseProcess{w.second, third} {
		p.standby, p.http, p.mqtt = true, w.first.http, w.first.mqtt
		p.start()
	}
	w.second.awaitStandby("first")
	third.awaitStandby("first")
	load := w.startLoad(w.first)
	before := func(what string, than int) {
		t.Helper()
		fleettest.EventuallyWithin(t, time.Minute, what, func() bool { return load.succeeded() >= than+20 })
	}
	before("calls through the first server", 0)

	killed := time.Now()
	w.first.signal(syscall.SIGKILL)
	leader, other := w.second, third
	fleettest.EventuallyWithin(t, time.Minute, "a standby to be ready", func() bool {
		for p, q := range map[*leaseProcess]*leaseProcess{w.second: third, third: w.second} {
			if status, _ := readiness(p.admin); status == http.StatusOK {
				leader, other = p, q
				return true
			}
		}
		return false
	})
	took := time.Since(killed)
	if took > 10*time.Second {
		t.Errorf("the standby took %v", took)
	}
	other.awaitStandby(leader.name)
	before("calls through the standby that took over", load.succeeded())
	fleettest.EventuallyWithin(t, time.Minute, "all devices to be back", func() bool {
		return w.count(`SELECT count(*) FROM devices WHERE presence = 'online'`) == leaseDevices
	})
	t.Logf("took over %v after a kill, and all devices were back after %v", took, time.Since(killed))

	// A process that stands by ends at once.
	fourth := newLeaseProcess(t, "fourth", w.first.dir, w.first.url)
	fourth.standby = true
	fourth.start()
	fourth.awaitStandby(leader.name)
	fourth.signal(syscall.SIGTERM)
	fourth.awaitEnd(5 * time.Second)
	if code := fourth.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("a standby that was stopped ended with %d", code)
	}

	stopped := time.Now()
	leader.signal(syscall.SIGTERM)
	other.awaitReady()
	took = time.Since(stopped)
	leader.awaitEnd(time.Minute)
	if code := leader.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the server that was stopped ended with %d", code)
	}
	var released time.Time
	if err := w.db.QueryRow(t.Context(), `SELECT ended FROM lease_terms WHERE term = 2`).Scan(&released); err != nil {
		t.Fatal(err)
	}
	t.Logf("took over %v after a stop, which took %v to release the lease", took, released.Sub(stopped))
	before("calls through the last standby", load.succeeded())
	load.end()
	want := fmt.Sprintf("1 first first ended, 2 %s gone ended, 3 %s released", leader.name, other.name)
	if terms := w.terms(); terms != want {
		t.Errorf("terms %q, want %q", terms, want)
	}
	for _, p := range []*leaseProcess{leader, other} {
		if n := strings.Count(p.out.String(), "takes the database over"); n != 1 {
			t.Errorf("%s logged %d times that it takes over", p.name, n)
		}
	}
	if n := strings.Count(other.out.String(), "stands by until"); n != 2 {
		t.Errorf("%s logged %d times that it stands by, want once for each leader", other.name, n)
	}
	load.check()
	stream.check(w, load)
}

// A starting is a server of this process that has not started yet, as it stands by.
type starting struct {
	*Server
	err  error
	done chan struct{}
	log  *lockedBuffer
	cfg  Config
	stop context.CancelFunc
}

func standbyConfig(t *testing.T, name, url, dir string) Config {
	cfg := Config{HTTPAddr: freeAddr(t), MQTTAddr: freeAddr(t), AdminAddr: freeAddr(t), Enrolment: "open", NodeName: name,
		BlobsShared: true}
	cfg.DataDir, cfg.DatabaseURL = dir, url
	return cfg
}

// begin starts a server that may stand by. It is closed when the test ends.
func begin(t *testing.T, cfg Config) *starting {
	t.Helper()
	s := &starting{done: make(chan struct{}), log: &lockedBuffer{}, cfg: cfg}
	cfg.Log = slog.New(slog.NewTextHandler(s.log, nil))
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	go func() {
		defer close(s.done)
		s.Server, s.err = Start(ctx, cfg)
	}()
	t.Cleanup(func() {
		cancel()
		if <-s.done; s.err == nil {
			s.Close()
		}
		if t.Failed() {
			t.Logf("%s:\n%s", cfg.NodeName, s.log)
		}
	})
	return s
}

func (s *starting) await(t *testing.T) error {
	t.Helper()
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		t.Fatalf("%s still starts", s.cfg.NodeName)
	}
	return s.err
}

// beginLeader starts a server that leads.
func beginLeader(t *testing.T, url, dir string) *starting {
	t.Helper()
	if testing.Short() {
		t.Skip("starts servers")
	}
	s := begin(t, standbyConfig(t, "leader", url, dir))
	if err := s.await(t); err != nil {
		t.Fatal(err)
	}
	return s
}

// beginStandby starts a server that stands by for the leader.
func beginStandby(t *testing.T, cfg Config) *starting {
	t.Helper()
	cfg.Standby = true
	s := begin(t, cfg)
	awaitStanding(t, cfg.AdminAddr, "standing by: ", "node leader,")
	return s
}

func leaseOf(t *testing.T, url string) lease.Lease {
	t.Helper()
	l, err := postgres.NewLeases(url)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	now, err := l.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return now
}

func writeKey(t *testing.T, dir string, key []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "secret.key"), fmt.Appendf(nil, "%x\n", key), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A server with another secret key, or without the file, refuses to start and creates nothing,
// whether it stands by or not. So does a standby whose key, or whose database, became another
// one meanwhile, before it takes the lease.
func TestStandbyThatCannotServe(t *testing.T) {
	t.Parallel()
	url, dir := pgtest.URL(t), t.TempDir()
	leader := beginLeader(t, url, dir)
	ours, err := readSecret(dir)
	if err != nil || ours.key == nil {
		t.Fatal(err)
	}
	for _, standby := range []bool{false, true} {
		without := standbyConfig(t, "without", url, t.TempDir())
		without.Standby = standby
		if err := begin(t, without).await(t); err == nil || !strings.Contains(err.Error(), "secret.key does not exist") {
			t.Errorf("standby=%v, without a key: %v", standby, err)
		}
		if files, err := os.ReadDir(without.DataDir); err != nil || len(files) != 0 {
			t.Errorf("standby=%v, without a key, created %v, %v", standby, files, err)
		}
		other := standbyConfig(t, "other", url, t.TempDir())
		other.Standby = standby
		writeKey(t, other.DataDir, make([]byte, secretBytes))
		if err := begin(t, other).await(t); err == nil || !strings.Contains(err.Error(), "does not contain the secret key") {
			t.Errorf("standby=%v, with another key: %v", standby, err)
		}
	}

	// The key is not lost: a reset here would refuse all devices.
	reset := keyReset{keyFlags{Database: Database{DataDir: t.TempDir(), DatabaseURL: url}, Confirm: "reset"}}
	if err := reset.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "node leader,") {
		t.Errorf("reset the key of a server that runs: %v", err)
	}

	changed := standbyConfig(t, "changed", url, t.TempDir())
	writeKey(t, changed.DataDir, ours.key)
	second := beginStandby(t, changed)
	writeKey(t, changed.DataDir, make([]byte, secretBytes))
	leader.Close()
	if err := second.await(t); err == nil || !strings.Contains(err.Error(), "does not contain the secret key") {
		t.Errorf("a key that changed: %v", err)
	}
	if now := leaseOf(t, url); now.Term != 1 {
		t.Errorf("it took the lease: %+v", now)
	}

	// Without a server it makes another key, which then is the key of the database.
	if err := reset.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := standbyConfig(t, "old", url, dir)
	if err := begin(t, old).await(t); err == nil || !strings.Contains(err.Error(), "does not contain the secret key") {
		t.Errorf("the key before the reset: %v", err)
	}
	dir = reset.DataDir
	leader = beginLeader(t, url, dir)
	third := beginStandby(t, standbyConfig(t, "third", url, dir))
	db, err := postgres.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`); err != nil {
		t.Fatal(err)
	}
	leader.Close()
	var newer *migrations.NewerError
	if err := third.await(t); !errors.As(err, &newer) {
		t.Errorf("a database that a newer version migrated: %v", err)
	}
	if now := leaseOf(t, url); now.Term != 2 {
		t.Errorf("it took the lease: %+v", now)
	}
}

// A server also stands by for one of the version before, which records neither terms nor the
// fingerprint of the key. It then records both, in a database with devices.
func TestStandbyOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	url, dir := pgtest.URL(t), t.TempDir()
	beginLeader(t, url, dir).Close()
	db, err := postgres.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	exec := func(sql string) {
		t.Helper()
		if _, err := db.Exec(context.Background(), sql); err != nil {
			t.Error(err)
		}
	}
	exec(`DELETE FROM settings WHERE key = 'secret_fingerprint'`)
	exec(`DROP TABLE lease_terms, failed_tries, record_queue, record_batches, record_tiles, record_checkpoints, record_keys,
		record_start, record_removals, schedules, schedule_runs`) // of migrations 85 to 90
	exec(`DROP FUNCTION record_leaf, record_time, record_connection, record_step, record_firmware`)
	exec(`DROP TABLE tool_catalogue, tool_definitions, inventory_tools, inventory_places, device_versions, device_offers,
		tool_usage, tool_usage_days, tool_usage_hours`) // of migration 91
	exec(`DROP FUNCTION note_device_version, note_device_offer CASCADE`)
	exec(`ALTER TABLE inventories DROP COLUMN catalogued, DROP COLUMN last_seen`)
	// Of migrations 93 to 106.
	exec(`ALTER TABLE alerts DROP COLUMN silence_id, DROP COLUMN routed`)
	exec(`ALTER TABLE alert_events DROP COLUMN silenced`)
	exec(`ALTER TABLE webhooks DROP COLUMN shape, DROP COLUMN chat, DROP COLUMN lang, DROP COLUMN route_query,
		DROP COLUMN route_severity, DROP COLUMN route_kinds`)
	exec(`DROP TABLE silences`)
	exec(`DROP TABLE origins, log_stream_deliveries, log_streams, redactions, redaction_version, call_digests,
		record_cosignatures, trend_groups, trend_hours, trend_days, trend_marks`)
	for _, table := range []string{"calls", "fanouts"} {
		exec(`ALTER TABLE ` + table + ` DROP COLUMN sealed_arguments`)
	}
	exec(`DROP INDEX snapshots_newest, snapshots_kind, url_links_blob, approvals_picture, call_waits_picture, calls_actor_failures,
		calls_tool_failures`)
	exec(`ALTER TABLE calls DROP COLUMN origin_id, DROP COLUMN trace_id`)
	exec(`ALTER TABLE audit_entries DROP COLUMN origin_id, DROP COLUMN trace_id`)
	exec(`DROP INDEX presence_changes_newest, deployment_events_newest, device_firmware_newest`)
	exec(`CREATE INDEX presence_changes_at ON presence_changes USING brin (at)`)
	exec(`DROP FUNCTION keep_device_state, drop_device_states, profile_of, tag_set_of CASCADE`) // of migration 96
	exec(`DROP TABLE device_states, device_names, device_profiles, device_tag_sets, device_removals, history_start, fleet_frames,
		profile_counts`)
	exec(`DROP SEQUENCE device_numbers`)
	exec(`ALTER TABLE presence_samples DROP COLUMN unknown_edge`)
	exec(`DELETE FROM goose_db_version WHERE version_id >= 85`)
	renew := func() {
		exec(`UPDATE lease SET node = 'leader', host = 'h', process = 'another machine/1', released = false,
			renewed_at = clock_timestamp(), until = clock_timestamp() + interval '6 seconds'`)
	}
	renew()
	renewed, end := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(renewed)
		for tick := time.NewTicker(lease.RenewEvery); ; {
			select {
			case <-tick.C:
				renew()
			case <-end:
				return
			}
		}
	}()
	exec(`INSERT INTO devices (id, created_at, presence_since) VALUES ('d', now(), now())`)
	without := standbyConfig(t, "without", url, t.TempDir())
	without.Standby = true
	if err := begin(t, without).await(t); err == nil || !strings.Contains(err.Error(), "secret.key does not exist") {
		t.Errorf("without a key, which would become the key of the database: %v", err)
	}
	second := beginStandby(t, standbyConfig(t, "second", url, dir))
	var known bool
	if err := db.QueryRow(t.Context(), `SELECT to_regclass('lease_terms') IS NOT NULL`).Scan(&known); err != nil || known {
		t.Errorf("the standby migrated: %v, %v", known, err)
	}
	close(end)
	<-renewed
	exec(`UPDATE lease SET released = true, until = clock_timestamp()`)
	if err := second.await(t); err != nil {
		t.Fatal(err)
	}
	terms, err := second.store.LeaseTerms(t.Context(), 10)
	if err != nil || len(terms) != 1 || terms[0].Term != 2 || terms[0].Reason != lease.Released || terms[0].Ended != nil {
		t.Errorf("terms %+v, %v", terms, err)
	}
	secret, err := readSecret(dir)
	if err != nil {
		t.Fatal(err)
	}
	if f, _, err := second.store.SecretFingerprint(t.Context()); err != nil || f != enrolment.Fingerprint(secret.key) {
		t.Errorf("fingerprint %q, %v", f, err)
	}
}

// A standby waits while the database is away, says so, and takes over afterwards.
func TestStandbyWithoutDatabase(t *testing.T) {
	t.Parallel()
	url, dir := pgtest.URL(t), t.TempDir()
	leader := beginLeader(t, url, dir)
	cfg := standbyConfig(t, "second", url, dir)
	proxy := throughProxy(t, &cfg)
	second := beginStandby(t, cfg)
	proxy.set(proxyRule{share: 1, stallUp: true, stallDown: true})
	proxy.resetShare(1)
	awaitStanding(t, cfg.AdminAddr, "node leader,", "the database does not answer")
	time.Sleep(renewals) // several attempts
	proxy.set(proxyRule{})
	fleettest.EventuallyWithin(t, time.Minute, "the standby to reach the database", func() bool {
		_, body := readiness(cfg.AdminAddr)
		return strings.Contains(body, "node leader,") && !strings.Contains(body, "does not answer")
	})
	for _, text := range []string{"the database does not answer", "the database answers again", "stands by until"} {
		if n := strings.Count(second.log.String(), text); n != 1 {
			t.Errorf("logged %d times: %s", n, text)
		}
	}
	leader.Close()
	if err := second.await(t); err != nil {
		t.Fatal(err)
	}
	if now := leaseOf(t, url); now.Term != 2 {
		t.Errorf("term %d", now.Term)
	}
}

// renewals is the time in which a standby tries several times to read the lease.
const renewals = 3 * time.Second

// A standby does not need its addresses while it waits. If another program has one of them when
// it leads, the start fails with a sentence and the lease is released.
func TestStandbyWithATakenAddress(t *testing.T) {
	t.Parallel()
	url, dir := pgtest.URL(t), t.TempDir()
	leader := beginLeader(t, url, dir)
	for i, flag := range []string{"--http-addr", "--mqtt-addr"} {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg := standbyConfig(t, "second", url, dir)
		if addr := taken.Addr().String(); flag == "--http-addr" {
			cfg.HTTPAddr = addr
		} else {
			cfg.MQTTAddr = addr
		}
		second := beginStandby(t, cfg)
		leader.Close()
		if err := second.await(t); err == nil || !strings.Contains(err.Error(), flag) ||
			!strings.Contains(err.Error(), taken.Addr().String()+" is in use") {
			t.Errorf("%s: %v", flag, err)
		}
		if now := leaseOf(t, url); now.Term != 2*i+2 || !now.Released {
			t.Errorf("%s: the lease is %+v", flag, now)
		}
		taken.Close()
		leader = beginLeader(t, url, dir)
	}
}

// A standby uses the leader's addresses on the same machine as soon as the leader has ended.
func TestStandbyStops(t *testing.T) {
	t.Parallel()
	url, dir := pgtest.URL(t), t.TempDir()
	leader := beginLeader(t, url, dir)
	cfg := standbyConfig(t, "second", url, dir)
	cfg.HTTPAddr, cfg.MQTTAddr = leader.cfg.HTTPAddr, leader.cfg.MQTTAddr
	stopped := beginStandby(t, cfg)
	stopped.stop()
	if err := stopped.await(t); !errors.Is(err, context.Canceled) {
		t.Errorf("a standby that was stopped: %v", err)
	}
	second := beginStandby(t, cfg)
	leader.Close()
	if err := second.await(t); err != nil {
		t.Fatal(err)
	}
	if second.HTTPAddr().String() != cfg.HTTPAddr {
		t.Errorf("listens on %s", second.HTTPAddr())
	}
}
