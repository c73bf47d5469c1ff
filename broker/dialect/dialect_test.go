package dialect_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/broker/dialect"
	"fleetd/fleet"
	"fleetd/mcp"
)

const device = fleet.DeviceID("0200000000ab")

func TestOverMQTT(t *testing.T) {
	tests := []struct {
		clientID string
		want     fleet.DeviceID
		uuid     string
	}{
		{"GID_default@@@02_00_00_00_00_ab@@@b1f9", "02:00:00:00:00:ab", "b1f9"},
		{"GID_a.b-c_d@@@02_00_00_00_00_ab@@@" + strings.Repeat("u", 64), "02:00:00:00:00:ab", strings.Repeat("u", 64)},
		{"GID_default@@@02_00_00_00_00_ab@@@" + strings.Repeat("u", 65), "", strings.Repeat("u", 65)},
		{"GID_default@@@02_00_00_00_00_ab@@@", "", ""},
		{"GID_default@@@02_00_00_00_00_ab", "", "02_00_00_00_00_ab"},
		{"GID_@@@02_00_00_00_00_ab@@@u", "", "u"},
		{"GID_default@@@02_00_00_00_00_AB@@@u", "", "u"},
		{"GID_default@@@no/mac@@@u", "", "u"},
		{"GID_default@@@02_00_00_00_00_ab@@@u\n", "", "u\n"},
		{"02:00:00:00:00:ab", "", ""},
		{"inline", "", ""},
		{"", "", ""},
	}
	for _, tt := range tests {
		want, _ := fleet.ParseDeviceID(string(tt.want))
		d, id := dialect.OverMQTT(dialect.Connect{ClientID: tt.clientID, Version: 4})
		if id != want || (d == nil) != (want == "") {
			t.Errorf("%q: device %q of dialect %v, want %q", tt.clientID, id, d, want)
		}
		if uuid := dialect.UUIDOf(tt.clientID); uuid != tt.uuid {
			t.Errorf("%q: UUID %q, want %q", tt.clientID, uuid, tt.uuid)
		}
	}
}

func TestTopics(t *testing.T) {
	mqtt, socket := dialect.XiaozhiMQTT(device), dialect.XiaozhiWebSocket()
	const up, down = "fleet/0200000000ab/up", "devices/p2p/0200000000ab"
	tests := []struct {
		topic              string
		publish, subscribe bool
	}{
		{up, true, false},
		{down, false, true},
		{"fleet/0200000000ac/up", false, false},
		{"devices/p2p/0200000000ac", false, false},
		{up + "/", false, false},
		{"/" + up, false, false},
		{"fleet/+/up", false, false},
		{"devices/p2p/+", false, false},
		{"devices/#", false, false},
		{"$share/g/" + down, false, false},
		{"$SYS/broker", false, false},
		{"#", false, false},
		{"", false, false},
	}
	for _, tt := range tests {
		if p, s := mqtt.MayPublish(tt.topic), mqtt.MaySubscribe(tt.topic); p != tt.publish || s != tt.subscribe {
			t.Errorf("%q: may publish %v, subscribe %v, want %v, %v", tt.topic, p, s, tt.publish, tt.subscribe)
		}
		if socket.MayPublish(tt.topic) || socket.MaySubscribe(tt.topic) {
			t.Errorf("%q: allowed over a WebSocket, which has no topics", tt.topic)
		}
	}
	if got := mqtt.Address([]byte(`{}`)); got.Topic != down || got.Properties != nil {
		t.Errorf("messages to the device go to %+v", got)
	}
}

func TestOpening(t *testing.T) {
	if d := cmp.Diff(dialect.Opening{AtOnce: true}, dialect.XiaozhiMQTT(device).Opening()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(dialect.Opening{}, dialect.XiaozhiWebSocket().Opening()); d != "" {
		t.Error(d)
	}
}

func TestDecode(t *testing.T) {
	tests := []struct {
		text string
		want dialect.Message // without Payload
		part string          // Payload; "" means the whole text
	}{
		{`{"session_id":"s","type":"mcp","payload":{"id":1}}`, dialect.Message{Kind: dialect.RPC}, `{"id":1}`},
		{`{"type":"mcp","payload":7}`, dialect.Message{Kind: dialect.RPC}, `7`},
		{`{"type":"mcp"}`, dialect.Message{}, "none"},
		{`{"type":"hello"}`, dialect.Message{Kind: dialect.Hello}, ""},
		{`{"type":"hello","version":3,"features":{"mcp":true}}`, greeting(true, 3), ""},
		{`{"type":"hello","version":"2","features":{"mcp":false}}`, greeting(false, 2), ""},
		{`{"type":"hello","version":0}`, greeting(false, 1), ""},
		{`{"type":"hello","version":4.5,"features":{"mcp":true}}`, greeting(true, 1), ""},
		{`{"type":"hello","version":[],"features":{"mcp":true}}`, greeting(true, 0), ""},
		{`{"type":"hello","version":2,"features":1}`, greeting(false, 2), ""},
		{`{"type":"goodbye","session_id":"s"}`, dialect.Message{Kind: dialect.Goodbye, Type: "goodbye", Session: "s"}, ""},
		{`{"type":"listen","session_id":""}`, dialect.Message{Kind: dialect.Text, Type: "listen"}, ""},
		{`{"payload":{}}`, dialect.Message{Kind: dialect.Text}, ""},
		{`{"type":8}`, dialect.Message{Kind: dialect.Text}, ""},
	}
	for _, d := range []dialect.Dialect{dialect.XiaozhiMQTT(device), dialect.XiaozhiWebSocket()} {
		for _, tt := range tests {
			got, err := d.Decode("", []byte(tt.text), nil)
			part := string(got.Payload)
			got.Payload = nil
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%s: %v %s", tt.text, err, diff)
			}
			if want := map[string]string{"": tt.text, "none": ""}; part != tt.part && part != want[tt.part] {
				t.Errorf("%s: payload %s", tt.text, part)
			}
		}
		for _, text := range []string{"", "x", "[]", `{"type":"mcp"`, `{"type":"mcp","payload":{"error":"a "b""}}`} {
			if _, err := d.Decode("", []byte(text), nil); !errors.Is(err, mcp.ErrMalformed) {
				t.Errorf("%q: %v", text, err)
			}
		}
		if _, err := d.Decode("", bytes.Repeat([]byte(" "), 1<<20), nil); !errors.Is(err, mcp.ErrTooLarge) {
			t.Errorf("1 MiB: %v", err)
		}
	}
}

func greeting(mcp bool, audioVersion int) dialect.Message {
	return dialect.Message{Kind: dialect.Hello, Greeting: dialect.Greeting{MCP: mcp, AudioVersion: audioVersion}}
}

// A wrapped message decodes to the same message, for every scope.
func TestWrapRoundTrip(t *testing.T) {
	const msg = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"self.a","arguments":{}}}`
	for _, d := range []dialect.Dialect{dialect.XiaozhiMQTT(device), dialect.XiaozhiWebSocket()} {
		for scope, want := range map[mcp.Scope]string{
			mcp.ScopeNone:     `head{"type":"mcp","payload":` + msg + `}`,
			mcp.ScopeOperator: `head{"type":"mcp","scope":"operator","payload":` + msg + `}`,
		} {
			wire := d.Wrap([]byte("head"), []byte(msg), scope)
			if string(wire) != want {
				t.Errorf("scope %q: %s, want %s", scope, wire, want)
			}
			m, err := d.Decode("", wire[len("head"):], nil)
			if err != nil || m.Kind != dialect.RPC || string(m.Payload) != msg {
				t.Errorf("scope %q: read again as %+v, %v", scope, m, err)
			}
		}
	}
}

func TestCall(t *testing.T) {
	inv := fleet.Invocation{Tool: "self.a", Arguments: json.RawMessage(`{"volume":1}`)}
	for _, d := range []dialect.Dialect{dialect.XiaozhiMQTT(device), dialect.XiaozhiWebSocket()} {
		for forOperator, scope := range map[bool]mcp.Scope{false: mcp.ScopeNone, true: mcp.ScopeOperator} {
			inv.ForOperator = forOperator
			p, err := d.Call(inv)
			want := mcp.CallToolParams{Name: "self.a", Arguments: inv.Arguments, Scope: scope}
			if diff := cmp.Diff(want, p); diff != "" || err != nil {
				t.Errorf("%v %s", err, diff)
			}
		}
	}
}

// Which conversations are kept, and which habit a connection's end shows.
func TestHabits(t *testing.T) {
	const timeout = 10 * time.Minute
	withTools := dialect.Greeting{MCP: true}
	left := dialect.Ending{Connected: time.Second, Greeted: true, Goodbye: true, ByDevice: true}
	stayed := dialect.Ending{Connected: time.Minute, Greeted: true, Goodbye: true,
		SinceGoodbye: time.Minute, ByDevice: true}
	tests := []struct {
		name         string
		greeting     dialect.Greeting
		history      dialect.History
		mqtt, socket time.Duration // how long the conversation is kept
		ending       dialect.Ending
		habit        dialect.Habit // over MQTT
	}{
		{"a program leaves", withTools, dialect.History{Software: true}, timeout, timeout, left, dialect.HabitLeaves},
		{"it is known to leave", withTools, dialect.History{Habit: dialect.HabitLeaves}, timeout, time.Minute, left,
			dialect.HabitLeaves},
		{"it is known to stay", withTools, dialect.History{Habit: dialect.HabitStays, Software: true}, 0, timeout, stayed,
			dialect.HabitStays},
		{"a board", withTools, dialect.History{}, 0, time.Minute, stayed, dialect.HabitStays},
		{"an idle program", withTools, dialect.History{Connected: 6 * time.Second, Software: true}, 0, timeout, left,
			dialect.HabitUnknown},
		{"nothing to keep it for", dialect.Greeting{}, dialect.History{Software: true}, 0, 0, left, dialect.HabitUnknown},
		{"hello again, amid the conversation", withTools, dialect.History{Greeted: true, Kept: true, Connected: time.Minute},
			timeout, time.Minute, stayed, dialect.HabitStays},
		{"hello again, after a conversation", withTools, dialect.History{Greeted: true, Software: true}, 0, timeout, stayed,
			dialect.HabitStays},
		{"lost amid the conversation", withTools, dialect.History{}, 0, time.Minute,
			dialect.Ending{Connected: time.Minute, Greeted: true}, dialect.HabitUnknown},
		{"ended by fleetd", withTools, dialect.History{}, 0, time.Minute,
			dialect.Ending{Connected: time.Second, Greeted: true, Goodbye: true}, dialect.HabitUnknown},
	}
	for _, tt := range tests {
		tt.history.Timeout = timeout
		for _, c := range []struct {
			dialect dialect.Dialect
			keep    time.Duration
			habit   dialect.Habit
		}{
			{dialect.XiaozhiMQTT(device), tt.mqtt, tt.habit},
			{dialect.XiaozhiWebSocket(), tt.socket, dialect.HabitUnknown},
		} {
			if got := c.dialect.Keep(tt.greeting, tt.history); got != c.keep {
				t.Errorf("%s: kept for %v, want %v", tt.name, got, c.keep)
			}
			if got := c.dialect.Closed(tt.ending); got != c.habit {
				t.Errorf("%s: habit %v, want %v", tt.name, got, c.habit)
			}
		}
	}
	for connected, want := range map[time.Duration]dialect.Habit{
		29 * time.Second: dialect.HabitUnknown, 30 * time.Second: dialect.HabitStays,
	} {
		if got := dialect.XiaozhiMQTT(device).Closed(dialect.Ending{Connected: connected, ByDevice: true}); got != want {
			t.Errorf("%v without hello: habit %v, want %v", connected, got, want)
		}
	}
}

func TestAnswer(t *testing.T) {
	type hello struct {
		Type, Transport string
		Version         int
		SessionID       string         `json:"session_id"`
		AudioParams     map[string]any `json:"audio_params"`
		UDP             *struct {
			Server, Encryption, Key, Nonce string
			Port                           int
		}
	}
	read := func(d dialect.Dialect) hello {
		session, text := d.Answer("192.0.2.1", 9)
		var h hello
		if err := json.Unmarshal(text, &h); err != nil {
			t.Fatal(err)
		}
		if h.Type != "hello" || h.SessionID != session || len(session) != len("s-")+16 || h.AudioParams["format"] != "opus" {
			t.Errorf("session %s, hello %s", session, text)
		}
		return h
	}
	d := dialect.XiaozhiMQTT(device)
	h, again := read(d), read(d)
	if h.Transport != "udp" || h.Version != 3 || h.UDP == nil || h.UDP.Server != "192.0.2.1" || h.UDP.Port != 9 ||
		len(h.UDP.Key) != 32 || !strings.HasPrefix(h.UDP.Nonce, "01000000") || !strings.HasSuffix(h.UDP.Nonce, "0000000000000000") {
		t.Errorf("%+v %+v", h, h.UDP)
	}
	if h.SessionID == again.SessionID || h.UDP.Key == again.UDP.Key || h.UDP.Nonce == again.UDP.Nonce {
		t.Error("two conversations share a session, key or nonce")
	}
	if h := read(dialect.XiaozhiWebSocket()); h.Transport != "websocket" || h.UDP != nil || h.Version != 0 {
		t.Errorf("%+v", h)
	}
}

func TestGoodbye(t *testing.T) {
	tests := []struct {
		name    string
		dialect dialect.Dialect
		session string
		message string
		closes  bool
	}{
		{"MQTT", dialect.XiaozhiMQTT(device), "s-1", `{"type":"goodbye","session_id":"s-1"}`, false},
		{"MQTT, without an answer", dialect.XiaozhiMQTT(device), "", "", false},
		{"WebSocket", dialect.XiaozhiWebSocket(), "s-1", "", true},
		{"WebSocket, without an answer", dialect.XiaozhiWebSocket(), "", "", true},
	}
	for _, tt := range tests {
		message, closes := tt.dialect.Goodbye(tt.session)
		if string(message) != tt.message || closes != tt.closes {
			t.Errorf("%s: %s, closes %v", tt.name, message, closes)
		}
	}
}

// Decode accepts any input, and does not modify it.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{"", `{`, `{"type":"mcp","payload":{"id":1}}`, `{"type":"hello","version":3,"features":{"mcp":true}}`,
		`{"type":"goodbye","session_id":"s"}`, `{"type":"mcp","payload":{"error":"a "b""}}`, "{\"type\":\"\xff\"}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		for _, d := range []dialect.Dialect{dialect.XiaozhiMQTT(device), dialect.XiaozhiWebSocket()} {
			m, err := d.Decode("fleet/0200000000ab/up", text, nil)
			switch {
			case err != nil:
				if !errors.Is(err, mcp.ErrMalformed) && !errors.Is(err, mcp.ErrTooLarge) {
					t.Errorf("%q: %v", text, err)
				}
			case m.Kind == dialect.RPC:
				if !json.Valid(m.Payload) {
					t.Errorf("%q: payload %q", text, m.Payload)
				}
			case m.Kind != dialect.Ignored && !bytes.Equal(m.Payload, text):
				t.Errorf("%q: kind %d with payload %q", text, m.Kind, m.Payload)
			case m.Greeting.AudioVersion < 0 || m.Greeting.AudioVersion > 3:
				t.Errorf("%q: audio version %d", text, m.Greeting.AudioVersion)
			}
			if !bytes.Equal(text, before) {
				t.Fatal("the text was changed")
			}
		}
	})
}

// Messages cost no allocations.
func TestMessagesCostNoMemory(t *testing.T) {
	d := dialect.XiaozhiMQTT(device)
	text := []byte(`{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","id":7,"result":{}}}`)
	msg := []byte(`{"jsonrpc":"2.0","id":7,"method":"ping"}`)
	buf := make([]byte, 0, 256)
	n := testing.AllocsPerRun(100, func() {
		if !d.MayPublish("fleet/0200000000ab/up") || d.Address(msg).Topic == "" {
			t.Fatal("topics")
		}
		if m, err := d.Decode("fleet/0200000000ab/up", text, nil); err != nil || m.Kind != dialect.RPC {
			t.Fatal(err)
		}
		buf = d.Wrap(buf[:0], msg, mcp.ScopeNone)
		_, _ = d.Call(fleet.Invocation{Tool: "self.a"})
	})
	if n != 0 {
		t.Errorf("%v allocations for a message", n)
	}
}
