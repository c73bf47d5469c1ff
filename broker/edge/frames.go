package edge

import "errors"

// maxConnect is the longest first packet. Devices send at most 1 KiB; mochi would allocate
// whatever length the first five bytes of an unknown client announce.
const maxConnect = 2 << 10

var (
	errNoConnect     = errors.New("the first packet is not a CONNECT")
	errLongConnect   = errors.New("the first packet is too long")
	errProtocolName  = errors.New("the first packet is not MQTT")
	errProtocolLevel = errors.New("unsupported version of MQTT")
	errShortContents = errors.New("malformed CONNECT")
	errBadLength     = errors.New("malformed packet length")
	errBadFlags      = errors.New("malformed packet flags")
	errBadSubscribe  = errors.New("malformed SUBSCRIBE")
	errBadOptions    = errors.New("malformed subscription options")
	errLongPacket    = errors.New("packet too long")
	errUnexpected    = errors.New("packet type that a client must not send")
)

const (
	packetConnect     = 1
	packetPublish     = 3
	packetPubrel      = 6
	packetSubscribe   = 8
	packetUnsubscribe = 10
)

// fromServer has a bit for each packet type that no client may send. It includes AUTH, the last,
// because no authentication method is accepted.
const fromServer = 1<<0 | 1<<2 | 1<<9 | 1<<11 | 1<<13 | 1<<15

// A frameGuard follows the packets in a stream of bytes and refuses those that mochi must not
// decode: a first packet that is too long or no CONNECT, and a SUBSCRIBE whose last filter has no
// options, which makes mochi read past its buffer. It also refuses packets to which mochi would
// not reply with the code that MQTT defines.
type frameGuard struct {
	at        frameState
	kind      byte   // of the current packet
	shift     uint8  // of the next byte of a length field
	left      uint32 // bytes left in the packet
	field     uint32 // bytes left in the current field, or its length so far
	name      [6]byte
	nameLen   uint8
	version   byte // protocol version from CONNECT
	connected bool // the first packet has passed
}

type frameState uint8

const (
	atHeader frameState = iota
	atLength
	inBody // of a packet that needs no check

	// CONNECT
	atNameHigh
	atNameLow
	inName
	atVersion

	// SUBSCRIBE
	atIDHigh
	atIDLow
	atPropsLength
	inProps
	atFilterHigh // or the end of the packet
	atFilterLow
	inFilter
	atOptions
)

// check reads the next bytes of the stream and returns how many of them may be decoded. With an
// error, good counts the bytes before the offending byte. Mochi decodes whole packets only, so it
// never sees the bad packet. After an error the stream must be abandoned.
func (g *frameGuard) check(b []byte) (good int, err error) {
	for at := 0; at < len(b); {
		n := g.skippable(len(b) - at)
		if n == 0 {
			if err := g.step(b[at]); err != nil {
				return at, err
			}
			n = 1
		}
		at += n
		if err := g.endPacket(); err != nil {
			return at - 1, err
		}
	}
	return len(b), nil
}

// betweenPackets reports whether the next byte begins a packet after CONNECT.
func (g *frameGuard) betweenPackets() bool { return g.connected && g.at == atHeader }

// skippable skips up to n bytes that need no check, and returns their number.
func (g *frameGuard) skippable(n int) int {
	switch g.at {
	case inBody:
		k := min(uint32(n), g.left)
		g.left -= k
		return int(k)
	case inProps, inFilter:
		k := min(uint32(n), g.field, g.left)
		g.field -= k
		g.left -= k
		if g.field == 0 {
			g.at++
		}
		return int(k)
	}
	return 0
}

// step consumes one byte.
func (g *frameGuard) step(c byte) error {
	switch g.at {
	case atHeader:
		return g.header(c)
	case atLength:
		return g.length(c)
	}
	g.left--
	switch g.at {
	case atNameHigh, atFilterHigh:
		g.field = uint32(c) << 8
		g.at++
	case atNameLow:
		g.field |= uint32(c)
		if g.at++; g.field == 0 || g.field > uint32(len(g.name)) {
			return errProtocolName
		}
	case inName:
		g.name[g.nameLen] = c
		g.nameLen++
		if g.field--; g.field == 0 {
			g.at++
		}
	case atVersion:
		g.version = c
		g.at = inBody
		return g.protocol()
	case atFilterLow:
		g.field |= uint32(c)
		g.enterField()
	case atIDHigh:
		g.at = atIDLow
	case atIDLow:
		g.at = atFilterHigh
		if g.version == 5 {
			g.at, g.field, g.shift = atPropsLength, 0, 0
		}
	case atPropsLength:
		return g.propsLength(c)
	case atOptions:
		g.at = atFilterHigh
		if bad := c > 2; bad && (g.version < 5 || c&0xc0 != 0 || c&0x30 == 0x30 || c&3 == 3) {
			return errBadOptions
		}
	}
	return nil
}

// protocol checks the protocol's name and level, for which MQTT requires another reply than for
// any other error in a CONNECT.
func (g *frameGuard) protocol() error {
	switch name := string(g.name[:g.nameLen]); {
	case name == "MQTT" && (g.version == 4 || g.version == 5), name == "MQIsdp" && g.version == 3:
		return nil
	case name == "MQTT" || name == "MQIsdp":
		return errProtocolLevel
	}
	return errProtocolName
}

// enterField advances to the field whose length is known, or past it if it is empty.
func (g *frameGuard) enterField() {
	if g.at++; g.field == 0 {
		g.at++
	}
}

func (g *frameGuard) header(c byte) error {
	g.kind = c >> 4
	if !g.connected && g.kind != packetConnect {
		return errNoConnect
	}
	if fromServer>>g.kind&1 != 0 {
		return errUnexpected
	}
	if !goodFlags(g.kind, c&0xf) {
		return errBadFlags
	}
	g.at, g.left, g.shift = atLength, 0, 0
	return nil
}

func goodFlags(kind, flags byte) bool {
	switch kind {
	case packetPublish:
		return flags&6 != 6 && flags&14 != 8 // no QoS 3, no duplicate of QoS 0
	case packetPubrel, packetSubscribe, packetUnsubscribe:
		return flags == 2
	}
	return flags == 0
}

func (g *frameGuard) length(c byte) error {
	more, err := g.varint(&g.left, c)
	if more || err != nil {
		return err
	}
	switch {
	case !g.connected && g.left > maxConnect:
		return errLongConnect
	case g.left+1+uint32(g.shift/7) > maxPacket:
		return errLongPacket
	case !g.connected:
		g.at = atNameHigh
	case g.kind == packetSubscribe:
		g.at = atIDHigh
	default:
		g.at = inBody
	}
	return nil
}

func (g *frameGuard) propsLength(c byte) error {
	more, err := g.varint(&g.field, c)
	if !more && err == nil {
		g.enterField()
	}
	return err
}

// varint adds a byte to a variable-length integer of at most four bytes.
func (g *frameGuard) varint(v *uint32, c byte) (more bool, err error) {
	if g.shift > 21 {
		return false, errBadLength
	}
	*v |= uint32(c&0x7f) << g.shift
	g.shift += 7
	return c&0x80 != 0, nil
}

// endPacket checks, after the last byte of a packet, that the packet may end here.
func (g *frameGuard) endPacket() error {
	if g.left > 0 || g.at == atHeader || g.at == atLength {
		return nil
	}
	switch {
	case !g.connected && g.at != inBody:
		return errShortContents
	case g.kind == packetSubscribe && g.at != atFilterHigh:
		return errBadSubscribe
	}
	g.connected = true
	g.at = atHeader
	return nil
}
