package espimage

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"io"
)

const checksumSeed = 0xEF

// readSegments reads the segment headers. It sets Length and checks that every segment is
// inside limit.
func (img *Image) readSegments(r io.ReaderAt, limit int64) error {
	n := int(img.Header.SegmentCount)
	if n < 1 || n > maxSegments {
		return newFault(ReasonSegments, "count", "segments", n, "most", maxSegments)
	}
	end := int64(headerSize)
	for i := range n {
		s, err := readSegment(r, end, limit, i, n)
		if err != nil {
			return err
		}
		img.Segments = append(img.Segments, s)
		end = s.Offset + int64(s.Size)
	}
	img.Length = checksumAt(end) + 1
	if img.Header.HashAppended {
		img.Length += sha256.Size
	}
	if img.Length > limit {
		return truncated(img.Length, limit)
	}
	return nil
}

func readSegment(r io.ReaderAt, at, limit int64, i, n int) (Segment, error) {
	if limit-at < segmentHeader {
		return Segment{}, truncated(at+segmentHeader, limit)
	}
	var h [segmentHeader]byte
	if err := readAt(r, h[:], at); err != nil {
		return Segment{}, err
	}
	s := Segment{LoadAddr: binary.LittleEndian.Uint32(h[:]), Offset: at + segmentHeader, Size: binary.LittleEndian.Uint32(
		h[4:])}
	if s.Size >= maxSegmentSize || s.Size%4 != 0 {
		return s, newFault(ReasonSegments, "size", "segment", i+1, "segments", n, "size", s.Size)
	}
	if end := s.Offset + int64(s.Size); end > limit {
		return s, truncated(end, limit)
	}
	return s, nil
}

func truncated(need, have int64) error {
	return newFault(ReasonTruncated, "short", "size", have, "least", need)
}

// checksumAt returns the offset of the last byte of the 16-byte block after the last segment.
func checksumAt(end int64) int64 { return (end+16)&^15 - 1 }

// verify compares the bytes with the checksum and the appended hash.
func (img *Image) verify(r io.ReaderAt, limit int64) error {
	sum, digest, err := img.sums(r)
	if err != nil {
		return err
	}
	last := img.Segments[len(img.Segments)-1]
	tail := make([]byte, img.Length-checksumAt(last.Offset+int64(last.Size)))
	if err := readAt(r, tail, img.Length-int64(len(tail))); err != nil {
		return err
	}
	if img.Checksum = tail[0]; sum != img.Checksum {
		return newFault(ReasonChecksum, "differs", "stored_hex", img.Checksum, "computed_hex", sum)
	}
	if !img.Header.HashAppended {
		return nil
	}
	if !bytes.Equal(tail[1:], digest) {
		return newFault(ReasonSHA256, "differs")
	}
	img.SHA256 = hex.EncodeToString(digest)
	return nil
}

// sums reads the image up to its checksum once. It returns the XOR over the data of the
// segments, and the SHA-256 over all bytes.
func (img *Image) sums(r io.ReaderAt) (byte, []byte, error) {
	all, sum := sha256.New(), xor(checksumSeed)
	buf := make([]byte, 32<<10)
	at := int64(0)
	copyTo := func(end int64, w io.Writer) error {
		err := copyRange(w, r, at, end, buf)
		at = end
		return err
	}
	for _, s := range img.Segments {
		if err := copyTo(s.Offset, all); err != nil {
			return 0, nil, err
		}
		if err := copyTo(s.Offset+int64(s.Size), io.MultiWriter(all, &sum)); err != nil {
			return 0, nil, err
		}
	}
	err := copyTo(checksumAt(at)+1, all)
	return byte(sum), all.Sum(nil), err
}

// copyRange copies the bytes from at to end to w, through buf.
func copyRange(w io.Writer, r io.ReaderAt, at, end int64, buf []byte) error {
	for at < end {
		part := buf[:min(int64(len(buf)), end-at)]
		if err := readAt(r, part, at); err != nil {
			return err
		}
		w.Write(part) // writing to a hash never fails
		at += int64(len(part))
	}
	return nil
}

type xor byte

func (x *xor) Write(p []byte) (int, error) {
	var v byte
	for _, b := range p {
		v ^= b
	}
	*x ^= xor(v)
	return len(p), nil
}

// digest hashes the first n bytes of r with h.
func digest(r io.ReaderAt, n int64, h hash.Hash) ([]byte, error) {
	err := copyRange(h, r, 0, n, make([]byte, 32<<10))
	return h.Sum(nil), err
}
