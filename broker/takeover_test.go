package broker

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/mcp"
)

// A device whose old socket is stuck gets its CONNACK at once: mochi alone
// would wait for the writer that holds the old client's lock.
func TestReconnectWhileStuck(t *testing.T) {
	for _, clientID := range []string{testClientID(1), strings.Replace(testClientID(1), "uuid-1", "other", 1)} {
		t.Run(clientID, func(t *testing.T) {
			b, dom := start(t, func(o *options) { o.WriteTimeout, o.WriteBuffer = deadline, 4<<10 })
			stuck := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
			c := b.registry.connection(stuck.id)
			stick(t, c)

			begin := time.Now()
			d := connectRaw(t, b, connectPacket{clientID: clientID})
			if waited := time.Since(begin); waited > deadline/2 { // the writer gives up after a whole one
				t.Errorf("CONNACK after %v", waited)
			}
			d.serve(nil)
			if _, err := makeCall(b, d.id, "x", `{}`, deadline, nil); err != nil {
				t.Error(err)
			}
			want := fmt.Sprintf("disconnected %s clean=false: %s", d.id, fleet.CauseTakenOver)
			fleettest.Eventually(t, want, func() bool { return dom.count(want) == 1 })
			if b.registry.connection(d.id) == nil {
				t.Error("the old connection's end took the new one's place")
			}
		})
	}
}

// stick fills the connection until a write blocks.
func stick(t *testing.T, c *connection) {
	t.Helper()
	fleettest.Eventually(t, "the socket is full", func() bool {
		message := make([]byte, 256<<10)
		return errors.Is(c.carrier.Post(append(c.carrier.Begin(c.dialect.Address(message), len(message)), message...)),
			mcp.ErrNotSent)
	})
}

// A device that accepts no bytes is disconnected.
func TestStuckDeviceIsDisconnected(t *testing.T) {
	b, dom := start(t, func(o *options) { o.WriteTimeout, o.WriteBuffer = 50*time.Millisecond, 4<<10 })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	c := b.registry.connection(d.id)
	for range 16 {
		_ = c.deliver(make([]byte, 512<<10))
	}
	want := fmt.Sprintf("disconnected %s clean=false: %s", d.id, fleet.CauseNotTaken)
	fleettest.Eventually(t, want, func() bool { return dom.count(want) == 1 })
}

func TestOutboxIsBounded(t *testing.T) {
	b, _ := start(t, func(o *options) {
		o.WriteTimeout, o.RequestTimeout, o.WriteBuffer = deadline, 10*time.Millisecond, 4<<10
	})
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	stick(t, b.registry.connection(d.id))
	if _, err := makeCall(b, d.id, "x", `{}`, deadline, nil); err == nil || !strings.Contains(err.Error(),
		"the device does not read") {
		t.Errorf("error %v", err)
	}
	if b.Stats().OutboxFull == 0 {
		t.Error("not counted")
	}
}

// Of connections that arrive together one remains, reachable, and the others are closed: mochi
// alone leaves several open, and registers only one of them.
func TestDuplicateIDs(t *testing.T) {
	b, dom := start(t, nil)
	const rounds, parallel = 50, 8
	for round := range rounds {
		devices := make([]*rawDevice, parallel)
		var wg sync.WaitGroup
		for i := range devices {
			devices[i] = dialRaw(t, b.Addr())
			wg.Go(func() { devices[i].connect(connectPacket{clientID: testClientID(1)}) })
		}
		wg.Wait()
		fleettest.Eventually(t, "one connection remains, and is the device's", func() bool {
			return b.registry.connection(testID(1)) != nil && b.Stats().Sockets == 1
		})
		ended := make([]<-chan struct{}, parallel)
		for i, d := range devices {
			ended[i] = d.serve(nil)
		}
		fleettest.Eventually(t, "the others are closed", func() bool {
			open := 0
			for _, done := range ended {
				select {
				case <-done:
				default:
					open++
				}
			}
			if open == 0 {
				t.Fatalf("round %d: no connection is open", round)
			}
			return open == 1
		})
		fleettest.Eventually(t, "a call is answered", func() bool { // the core may still know the one before
			_, err := makeCall(b, testID(1), "x", `{}`, deadline, nil)
			return err == nil
		})
		for _, d := range devices {
			d.conn.Close()
		}
		fleettest.Eventually(t, "none remains", func() bool { return b.Stats().Sockets == 0 })
	}
	fleettest.Eventually(t, "all ends are reported", func() bool {
		in, out := dom.count("connected"), dom.count("disconnected")
		return in == out && in >= rounds && b.Stats().Connections == 0
	})
}

func TestEpochsGrow(t *testing.T) {
	b, _ := start(t, nil)
	now := time.Now()
	last := int64(0)
	for range 1000 {
		next := b.nextEpoch(now)
		if next <= last {
			t.Fatalf("epoch %d after %d", next, last)
		}
		last = next
	}
}

func TestForgottenDevices(t *testing.T) {
	b, _ := start(t, func(o *options) { o.ForgetAfter = 10 * time.Millisecond })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	d.serve(nil)
	entries := func() (n int) {
		for i := range b.registry.shards {
			s := &b.registry.shards[i]
			s.mu.RLock()
			n += len(s.devices)
			s.mu.RUnlock()
		}
		return n
	}
	if b.registry.forget(time.Now().Add(time.Hour)); entries() != 1 {
		t.Error("a connected device was forgotten")
	}
	d.conn.Close()
	fleettest.Eventually(t, "the entry is dropped", func() bool { return entries() == 0 })
}

func TestNewEntryStartsAtRandomIDs(t *testing.T) {
	seen := make(map[int32]bool)
	for range 100 {
		seen[newDevice(fleet.DeviceID("x")).ids.Next()] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d different first ids of 100", len(seen))
	}
}
