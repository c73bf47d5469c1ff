package broker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fleet"
)

// TestPing pings while the device works on a call, over each of two connections,
// and while the device is silent.
func TestPing(t *testing.T) {
	b, _ := start(t, nil)
	if _, err := b.Ping(t.Context(), testID(1)); !errors.Is(err, fleet.ErrOffline) {
		t.Errorf("unknown device: %v", err)
	}
	if _, ok := b.Epoch(testID(1)); ok {
		t.Error("an unknown device has an epoch")
	}
	var silent atomic.Bool
	pinged := make(chan struct{})
	markPinged := sync.OnceFunc(func() { close(pinged) })
	connect := func() (*rawDevice, int64) {
		d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
		d.serve(func(r rpc) string {
			switch {
			case r.Method == "tools/call":
				return "silence"
			case silent.Load():
				markPinged()
				return "silence"
			}
			return "" // as stock firmware: no such method
		})
		epoch, ok := b.Epoch(d.id)
		if !ok {
			t.Fatal("a connected device has no epoch")
		}
		return d, epoch
	}
	d, first := connect()
	turn, err := b.Queue(d.id, fleet.KindOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Done()
	written := make(chan struct{})
	onWritten := func() { close(written) }
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan error, 1)
	go func() {
		_, err := turn.Send(ctx, fleet.Invocation{Tool: "self.upgrade_firmware", OnWritten: onWritten}, nil)
		sent <- err
	}()
	select {
	case <-written:
	case <-time.After(deadline):
		t.Fatal("the call was not written")
	}
	if epoch, err := b.Ping(t.Context(), d.id); err != nil || epoch != first {
		t.Errorf("beside a call: epoch %d, %v; want %d", epoch, err, first)
	}
	cancel()
	<-sent

	_, second := connect()
	if epoch, err := b.Ping(t.Context(), d.id); err != nil || epoch != second || second <= first {
		t.Errorf("after a reconnect: epoch %d, %v; want %d, above %d", epoch, err, second, first)
	}
	silent.Store(true)
	if epoch, err := b.Ping(timeUp{t.Context(), pinged}, d.id); !errors.Is(err, fleet.ErrNoAnswer) || epoch != second {
		t.Errorf("silent: epoch %d, %v", epoch, err)
	}
}

func TestUnsentCallIsNotWritten(t *testing.T) {
	b, _ := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	turn, err := b.Queue(d.id, fleet.KindOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Done()
	written := make(chan struct{})
	onWritten := func() { close(written) }
	d.conn.Close()
	<-turn.Lost()
	if _, err := turn.Send(t.Context(), fleet.Invocation{Tool: "x", OnWritten: onWritten}, nil); !errors.Is(err, fleet.ErrOffline) {
		t.Errorf("%v, want offline", err)
	}
	select {
	case <-written:
		t.Error("what was not sent counts as written")
	default:
	}
}
