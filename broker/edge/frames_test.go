package edge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
)

// connectBytes returns a CONNECT of the version.
func connectBytes(version byte) []byte {
	body := append(str("MQTT"), version, 2, 0, 60)
	if version == 5 {
		body = append(body, 0)
	}
	return frame(0x10, append(body, str("GID_default@@@02_00_00_00_00_01@@@uuid-1")...))
}

func str(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

func frame(kind byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{kind}, uint64(len(body))), body...)
}

func TestFrameGuard(t *testing.T) {
	v4 := connectBytes(4)
	v5 := connectBytes(5)
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
		{"ping with flags", append(v4[:len(v4):len(v4)], 0xc1, 0), errBadFlags},
		{"publish at QoS 3", append(v4[:len(v4):len(v4)], 0x36, 0), errBadFlags},
		{"duplicate at QoS 0", append(v4[:len(v4):len(v4)], 0x38, 0), errBadFlags},
		{"subscribe without flags", append(v4[:len(v4):len(v4)], 0x80, 0), errBadFlags},
		{"packet type 0", append(v4[:len(v4):len(v4)], 0x00, 0), errUnexpected},
		{"packet of a server", append(v4[:len(v4):len(v4)], 0xd0, 0), errUnexpected},
		{"longest packet", append(v4[:len(v4):len(v4)], frame(0x30, make([]byte, maxPacket-4))...), nil},
		{"packet too long", append(v4[:len(v4):len(v4)], frame(0x30, make([]byte, maxPacket-3))...), errLongPacket},
		{"options at QoS 3", append(v4[:len(v4):len(v4)], subscribe(0, 1, 'a', 3)...), errBadOptions},
		{"options of v5 in v4", append(v4[:len(v4):len(v4)], subscribe(0, 1, 'a', 4)...), errBadOptions},
		{"all options, v5", append(v5[:len(v5):len(v5)], subscribe(0, 0, 1, 'a', 0x2e)...), nil},
		{"reserved options, v5", append(v5[:len(v5):len(v5)], subscribe(0, 0, 1, 'a', 0x40)...), errBadOptions},
		{"retain handling 3, v5", append(v5[:len(v5):len(v5)], subscribe(0, 0, 1, 'a', 0x30)...), errBadOptions},
		{"level 6", frame(0x10, append(str("MQTT"), 6, 2, 0, 0)), errProtocolLevel},
		{"level 3 of MQTT", frame(0x10, append(str("MQTT"), 3, 2, 0, 0)), errProtocolLevel},
		{"MQTT 3.1", frame(0x10, append(str("MQIsdp"), 3, 2, 0, 0, 0, 0)), nil},
		{"other name", frame(0x10, append(str("MQTQ"), 4, 2, 0, 0)), errProtocolName},
		{"long name", frame(0x10, append(str("MQTTMQTT"), 4, 2, 0, 0)), errProtocolName},
		{"no name", frame(0x10, append(str(""), 4, 2, 0, 0)), errProtocolName},
		{"no options", append(v4[:len(v4):len(v4)], subscribe(0, 1, 'a')...), errBadSubscribe},
		{"no options, v5", append(v5[:len(v5):len(v5)], subscribe(0, 0, 1, 'a')...), errBadSubscribe},
		{"second filter without options, v5", append(v5[:len(v5):len(v5)], subscribe(0, 0, 1, 'a', 0, 0, 1, 'a')...),
			errBadSubscribe},
		{"filter cut short", append(v5[:len(v5):len(v5)], subscribe(0, 0, 9, 'a', 0)...), errBadSubscribe},
		{"properties cut short", append(v5[:len(v5):len(v5)], subscribe(99, 0, 1, 'a', 0)...), errBadSubscribe},
		{"empty subscribe", append(v5[:len(v5):len(v5)], 0x82, 0), errBadSubscribe},
		{"first packet too long", frame(0x10, make([]byte, maxConnect+1)), errLongConnect},
		{"longest first packet", frame(0x10, append(append(str("MQTT"), 4), make([]byte, maxConnect-7)...)), nil},
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
		if good, err := g.check(stream[:n]); err != nil {
			if good < 0 || good >= n {
				return fmt.Errorf("%d of %d bytes are good although %w", good, n, err)
			}
			return err
		}
		stream = stream[n:]
	}
	return nil
}

// A stream that passes the guard cannot make mochi's decoder panic, however it is split, and a
// SUBSCRIBE that mochi decodes passes the guard.
func FuzzFrameGuard(f *testing.F) {
	f.Add(byte(5), []byte{0, 1, 0, 0, 1, 'a'}, byte(3))
	f.Add(byte(5), []byte{0, 1, 2, 0x0b, 1, 0, 1, 'a', 0}, byte(1))
	f.Add(byte(4), []byte{0, 1, 0, 1, 'a', 0}, byte(100))
	f.Fuzz(func(t *testing.T, version byte, body []byte, piece byte) {
		if len(body) > 1<<20 {
			return
		}
		version = 4 + version&1
		connect := connectBytes(version)
		var g frameGuard
		if _, err := g.check(connect); err != nil {
			t.Fatal(err)
		}
		guarded := checkPieces(&g, frame(0x82, body), int(piece)+1)
		pk := packets.Packet{ProtocolVersion: version, FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1,
			Remaining: len(body)}}
		if guarded != nil {
			if errors.Is(guarded, errBadOptions) {
				return // mochi accepts reserved bits
			}
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
