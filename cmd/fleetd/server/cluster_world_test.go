package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
	"fleetd/fleet/lease"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/internal/bus"
)

// A clusterWorld is a cluster of processes: two cores and two edges. The devices connect to the first
// edge.
type clusterWorld struct {
	*leaseWorld
	cores, edges [2]*leaseProcess
	dir          string // of the cluster
	data, url    string
}

// newClusterWorld starts a cluster. The flags are for the cores.
func newClusterWorld(t *testing.T, flags ...string) *clusterWorld {
	t.Helper()
	w := newCluster(t, nil, append([]string{"--enrolment", "open"}, flags...)...)
	w.populate(w.edges[0])
	return w
}

// newCluster starts a cluster without devices. env is the environment of the first core, and more are
// flags of both cores.
func newCluster(t *testing.T, env []string, more ...string) *clusterWorld {
	t.Helper()
	w := prepareCluster(t, env, more...)
	w.start()
	return w
}

// prepareCluster makes the processes, which start starts.
func prepareCluster(t *testing.T, env []string, more ...string) *clusterWorld {
	t.Helper()
	return prepareClusterAt(t, pgtest.URL(t), env, more...)
}

func prepareClusterAt(t *testing.T, url string, env []string, more ...string) *clusterWorld {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	data := t.TempDir()
	w := &clusterWorld{leaseWorld: &leaseWorld{t: t}, dir: t.TempDir(), data: data, url: url}
	w.openDatabase(url)
	if _, err := bus.Init(w.dir); err != nil {
		t.Fatal(err)
	}
	servers := []string{freePair(t), freePair(t)}
	for i := range w.edges {
		e := newLeaseProcess(t, "edge-"+strconv.Itoa(i+1), data, url)
		e.args = []string{"--role", "edge", "--cluster-dir", w.certificate(e.name, bus.Edge), "--http-addr", e.http,
			"--mqtt-addr", e.mqtt, "--voice-udp-addr", "127.0.0.1:0", "--cluster-servers", strings.Join(servers, ",")}
		w.edges[i] = e
	}
	for i := range w.cores {
		c := newLeaseProcess(t, "core-"+strconv.Itoa(i+1), data, url)
		c.args = []string{"--role", "core", "--cluster-dir", w.certificate(c.name, bus.Core), "--internal-addr", c.http,
			"--cluster-listen", servers[i], "--cluster-routes", servers[1-i], "--database-url", url, "--blobs-shared",
			"--public-url", "http://" + w.edges[0].http, "--mqtt-endpoint", w.edges[0].mqtt}
		c.args = append(c.args, more...)
		w.cores[i] = c
	}
	w.cores[0].env = env
	return w
}

// start starts the processes; the first core leads.
func (w *clusterWorld) start() {
	w.t.Helper()
	w.cores[0].start()
	w.cores[0].awaitReady()
	w.cores[1].start()
	w.cores[1].awaitStandby("core-1")
	for _, e := range w.edges {
		e.start()
		e.awaitReady()
	}
	w.token = w.edges[0].newToken("lease", "admin")
}

func (w *clusterWorld) certificate(name string, role bus.Role) string {
	w.t.Helper()
	order := bus.Order{Name: name, Role: role}
	if name == "edge-2" {
		order.Days = 20 // so that an alert says so
	}
	dir, _, err := bus.Issue(w.dir, order)
	if err != nil {
		w.t.Fatal(err)
	}
	return dir
}

// freePair returns an address whose port and the next one are free.
func freePair(t *testing.T) string {
	t.Helper()
	for range 100 {
		host, port, err := net.SplitHostPort(freeAddr(t))
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(port)
		if ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(n+1))); err == nil {
			ln.Close()
			return net.JoinHostPort(host, port)
		}
	}
	t.Fatal("no two free ports in a row")
	return ""
}

// connects returns how often the devices have connected.
func (w *clusterWorld) connects() int64 { return w.devices.Stats().Connects }

// quiet reports an error if a device was disconnected, or shown as offline, since the time.
func (w *clusterWorld) quiet(connects int64, since time.Time) {
	w.t.Helper()
	if n := w.connects(); n != connects {
		w.t.Errorf("devices connected %d times more", n-connects)
	}
	if n := w.count(`SELECT count(*) FROM presence_changes WHERE presence <> 'online' AND at > $1`, since); n != 0 {
		w.t.Errorf("%d changes of presence are on record", n)
	}
	if n := w.count(`SELECT count(*) FROM devices WHERE presence <> 'online'`); n != 0 {
		w.t.Errorf("%d devices are not online", n)
	}
}

// A core that leads is killed, and later one is stopped: the other core leads, no device is
// disconnected or shown as offline, and no acknowledged call is lost or made twice.
func TestCoreIsReplaced(t *testing.T) {
	t.Parallel()
	w := newClusterWorld(t)
	load := w.startLoad(w.edges[1])
	calls := func(what string, than int) {
		t.Helper()
		fleettest.EventuallyWithin(t, time.Minute, what, func() bool { return load.succeeded() >= than+20 })
	}
	calls("calls through the first core", 0)
	w.awaitNodes("core-1 leads, core-2 stands_by, edge-1 attached 30, edge-2 attached 0", 1, lease.First)
	w.isAtEdge("edge-1")
	w.awaitMetrics(w.cores[0], `fleetd_cluster_nodes{role="edge",state="attached"} 2`, "fleetd_cluster_term 1",
		"fleetd_cluster_link_edges_attached 2", "fleetd_cluster_certificate_expiry_timestamp_seconds ")
	w.awaitMetrics(w.edges[1], "fleetd_cluster_term 1", `fleetd_door_requests_total{kind="api",outcome="passed"}`,
		"fleetd_cluster_link_stale_total 0", "fleetd_cluster_certificate_expiry_timestamp_seconds ")
	connects, since := w.connects(), time.Now()

	w.edges[0].signal(syscall.SIGSTOP) // calls stay in flight
	fleettest.EventuallyWithin(t, time.Minute, "calls to be in flight", func() bool {
		// The answers to calls of just before may still be on their way to the core.
		return w.count(`SELECT count(*) FROM calls WHERE state = 'sent' AND sent_at < now() - interval '1 second'`) > 0
	})
	w.cores[0].signal(syscall.SIGKILL)
	w.edges[0].signal(syscall.SIGCONT)
	w.cores[1].awaitReady()
	took := time.Since(since)
	calls("calls through the second core", load.succeeded())
	again := time.Since(since)
	if took > 10*time.Second || again > 15*time.Second {
		t.Errorf("the second core leads after %v, and makes calls after %v", took, again)
	}
	time.Sleep(2 * attachTime) // presence of devices that are not announced would be reset by now
	w.quiet(connects, since)
	if n := w.count(`SELECT count(*) FROM calls WHERE state = 'unknown' AND error_code = 'core_lost'`); n == 0 {
		t.Error("no call in flight ended with the code core_lost")
	}
	w.awaitNodes("core-2 leads, core-1 gone, edge-1 attached 30, edge-2 attached 0", 2, lease.Gone, lease.Silent)

	// The first one stands by again, and takes over from a core that is stopped.
	w.cores[0].start()
	w.cores[0].awaitStandby("core-2")
	w.awaitNodes("core-2 leads, core-1 stands_by, edge-1 attached 30, edge-2 attached 0", 2, lease.Gone, lease.Silent)
	stopped := time.Now()
	w.cores[1].signal(syscall.SIGTERM)
	w.cores[0].awaitReady()
	handed := time.Since(stopped)
	w.cores[1].awaitEnd(time.Minute)
	calls("calls through the first core again", load.succeeded())
	time.Sleep(2 * attachTime)
	w.quiet(connects, since)
	w.awaitNodes("core-1 leads, edge-1 attached 30, edge-2 attached 0", 3, lease.Released) // core-2 has left
	load.end()
	load.check()
	fleettest.EventuallyWithin(t, time.Minute, "an alert about the certificate of edge-2", func() bool {
		return w.count(`SELECT count(*) FROM alerts WHERE kind = 'certificate_expiring' AND subject = 'edge-2'`) == 1
	})
	t.Logf("leads %v after a kill, calls after %v; leads %v after a stop", took, again, handed)
}

// awaitNodes waits until fleetd cluster status, asked through an edge, has these nodes, and checks the
// term and why it began.
func (w *clusterWorld) awaitNodes(want string, term int, why ...lease.Reason) {
	w.t.Helper()
	var got string
	var v struct {
		Term   int
		Leader string
		Reason lease.Reason
		Nodes  []struct {
			Name, Role, State string
			Connections       int
		}
	}
	fleettest.EventuallyWithin(w.t, 30*time.Second, "nodes to be "+want, func() bool {
		cmd := exec.Command(os.Args[0], "cluster", "status", "--json", "--url", "http://"+w.edges[1].http)
		cmd.Env = append(os.Environ(), beFleetd+"=1", "FLEETD_TOKEN="+w.token)
		out, err := cmd.Output()
		if err != nil {
			w.t.Fatalf("fleetd cluster status: %v", err)
		}
		v.Nodes = nil
		if err := json.Unmarshal(out, &v); err != nil {
			w.t.Fatal(err)
		}
		var all []string
		for _, n := range v.Nodes {
			text := n.Name + " " + n.State
			if n.Role == "edge" {
				text += " " + strconv.Itoa(n.Connections)
			}
			all = append(all, text)
		}
		got = strings.Join(all, ", ")
		return got == want || strings.ReplaceAll(got, "core-1 silent", "core-1 gone") == want
	})
	if v.Term != term || !slices.Contains(why, v.Reason) || !strings.HasPrefix(got, v.Leader+" leads") {
		w.t.Errorf("term %d of %s began because of %s, want term %d, %v; nodes are %s", v.Term, v.Leader, v.Reason, term, why,
			got)
	}
}

// isAtEdge reports an error if a device is not at the edge.
func (w *clusterWorld) isAtEdge(name string) {
	w.t.Helper()
	req, err := http.NewRequest("GET", "http://"+w.edges[1].http+"/api/v1/devices/"+w.devices.Device(0).ID(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	var device struct{ Edge string }
	if err := json.NewDecoder(resp.Body).Decode(&device); err != nil || device.Edge != name {
		w.t.Errorf("the device is at the edge %q (%v), want %q", device.Edge, err, name)
	}
}

// awaitMetrics waits until the metrics of a process have the texts.
func (w *clusterWorld) awaitMetrics(p *leaseProcess, want ...string) {
	w.t.Helper()
	fleettest.EventuallyWithin(w.t, 30*time.Second, fmt.Sprintf("%s to have the metrics %q", p.name, want), func() bool {
		resp, err := http.Get("http://" + p.admin + "/metrics")
		if err != nil {
			w.t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && !slices.ContainsFunc(want, func(s string) bool { return !strings.Contains(string(text), s) })
	})
}

// A core that is frozen for longer than its lease is replaced. When it runs again, it sends no
// device anything, and ends.
func TestFrozenCoreIsReplaced(t *testing.T) {
	t.Parallel()
	w := newClusterWorld(t)
	load := w.startLoad(w.edges[1])
	fleettest.EventuallyWithin(t, time.Minute, "calls", func() bool { return load.succeeded() >= 20 })
	connects, since := w.connects(), time.Now()
	w.cores[0].signal(syscall.SIGSTOP)
	read := make(chan time.Duration, 1)
	go func() { // reaches the frozen core
		var list struct{ Items []json.RawMessage }
		began := time.Now()
		if status, text := w.ask(w.edges[0], w.token, "GET", "/devices", nil, nil); status != http.StatusOK ||
			json.Unmarshal(text, &list) != nil || len(list.Items) != leaseDevices {
			t.Errorf("a read that reached the frozen core ended with %d: %s", status, text)
		}
		read <- time.Since(began)
	}()
	w.cores[1].awaitReady()
	took := time.Since(since)
	before := load.succeeded()
	fleettest.EventuallyWithin(t, time.Minute, "calls through the second core", func() bool {
		return load.succeeded() >= before+20
	})
	w.cores[0].signal(syscall.SIGCONT)
	said := w.cores[0].awaitEnd(time.Minute)
	if !strings.Contains(said, "took the database over") {
		t.Errorf("the frozen core said %q", said)
	}
	before = load.succeeded()
	fleettest.EventuallyWithin(t, time.Minute, "more calls", func() bool { return load.succeeded() >= before+20 })
	load.end()
	load.check()
	w.quiet(connects, since)
	t.Logf("leads after %v; a read that reached the frozen core took %v", took, <-read)
}

// When the process of an edge dies, its devices are offline within seconds. They come back when an
// edge serves them again. An edge that is frozen keeps its devices.
func TestEdgeIsLost(t *testing.T) {
	t.Parallel()
	w := newClusterWorld(t)
	offline := func() int {
		return w.count(`SELECT count(*) FROM devices WHERE presence = 'offline' AND presence_evidence_params::text LIKE '%edge_lost%'`)
	}
	since := time.Now()
	presence := func(is string) int {
		return w.count(`SELECT count(*) FROM devices WHERE presence = $1`, is)
	}
	w.edges[0].signal(syscall.SIGSTOP)
	fleettest.EventuallyWithin(t, time.Minute, "the presence of all devices to be unknown", func() bool {
		return presence("unknown_edge") == leaseDevices
	})
	silent := time.Since(since)
	var stats struct {
		Devices  int
		Presence map[string]int
	}
	w.rest(w.edges[1], w.token, "GET", "/stats", nil, &stats)
	if stats.Devices != leaseDevices || stats.Presence["unknown_edge"] != leaseDevices {
		t.Errorf("%d devices are in service: %v", stats.Devices, stats.Presence)
	}
	if state := w.call(w.edges[1], 0); state != "offline" ||
		w.count(`SELECT count(*) FROM calls WHERE error_code = 'device_offline' AND error_params->>'case' = 'edge_silent'`) != 1 {
		t.Errorf("a call of a device at a frozen edge ended %s", state)
	}
	w.edges[0].signal(syscall.SIGCONT)
	fleettest.EventuallyWithin(t, time.Minute, "a call after the edge continues", func() bool {
		return w.call(w.edges[1], 0) == "succeeded"
	})
	fleettest.EventuallyWithin(t, time.Minute, "all devices to be online", func() bool {
		return presence("online") == leaseDevices
	})
	w.quiet(leaseDevices, since)

	// So does the next core: it knows which edge was silent.
	w.edges[0].signal(syscall.SIGSTOP)
	fleettest.EventuallyWithin(t, time.Minute, "the presence of all devices to be unknown again", func() bool {
		return presence("unknown_edge") == leaseDevices
	})
	w.cores[0].signal(syscall.SIGKILL)
	w.cores[1].awaitReady()
	time.Sleep(2 * attachTime)
	if n := presence("unknown_edge"); n != leaseDevices {
		t.Errorf("the presence of %d devices is unknown to the next core, want %d", n, leaseDevices)
	}
	w.edges[0].signal(syscall.SIGCONT)
	fleettest.EventuallyWithin(t, time.Minute, "all devices to be online", func() bool {
		return presence("online") == leaseDevices
	})
	w.quiet(leaseDevices, since)

	w.edges[0].signal(syscall.SIGSTOP) // a call stays in flight
	called := make(chan string, 1)
	go func() { called <- w.call(w.edges[1], 0) }()
	fleettest.EventuallyWithin(t, time.Minute, "the call to be in flight", func() bool {
		return w.count(`SELECT count(*) FROM calls WHERE state = 'sent'`) == 1
	})
	killed := time.Now()
	w.edges[0].signal(syscall.SIGKILL)
	if state := <-called; state != "unknown" || w.count(`SELECT count(*) FROM calls WHERE error_code = 'edge_lost'`) != 1 {
		t.Errorf("the call in flight ended %s, want unknown with the code edge_lost", state)
	}
	fleettest.EventuallyWithin(t, time.Minute, "all devices to be offline", func() bool { return offline() == leaseDevices })
	took := time.Since(killed)
	if took > 10*time.Second { // 5 s on a machine that is not busy
		t.Errorf("devices of a dead edge were offline after %v", took)
	}
	w.edges[0].awaitEnd(time.Minute)
	w.edges[0].start()
	fleettest.EventuallyWithin(t, time.Minute, "all devices to be back", func() bool {
		return w.count(`SELECT count(*) FROM devices WHERE presence = 'online'`) == leaseDevices
	})
	t.Logf("unknown after %v of silence, offline %v after the edge's death", silent, took)
}

// An edge without a core answers after it has held the request, and says so. It serves its devices even
// if it cannot relay conversations, because its UDP port is in use.
func TestEdgeWithoutCore(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	if _, err := bus.Init(dir); err != nil {
		t.Fatal(err)
	}
	own, _, err := bus.Issue(dir, bus.Order{Name: "edge-1", Role: bus.Edge})
	if err != nil {
		t.Fatal(err)
	}
	e := newLeaseProcess(t, "edge-1", t.TempDir(), "")
	used, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	e.args = []string{"--role", "edge", "--cluster-dir", own, "--http-addr", e.http, "--mqtt-addr", e.mqtt,
		"--voice-udp-addr", used.LocalAddr().String(), "--cluster-servers", freeAddr(t)}
	e.start()
	fleettest.EventuallyWithin(t, time.Minute, "the edge to say that its port is in use", func() bool {
		return strings.Contains(e.out.String(), "conversations cannot be relayed")
	})
	fleettest.EventuallyWithin(t, time.Minute, "the edge to say why it is not ready", func() bool {
		status, reason := e.readyz()
		return status == http.StatusServiceUnavailable && strings.Contains(reason, "no core has been reached yet")
	})
	resp, err := http.Get("http://" + e.http + "/api/v1/devices")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
	}
	select {
	case no := <-agentAt(t, e.mqtt, "agent", "token", 0).refused:
		if no.ReasonCode != 0x88 {
			t.Errorf("an MCP client is refused with %#x %q", no.ReasonCode, no.Reason)
		}
	case <-time.After(time.Minute):
		t.Error("an MCP client has no answer")
	}
	e.signal(syscall.SIGTERM)
	e.awaitEnd(time.Minute)
	if code := e.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the edge ended with %d", code)
	}
	if _, err := os.Stat(e.dir + "/secret.key"); err == nil {
		t.Error("the edge has made a signing key")
	}
}

func TestClusterSettings(t *testing.T) {
	dir := t.TempDir()
	if _, err := bus.Init(dir); err != nil {
		t.Fatal(err)
	}
	own, _, err := bus.Issue(dir, bus.Order{Name: "edge-1", Role: bus.Edge})
	if err != nil {
		t.Fatal(err)
	}
	core := ClusterConfig{Role: RoleCore, ClusterDir: own}
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"a flag of a cluster alone", Config{ClusterConfig: ClusterConfig{ClusterDir: own}}, "need --role"},
		{"no certificate", Config{ClusterConfig: ClusterConfig{Role: RoleEdge}}, "--cluster-dir"},
		{"no servers", Config{ClusterConfig: ClusterConfig{Role: RoleEdge, ClusterDir: own}}, "--cluster-servers"},
		{"an edge with a database", Config{Database: Database{DatabaseURL: "postgres://x"},
			ClusterConfig: ClusterConfig{Role: RoleEdge, ClusterDir: own, ClusterServers: []string{"h:1"}}}, "--database-url"},
		{"an edge with a voice server", Config{VoiceUpstream: "ws://voice/", ClusterConfig: ClusterConfig{Role: RoleEdge,
			ClusterDir: own, ClusterServers: []string{"h:1"}}}, "--voice-upstream"},
		{"no public address", Config{ClusterConfig: core}, "--public-url"},
		{"no database", Config{ClusterConfig: core, PublicURL: "http://h", MQTTEndpoint: "h:1883"}, "--database-url"},
		{"blobs of one machine", Config{Database: Database{DatabaseURL: "postgres://x"}, ClusterConfig: core,
			PublicURL: "http://h", MQTTEndpoint: "h:1883"}, "--blobs-shared"},
	}
	for _, tt := range tests {
		if err := tt.cfg.check(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", tt.name, err, tt.want)
		}
	}
	cfg := Config{ClusterConfig: core}
	cfg.ClusterListen = "127.0.0.1:0"
	if _, err := openNode(t.Context(), &cfg, newStages(quietLogger()), quietLogger()); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("the %s edge-1", bus.Edge)) {
		t.Errorf("a core with the certificate of an edge: %v", err)
	}
}
