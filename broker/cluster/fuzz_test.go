package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/internal/bus"
)

func FuzzBatch(f *testing.F) {
	frames := appendFrame(appendFrame(nil, frameReceive, 300, []byte("body")), frameSeen, 1, nil)
	h := header{version: latestVersion, edge: 1 << 63, term: 2, number: 3, round: 1, got: 4, size: len(frames)}
	f.Add(append(appendHeader(nil, h), frames...))
	h.version = oldestVersion
	f.Add(append(appendHeader(nil, h), frames...))
	f.Add([]byte{latestVersion, 0xff, 1, 1, 1, 1, 1, 1, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, frames, err := parseHeader(b)
		if err != nil {
			return
		}
		if again, rest, err := parseHeader(append(appendHeader(nil, h), frames...)); err != nil || again != h ||
			!bytes.Equal(rest, frames) {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
		broken := checkFrames(frames)
		for len(frames) > 0 {
			var one frame
			if one, frames, err = nextFrame(frames); err != nil {
				if broken == nil {
					t.Fatal("checkFrames accepts a broken frame")
				}
				return
			}
			if again, rest, err := nextFrame(appendFrame(nil, one.kind, one.conn, one.body)); err != nil || len(rest) > 0 ||
				again.kind != one.kind || again.conn != one.conn || !bytes.Equal(again.body, one.body) {
				t.Fatalf("%+v became %+v, %v", one, again, err)
			}
		}
		if broken != nil {
			t.Fatal("checkFrames refuses complete frames")
		}
	})
}

func FuzzMessage(f *testing.F) {
	f.Add(append(appendMessage(nil, "topic", []dialect.Property{{Key: "k", Value: "v"}}), "payload"...))
	f.Add([]byte{0, 0xff, 0xff, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		topic, properties, payload, err := parseMessage(b)
		if err != nil {
			return
		}
		topic2, properties2, payload2, err := parseMessage(append(appendMessage(nil, topic, properties), payload...))
		if err != nil || topic2 != topic || !reflect.DeepEqual(properties2, properties) || !bytes.Equal(payload2, payload) {
			t.Fatalf("%q %v %q became %q %v %q, %v", topic, properties, payload, topic2, properties2, payload2, err)
		}
	})
}

func FuzzOpen(f *testing.F) {
	open := openFrame{Device: "d", ClientID: "c", Username: "u", Password: []byte("p"), Certificate: []byte("x"),
		Transport: link.WebSocket, RemoteAddr: "r", LocalHost: "l", State: []byte("s"),
		Said: dialect.Connect{Version: 5, Properties: []dialect.Property{{Key: "k", Value: "v"}, {}},
			Will: dialect.Will{Topic: "t", Retain: true}},
		Facts: &fleet.Connection{Device: "e", ClientID: "f", At: time.Unix(0, 1).UTC(), Epoch: 7}, Ticket: []byte("t")}
	var again openFrame
	if err := again.parse(open.append(nil)); err != nil || !reflect.DeepEqual(again, open) {
		f.Fatalf("%+v became %+v, %v", open, again, err)
	}
	f.Add(open.append(nil))
	f.Add([]byte{200, 1, 0, tagDevice, 1, 'a'})
	f.Fuzz(func(t *testing.T, b []byte) {
		var one, two openFrame
		if one.parse(b) != nil {
			return
		}
		if err := two.parse(one.append(nil)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one.append(nil), two.append(nil)) {
			t.Fatalf("%+v became %+v", one, two)
		}
	})
}

// A refuser is a core that admits nothing, and counts what it was asked.
type refuser struct{ t *testing.T }

func (r refuser) Open(q link.Connect, _ link.Carrier) (link.Connection, error) {
	if q.Dialect == nil || q.Device == "" {
		r.t.Errorf("asked to admit %+v", q)
	}
	return nil, link.RefusedCredentials
}

func (r refuser) Adopt(q link.Connect, facts fleet.Connection, c link.Carrier) link.Connection {
	if q.Device != facts.Device || facts.Epoch <= 0 {
		r.t.Errorf("asked to adopt %+v with %+v", q, facts)
	}
	return quiet{facts}
}

// A quiet connection ignores its events.
type quiet struct{ facts fleet.Connection }

func (c quiet) Facts() fleet.Connection         { return c.facts }
func (quiet) Establish()                        {}
func (quiet) Established()                      {}
func (quiet) Seen()                             {}
func (quiet) Receive(link.Message)              {}
func (quiet) Converse(link.Event)               {}
func (quiet) Closed(bool, fleet.Cause)          {}
func (quiet) Begin(dialect.Address, int) []byte { return nil }
func (quiet) Post([]byte) error                 { return nil }
func (quiet) Notify([]byte) error               { return nil }
func (quiet) Finish()                           {}
func (quiet) Stop(fleet.Cause)                  {}

// closedConn returns a connection to no server: publishing fails.
func closedConn(tb testing.TB) *nats.Conn {
	nc, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1),
		nats.ReconnectWait(time.Hour))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// FuzzCore sends batches of one stream with arbitrary frames to a core.
func FuzzCore(f *testing.F) {
	const client = "GID_default@@@02_00_00_00_00_01@@@u"
	open := openOf("020000000001", client, "password", nil, nil)
	facts := fleet.Connection{Device: "020000000001", ClientID: client, Epoch: 1}
	present := openOf(facts.Device, client, "", &facts, nil) // the ticket would have to be guessed
	seed := appendFrame(nil, frameOpen, 1, open)
	for k := range frameAccepted {
		seed = appendFrame(seed, k, 1, []byte{1, 0})
	}
	f.Add(seed)
	f.Add(appendFrame(appendFrame(nil, framePresent, 1, present), frameOpen, 1, open))
	f.Add(appendFrame(nil, framePresent, 1, bytes.Repeat([]byte("["), 100)))
	nc := closedConn(f)
	f.Fuzz(func(t *testing.T, frames []byte) {
		c := NewCore(CoreOptions{Bus: nc, Cluster: bus.Cluster("c"), Leader: Leader{Term: 1}, Core: refuser{t}})
		ctx, cancel := context.WithCancel(t.Context())
		c.life = ctx
		defer c.running.Wait()
		defer cancel()
		c.receive("e", frames) // garbage as a batch
		if len(c.peers) > 0 && (frames[0] < oldestVersion || frames[0] > latestVersion) {
			t.Fatal("garbage introduces an edge")
		}
		all := append(appendFrame(nil, frameHello, 0, []byte("{}")), frames...)
		h := header{version: latestVersion, edge: 7, term: 1, number: 1, round: 1, size: len(all)}
		p := c.newPeer("e", latestVersion, 7, helloFrame{})
		_ = p.stream.handle(h, all)
		_ = json.NewEncoder(&bytes.Buffer{}).Encode(c.Stats())
		p.lose()
		if n := p.len(); n != 0 {
			t.Fatalf("%d connections remain", n)
		}
	})
}

// FuzzEdge sends batches of the leader with arbitrary frames to an edge.
func FuzzEdge(f *testing.F) {
	var seed []byte
	for k := frameAdmitted; k <= frameStop; k++ {
		seed = appendFrame(seed, k, 1, []byte("{}"))
	}
	f.Add(seed)
	f.Add(appendFrame(nil, framePost, 1, appendMessage([]byte{5}, "t", nil)))
	nc := closedConn(f)
	f.Fuzz(func(t *testing.T, frames []byte) {
		e := NewEdge(EdgeOptions{Bus: nc, Cluster: bus.Cluster("c"), Name: "e"})
		ctx, cancel := context.WithCancel(t.Context())
		e.life = ctx
		defer e.running.Wait()
		defer func() { e.mu.Lock(); defer e.mu.Unlock(); cancel() }()
		e.follow(Leader{Term: 1})
		c := &edgeConnection{edge: e, carrier: quiet{}, number: 1, decided: make(chan struct{})}
		e.connections[1] = c
		e.receive(frames)
		e.receive(append(appendHeader(nil, header{version: latestVersion, edge: e.stream.edge, term: 1, number: 1, round: 1,
			size: len(frames)}),
			frames...))
		_ = e.Stats()
	})
}

// The next leader hears what a device has shown on its connection.
func TestShown(t *testing.T) {
	e := NewEdge(EdgeOptions{Bus: closedConn(t), Cluster: bus.Cluster("c"), Name: "e"})
	c := &edgeConnection{edge: e, carrier: quiet{}, number: 1, answered: true, shown: link.Shown{Unanswered: true},
		connect: link.Connect{Device: "020000000001", Transport: link.WebSocket, Dialect: dialect.XiaozhiWebSocket()},
		facts:   fleet.Connection{Device: "020000000001", Epoch: 1}}
	says := func(kind dialect.Kind, payload string) func() {
		return func() {
			c.Receive(link.Message{Decoded: dialect.Message{Kind: kind, Payload: []byte(payload),
				Greeting: dialect.Greeting{MCP: true}}})
		}
	}
	tools := dialect.Greeting{MCP: true}
	for _, step := range []struct {
		name string
		does func()
		want link.Shown
	}{
		{"a connection", func() {}, link.Shown{Unanswered: true}},
		{"a notification", says(dialect.RPC, `{"jsonrpc":"2.0","method":"x"}`), link.Shown{Unanswered: true}},
		{"a hello", says(dialect.Hello, "{}"), link.Shown{Unanswered: true, Greeted: true, Greeting: tools}},
		{"an answer", says(dialect.RPC, `{"jsonrpc":"2.0","id":1,"result":{}}`), link.Shown{Greeted: true, Greeting: tools}},
		{"a conversation", func() { c.Converse(link.Event{Kind: link.Greeted}) }, link.Shown{Greeted: true, Talking: true}},
		{"its end", func() { c.Converse(link.Event{Kind: link.Ended}) }, link.Shown{Greeted: true}},
	} {
		step.does()
		f := openFrameOf(c.connect, &c.facts)
		f.Shown = c.shown
		var heard openFrame
		if err := heard.parse(f.append(nil)); err != nil || heard.Shown != step.want {
			t.Errorf("after %s: %+v, %v; want %+v", step.name, heard.Shown, err, step.want)
		}
		if q, err := heard.connect("e"); err != nil || q.Shown != step.want {
			t.Errorf("after %s, to the core: %+v, %v", step.name, q.Shown, err)
		}
	}
}
