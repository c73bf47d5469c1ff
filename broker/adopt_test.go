package broker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A farCarrier is a connection at an edge elsewhere.
type farCarrier struct {
	cause    chan fleet.Cause
	posted   chan string   // messages of the MCP session
	finished chan struct{} // has an element once it is to end in order
}

func newFarCarrier() *farCarrier {
	return &farCarrier{make(chan fleet.Cause, 1), make(chan string, 16), make(chan struct{}, 4)}
}

func (*farCarrier) Begin(dialect.Address, int) []byte { return nil }
func (f *farCarrier) Post(m []byte) error             { f.posted <- string(m); return nil }
func (*farCarrier) Notify([]byte) error               { return nil }
func (f *farCarrier) Finish()                         { f.finished <- struct{}{} }
func (f *farCarrier) Stop(cause fleet.Cause)          { f.cause <- cause }

func (f *farCarrier) stopped() bool { return len(f.cause) > 0 }

func connectOf(n int) link.Connect {
	clientID := testClientID(n)
	d, id := dialect.OverMQTT(dialect.Connect{ClientID: clientID})
	return link.Connect{Device: id, ClientID: clientID, Password: []byte(passwordOf(clientID)), Transport: link.MQTT,
		Node: "far", Dialect: d}
}

// A connection that this process admitted owns the device, whatever epochs an earlier process with a
// clock ahead of this one assigned, and in whatever order edges announce the connections. Of those of
// earlier processes the greatest epoch does.
func TestConnectionOfThisProcessOwnsTheDevice(t *testing.T) {
	ahead := time.Now().Add(10 * time.Minute).UnixMicro()
	for n, order := range []string{"open adopt", "adopt open", "opening adopt establish", "open end adopt"} {
		t.Run(order, func(t *testing.T) {
			b, dom := start(t, func(o *options) { o.LatestEpoch = ahead - 100 })
			mine, theirs, q := newFarCarrier(), newFarCarrier(), connectOf(n)
			adopt := func() link.Connection {
				return b.Adopt(connectOf(n), fleet.Connection{Device: q.Device, ClientID: q.ClientID, Epoch: ahead, At: time.Now()},
					theirs)
			}
			open := func() link.Connection {
				c, err := b.Open(q, mine)
				if err != nil {
					t.Fatal(err)
				}
				c.Establish()
				return c
			}
			var old, own link.Connection
			switch order {
			case "adopt open":
				old, own = adopt(), open()
				own.Established()
			case "opening adopt establish":
				own, old = open(), adopt()
				own.Established()
			default:
				own = open()
				own.Established()
				if order == "open end adopt" {
					own.Closed(false, fleet.Cause{})
				}
				old = adopt()
			}
			old.Closed(false, fleet.Cause{})
			if !theirs.stopped() || mine.stopped() {
				t.Errorf("stopped the old one: %v, the new one: %v", theirs.stopped(), mine.stopped())
			}
			if c, ok := b.Connection(q.Device); order != "open end adopt" && (!ok || c.Epoch != own.Facts().Epoch) {
				t.Errorf("the device's connection is %+v, %v", c, ok)
			} else if order == "open end adopt" && ok {
				t.Errorf("an old connection is the device's: %+v", c)
			}
			if c := own.Facts(); c.Epoch < ahead-100 {
				t.Errorf("epoch %d is not after the latest one on record", c.Epoch)
			}
			if order != "adopt open" && dom.count("adopted") != 0 {
				t.Error("the domain was notified of a connection that was not adopted")
			}
		})
	}
}

// A device whose core died before it had introduced the device is introduced by the next one, with the
// address for its pictures; others are not asked again. A conversation without a voice server ends.
func TestAdoptedDeviceIsIntroduced(t *testing.T) {
	tools := dialect.Greeting{MCP: true}
	for n, tt := range []struct {
		name             string
		transport        string
		shown            link.Shown
		hello            bool // it sends hello to the new core
		introduced, ends bool
	}{
		{"MQTT, unanswered", link.MQTT, link.Shown{Unanswered: true}, false, true, false},
		{"MQTT, answered", link.MQTT, link.Shown{}, false, false, false},
		{"hello", link.WebSocket, link.Shown{Unanswered: true, Greeted: true, Greeting: tools}, false, true, true},
		{"hello, answered", link.WebSocket, link.Shown{Greeted: true, Greeting: tools}, false, false, true},
		{"hello without tools", link.WebSocket, link.Shown{Unanswered: true, Greeted: true}, false, false, true},
		{"in conversation", link.WebSocket, link.Shown{Unanswered: true, Greeted: true, Greeting: tools, Talking: true}, false,
			true, false},
		{"no hello", link.WebSocket, link.Shown{Unanswered: true}, false, false, false},
		{"hello to the new core", link.WebSocket, link.Shown{Unanswered: true}, true, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, _ := start(t, func(o *options) { o.ChannelTimeout = 100 * time.Millisecond })
			q, far := connectOf(n), newFarCarrier()
			if q.Transport = tt.transport; tt.transport == link.WebSocket {
				q.Dialect = dialect.XiaozhiWebSocket()
			}
			q.Shown = tt.shown
			c := b.Adopt(q, fleet.Connection{Device: q.Device, ClientID: q.ClientID, Epoch: 1, At: time.Now()}, far)
			defer c.Closed(false, fleet.Cause{})
			says := func(message string) {
				m := link.Message{Payload: []byte(message)}
				m.Decoded, m.Err = q.Dialect.Decode("", m.Payload, nil)
				c.Receive(m)
			}
			if tt.hello {
				says(fmt.Sprintf(socketBoardHello, 1))
			}
			if tt.introduced {
				select {
				case m := <-far.posted:
					if !strings.Contains(m, `"initialize"`) || !strings.Contains(m, "http://192.0.2.1/vision/explain") {
						t.Errorf("the device is sent %s", m)
					}
					var request struct{ Payload struct{ ID int } }
					if err := json.Unmarshal([]byte(m), &request); err != nil {
						t.Fatal(err)
					}
					says(fmt.Sprintf(`{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","id":%d,"result":`+
						`{"protocolVersion":"2024-11-05","capabilities":{},"serverInfo":{"name":"u","version":"1"}}}}`,
						request.Payload.ID))
				case <-time.After(deadline):
					t.Fatal("the device is not introduced")
				}
			}
			if tt.ends {
				select {
				case <-far.finished:
				case <-time.After(deadline):
					t.Error("the conversation does not end")
				}
			} else {
				time.Sleep(300 * time.Millisecond) // longer than a conversation without a voice server
			}
			for len(far.posted) > 0 {
				if m := <-far.posted; !strings.Contains(m, "notifications/initialized") {
					t.Errorf("the device is also sent %s", m)
				}
			}
			if len(far.finished) > 0 || far.stopped() {
				t.Errorf("ended %d more times, stopped %v", len(far.finished), far.stopped())
			}
		})
	}
}

func TestNewestOfAdoptedConnections(t *testing.T) {
	for _, newestFirst := range []bool{false, true} {
		b, _ := start(t, nil)
		carriers := []*farCarrier{newFarCarrier(), newFarCarrier()}
		for i := range 2 {
			epoch := i
			if newestFirst {
				epoch = 1 - i
			}
			q := connectOf(1)
			b.Adopt(q, fleet.Connection{Device: q.Device, ClientID: q.ClientID, Epoch: int64(epoch + 1)}, carriers[epoch])
		}
		if !carriers[0].stopped() || carriers[1].stopped() {
			t.Errorf("newest first %v: stopped the older %v, the newer %v", newestFirst, carriers[0].stopped(),
				carriers[1].stopped())
		}
	}
}

// An answer to a call of an earlier process reaches the domain. Of other answers without a call few
// do.
func TestAnswerToEarlierProcess(t *testing.T) {
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	d.serve(nil)
	d.reply(earlierCall, textResult("true"))
	want := fmt.Sprintf("answered late %s %d: true", d.id, earlierCall)
	fleettest.Eventually(t, want, func() bool { return dom.count(want) == 1 && b.Stats().Late == 1 })
	for range 2 * maxSent {
		d.reply(earlierCall+1, textResult("true"))
	}
	fleettest.Eventually(t, "the others", func() bool { return b.Stats().Unmatched == 2*maxSent })
	if n := dom.count("answered late"); n != maxSent {
		t.Errorf("the domain was asked for %d answers", n)
	}
}
