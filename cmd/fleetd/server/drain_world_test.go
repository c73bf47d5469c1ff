package server

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
	"fleetd/fleet/lease"
)

// newDrainWorld is a cluster behind a balancer: devices reach the first edge that is ready.
func newDrainWorld(t *testing.T) *clusterWorld {
	t.Helper()
	w := prepareCluster(t, nil, "--enrolment", "open")
	endpoint := w.balance()
	for _, c := range w.cores {
		c.args[slices.Index(c.args, "--mqtt-endpoint")+1] = endpoint
	}
	w.start()
	return w
}

// balance passes MQTT connections to the first edge that is ready.
func (w *clusterWorld) balance() (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			device, err := ln.Accept()
			if err != nil {
				return
			}
			go w.pass(device)
		}
	}()
	return ln.Addr().String()
}

func (w *clusterWorld) pass(device net.Conn) {
	defer device.Close()
	for _, e := range w.edges {
		if status, _ := e.readyz(); status != http.StatusOK {
			continue
		}
		if edge, err := net.Dial("tcp", e.mqtt); err == nil {
			go func() { _, _ = io.Copy(edge, device); edge.Close() }()
			_, _ = io.Copy(device, edge)
			return
		}
	}
}

// A drainState is the drain of a node, as GET /cluster has it.
type drainState struct {
	Since            time.Time
	Moved, Remaining int
}

// drainOf returns the drain of a node; nil if it is not being drained, or no core leads.
func (w *clusterWorld) drainOf(node string) *drainState {
	req, _ := http.NewRequest("GET", "http://"+w.edges[1].http+"/api/v1/cluster", nil)
	req.Header.Set("Authorization", "Bearer "+w.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var v struct {
		Nodes []struct {
			Name  string
			Drain *drainState
		}
	}
	_ = json.NewDecoder(resp.Body).Decode(&v)
	for _, n := range v.Nodes {
		if n.Name == node {
			return n.Drain
		}
	}
	return nil
}

// drain runs fleetd cluster drain through the second edge.
func (w *clusterWorld) drain(args ...string) (string, error) {
	cmd := exec.Command(os.Args[0], append([]string{"cluster", "drain", "--url", "http://" + w.edges[1].http}, args...)...)
	cmd.Env = append(os.Environ(), beFleetd+"=1", "FLEETD_TOKEN="+w.token)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// An edge is drained: its devices move to the other one, each is offline only while it connects again,
// requests go on through it, and no call has an unknown outcome. Then it is stopped, and a restarted edge
// is not being drained.
func TestEdgeIsDrained(t *testing.T) {
	t.Parallel()
	w := newDrainWorld(t)
	w.populate(w.edges[0])
	if out, err := w.drain("edge-9"); err == nil || !strings.Contains(out, "unknown_node") {
		t.Errorf("an unknown node: %v, %s", err, out)
	}
	if out, err := w.drain("core-2"); err == nil || !strings.Contains(out, "drain_standby") {
		t.Errorf("a core that stands by: %v, %s", err, out)
	}
	load := w.startLoad(w.edges[0])
	fleettest.EventuallyWithin(t, time.Minute, "calls", func() bool { return load.succeeded() >= 20 })
	flags := w.cores[0].args
	agent := agentAt(t, flags[slices.Index(flags, "--mqtt-endpoint")+1], "agent-1", w.token, 0).online()
	if out, err := w.drain("edge-1", "--no-wait"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if status, reason := w.edges[0].readyz(); status != http.StatusServiceUnavailable ||
		!strings.Contains(reason, "draining since") {
		t.Errorf("readyz of an edge that is being drained: %d %q", status, reason)
	}
	w.awaitNodes("core-1 leads, core-2 stands_by, edge-1 draining 0, edge-2 attached 30", 1, lease.First)
	if d := w.drainOf("edge-1"); d == nil || d.Moved != leaseDevices || d.Remaining != 0 {
		t.Errorf("the drain is %+v", d)
	}
	if n := w.count(`SELECT count(DISTINCT device_id) FROM presence_changes WHERE evidence_params::text LIKE '%edge_drained%'`); n !=
		leaseDevices {
		t.Errorf("%d devices have the cause edge_drained on record", n)
	}
	select {
	case code := <-agent.ended:
		if code != 0x9D {
			t.Errorf("the MCP client's connection ended with %#x", code)
		}
		agent.online()
	case <-time.After(time.Minute):
		t.Error("the MCP client was not asked to move")
	}
	before := load.succeeded()
	fleettest.EventuallyWithin(t, time.Minute, "calls through the drained edge", func() bool {
		return load.succeeded() >= before+20
	})
	load.end()
	if n := w.count(`SELECT count(*) FROM calls WHERE state = 'unknown'`); n != 0 {
		t.Errorf("%d calls ended unknown", n)
	}
	if out, err := w.drain("edge-2"); err == nil || !strings.Contains(out, "drain_last_edge") {
		t.Errorf("the last edge: %v, %s", err, out)
	}

	if out, err := w.drain("edge-1", "--cancel"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.edges[0].awaitReady()
	if out, err := w.drain("edge-2"); err != nil { // waits until the devices have left
		t.Fatalf("%v: %s", err, out)
	}
	w.awaitNodes("core-1 leads, core-2 stands_by, edge-1 attached 30, edge-2 draining 0", 1, lease.First)

	// A stop drains as well.
	w.edges[1].signal(syscall.SIGTERM)
	w.edges[1].awaitEnd(time.Minute)
	w.edges[1].start()
	w.edges[1].awaitReady()
	if d := w.drainOf("edge-2"); d != nil {
		t.Errorf("a restarted edge is being drained: %+v", d)
	}
	w.edges[0].signal(syscall.SIGTERM)
	w.edges[0].awaitEnd(time.Minute)
	w.awaitNodes("core-1 leads, core-2 stands_by, edge-2 attached 30", 1, lease.First)
	if n := w.count(`SELECT count(*) FROM presence_changes WHERE evidence_params::text LIKE '%fleetd_stopping%'`); n != 0 {
		t.Errorf("%d devices were disconnected by the stop of an edge", n)
	}
}

// A drain continues when the leader dies, and the next leader can cancel it.
func TestLeaderDiesDuringDrain(t *testing.T) {
	t.Parallel()
	w := newDrainWorld(t)
	w.populate(w.edges[0])
	if out, err := w.drain("edge-1", "--no-wait"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := w.drainOf("edge-1")
	w.cores[0].signal(syscall.SIGKILL)
	w.cores[1].awaitReady()
	w.awaitNodes("core-2 leads, core-1 gone, edge-1 draining 0, edge-2 attached 30", 2, lease.Gone, lease.Silent)
	if after := w.drainOf("edge-1"); before == nil || after == nil || !after.Since.Equal(before.Since) ||
		after.Moved != leaseDevices {
		t.Errorf("the drain was %+v, and is %+v under the next leader", before, after)
	}
	if out, err := w.drain("edge-1", "--cancel"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.edges[0].awaitReady()
}

// A core that leads hands over to the one that stands by, and then stands by in turn: devices notice nothing.
func TestCoreIsDrained(t *testing.T) {
	t.Parallel()
	w := newClusterWorld(t)
	load := w.startLoad(w.edges[1])
	fleettest.EventuallyWithin(t, time.Minute, "calls", func() bool { return load.succeeded() >= 20 })
	connects, since := w.connects(), time.Now()
	if out, err := w.drain("core-1"); err != nil { // waits until the other one leads
		t.Fatalf("%v: %s", err, out)
	}
	took := time.Since(since)
	w.cores[1].awaitReady()
	before := load.succeeded()
	fleettest.EventuallyWithin(t, time.Minute, "calls through the second core", func() bool {
		return load.succeeded() >= before+20
	})
	w.awaitNodes("core-2 leads, core-1 stands_by, edge-1 attached 30, edge-2 attached 0", 2, lease.Released)
	if out, err := w.drain("core-2"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.cores[0].awaitReady()
	w.awaitNodes("core-1 leads, core-2 stands_by, edge-1 attached 30, edge-2 attached 0", 3, lease.Released)
	load.end()
	load.check()
	w.quiet(connects, since)
	t.Logf("the command took %v", took)
}

// 1,000 devices are asked to move at 500 a second.
func TestDrainRate(t *testing.T) {
	t.Parallel()
	w := newDrainWorld(t)
	const devices = 1000
	w.connect(w.edges[0], devices)
	if out, err := w.drain("edge-1", "--no-wait"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var took time.Duration
	fleettest.EventuallyWithin(t, time.Minute, "all devices to have moved", func() bool {
		d := w.drainOf("edge-1")
		if d == nil {
			return false
		}
		took = time.Since(d.Since.Add(drainNotice))
		if most := 500*max(0, took.Seconds()) + 20; float64(d.Moved) > most {
			t.Errorf("%d devices have moved after %v, more than 500 a second", d.Moved, took)
		}
		return d.Remaining == 0
	})
	t.Logf("%d devices were asked to move in %v", devices, took)
	fleettest.EventuallyWithin(t, 2*time.Minute, "all devices to be online through the other edge", func() bool {
		return w.count(`SELECT count(*) FROM devices WHERE presence = 'online'`) == devices
	})
}
