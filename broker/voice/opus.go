package voice

import "time"

// opusDuration returns the duration of an Opus packet, or false if the bytes are no Opus packet
// (RFC 6716, 3.4). CTR has no checksum: this check distinguishes a datagram that was encrypted
// with the right key.
func opusDuration(b []byte) (time.Duration, bool) {
	if len(b) == 0 {
		return 0, false
	}
	frame, count, rest := frameDuration(b[0]>>3), 1, b[1:]
	switch b[0] & 3 {
	case 0:
		if len(rest) > maxOpusFrame {
			return 0, false
		}
	case 1:
		if count = 2; len(rest)%2 != 0 || len(rest)/2 > maxOpusFrame {
			return 0, false
		}
	case 2:
		count = 2
		first, n := opusLength(rest)
		if n == 0 || first > len(rest)-n || len(rest)-n-first > maxOpusFrame {
			return 0, false
		}
	case 3:
		if len(rest) == 0 {
			return 0, false
		}
		if count = int(rest[0] & 63); count == 0 || !framesFit(rest[1:], rest[0], count) {
			return 0, false
		}
	}
	d := time.Duration(count) * frame
	return d, d <= 120*time.Millisecond
}

// maxOpusFrame is the longest frame, in bytes.
const maxOpusFrame = 1275

// framesFit checks the padding and the lengths in a packet of several frames.
func framesFit(b []byte, control byte, count int) bool {
	if control&0x40 != 0 {
		padding := 0
		for more := true; more; {
			if len(b) == 0 {
				return false
			}
			n := int(b[0])
			if more = n == 255; more {
				n = 254
			}
			padding, b = padding+n, b[1:]
		}
		if padding > len(b) {
			return false
		}
		b = b[:len(b)-padding]
	}
	if control&0x80 == 0 {
		return len(b)%count == 0 && len(b)/count <= maxOpusFrame
	}
	total := 0
	for range count - 1 {
		length, n := opusLength(b)
		if n == 0 {
			return false
		}
		total, b = total+length, b[n:]
	}
	return total <= len(b) && len(b)-total <= maxOpusFrame
}

// opusLength reads the length of a frame, and returns how many bytes encode it: 0 if they are
// missing.
func opusLength(b []byte) (length, n int) {
	switch {
	case len(b) >= 1 && b[0] < 252:
		return int(b[0]), 1
	case len(b) >= 2:
		return int(b[0]) + 4*int(b[1]), 2
	}
	return 0, 0
}

// frameDuration returns the duration of each frame for a configuration number.
func frameDuration(config byte) time.Duration {
	switch {
	case config < 12: // SILK
		return [...]time.Duration{10, 20, 40, 60}[config&3] * time.Millisecond
	case config < 16: // hybrid
		return [...]time.Duration{10, 20}[config&1] * time.Millisecond
	}
	return [...]time.Duration{2500, 5000, 10000, 20000}[config&3] * time.Microsecond // CELT
}
