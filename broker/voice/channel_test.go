package voice

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"
)

const (
	tocSpeech = 11 << 3 // SILK, wide band, 60 ms, mono, one frame
	frame60   = 60 * time.Millisecond
)

var (
	home  = netip.MustParseAddrPort("192.0.2.1:4000")
	other = netip.MustParseAddrPort("198.51.100.9:4001")
	third = netip.MustParseAddrPort("203.0.113.77:9")
)

// speech returns an Opus packet of 60 ms.
func speech(text string) []byte { return append([]byte{tocSpeech}, text...) }

// seal encrypts a packet as the device does, with the standard library's CTR and the nonce of the
// hello with three fields overwritten.
func seal(t testing.TB, key, nonce string, timestamp, sequence uint32, frame []byte) []byte {
	t.Helper()
	k, err := hex.DecodeString(key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(nonce)
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint16(b[2:], uint16(len(frame)))
	binary.BigEndian.PutUint32(b[8:], timestamp)
	binary.BigEndian.PutUint32(b[12:], sequence)
	block, err := aes.NewCipher(k)
	if err != nil {
		t.Fatal(err)
	}
	sealed := make([]byte, len(frame))
	cipher.NewCTR(block, b).XORKeyStream(sealed, frame)
	return append(b, sealed...)
}

type heard struct {
	frame     string
	timestamp uint32
}

func testChannel(t testing.TB) (*channel, *[]heard) {
	t.Helper()
	s, err := listenUDP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	got := new([]heard)
	c, err := newChannel(s, frame60, true, home.Addr(), func(frame []byte, timestamp uint32, _ time.Time) {
		*got = append(*got, heard{string(frame), timestamp})
	}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	return c, got
}

func (c *channel) hears(t testing.TB, from netip.AddrPort, sequence uint32, frame []byte) {
	t.Helper()
	c.socket.receive(seal(t, c.keyHex(), c.nonceHex(), 7, sequence, frame), from, time.Now())
}

// The vectors' hello contains a key and a nonce. A packet sealed with them as section 6 specifies
// is opened, and fleetd's packets are opened by the standard library.
func TestPacketsOfTheVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/hello.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Name, Dir, Wire string
			Expect          struct {
				Accepts *bool `json:"device_accepts"`
			}
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, v := range file.Cases {
		var hello struct {
			Type string
			UDP  struct{ Key, Nonce string }
		}
		if v.Expect.Accepts == nil || !*v.Expect.Accepts || json.Unmarshal([]byte(v.Wire), &hello) != nil ||
			hello.UDP.Key == "" {
			continue
		}
		tried++
		c, got := testChannel(t)
		c.socket.leave(c)
		key, _ := hex.DecodeString(hello.UDP.Key)
		nonce, _ := hex.DecodeString(hello.UDP.Nonce)
		block, _ := aes.NewCipher(key)
		c.up.block, c.ssrc = block, binary.BigEndian.Uint32(nonce[4:])
		c.socket.enter(c)
		frame := speech("sixteen bytes and some more, to need several blocks")
		c.socket.receive(seal(t, hello.UDP.Key, hello.UDP.Nonce, 1234, 1, frame), home, time.Now())
		if len(*got) != 1 || (*got)[0] != (heard{string(frame), 1234}) {
			t.Errorf("%s: heard %v", v.Name, *got)
		}
	}
	if tried < 3 {
		t.Fatalf("%d hellos with a key", tried)
	}
}

// CTR's counter is 128 bits wide, so a carry leaves the sequence number.
func TestCounterCarries(t *testing.T) {
	block, _ := aes.NewCipher(make([]byte, 16))
	iv := bytes.Repeat([]byte{0xff}, 16)
	src := make([]byte, 50)
	want, got := make([]byte, 50), make([]byte, 50)
	cipher.NewCTR(block, iv).XORKeyStream(want, src)
	s := stream{block: block}
	s.xor(iv, got, src)
	if !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestSequenceWindow(t *testing.T) {
	c, got := testChannel(t)
	frame := speech("x")
	for _, tt := range []struct {
		name     string
		from     netip.AddrPort
		sequence uint32
		ok       bool
	}{
		{"first", home, 1, true},
		{"replayed", home, 1, false},
		{"next", home, 2, true},
		{"two lost", home, 5, true},
		{"late", home, 4, false},
		{"sequence 0", home, 0, false},
		{"far ahead of the known address", home, 5 + maxAheadKnown, true},
		{"too far ahead", home, 6 + 2*maxAheadKnown, false},
		{"behind, with the sign changed", home, 1 << 31, false},
	} {
		before := len(*got)
		c.hears(t, tt.from, tt.sequence, frame)
		if ok := len(*got) > before; ok != tt.ok {
			t.Errorf("%s: relayed %v", tt.name, ok)
		}
	}
	if n := c.counts(); n.Received != 4 || n.Refused != 5 || n.Lost != 2+maxAheadKnown-1 {
		t.Errorf("%+v", n)
	}
}

// A conversation follows its device to another address. Other packets do not move it: neither
// replayed packets nor those made without the key.
func TestAddressIsLearnedAndFollowed(t *testing.T) {
	c, got := testChannel(t)
	packet := seal(t, c.keyHex(), c.nonceHex(), 0, 1, speech("a"))
	garbage := append(bytes.Clone(packet[:headerSize]), make([]byte, 40)...)
	forge := func() {
		for i := range uint32(10_000) { // with the right ssrc, good sequence numbers, and noise as frames
			for j := headerSize; j < len(garbage); j++ {
				garbage[j] = byte(rand.Uint32())
			}
			binary.BigEndian.PutUint16(garbage[2:], 40)
			binary.BigEndian.PutUint32(garbage[12:], 2+i%8)
			c.socket.receive(garbage, third, time.Now())
		}
	}
	forge()
	if c.addr.IsValid() || len(*got) > 0 {
		t.Fatalf("address %v after forged packets, %d relayed", c.addr, len(*got))
	}
	c.hears(t, home, 1, speech("a"))
	c.socket.receive(packet, other, time.Now())
	forge()
	if c.addr != home || len(*got) != 1 {
		t.Fatalf("address %v after forged packets, %d relayed", c.addr, len(*got))
	}
	for i := range uint32(moveAfter) {
		c.hears(t, other, 2+i, speech("b"))
	}
	if c.addr != other || len(*got) != 2 || c.counts().Moves != 1 {
		t.Errorf("address %v, %d relayed, %+v", c.addr, len(*got), c.counts())
	}
	c.hears(t, home, 6, speech("a")) // packets still in transit from the old address
	if c.addr != other {
		t.Errorf("address %v", c.addr)
	}
}

// Copies of a device's packets do not count for their source address, and neither does a repeated
// packet that decrypts to Opus by chance.
func TestCopiesDoNotMoveAConversation(t *testing.T) {
	for name, hostile := range map[string]func(c *channel, i uint32){
		"copies, and one made up": func(c *channel, i uint32) {
			c.hears(t, other, 1+i, speech("a"))
			if i == 1 {
				c.hears(t, other, 20, speech("made up"))
			}
		},
		"one made up, repeated": func(c *channel, _ uint32) { c.hears(t, third, 21, speech("made up")) },
	} {
		c, got := testChannel(t)
		for i := range uint32(2 * moveAfter) {
			c.hears(t, home, 1+i, speech("a"))
			hostile(c, i)
		}
		if c.addr != home || len(*got) != 2*moveAfter || c.counts().Moves != 0 {
			t.Errorf("%s: address %v, %d relayed, %+v", name, c.addr, len(*got), c.counts())
		}
	}
}

// Packets from other addresses do not displace the device's address.
func TestCandidatesAreApart(t *testing.T) {
	c, got := testChannel(t)
	c.near = netip.Addr{}
	for i := range uint32(moveAfter) {
		for _, from := range []netip.AddrPort{home, other, third} {
			if from == home || i < moveAfter-1 {
				c.hears(t, from, 1+i, speech("a"))
			}
		}
	}
	if c.addr != home || len(*got) != 1 {
		t.Errorf("address %v, %d relayed", c.addr, len(*got))
	}
}

// A forged packet that was accepted by chance does not lock the device out, neither with its
// address nor with its sequence number.
func TestDeviceTakesItsConversationBack(t *testing.T) {
	c, got := testChannel(t)
	c.mu.Lock()
	c.addr, c.last, c.received.Received = third, 500, 1
	c.mu.Unlock()
	for i := range uint32(moveAfter) {
		c.hears(t, home, 1+i, speech("a"))
	}
	if c.addr != home || len(*got) != 1 {
		t.Errorf("address %v, %d relayed", c.addr, len(*got))
	}
}

func TestSendNumbersAndEncrypts(t *testing.T) {
	c, _ := testChannel(t)
	device, err := listenUDP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer device.close()
	if c.send(speech("too early"), 0) {
		t.Error("sent to nowhere")
	}
	c.near = netip.MustParseAddr("127.0.0.1")
	c.hears(t, device.conn.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort(), 1, speech("here"))
	for i := range uint32(3) {
		if !c.send(speech("answer"), 100*i) {
			t.Fatal("not sent")
		}
		b := make([]byte, 2000)
		_ = device.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := device.conn.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if want := seal(t, c.keyHex(), c.nonceHex(), 100*i, 1+i, speech("answer")); !bytes.Equal(b[:n], want) {
			t.Errorf("%x, want %x", b[:n], want)
		}
	}
	if c.send(make([]byte, maxFrame+1), 0) {
		t.Error("a frame that fits no datagram was sent")
	}
}

func TestNoAllocationPerPacket(t *testing.T) {
	c, _ := testChannel(t)
	q := newQueue(frame60)
	c.accept = func(frame []byte, timestamp uint32, at time.Time) { q.push(frame, timestamp, at) }
	device, err := listenUDP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer device.close()
	from := device.conn.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
	c.near = from.Addr()
	const runs = 500
	packets := make([][]byte, 2*runs)
	for i := range packets {
		packets[i] = seal(t, c.keyHex(), c.nonceHex(), 0, uint32(1+i), speech("a frame of some length, as speech has it"))
	}
	r := newReader(c.socket.conn)
	to := c.socket.conn.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
	next, frame, buf := 0, speech("downwards"), make([]byte, 0, maxFrame)
	n := testing.AllocsPerRun(runs, func() {
		if _, err := device.conn.WriteToUDPAddrPort(packets[next], to); err != nil {
			t.Fatal(err)
		}
		next++
		got, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			b, addr := r.datagram(i)
			c.socket.receive(b, addr, time.Now())
		}
		if _, _, ok, _ := q.pop(buf, time.Now()); !ok {
			t.Fatal("nothing queued")
		}
		if !c.send(frame, 0) {
			t.Fatal("not sent")
		}
	})
	if c.addr != from {
		t.Errorf("address %v", c.addr)
	}
	if n > 0 && !raceEnabled {
		t.Errorf("%v allocations for a packet each way", n)
	}
}

func TestQueueDropsWhatIsLate(t *testing.T) {
	q := newQueue(frame60)
	at := time.Now()
	dropped := 0
	for i := range 14 {
		dropped += q.push([]byte{byte(i)}, uint32(i), at.Add(time.Duration(i)*time.Millisecond))
	}
	if dropped != 4 {
		t.Errorf("%d dropped of 14", dropped)
	}
	b, _, ok, late := q.pop(nil, at.Add(lateAudio+6*time.Millisecond))
	if !ok || late != 2 || b[0] != 6 {
		t.Errorf("%v %v, %d late", b, ok, late)
	}
	if _, _, ok, late := q.pop(nil, at.Add(time.Hour)); ok || late != 7 {
		t.Errorf("%v, %d late", ok, late)
	}
}

func TestOpusDuration(t *testing.T) {
	tests := []struct {
		name string
		b    []byte
		want time.Duration // 0: not Opus
	}{
		{"empty", nil, 0},
		{"60 ms without a byte of sound", []byte{11 << 3}, frame60},
		{"20 ms", []byte{9 << 3, 1, 2}, 20 * time.Millisecond},
		{"hybrid, 20 ms", []byte{15 << 3, 1}, 20 * time.Millisecond},
		{"CELT, 2.5 ms", []byte{28 << 3, 1}, 2500 * time.Microsecond},
		{"two frames of the same size", []byte{9<<3 | 1, 1, 2}, 40 * time.Millisecond},
		{"two frames of one size, odd", []byte{9<<3 | 1, 1, 2, 3}, 0},
		{"two frames", []byte{9<<3 | 2, 1, 7, 8}, 40 * time.Millisecond},
		{"two frames, the first too long", []byte{9<<3 | 2, 9, 7, 8}, 0},
		{"three frames", []byte{9<<3 | 3, 3, 7, 8, 9}, frame60},
		{"three frames, not divisible", []byte{9<<3 | 3, 3, 7, 8}, 0},
		{"three frames of their sizes", []byte{9<<3 | 3, 0x83, 1, 0, 7, 9}, frame60},
		{"padding", []byte{9<<3 | 3, 0x41, 2, 7, 0, 0}, 20 * time.Millisecond},
		{"more padding than packet", []byte{9<<3 | 3, 0x41, 9, 7}, 0},
		{"padding that does not end", []byte{9<<3 | 3, 0x41, 255}, 0},
		{"more than 120 ms", []byte{11<<3 | 3, 3, 1, 2, 3}, 0},
		{"no frames", []byte{9<<3 | 3, 0}, 0},
		{"one frame that is too long", append([]byte{9<<3 | 3, 1}, make([]byte, maxOpusFrame+1)...), 0},
		{"the last frame too long", append([]byte{9<<3 | 3, 0x82, 1}, make([]byte, maxOpusFrame+2)...), 0},
		{"two frames as long as they get", append([]byte{9<<3 | 3, 0x82, 255, 255}, make([]byte, 2*maxOpusFrame)...),
			40 * time.Millisecond},
	}
	for _, tt := range tests {
		if got, ok := opusDuration(tt.b); ok != (tt.want > 0) || ok && got != tt.want {
			t.Errorf("%s: %v, %v", tt.name, got, ok)
		}
	}
}

func FuzzDatagram(f *testing.F) {
	c, got := testChannel(f)
	f.Add(seal(f, c.keyHex(), c.nonceHex(), 0, 1, speech("a")), uint16(4000))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, uint16(1))
	f.Add(bytes.Repeat([]byte{0xff}, maxPacket+1), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, port uint16) {
		*got = nil
		if len(b) >= 8 { // so it is long enough to reach the key
			binary.BigEndian.PutUint32(b[4:], c.ssrc)
		}
		before := c.counts()
		c.socket.receive(b, netip.AddrPortFrom(home.Addr(), port), time.Now())
		after := c.counts()
		if len(*got) != int(after.Received-before.Received) || after.Lost < before.Lost {
			t.Errorf("%d frames, %+v, %+v", len(*got), before, after)
		}
		_, _ = opusDuration(b)
	})
}
