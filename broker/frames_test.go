package broker

import (
	"bytes"
	"errors"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
)

func TestFrameGuard(t *testing.T) {
	v4 := connectPacket{clientID: testClientID(1), keepalive: 60}.bytes()
	v5 := connectPacket{clientID: testClientID(1), keepalive: 60, version: 5}.bytes()
	subscribe := func(body ...byte) []byte { return frame(0x82, append([]byte{0, 1}, body...)) }
	tests := []struct {
		name   string
		stream []byte
		want   error
	}{
		{"publish", append(v4[:len(v4):len(v4)], frame(0x30, append(str("a"), "payload"...))...), nil},
		{"ping", append(v4[:len(v4):len(v4)], 0xc0, 0), nil},
		{"subscribe", append(v4[:len(v4):len(v4)], subscribe(0, 1, 'a', 0, 0, 2, 'b', 'c', 1)...), nil},
		{"subscribe, v5", append(v5[:len(v5):len(v5)], subscribe(2, 0x0b, 1, 0, 1, 'a', 0)...), nil},
		{"no options", append(v4[:len(v4):len(v4)], subscribe(0, 1, 'a')...), errBadSubscribe},
		{"no options, v5", append(v5[:len(v5):len(v5)], subscribe(0, 0, 1, 'a')...), errBadSubscribe},
		{"second filter without options, v5", append(v5[:len(v5):len(v5)], subscribe(0, 0, 1, 'a', 0, 0, 1, 'a')...), errBadSubscribe},
		{"filter cut short", append(v5[:len(v5):len(v5)], subscribe(0, 0, 9, 'a', 0)...), errBadSubscribe},
		{"properties cut short", append(v5[:len(v5):len(v5)], subscribe(99, 0, 1, 'a', 0)...), errBadSubscribe},
		{"empty subscribe", append(v5[:len(v5):len(v5)], 0x82, 0), errBadSubscribe},
		{"first packet too long", frame(0x10, make([]byte, maxConnect+1)), errLongConnect},
		{"longest first packet", frame(0x10, append(str("MQTT"), make([]byte, maxConnect-6)...)), nil},
		{"publish first", frame(0x30, nil), errNoConnect},
		{"cut in the protocol's name", frame(0x10, []byte{0, 4, 'M', 'Q'}), errShortContents},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{1, 2, 3, 7, len(tt.stream)} {
				var g frameGuard
				if err := checkPieces(&g, tt.stream, piece); !errors.Is(err, tt.want) {
					t.Errorf("in pieces of %d: %v, want %v", piece, err, tt.want)
				}
			}
		})
	}
}

func checkPieces(g *frameGuard, stream []byte, piece int) error {
	for len(stream) > 0 {
		n := min(piece, len(stream))
		if err := g.check(stream[:n]); err != nil {
			return err
		}
		stream = stream[n:]
	}
	return nil
}

// What passes the guard cannot make mochi's decoder panic, however it is cut,
// and a SUBSCRIBE that mochi decodes passes the guard.
func FuzzFrameGuard(f *testing.F) {
	f.Add(byte(5), []byte{0, 1, 0, 0, 1, 'a'}, byte(3))
	f.Add(byte(5), []byte{0, 1, 2, 0x0b, 1, 0, 1, 'a', 0}, byte(1))
	f.Add(byte(4), []byte{0, 1, 0, 1, 'a', 0}, byte(100))
	f.Fuzz(func(t *testing.T, version byte, body []byte, piece byte) {
		if len(body) > 1<<20 {
			return
		}
		connect := connectPacket{clientID: testClientID(1), version: max(version, 1)}.bytes()
		var g frameGuard
		if err := g.check(connect); err != nil {
			t.Fatal(err)
		}
		guarded := checkPieces(&g, frame(0x82, body), int(piece)+1)
		pk := packets.Packet{ProtocolVersion: max(version, 1), FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1, Remaining: len(body)}}
		if guarded != nil {
			if panicked, err := decodes(&pk, body); err == nil && !panicked && len(body) > 0 {
				t.Errorf("refused (%v), though mochi decodes %x", guarded, body)
			}
			return
		}
		if panicked, _ := decodes(&pk, body); panicked {
			t.Errorf("passed, and mochi panics on %x", body)
		}
		if g.at != atHeader {
			t.Errorf("state %d after a whole packet", g.at)
		}
	})
}

func decodes(pk *packets.Packet, body []byte) (panicked bool, err error) {
	defer func() { panicked = recover() != nil }()
	return false, pk.SubscribeDecode(bytes.Clone(body))
}
