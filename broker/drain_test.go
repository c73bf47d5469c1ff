package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/gorilla/websocket"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// startDrainable runs a broker whose devices are sent nothing when they connect.
func startDrainable(t *testing.T, change func(*options)) (*system, *domain) {
	return start(t, func(o *options) {
		o.VisionURL, o.DrainNotice, o.DrainLimit = nil, time.Millisecond, deadline
		if change != nil {
			change(o)
		}
	})
}

func drained(d *domain) int { return strings.Count(d.happened(), ": edge_drained ") }

// An edge that is being drained asks its devices to move, and accepts no others until the drain is
// cancelled.
func TestDrain(t *testing.T) {
	b, dom := startDrainable(t, nil)
	v4 := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	v5 := connectRaw(t, b, connectPacket{clientID: testClientID(2), version: 5})
	url := socketServer(t, b)
	ws := dialSocket(t, url, 3, 1, fmt.Sprintf(socketBoardHello, 1))
	fleettest.Eventually(t, "all are connected", func() bool { return dom.count("connected") == 3 })
	if _, ok := b.edge.Draining(); ok {
		t.Error("it drains from the start")
	}
	b.edge.Drain()
	if kinds := lastPackets(v4); kinds != "" {
		t.Errorf("MQTT 3.1.1: packets %x, want none", kinds)
	}
	kind, body, err := v5.read()
	if err != nil || kind != 0xe0 || len(body) == 0 || body[0] != 0x9d {
		t.Errorf("MQTT 5: packet %x %x, %v; want DISCONNECT 0x9d (server moved)", kind, body, err)
	}
	fleettest.Eventually(t, "the WebSocket ends", func() bool {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		return ws.ended != nil
	})
	if !websocket.IsCloseError(ws.ended, websocket.CloseServiceRestart) {
		t.Errorf("the WebSocket ended with %v", ws.ended)
	}
	fleettest.Eventually(t, "their cause is the drain", func() bool { return drained(dom) == 3 })
	if d, ok := b.edge.Draining(); !ok || d.Moved != 3 || d.Remaining != 0 || d.Since.IsZero() {
		t.Errorf("progress %+v, %v", d, ok)
	}

	if code := dialRaw(t, b.Addr()).connect(connectPacket{clientID: testClientID(1)}); code != 3 {
		t.Errorf("MQTT 3.1.1: CONNACK code %d, want 3 (server unavailable)", code)
	}
	if code := dialRaw(t, b.Addr()).connect(connectPacket{clientID: testClientID(2), version: 5}); code != 0x9c {
		t.Errorf("MQTT 5: CONNACK code %#x, want 0x9c (use another server)", code)
	}
	_, header := socketHeader(3, 1)
	_, resp, err := websocket.DefaultDialer.Dial(url, header)
	if err == nil || resp == nil || resp.StatusCode != http.StatusServiceUnavailable ||
		resp.Header.Get("Retry-After") == "" {
		t.Errorf("WebSocket: %v, %v", resp, err)
	}
	b.edge.Drain() // changes nothing
	b.edge.CancelDrain()
	if _, ok := b.edge.Draining(); ok {
		t.Error("it drains after it was cancelled")
	}
	connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	b.edge.CancelDrain() // changes nothing
}

// The devices are asked to move at a steady rate, 500 a second, and a cancelled drain leaves the others
// where they are.
func TestDrainRate(t *testing.T) {
	const devices = 400
	b, dom := startDrainable(t, nil)
	for i := range devices {
		connectRaw(t, b, connectPacket{clientID: testClientID(i)})
	}
	began := time.Now()
	b.edge.Drain()
	fleettest.Eventually(t, "half of them have moved", func() bool {
		d, _ := b.edge.Draining()
		return d.Moved >= devices/2
	})
	b.edge.CancelDrain()
	took := time.Since(began)
	moved := 0
	fleettest.Eventually(t, "their connections end", func() bool {
		moved = drained(dom)
		return moved >= devices/2
	})
	if rate := float64(moved-10) / took.Seconds(); rate > 550 {
		t.Errorf("%d devices moved in %v", moved, took)
	}
	time.Sleep(200 * time.Millisecond)
	if n := drained(dom); n == devices || n > moved+10 {
		t.Errorf("%d devices moved after the drain was cancelled, %d before", n, moved)
	}
}

// A device in a conversation moves when it has ended, or when the limit has passed; one that runs a call
// moves when it has answered.
func TestDrainWaitsForBusyDevices(t *testing.T) {
	b, dom := startDrainable(t, func(o *options) { o.Voice = new(relay) })
	talking := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	running := connectRaw(t, b, connectPacket{clientID: testClientID(2)})
	talking.publish(boardHello)
	fleettest.Eventually(t, "the conversation begins", func() bool { return b.Stats().Hellos == 1 })
	called := make(chan error, 1)
	go func() { _, err := makeCall(b, running.id, "x", `{}`, deadline, nil); called <- err }()
	request, err := running.request()
	if err != nil {
		t.Fatal(err)
	}
	b.edge.Drain()
	time.Sleep(200 * time.Millisecond)
	if d, _ := b.edge.Draining(); d.Moved != 0 || d.Remaining != 2 {
		t.Errorf("busy devices moved: %+v", d)
	}
	running.reply(request.ID, textResult("done"))
	if err := <-called; err != nil {
		t.Errorf("the call under way failed: %v", err)
	}
	gone := func(d *rawDevice) {
		t.Helper()
		want := fmt.Sprintf("disconnected %s clean=false: edge_drained", d.id)
		fleettest.Eventually(t, want, func() bool { return dom.count(want) == 1 })
	}
	gone(running)
	// The edge counts a move after the disconnection is reported.
	fleettest.Eventually(t, "the move is counted", func() bool {
		d, _ := b.edge.Draining()
		return d.Moved > 0
	})
	if d, _ := b.edge.Draining(); d.Moved != 1 {
		t.Errorf("the device in a conversation moved: %+v", d)
	}
	talking.publish(`{"type":"goodbye","session_id":"ours"}`)
	gone(talking)
}

// No answer is lost, also of a call that begins at the moment at which its device is asked to move.
func TestDrainLosesNoAnswer(t *testing.T) {
	const devices = 60 // more than are asked at once
	b, dom := startDrainable(t, nil)
	var all sync.WaitGroup
	for i := range devices {
		d := connectRaw(t, b, connectPacket{clientID: testClientID(i)})
		all.Go(func() {
			for {
				r, err := d.request()
				if err != nil {
					return
				}
				d.reply(r.ID, textResult("done"))
			}
		})
		all.Go(func() {
			for {
				turn, err := b.Queue(d.id, fleet.KindOperator)
				if err != nil {
					return // it has moved
				}
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				_, err = turn.Send(ctx, fleet.Invocation{Tool: "x", Arguments: json.RawMessage(`{}`)}, nil)
				cancel()
				turn.Done()
				if errors.Is(err, fleet.ErrOffline) {
					return
				} else if err != nil {
					t.Errorf("%s: %v", d.id, err)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	b.edge.Drain()
	fleettest.Eventually(t, "all have moved", func() bool { return drained(dom) == devices })
	all.Wait()
}

func TestDrainLimit(t *testing.T) {
	b, dom := startDrainable(t, func(o *options) { o.Voice, o.DrainLimit = new(relay), 300*time.Millisecond })
	connectRaw(t, b, connectPacket{clientID: testClientID(1)}).publish(boardHello)
	fleettest.Eventually(t, "the conversation begins", func() bool { return b.Stats().Hellos == 1 })
	began := time.Now()
	b.edge.Drain()
	fleettest.Eventually(t, "it ends after the limit", func() bool { return drained(dom) == 1 })
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("it moved after %v", took)
	}
}

// All messages that were posted to a device are written before its connection ends; later ones are
// refused as not sent.
func TestDrainWritesWhatWasPosted(t *testing.T) {
	b, dom := startDrainable(t, func(o *options) { o.WriteBuffer, o.DrainLimit = 4<<10, time.Millisecond })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1), version: 5})
	c := b.registry.connection(d.id)
	message := []byte(strings.Repeat("x", 200<<10))
	const posts = 8
	for range posts {
		if err := c.carrier.Post(append(c.carrier.Begin(c.dialect.Address(message), len(message)), message...)); err != nil {
			t.Fatal(err)
		}
	}
	b.edge.Drain()
	fleettest.Eventually(t, "it is asked to move", func() bool {
		d, _ := b.edge.Draining()
		return d.Moved == 1
	})
	kinds := lastPackets(d)
	if strings.Count(kinds, "0") != posts || !strings.HasSuffix(kinds, "\xe0") {
		t.Errorf("packets %x, want %d messages and a DISCONNECT", kinds, posts)
	}
	fleettest.Eventually(t, "the end", func() bool { return drained(dom) == 1 })
}

// A foreign MQTT 5 client understands that it has to move, and connects again, here to the same edge
// when that accepts it.
func TestForeignClientMoves(t *testing.T) {
	b, dom := startDrainable(t, nil)
	startPaho(t, b, testClientID(1), func(*autopaho.ConnectionManager, []byte) {})
	fleettest.Eventually(t, "it is connected", func() bool { return dom.count("connected") == 1 })
	b.edge.Drain()
	fleettest.Eventually(t, "it moves", func() bool { return drained(dom) == 1 })
	fleettest.Eventually(t, "it tries again", func() bool { return b.Stats().Refused["edge_drained"] > 0 })
	b.edge.CancelDrain()
	fleettest.Eventually(t, "it is back", func() bool { return dom.count("connected") == 2 })
}
