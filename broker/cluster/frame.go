package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// The versions of the format of batches. A node understands the latest and the one before, so that the
// nodes of a cluster can be upgraded one by one, in any order. Both ends of a stream use the lower one
// of what they understand: an edge takes it from the beat of the leader, the core from the first batch
// of the edge.
//
// In version 2 a batch has the time at which it was published, and a post the time when it is too late;
// a core can ask an edge to drain.
const (
	latestVersion = 2
	oldestVersion = 1
)

// agreed returns the version to use with a node that understands versions up to other. Nodes that name
// none understand version 1.
func agreed(other int) byte { return byte(max(oldestVersion, min(other, latestVersion))) }

// A kind is the kind of a frame.
type kind byte

// Frames of an edge.
const (
	frameHello     kind = iota + 1 // first in a term: JSON of helloFrame
	frameOpen                      // asks for admission: an openFrame
	framePresent                   // a connection that the core of an earlier term admitted: an openFrame
	framePresented                 // all present connections were announced
	frameEstablished
	frameSeen
	frameReceive  // a message: see appendMessage
	frameConverse // JSON of link.Event
	frameClosed   // JSON of closedFrame
	frameAccepted // the result of a post: number, 0 or 1 for "not sent", text
)

// Frames of the core.
const (
	frameAdmitted kind = iota + 64 // JSON of admission
	frameRefused                   // a link.Refusal
	framePost                      // number, when it is too late (see header.at), and a message: see appendMessage
	frameNotify                    // a message for the device
	frameFinish
	frameStop  // JSON of causeFrame
	frameDrain // for the edge itself: JSON of drainFrame
)

// A frame is one event of a connection; conn is its number at the edge, 0 for the edge itself. Its
// body is valid for as long as its batch.
type frame struct {
	kind kind
	conn uint64
	body []byte
}

func appendFrame(dst []byte, k kind, conn uint64, body []byte) []byte {
	dst = append(dst, byte(k))
	dst = binary.AppendUvarint(dst, conn)
	dst = binary.AppendUvarint(dst, uint64(len(body)))
	return append(dst, body...)
}

// maxFrameHeader is how long the parts of a frame before its body are at most.
const maxFrameHeader = 1 + 2*binary.MaxVarintLen64

var (
	errShort = errors.New("malformed batch")
	errAhead = errors.New("it acknowledges a batch that was not sent")
)

// checkFrames returns an error unless b consists of complete frames.
func checkFrames(b []byte) (err error) {
	for len(b) > 0 && err == nil {
		_, b, err = nextFrame(b)
	}
	return err
}

// nextFrame returns the first frame and the rest.
func nextFrame(b []byte) (f frame, rest []byte, err error) {
	if len(b) == 0 {
		return f, nil, errShort
	}
	f.kind, b = kind(b[0]), b[1:]
	if f.conn, b, err = uvarint(b); err != nil {
		return f, nil, err
	}
	f.body, rest, err = field(b)
	return f, rest, err
}

func uvarint(b []byte) (v uint64, rest []byte, err error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, errShort
	}
	return v, b[n:], nil
}

// field returns the bytes after their length.
func field(b []byte) (value, rest []byte, err error) {
	n, b, err := uvarint(b)
	if err != nil || n > uint64(len(b)) {
		return nil, nil, errShort
	}
	return b[:n:n], b[n:], nil
}

func appendField(dst []byte, value string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(value))), value...)
}

// A header begins each batch.
type header struct {
	version byte
	edge    uint64 // number of the pair of streams, which the edge chose at random
	term    uint64
	number  uint64 // of the batch in its stream, from 1; 0 for a beat, which has no frames
	latest  uint64 // of a beat: the latest batch that was published
	round   uint64 // how often the sender has repeated its batches, from 1
	got     uint64 // the latest batch received in the opposite stream
	at      uint64 // when it is published, in milliseconds since the sender began the stream
	missing uint64 // round of the batch that shows that the one after got is missing; 0 if none is
	ask     bool   // asks for a beat in return
	restart bool   // the core does not know the edge's stream, or not any more
	twin    bool   // the core serves another process with the edge's name
	size    int    // of the frames, in bytes
}

const (
	flagAsk = 1 << iota
	flagRestart
	flagTwin
)

func appendHeader(dst []byte, h header) []byte {
	flags := byte(0)
	if h.ask {
		flags |= flagAsk
	}
	if h.restart {
		flags |= flagRestart
	}
	if h.twin {
		flags |= flagTwin
	}
	dst = append(dst, h.version, flags)
	for _, v := range []uint64{h.edge, h.term, h.number, h.latest, h.round, h.got, h.missing} {
		dst = binary.AppendUvarint(dst, v)
	}
	if h.version >= 2 {
		dst = binary.AppendUvarint(dst, h.at)
	}
	return binary.AppendUvarint(dst, uint64(h.size))
}

// parseHeader returns the header of a batch and its frames.
func parseHeader(b []byte) (h header, frames []byte, err error) {
	if len(b) < 2 {
		return h, nil, errShort
	}
	if h.version = b[0]; h.version < oldestVersion || h.version > latestVersion {
		return h, nil, fmt.Errorf("it has format %d, but this fleetd understands %d to %d: run versions of fleetd that follow"+
			" each other, or the same one on all nodes", h.version, oldestVersion, latestVersion)
	}
	h.ask, h.restart, h.twin = b[1]&flagAsk != 0, b[1]&flagRestart != 0, b[1]&flagTwin != 0
	b = b[2:]
	var size uint64
	fields := []*uint64{&h.edge, &h.term, &h.number, &h.latest, &h.round, &h.got, &h.missing, &h.at, &size}
	if h.version < 2 {
		fields = slices.Delete(fields, 7, 8)
	}
	for _, v := range fields {
		if *v, b, err = uvarint(b); err != nil {
			return h, nil, err
		}
	}
	if h.round == 0 || size != uint64(len(b)) {
		return h, nil, errShort
	}
	h.size = len(b)
	return h, b, nil
}
