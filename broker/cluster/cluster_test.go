package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"fleetd/broker/cluster"
	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/internal/bus"
	"fleetd/mcp"
)

const deadline = time.Minute

// TestLeaderReplaced replaces the leader: devices stay connected and are adopted, and what they sent
// meanwhile arrives.
func TestLeaderReplaced(t *testing.T) {
	for _, how := range []string{"the core ends", "its connection is cut"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first, e := w.core(1, nil), w.edge("edge", nil, nil)
			w.attached(e, 1)
			var devices []*device
			epochs := make(map[int]int64)
			for n := range 20 {
				devices = append(devices, connect(t, e, n))
				epochs[n] = first.connected(t, n).Epoch
			}
			if err := first.call(devices[0].id, `{}`, deadline); err != nil {
				t.Fatal(err)
			}
			devices[1].mute.Store(true)
			inFlight := make(chan error, 1)
			go func() { inFlight <- first.call(devices[1].id, `{}`, 3*time.Second) }()
			fleettest.Eventually(t, "the call is in flight", func() bool { return devices[1].calls.Load() == 1 })
			if how == "the core ends" {
				first.stop()
			} else {
				first.nc.Close()
			}
			if err := <-inFlight; err == nil || errors.Is(err, mcp.ErrNotSent) || errors.Is(err, fleet.ErrOffline) {
				t.Errorf("the call in flight ended with %v", err)
			}
			for i := range 10 {
				devices[2].notify(fmt.Sprint("meanwhile", i))
			}
			late := make(chan *device, 1)
			go func() { late <- dial(t, e.Addr(), 100) }()
			devices[3].conn.Close()
			fleettest.Eventually(t, "the end of a device", func() bool { return devices[3].hasEnded() })

			second := w.core(2, nil)
			w.attached(e, 2)
			for n := range devices {
				if n != 3 {
					if c := second.connected(t, n); c.Epoch != epochs[n] {
						t.Errorf("device %d has epoch %d, had %d", n, c.Epoch, epochs[n])
					}
				}
			}
			if d := <-late; d == nil {
				t.Error("the device that connected while there was no leader is refused")
			} else {
				second.connected(t, 100)
				if err := second.call(d.id, `{}`, deadline); err != nil {
					t.Error(err)
				}
			}
			devices[1].answer(devices[1].latest.Load()) // late
			devices[1].mute.Store(false)
			for n, d := range devices {
				if n == 3 {
					continue
				}
				if err := second.call(d.id, `{}`, deadline); err != nil {
					t.Errorf("device %d: %v", n, err)
				}
				if d.hasEnded() {
					t.Errorf("device %d was disconnected", n)
				}
			}
			fleettest.Eventually(t, "the messages of the meantime", func() bool { return second.domain.count("notified") == 10 })
			for i, got := range second.domain.matching("notified " + string(devices[2].id) + " ") {
				if got != fmt.Sprint("notifications/meanwhile", i) {
					t.Errorf("message %d is %s", i, got)
				}
			}
			if _, ok := second.Connection(devices[3].id); ok {
				t.Error("the device that left is connected")
			}
			if n := second.domain.count("disconnected"); n > 0 {
				t.Errorf("%d connections ended:\n%s", n, second.domain.all())
			}
			if s := e.Stats(); s.Connects != 21 {
				t.Errorf("%d connections were established, want 21", s.Connects)
			}
		})
	}
}

// TestStaleLeader lets a leader go on after the next one has begun: its messages reach no device.
func TestStaleLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.core(1, func(o *cluster.CoreOptions) { o.PostTimeout = 100 * time.Millisecond })
	e := w.edge("edge", nil, nil)
	w.attached(e, 1)
	d := connect(t, e, 1)
	first.connected(t, 1)
	second := w.core(2, nil)
	w.attached(e, 2)
	second.connected(t, 1)
	for range 5 {
		if err := first.call(d.id, `{"stale":true}`, time.Second); err == nil {
			t.Error("a call of the replaced leader succeeds")
		}
	}
	first.Kick(d.id, fleet.Cause{Text: "stale"})
	fleettest.Eventually(t, "the messages are counted", func() bool { return e.link.Stats().Stale >= 6 })
	if err := second.call(d.id, `{"stale":false}`, deadline); err != nil {
		t.Error(err)
	}
	if n := d.calls.Load(); n != 1 || d.hasEnded() {
		t.Errorf("the device received %d calls, want 1; ended: %v", n, d.hasEnded())
	}
}

// TestSilentEdge cuts an edge from the bus for some seconds. Its connections are unknown meanwhile, not lost.
func TestSilentEdge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, nil)
	e := w.edge("edge", nil, nil)
	w.attached(e, 1)
	d := connect(t, e, 1)
	c.connected(t, 1)
	begin := time.Now()
	w.restartBus(7 * time.Second)
	fleettest.Eventually(t, "the edge is heard again", func() bool { return c.domain.count("heard") == 1 })
	if got := c.domain.count("silent"); got != 1 || c.domain.count("disconnected") > 0 || d.hasEnded() {
		t.Errorf("%d connections were silent; the device has ended: %v; events:\n%s", got, d.hasEnded(), c.domain.all())
	}
	if since := c.domain.silentSince(); since.Before(begin.Add(-2*time.Second)) || since.After(begin.Add(time.Second)) {
		t.Errorf("silent since %v, cut at %v", since, begin)
	}
	if err := c.call(d.id, `{}`, deadline); err != nil {
		t.Error(err)
	}
}

func TestEdgeLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, func(o *cluster.CoreOptions) { o.LostAfter = 8 * time.Second })
	id := w.bus.Identity(t, "edge", bus.Edge)
	e, other := w.edge("edge", id, nil), w.edge("other", nil, nil)
	w.attached(e, 1)
	w.attached(other, 1)
	for n := range 3 {
		connect(t, e, n)
		c.connected(t, n)
	}
	stays := connect(t, other, 10)
	c.connected(t, 10)
	e.kill()
	begin := time.Now()
	fleettest.Eventually(t, "calls fail at once", func() bool {
		at := time.Now()
		err := c.call(deviceID(1), `{}`, 100*time.Millisecond)
		return errors.Is(err, fleet.ErrEdgeSilent) && time.Since(at) < 100*time.Millisecond
	})
	if d := time.Since(begin); d < 4*time.Second || c.domain.count("disconnected") > 0 {
		t.Errorf("calls are refused after %v of silence; events:\n%s", d, c.domain.all())
	}
	fleettest.Eventually(t, "the connections end", func() bool { return c.domain.count("disconnected") == 3 })
	for _, line := range c.domain.matching("disconnected ") {
		if !strings.HasSuffix(line, " at edge: "+fleet.CauseEdgeLost) {
			t.Error(line)
		}
	}
	if err := c.call(stays.id, `{}`, deadline); err != nil {
		t.Error(err)
	}
}

// TestEdgeReturns cuts an edge from the bus until it counts as lost: it attaches again with its
// connections.
func TestEdgeReturns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, func(o *cluster.CoreOptions) { o.LostAfter = time.Second })
	e := w.edge("edge", nil, nil)
	w.attached(e, 1)
	d := connect(t, e, 1)
	epoch := c.connected(t, 1).Epoch
	w.restartBus(3 * time.Second)
	fleettest.Eventually(t, "the connection ends", func() bool { return c.domain.count("disconnected") == 1 })
	if again := c.connected(t, 1); again.Epoch != epoch {
		t.Errorf("epoch %d, was %d", again.Epoch, epoch)
	}
	if err := c.call(d.id, `{}`, deadline); err != nil || d.hasEnded() {
		t.Error(err, d.hasEnded())
	}
}

func TestEdgeRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, nil)
	id := w.bus.Identity(t, "edge", bus.Edge)
	e := w.edge("edge", id, nil)
	w.attached(e, 1)
	connect(t, e, 1)
	connect(t, e, 2)
	c.connected(t, 1)
	before := c.connected(t, 2)
	e.kill()
	e = w.edge("edge", id, nil)
	w.attached(e, 1)
	connect(t, e, 2)
	fleettest.Eventually(t, "the earlier connections end", func() bool { return c.domain.count("disconnected") == 2 })
	fleettest.Eventually(t, "the new connection", func() bool {
		now, ok := c.Connection(before.Device)
		return ok && now.Epoch > before.Epoch
	})
	if err := c.call(deviceID(2), `{}`, deadline); err != nil {
		t.Error(err)
	}
	if err := c.call(deviceID(1), `{}`, deadline); !errors.Is(err, fleet.ErrOffline) {
		t.Error(err)
	}
	if n := c.link.Stats().Twins; n != 0 {
		t.Errorf("%d batches count as those of another process", n)
	}
}

// TestTwins starts two edges with one name: the later one is served, until it ends.
func TestTwins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, nil)
	id := w.bus.Identity(t, "edge", bus.Edge)
	a := w.edge("edge", id, nil)
	w.attached(a, 1)
	connect(t, a, 1)
	c.connected(t, 1)
	b := w.edge("edge", id, nil)
	w.attached(b, 1)
	d := connect(t, b, 2)
	c.connected(t, 2)
	fleettest.Eventually(t, "the earlier edge is notified", func() bool { return a.link.Stats().Twins > 1 })
	if _, known, _ := a.link.Leader(); known {
		t.Error("the edge that is not served knows a leader")
	}
	for _, text := range []string{"two edges use the same name", "another edge uses the name of this one"} {
		w.logged(text)
	}
	if err := c.call(d.id, `{}`, deadline); err != nil || c.domain.count("connected") != 2 {
		t.Errorf("%v; events:\n%s", err, c.domain.all())
	}
	b.kill()
	fleettest.Eventually(t, "the other edge is served", func() bool {
		_, known, _ := a.link.Leader()
		return known && c.call(deviceID(1), `{}`, time.Second) == nil
	})
}

// TestSilentEdgeHoldsNoDevice lets an edge fall silent after it asked to admit a device, whose next
// connection would wait for the end of the first.
func TestSilentEdgeHoldsNoDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, nil)
	e := w.edge("edge", nil, nil)
	w.attached(e, 1)
	id := w.bus.Identity(t, "silent", bus.Edge)
	nc := w.bus.Connect(t, w.ctx, id)
	defer nc.Close()
	down, err := nc.SubscribeSync(id.Cluster.Down("silent"))
	if err != nil {
		t.Fatal(err)
	}
	g := cluster.Forger{Edge: 7, Term: 1}
	for _, b := range [][]byte{g.Hello().Batch(), g.Open(1, deviceID(1), clientID(1), passwordOf(clientID(1))).Batch()} {
		if err := errors.Join(nc.Publish(id.Cluster.Up(1, "silent"), b), nc.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	for admitted := false; !admitted; { // later, it would be the newer connection
		m, err := down.NextMsg(deadline)
		if err != nil {
			t.Fatal("the device is not admitted:", err)
		}
		admitted = bytes.Contains(m.Data, []byte(deviceID(1)))
	}
	d := connect(t, e, 1)
	if got := c.connected(t, 1); got.Node != "edge" {
		t.Errorf("the device is at %s", got.Node)
	}
	if err := c.call(d.id, `{}`, deadline); err != nil || c.domain.count("disconnected") > 0 {
		t.Errorf("%v; events:\n%s", err, c.domain.all())
	}
}

// TestLeaderReplacedBetween replaces the leader after it admitted a connection, and before the edge
// has established it.
func TestLeaderReplacedBetween(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, e := w.core(1, nil), w.edge("edge", nil, nil)
	w.attached(e, 1)
	said := dialect.Connect{ClientID: clientID(1), Username: "user", Version: 4}
	d, id := dialect.OverMQTT(said)
	conn, err := e.link.Open(link.Connect{Device: id, ClientID: clientID(1), Username: "user", Transport: link.MQTT,
		Password: []byte(passwordOf(clientID(1))), Said: said, Dialect: d}, still{})
	if err != nil {
		t.Fatal(err)
	}
	first.stop()
	second := w.core(2, nil)
	w.attached(e, 2)
	conn.Establish()
	conn.Established()
	if got := second.connected(t, 1); got.Epoch != conn.Facts().Epoch {
		t.Errorf("epoch %d, want %d", got.Epoch, conn.Facts().Epoch)
	}
	conn.Closed(true, fleet.Cause{})
	fleettest.Eventually(t, "the end", func() bool { return second.domain.count("disconnected") == 1 })
	if n := second.domain.count("connected"); n != 1 {
		t.Errorf("connected %d times", n)
	}
	if n := second.link.Stats().Garbage; n != 0 {
		t.Errorf("%d frames were not understood", n)
	}
}

func TestLongPassword(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, e := w.core(1, nil), w.edge("edge", nil, nil)
	w.attached(e, 1)
	said := dialect.Connect{ClientID: clientID(1), Version: 4}
	d, id := dialect.OverMQTT(said)
	if _, err := e.link.Open(link.Connect{Device: id, ClientID: clientID(1), Transport: link.MQTT,
		Password: make([]byte, 2<<20), Said: said, Dialect: d}, still{}); !errors.Is(err, link.RefusedCredentials) {
		t.Error(err)
	}
	connect(t, e, 2)
	c.connected(t, 2)
}

// TestDeviceMoves connects a device to two edges, one after the other.
func TestDeviceMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, nil)
	a, b := w.edge("a", nil, nil), w.edge("b", nil, nil)
	w.attached(a, 1)
	w.attached(b, 1)
	old := connect(t, a, 1)
	c.connected(t, 1)
	d := connect(t, b, 1)
	<-old.ended
	fleettest.Eventually(t, "the end of the first connection", func() bool { return c.domain.count("disconnected") == 1 })
	if got := c.connected(t, 1); got.Node != "b" {
		t.Errorf("the device is at %s", got.Node)
	}
	if got := c.domain.matching("disconnected "); got[0] != string(d.id)+" at a: "+fleet.CauseTakenOver {
		t.Error(got)
	}
	if err := c.call(d.id, `{}`, deadline); err != nil || d.calls.Load() != 1 {
		t.Error(err)
	}
}

// restartBus stops the NATS server, and starts it again on the same port.
func (w *world) restartBus(down time.Duration) {
	w.t.Helper()
	addr := w.bus.Server.Addr()
	w.bus.Server.Close()
	time.Sleep(down)
	var err error
	w.bus.Server, err = bus.StartServer(w.ctx, bus.ServerOptions{Identity: w.bus.Core, Listen: addr, Log: w.log})
	if err != nil {
		w.t.Fatal(err)
	}
}

// A message that the core has given up while the bus was away does not reach its device later.
func TestGivenUpMessageIsNotDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, func(o *cluster.CoreOptions) { o.PostTimeout = 300 * time.Millisecond })
	e := w.edge("edge", nil, nil)
	w.attached(e, 1)
	d := connect(t, e, 1)
	c.connected(t, 1)
	sent := int64(0) // or may have been
	call := func() error {
		err := c.call(d.id, `{}`, deadline)
		if !errors.Is(err, fleet.ErrOffline) {
			sent++
		}
		return err
	}
	fleettest.Eventually(t, "a call", func() bool { return call() == nil })
	overdue := func() int64 { return e.link.Stats().Overdue }
	// Of the first call, only the acknowledgement may be lost. On a busy machine the core may know that
	// the edge is silent before it makes a second one, so one restart may not be enough.
	fleettest.Eventually(t, "a message is late", func() bool {
		down := make(chan struct{})
		go func() { defer close(down); w.restartBus(2 * time.Second) }()
		for away := true; away; time.Sleep(10 * time.Millisecond) {
			_ = call()
			select {
			case <-down:
				away = false
			default:
			}
		}
		fleettest.Eventually(t, "calls again", func() bool { return call() == nil })
		return overdue() > 0
	})
	if n := d.calls.Load(); n != sent-overdue() {
		t.Errorf("the device received %d of %d calls, and %d were late", n, sent, overdue())
	}
}

// Cores of the version before and of this one follow each other: the edge keeps its devices, and calls
// reach them in both formats.
func TestOlderLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.core(1, func(o *cluster.CoreOptions) { o.Leader.Link = 1 })
	e := w.edge("edge", nil, nil)
	w.attached(e, 1)
	d := connect(t, e, 1)
	old.connected(t, 1)
	if err := old.call(d.id, `{}`, deadline); err != nil {
		t.Errorf("a call by the older core: %v", err)
	}
	if old.link.Drain("edge", true) {
		t.Error("the older core asks an edge to drain")
	}
	old.stop()
	next := w.core(2, nil)
	w.attached(e, 2)
	next.connected(t, 1)
	if err := next.call(d.id, `{}`, deadline); err != nil {
		t.Errorf("a call by the newer core: %v", err)
	}
	if n := d.calls.Load(); n != 2 {
		t.Errorf("the device executed %d calls", n)
	}
}

// TestBusRestarts stops the NATS server while devices send and are called: nothing is lost or doubled.
func TestBusRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, func(o *cluster.CoreOptions) { o.PostTimeout = deadline })
	e := w.edge("edge", nil, nil)
	w.attached(e, 1)
	const devices, messages = 4, 300
	var wg sync.WaitGroup
	var all []*device
	for n := range devices {
		d := connect(t, e, n)
		c.connected(t, n)
		all = append(all, d)
		wg.Go(func() {
			for i := range messages {
				d.notify(fmt.Sprint(i))
				time.Sleep(10 * time.Millisecond)
			}
		})
		wg.Go(func() {
			for i := range messages / 3 {
				if err := c.call(d.id, fmt.Sprintf(`{"n":%d}`, i), deadline); err != nil {
					t.Errorf("call %d: %v", i, err)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	w.restartBus(2 * time.Second)
	wg.Wait()
	fleettest.Eventually(t, "all messages", func() bool { return c.domain.count("notified") >= devices*messages })
	for _, d := range all {
		got := c.domain.matching("notified " + string(d.id) + " notifications/")
		for i, text := range got {
			if text != fmt.Sprint(i) {
				t.Fatalf("message %d of %d is %s", i, len(got), text)
			}
		}
		d.mu.Lock()
		for arguments, n := range d.asked {
			if n != 1 {
				t.Errorf("call %s was received %d times", arguments, n)
			}
		}
		if len(d.asked) != messages/3 || d.hasEnded() {
			t.Errorf("%d calls; ended: %v", len(d.asked), d.hasEnded())
		}
		d.mu.Unlock()
	}
	if n := c.domain.count("disconnected"); n > 0 {
		t.Errorf("%d connections ended", n)
	}
}

// TestHostileEdge sends a core what no edge sends.
func TestHostileEdge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.core(1, nil)
	good := w.edge("good", nil, nil)
	w.attached(good, 1)
	d := connect(t, good, 1)
	c.connected(t, 1)
	id := w.bus.Identity(t, "evil", bus.Edge)
	nc := w.bus.Connect(t, w.ctx, id)
	defer nc.Close()
	send := func(b []byte) {
		t.Helper()
		if err := errors.Join(nc.Publish(id.Cluster.Up(1, "evil"), b), nc.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	counted := func(what string, b []byte) {
		t.Helper()
		before := c.link.Stats().Garbage
		send(b)
		fleettest.Eventually(t, what+" is counted", func() bool { return c.link.Stats().Garbage > before })
	}
	g := cluster.Forger{Edge: 7, Term: 1}
	old := g.Hello().Batch()
	old[cluster.Version] = 99
	counted("another version", old)
	w.logged("it has format 99, but this fleetd understands 1")
	counted("garbage", []byte("garbage"))
	counted("an empty batch", nil)
	g.Number = 0
	counted("no introduction", g.Established(1).Batch())
	g.Number = 0
	send(g.Hello().Batch())
	password := passwordOf(clientID(50))
	counted("an established connection without admission", g.Open(1, deviceID(50), clientID(50), "wrong").Established(1).
		Raw(200, 1, nil).Open(8, deviceID(50), clientID(50), password).Raw(201, 8, nil).Batch())
	send(g.Established(1).Receive(1, "x", "y").Established(77).Receive(77, "x", "y").Batch()) // nothing is there
	send(g.Open(2, deviceID(51), clientID(51), passwordOf(clientID(51))).Batch())
	counted("a number that is in use", g.Open(2, deviceID(52), clientID(52), passwordOf(clientID(52))).Batch())
	fleettest.Eventually(t, "device 51 is admitted", func() bool {
		send(g.Established(2).Established(2).Batch())
		_, ok := c.Connection(deviceID(51))
		return ok
	})
	facts := fleet.Connection{Device: deviceID(1), ClientID: clientID(1), Epoch: time.Now().UnixMicro(), At: time.Now()}
	counted("another device than the dialect names", g.Present(3, deviceID(53), clientID(53), facts, "evil").Batch())
	other := facts
	other.Device, other.ClientID = deviceID(53), clientID(53)
	counted("a connection that another edge had", g.Present(7, deviceID(53), clientID(53), other, "good").Batch())
	facts.Epoch = 1 << 62
	counted("an epoch of the future", g.Present(4, deviceID(1), clientID(1), facts, "evil").Batch())
	counted("2 MB of JSON", g.Raw(2, 5, []byte(`{"client_id":"`+strings.Repeat("a", 2<<20)+`"}`)).Batch())
	counted("deep JSON", g.Raw(2, 6, []byte(strings.Repeat("[", 60000))).Batch())
	counted("a result without a number", g.Raw(10, 2, nil).Batch())
	g.Term = 9
	counted("another term", g.Hello().Batch())
	for _, n := range []int{50, 52, 53} {
		if _, ok := c.Connection(deviceID(n)); ok {
			t.Errorf("device %d was admitted", n)
		}
	}
	if n := c.domain.count("connected " + string(deviceID(51))); n != 1 {
		t.Errorf("device 51 was connected %d times", n)
	}
	if got, _ := c.Connection(d.id); got.Node != "good" || d.hasEnded() {
		t.Errorf("the device of the other edge is at %q; ended: %v", got.Node, d.hasEnded())
	}
	if err := c.call(d.id, `{}`, deadline); err != nil || c.link.Stats().Panics > 0 {
		t.Error(err, c.link.Stats())
	}
}

// TestHostileCore sends an edge what no core sends.
func TestHostileCore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, e := w.core(1, nil), w.edge("edge", nil, nil)
	w.attached(e, 1)
	d := connect(t, e, 1)
	c.connected(t, 1)
	nc := w.bus.Connect(t, w.ctx, w.bus.Core)
	defer nc.Close()
	old := (&cluster.Forger{Edge: 1, Term: 1}).Hello().Batch()
	old[cluster.Version] = 99
	for _, b := range [][]byte{old, nil, []byte("garbage")} {
		before := e.link.Stats().Garbage
		_ = nc.PublishMsg(&nats.Msg{Subject: w.bus.Core.Cluster.Down("edge"), Data: b})
		_ = nc.Flush()
		fleettest.Eventually(t, "garbage is counted", func() bool { return e.link.Stats().Garbage > before })
	}
	for _, b := range []string{"", "{", `{"term":-1}`, `{"term":"x"}`} {
		before := e.link.Stats().Garbage
		_ = nc.Publish(w.bus.Core.Cluster.Term(), []byte(b))
		fleettest.Eventually(t, "a beat is counted", func() bool { return e.link.Stats().Garbage > before })
	}
	if err := c.call(d.id, `{}`, deadline); err != nil || d.hasEnded() {
		t.Error(err)
	}
	w.logged("it has format 99, but this fleetd understands 1")
}
