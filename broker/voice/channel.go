package voice

import (
	"crypto/aes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"sync"
	"time"

	"fleetd/fleet"
)

const (
	// These limit how far a sequence number may be ahead of the last: 30 s of lost frames from
	// any address, an hour from the known address.
	maxAhead      = 512
	maxAheadKnown = 65536

	// moveAfter is how many packets in a row a new address must send before the conversation
	// moves to it. One packet that decrypts to Opus by chance does not move it. An address that
	// has sent fewer is provisional: sequence numbers from another address need not continue its
	// own.
	moveAfter = 3

	// moveUnlike is the same limit for frames that have neither the length in the hello nor that
	// of earlier frames, because noise is more often among them.
	moveUnlike = 5

	// maxCandidates is how many addresses are tracked at once: packets from a wrong address must
	// not displace the right one.
	maxCandidates = 4
)

// A candidate is a source address that may be the device's.
type candidate struct {
	addr netip.AddrPort
	toc  byte   // first byte of its frames
	last uint32 // highest sequence number received from it
	n    int    // packets in a row
}

// A channel is the UDP side of one conversation.
type channel struct {
	socket *socket
	ssrc   uint32
	key    [16]byte
	nonce  [headerSize]byte // the first bytes of the header
	frame  time.Duration    // frame duration in the device's hello; 0 if it has none
	opus   bool             // the device's hello names Opus or no format
	near   netip.Addr       // address of the device's other connection: its first packet is accepted at once

	// Exactly one of these is called for each packet of the device. Neither may wait, nor retain
	// frame.
	accept   func(frame []byte, timestamp uint32, at time.Time)
	badAudio func()

	mu         sync.Mutex
	addr       netip.AddrPort // of the device; invalid before its first packet
	candidates [maxCandidates]candidate
	tocs       [4]uint64         // first bytes of the frames received from addr, as a set
	early      [moveAfter]uint32 // sequence numbers of the first packets
	last       uint32            // highest sequence number received
	lastAt     time.Time
	up         stream
	opened     [maxFrame]byte // the current packet, decrypted
	received   fleet.AudioCounts

	sending sync.Mutex
	sender  *sender
	down    stream
	sent    uint32 // sequence number of the last packet sent
	packet  [maxPacket]byte
}

// newChannel creates a channel with a random key and registers it in the socket's table.
func newChannel(s *socket, frame time.Duration, opus bool, near netip.Addr,
	accept func([]byte, uint32, time.Time), badAudio func()) (*channel, error) {
	c := &channel{socket: s, sender: newSender(s.conn), frame: frame, opus: opus, near: near, accept: accept,
		badAudio: badAudio}
	_, _ = rand.Read(c.key[:]) // never fails
	block, err := aes.NewCipher(c.key[:])
	if err != nil {
		return nil, err
	}
	c.up.block, c.down.block = block, block
	s.enter(c)
	c.nonce[0] = packetType
	binary.BigEndian.PutUint32(c.nonce[4:], c.ssrc)
	copy(c.packet[:], c.nonce[:])
	return c, nil
}

func (c *channel) keyHex() string   { return hex.EncodeToString(c.key[:]) }
func (c *channel) nonceHex() string { return hex.EncodeToString(c.nonce[:]) }

// close removes the channel from the socket's table. Later packets count as unknown.
func (c *channel) close() { c.socket.leave(c) }

// receive handles a datagram with this channel's ssrc. It runs on the socket reader's goroutine.
func (c *channel) receive(h header, b []byte, from netip.AddrPort, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.addr == from
	ahead, limit := h.sequence-c.last, uint32(maxAheadKnown)
	if !known {
		ahead, limit = c.aheadElsewhere(h.sequence, from), maxAhead
	}
	if ahead == 0 || ahead > limit {
		c.received.Refused++ // replayed, out of order, or forged
		return
	}
	frame := c.opened[:len(b)-headerSize]
	c.up.xor(b[:headerSize], frame, b[headerSize:])
	d, needed := c.frame, moveAfter
	if c.opus {
		var ok bool
		if d, ok = opusDuration(frame); !ok {
			c.received.Refused++
			if next := c.candidate(from); next != nil {
				next.n = 0
			}
			if known || !c.addr.IsValid() { // else the sender may know the number but not the key
				c.badAudio()
			}
			return
		}
		if c.frame != 0 && d != c.frame && !c.heard(frame[0]) {
			needed = moveUnlike
		}
	}
	if !known && !c.follow(from, frame[0], h.sequence, needed) {
		c.received.Refused++
		return
	}
	c.tocs[frame[0]>>6] |= 1 << (frame[0] & 63)
	c.count(h, ahead, at, d)
	c.accept(frame, h.timestamp, at)
}

// heard reports whether a frame from the device's address began with this byte. A device uses one
// configuration of its encoder, or few.
func (c *channel) heard(toc byte) bool { return c.tocs[toc>>6]&(1<<(toc&63)) != 0 }

// aheadElsewhere returns how far a packet from an address other than the device's is ahead of
// earlier packets; 0 if it is a copy of one of them.
func (c *channel) aheadElsewhere(sequence uint32, from netip.AddrPort) uint32 {
	last := c.last
	if n := c.received.Received; n < moveAfter { // addr is provisional
		if slices.Contains(c.early[:n], sequence) {
			return 0
		}
		last = 0
	}
	if next := c.candidate(from); next != nil && next.last-last < 1<<31 {
		last = next.last
	}
	return sequence - last
}

// candidate returns the candidate with the address, or nil.
func (c *channel) candidate(from netip.AddrPort) *candidate {
	for i := range c.candidates {
		if c.candidates[i].addr == from {
			return &c.candidates[i]
		}
	}
	return nil
}

// follow decides whether packets from another address come from the device, because a router
// changed its address. It requires needed packets in a row.
func (c *channel) follow(from netip.AddrPort, toc byte, sequence uint32, needed int) bool {
	if c.addr.IsValid() || from.Addr() != c.near {
		next := c.candidate(from)
		if next == nil {
			next = &c.candidates[0]
			for i := range c.candidates {
				if c.candidates[i].n < next.n {
					next = &c.candidates[i]
				}
			}
			*next = candidate{addr: from}
		}
		if next.toc != toc {
			next.toc, next.n = toc, 0
		}
		next.last = sequence
		if next.n++; next.n < needed {
			return false
		}
	}
	if c.addr.IsValid() {
		c.received.Moves++
	}
	c.addr, c.candidates = from, [maxCandidates]candidate{}
	return true
}

// count records a packet with sound of duration d, for loss and jitter.
func (c *channel) count(h header, ahead uint32, at time.Time, d time.Duration) {
	r := &c.received
	if r.Received < moveAfter {
		c.early[r.Received] = h.sequence
	}
	r.Received++
	r.Lost += int64(ahead - 1)
	if d > 0 && !c.lastAt.IsZero() {
		r.Jitter = smoothed(r.Jitter, at.Sub(c.lastAt)-time.Duration(ahead)*d)
	}
	c.last, c.lastAt = h.sequence, at
}

// send encrypts a frame and sends it to the device. It reports false if the device's address is
// unknown, or the frame cannot be sent.
func (c *channel) send(frame []byte, timestamp uint32) bool {
	if len(frame) == 0 || len(frame) > maxFrame {
		return false
	}
	c.mu.Lock()
	to := c.addr
	c.mu.Unlock()
	if !to.IsValid() {
		return false
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	c.sent++
	header{c.ssrc, timestamp, c.sent}.put(c.packet[:], len(frame))
	c.down.xor(c.packet[:headerSize], c.packet[headerSize:], frame)
	if !c.sender.send(c.packet[:headerSize+len(frame)], to) {
		c.socket.failed.Add(1)
		return false
	}
	return true
}

// counts returns the counts of received packets so far.
func (c *channel) counts() fleet.AudioCounts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}
