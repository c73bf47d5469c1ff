package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"math"
)

const descriptorEnd = 288

// An appImage checks an app image as a stream (7.1), in constant memory: a thousand devices may
// download at once.
type appImage struct {
	chip uint16
	head []byte // the first 288 bytes: header and app descriptor
	seen int

	part     imagePart
	want     int    // bytes until this part ends
	field    []byte // of a short part, as far as read
	segments int    // left
	xor      byte
	sum      hash.Hash
}

type imagePart uint8

const (
	partHeader imagePart = iota
	partSegmentHeader
	partData
	partPadding // up to the checksum byte
	partDigest
	partRest
)

func newAppImage(chip uint16) *appImage {
	return &appImage{chip: chip, want: 24, xor: 0xEF, sum: sha256.New()}
}

// Write fails as soon as the image is known to be bad.
func (a *appImage) Write(p []byte) (int, error) {
	total := len(p)
	a.head = append(a.head, p[:min(len(p), descriptorEnd-len(a.head))]...)
	for len(p) > 0 {
		n := min(len(p), a.want)
		a.feed(p[:n])
		p = p[n:]
		for a.want == 0 {
			if err := a.nextPart(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

func (a *appImage) feed(p []byte) {
	a.seen += len(p)
	a.want -= len(p)
	switch a.part {
	case partData:
		for _, b := range p {
			a.xor ^= b
		}
	case partRest:
		return
	default:
		a.field = append(a.field, p...)
	}
	if a.part < partDigest {
		a.sum.Write(p)
	}
}

// nextPart checks the part that just ended and selects the next.
func (a *appImage) nextPart() error {
	field := a.field
	a.field = a.field[:0]
	switch a.part {
	case partHeader:
		return a.startSegments(field)
	case partSegmentHeader:
		a.segments--
		a.part, a.want = partData, int(binary.LittleEndian.Uint32(field[4:]))
	case partData:
		a.afterSegment()
	case partPadding:
		if field[len(field)-1] != a.xor {
			return errors.New("image: bad checksum")
		}
		a.part, a.want = partRest, math.MaxInt
		if a.head[23] == 1 {
			a.part, a.want = partDigest, sha256.Size
		}
	case partDigest:
		if !bytes.Equal(field, a.sum.Sum(nil)) {
			return errors.New("image: bad SHA-256")
		}
		a.part, a.want = partRest, math.MaxInt
	}
	return nil
}

func (a *appImage) startSegments(header []byte) error {
	if header[0] != 0xE9 {
		return fmt.Errorf("image: magic byte is %#02x, not 0xe9", header[0])
	}
	if id := binary.LittleEndian.Uint16(header[12:]); id != a.chip {
		return fmt.Errorf("image is for chip id %#04x; this is %#04x", id, a.chip)
	}
	if a.segments = int(header[1]); a.segments < 1 || a.segments > 16 {
		return fmt.Errorf("image: %d segments", a.segments)
	}
	a.part, a.want = partSegmentHeader, 8
	return nil
}

func (a *appImage) afterSegment() {
	if a.segments > 0 {
		a.part, a.want = partSegmentHeader, 8
		return
	}
	a.part, a.want = partPadding, (a.seen+16)&^15-a.seen
}

// finish returns what esp_ota_end and the next boot read from a complete image.
func (a *appImage) finish() (*build, error) {
	if a.part != partRest {
		return nil, fmt.Errorf("image ends early, after %d bytes", a.seen)
	}
	if len(a.head) < descriptorEnd || binary.LittleEndian.Uint32(a.head[32:]) != 0xABCD5432 {
		return nil, errors.New("image: no app descriptor")
	}
	return &build{
		version:  a.text(48, 32),
		compiled: a.text(128, 16) + "T" + a.text(112, 16) + "Z",
		idf:      a.text(144, 32),
		elf:      hex.EncodeToString(a.head[176:208]),
	}, nil
}

// text returns a NUL-padded field of the descriptor.
func (a *appImage) text(at, size int) string {
	b, _, _ := bytes.Cut(a.head[at:at+size], []byte{0})
	return string(b)
}
