package voice

import (
	"crypto/cipher"
	"encoding/binary"
)

// A packet of audio is a header of 16 bytes and one Opus frame, encrypted with
// AES-128-CTR. The header is the initial counter block (protocol 6):
//
//	u8 type (1), u8 flags, u16 length of the frame, u32 ssrc, u32 timestamp, u32 sequence
const (
	headerSize = 16
	packetType = 1
	maxFrame   = 1400 // a frame and its header fit into an unfragmented datagram
	maxPacket  = headerSize + maxFrame
)

type header struct {
	ssrc      uint32 // identifies the conversation
	timestamp uint32 // milliseconds; 0 from devices without echo cancellation
	sequence  uint32 // from 1, in each direction
}

// parseHeader returns the header of a datagram, and false if the datagram is no
// packet of audio.
func parseHeader(b []byte) (header, bool) {
	if len(b) <= headerSize || len(b) > maxPacket || b[0] != packetType ||
		int(binary.BigEndian.Uint16(b[2:])) != len(b)-headerSize {
		return header{}, false
	}
	return header{binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}, true
}

// put writes the header of a frame of the given length over the first bytes of b, which contain
// the nonce that the device received.
func (h header) put(b []byte, length int) {
	binary.BigEndian.PutUint16(b[2:], uint16(length))
	binary.BigEndian.PutUint32(b[4:], h.ssrc)
	binary.BigEndian.PutUint32(b[8:], h.timestamp)
	binary.BigEndian.PutUint32(b[12:], h.sequence)
}

// A stream encrypts or decrypts the packets of one direction. The standard library's CTR
// allocates for each packet; this does not. A stream is not safe for concurrent use.
type stream struct {
	block        cipher.Block
	counter, pad [16]byte
}

// xor encrypts or decrypts src into dst, which may be the same.
func (s *stream) xor(header, dst, src []byte) {
	s.counter = [16]byte(header)
	for len(src) > 0 {
		s.block.Encrypt(s.pad[:], s.counter[:])
		n := min(len(src), len(s.pad))
		for i := range n {
			dst[i] = src[i] ^ s.pad[i]
		}
		dst, src = dst[n:], src[n:]
		for i := len(s.counter) - 1; i >= 0; i-- {
			if s.counter[i]++; s.counter[i] != 0 {
				break
			}
		}
	}
}
