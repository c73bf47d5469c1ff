package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestPacketsInPieces reads the same packets in chunks of every size.
func TestPacketsInPieces(t *testing.T) {
	var stream []byte
	sizes := []int{0, 1, 100, 250, 256, 257, 300, 5000, 3}
	for _, n := range sizes {
		stream = publishPacket(stream, "t", bytes.Repeat([]byte{byte(n)}, n))
	}
	for _, chunk := range []int{1, 2, 3, 100, 255, 256, 257, 1000, len(stream)} {
		near, far := net.Pipe()
		go func() {
			for rest := stream; len(rest) > 0; rest = rest[min(chunk, len(rest)):] {
				_, _ = far.Write(rest[:min(chunk, len(rest))])
			}
		}()
		c := &mqttConn{Conn: near, keepalive: time.Hour}
		c.lastSent.Store(time.Now().UnixNano())
		for _, n := range sizes {
			p, err := c.next()
			if err != nil {
				t.Fatal(err)
			}
			pub, err := parsePublish(p)
			if err != nil || !bytes.Equal(pub.payload, bytes.Repeat([]byte{byte(n)}, n)) {
				t.Fatalf("chunks of %d: payload of %d bytes, want %d: %v", chunk, len(pub.payload), n, err)
			}
		}
		near.Close()
	}
}

func FuzzIncoming(f *testing.F) {
	f.Add(publishPacket(nil, "t", []byte(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":1,"method":"ping"}}`)))
	f.Add([]byte{0x32, 3, 0, 0, 1})
	f.Add([]byte{0x62, 1, 0})
	f.Add([]byte{0x30, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add(publishPacket(nil, "t", []byte(toolCall(1, "self.light.set_rgb", `{"R":1,"g":2.5,"b":1e99}`))))
	f.Fuzz(func(t *testing.T, stream []byte) {
		d := oneDevice(t, Options{Boards: []string{"atoms3-echo-base"}})
		d.fleet.http.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
			return nil,
				errors.New("no network here")
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		task := d.reset(ctx, cancel)
		d.nvs.topic = "up"
		near, far := net.Pipe()
		go func() {
			_, _ = far.Write(stream)
			far.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		c := &mqttConn{Conn: near, keepalive: time.Hour}
		c.lastSent.Store(time.Now().UnixNano())
		d.setConn(c)
		if err := d.receive(c); err == nil {
			t.Error("receive ended without an error")
		}
		near.Close()
		cancel()
		task.stop()
	})
}

// FuzzValue walks any JSON and compares the result with encoding/json.
func FuzzValue(f *testing.F) {
	f.Add([]byte(`{"a":{"b":[1,{"c":"}\\""}]},"A" : -1.5e3 , "d":null,"":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var want map[string]json.RawMessage
		if json.Unmarshal(text, &want) != nil || want == nil {
			return
		}
		v := value(text[value(text).skipSpace(0):])
		seen := map[string]bool{}
		for key, member := range v.members() {
			if !json.Valid(key) || !json.Valid(member) {
				t.Errorf("member %q: %q", key, member)
			}
			var name string
			_ = json.Unmarshal(key, &name)
			if _, ok := want[name]; !ok {
				t.Errorf("found %q, which is not there", name)
			}
			seen[name] = true
		}
		if len(seen) != len(want) {
			t.Errorf("found %d of %d members", len(seen), len(want))
		}
	})
}

func TestConnectPacket(t *testing.T) {
	got, err := connectPacket("c", "u", "p", 60)
	want := "\x10\x13\x00\x04MQTT\x04\xc2\x00\x3c\x00\x01c\x00\x01u\x00\x01p"
	if err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if got, _ = connectPacket("c", "", "", 60); got[9] != 2 {
		t.Errorf("flags %#x without user and password", got[9])
	}
	if _, err := connectPacket("c", "u", strings.Repeat("p", 1024), 60); err == nil {
		t.Error("a CONNECT beyond the device's buffer was made")
	}
}

func TestEndpoints(t *testing.T) {
	tests := []struct {
		in, host string
		port     int
		crash    bool
	}{
		{"h:1883", "h", 1883, false},
		{"h", "h", 8883, false},
		{"h:1883/x", "h", 1883, false}, // stoi stops at the slash
		{"h:", "", 0, true},
		{"mqtts://h:8883", "", 0, true},
	}
	for _, tt := range tests {
		host, port, err := parseEndpoint(tt.in)
		if host != tt.host || port != tt.port || fatal(err) != tt.crash {
			t.Errorf("parseEndpoint(%q) = %q, %d, %v", tt.in, host, port, err)
		}
	}
}

func TestAcknowledgements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := attach(t, vectorDevice(t))
		ping := `{"type":"mcp","payload":{"jsonrpc":"2.0","id":5,"method":"notifications/x"}}`
		for qos, want := range map[byte]byte{1: pktPuback, 2: pktPubrec} {
			p := appendHeader(nil, pktPublish, 3+2+len(ping))
			p[0] |= qos << 1
			p = append(append(appendText(p, "t"), 0x12, 0x34), ping...)
			if err := s.conn.send(p); err != nil {
				t.Fatal(err)
			}
			if got := <-s.packets; got.kind != want || !bytes.Equal(got.payload, []byte{0x12, 0x34}) {
				t.Errorf("QoS %d: answered %+v", qos, got)
			}
		}
		if err := s.conn.send([]byte{pktPubrel<<4 | 2, 2, 0x12, 0x34}); err != nil {
			t.Fatal(err)
		}
		if got := <-s.packets; got.kind != pktPubcomp {
			t.Errorf("PUBREL: answered %+v", got)
		}
	})
}

// TestKeepalive: the device sends a PINGREQ half a keepalive after its last message, and ends the
// session if nothing answers it.
func TestKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		device := &mqttConn{Conn: near, keepalive: time.Minute}
		device.lastSent.Store(time.Now().UnixNano())
		ended := make(chan error, 1)
		go func() {
			var err error
			for err == nil {
				_, err = device.next()
			}
			ended <- err
		}()
		start := time.Now()
		var at []time.Duration
		for buf := make([]byte, 2); len(at) < 3; {
			if _, err := far.Read(buf); err != nil || buf[0] != pktPingreq<<4 {
				t.Fatalf("%x, %v", buf, err)
			}
			if at = append(at, time.Since(start)); len(at) == 3 {
				break // and leave it without an answer
			}
			if _, err := far.Write([]byte{pktPingresp << 4, 0}); err != nil {
				t.Fatal(err)
			}
		}
		if at[0] != 30*time.Second || at[1] != time.Minute || at[2] != 90*time.Second {
			t.Errorf("PINGREQ at %v", at)
		}
		if err := <-ended; err != errNoPong || time.Since(start) != 150*time.Second {
			t.Errorf("ended with %v after %v", err, time.Since(start))
		}
	})
}

func TestHandshake(t *testing.T) {
	tests := []struct {
		name, answer, want string
		after              time.Duration
	}{
		{"accepted", "\x20\x02\x00\x00", "", 0},
		{"refused", "\x20\x02\x00\x05", "code 5", 0},
		{"another packet", "\xd0\x00", "kind 13", 0},
		{"silence", "", "no CONNACK", 10 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer near.Close()
				go func() {
					_, _ = far.Read(make([]byte, maxConnect))
					_, _ = far.Write([]byte(tt.answer))
				}()
				start := time.Now()
				c := &mqttConn{Conn: near, keepalive: time.Hour}
				err := c.handshake([]byte("hello"))
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("got %v", err)
				}
				if got := time.Since(start); got != tt.after {
					t.Errorf("took %v", got)
				}
			})
		})
	}
}
