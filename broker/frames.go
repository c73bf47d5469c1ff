package broker

import "errors"

// maxConnect is the longest first packet. Devices send at most 1 KiB; mochi
// would allocate whatever the first five bytes of a stranger announce.
const maxConnect = 2 << 10

var (
	errNoConnect     = errors.New("the first packet is not a CONNECT")
	errLongConnect   = errors.New("the first packet is too long")
	errBadLength     = errors.New("malformed packet length")
	errBadSubscribe  = errors.New("malformed SUBSCRIBE")
	errShortContents = errors.New("malformed CONNECT")
)

const (
	packetConnect   = 1
	packetSubscribe = 8
)

// A frameGuard follows the packets in a stream of bytes and refuses those that
// mochi must not decode: a long or other first packet, and a SUBSCRIBE whose
// last filter has no options, which makes mochi read past its buffer.
type frameGuard struct {
	at        frameState
	kind      byte   // of the packet at hand
	shift     uint8  // of the next byte of a length
	left      uint32 // bytes left of the packet
	field     uint32 // bytes left of the field at hand, or its length so far
	version   byte   // of the protocol, from CONNECT
	connected bool   // the first packet has passed
}

type frameState uint8

const (
	atHeader frameState = iota
	atLength
	inBody // of a packet that needs no look

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
	atFilterHigh // or the end
	atFilterLow
	inFilter
	atOptions
)

// check looks at the next bytes of the stream. After an error the stream must
// be given up.
func (g *frameGuard) check(b []byte) error {
	for len(b) > 0 {
		n := g.skippable(len(b))
		if n == 0 {
			if err := g.step(b[0]); err != nil {
				return err
			}
			n = 1
		}
		b = b[n:]
		if err := g.endPacket(); err != nil {
			return err
		}
	}
	return nil
}

// skippable passes over up to n bytes that need no look, all at once.
func (g *frameGuard) skippable(n int) int {
	switch g.at {
	case inBody:
		k := min(uint32(n), g.left)
		g.left -= k
		return int(k)
	case inName, inProps, inFilter:
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

// step takes one byte.
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
	case atNameLow, atFilterLow:
		g.field |= uint32(c)
		g.enterField()
	case atVersion:
		g.version = c
		g.at = inBody
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
	}
	return nil
}

// enterField goes on to the field whose length is known, or past it.
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
	g.at, g.left, g.shift = atLength, 0, 0
	return nil
}

func (g *frameGuard) length(c byte) error {
	more, err := g.varint(&g.left, c)
	if more || err != nil {
		return err
	}
	switch {
	case !g.connected && g.left > maxConnect:
		return errLongConnect
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

// varint adds a byte to a number of at most four.
func (g *frameGuard) varint(v *uint32, c byte) (more bool, err error) {
	if g.shift > 21 {
		return false, errBadLength
	}
	*v |= uint32(c&0x7f) << g.shift
	g.shift += 7
	return c&0x80 != 0, nil
}

// endPacket checks, when all bytes of a packet are in, that it ended where it
// may.
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
