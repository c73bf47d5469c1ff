package cluster

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	batchSize   = 256 << 10 // of frames; one longer frame is sent alone
	window      = 8 << 20   // bytes of batches that await an acknowledgement
	maxQueued   = 64 << 20  // bytes of frames that are not acknowledged
	ackDelay    = 20 * time.Millisecond
	repeatAfter = time.Second // without an acknowledgement
	beatEvery   = time.Second // a batch without frames, if there is nothing else to send
	silentAfter = 5 * time.Second
)

// errFull means that a stream has as much to send as it may hold.
var errFull = errors.New("the link to the other node is full")

// A stream is one end of the two streams between an edge and a core: it sends frames, and receives
// those of the other end, each once and in order, although the bus may lose batches.
type stream struct {
	edge, term uint64
	publish    func(batch []byte) error
	receive    func(frame) // called by one goroutine at a time, in order

	mu      sync.Mutex
	frames  []byte  // not in a batch yet
	ends    []int   // ends of the frames
	sent    []batch // not acknowledged
	size    int     // of sent, in bytes
	number  uint64  // of the latest batch
	ackDue  bool
	missing bool // a batch that was received shows that an earlier one is missing
	quick   bool // acknowledge at once
	heard   time.Time
	wake    chan struct{} // has an element if there is something to send
	ended   bool

	receiving sync.Mutex
	got       uint64 // the latest batch received; under both mutexes to write, either to read
}

// A batch is one message on the bus.
type batch struct {
	number uint64
	frames []byte
	at     time.Time // of the latest sending
}

func newStream(edge, term uint64, publish func([]byte) error, receive func(frame)) *stream {
	return &stream{edge: edge, term: term, publish: publish, receive: receive, wake: make(chan struct{}, 1),
		heard: time.Now()}
}

// add queues a frame.
func (s *stream) add(k kind, conn uint64, body []byte) error {
	s.mu.Lock()
	if len(s.frames)+s.size+len(body) > maxQueued {
		s.mu.Unlock()
		return errFull
	}
	s.frames = appendFrame(s.frames, k, conn, body)
	s.ends = append(s.ends, len(s.frames))
	s.mu.Unlock()
	s.stir()
	return nil
}

func (s *stream) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// silent reports whether nothing has been received for silentAfter.
func (s *stream) silent(now time.Time) bool { return s.silentFor(now) >= silentAfter }

// silentFor returns how long ago something was received.
func (s *stream) silentFor(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Sub(s.heard)
}

// end ends the stream and returns the frames that the other end may not have received.
func (s *stream) end() (frames []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, b := range s.sent {
		frames = append(frames, b.frames...)
	}
	return append(frames, s.frames...)
}

// run sends until ctx ends.
func (s *stream) run(ctx context.Context) {
	ack := time.NewTicker(ackDelay)
	defer ack.Stop()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		select {
		case <-s.wake:
			s.send()
		case <-ack.C:
			s.acknowledge(false)
		case now := <-beat.C:
			s.repeat(now, false)
			s.acknowledge(true)
		case <-ctx.Done():
			s.send()
			return
		}
	}
}

// send publishes what is queued, as far as the window allows.
func (s *stream) send() {
	for {
		s.mu.Lock()
		if s.quick {
			s.quick = false
			s.mu.Unlock()
			s.acknowledge(true)
			continue
		}
		if len(s.ends) == 0 || s.size >= window || s.ended {
			s.mu.Unlock()
			return
		}
		n := 0 // frames in this batch
		for n < len(s.ends) && (n == 0 || s.ends[n] <= batchSize) {
			n++
		}
		cut := s.ends[n-1]
		s.number++
		b := batch{number: s.number, frames: s.frames[:cut:cut], at: time.Now()}
		if n == len(s.ends) {
			s.frames, s.ends = nil, s.ends[:0]
		} else {
			s.frames, s.ends = s.frames[cut:], s.ends[n:]
			for i := range s.ends {
				s.ends[i] -= cut
			}
		}
		s.sent = append(s.sent, b)
		s.size += len(b.frames)
		h := s.header(b.number)
		s.mu.Unlock()
		_ = s.publish(append(appendHeader(make([]byte, 0, 32+len(b.frames)), h), b.frames...)) // repeated after an error
	}
}

// header returns the header of a batch, which acknowledges what was received.
func (s *stream) header(number uint64) header {
	h := header{edge: s.edge, term: s.term, number: number, got: s.got, missing: s.missing}
	s.ackDue, s.missing = false, false
	return h
}

// acknowledge publishes a batch without frames if an acknowledgement is due, or always.
func (s *stream) acknowledge(always bool) {
	s.mu.Lock()
	if !s.ackDue && !always || s.ended {
		s.mu.Unlock()
		return
	}
	h := s.header(0)
	s.mu.Unlock()
	_ = s.publish(appendHeader(nil, h))
}

// repeat publishes the batches again that were not acknowledged for repeatAfter, or all of them.
func (s *stream) repeat(now time.Time, all bool) {
	s.mu.Lock()
	var again []batch
	if len(s.sent) > 0 && (all || now.Sub(s.sent[0].at) >= repeatAfter) && !s.ended {
		for i := range s.sent {
			s.sent[i].at = now
		}
		again = append(again, s.sent...)
	}
	h := header{edge: s.edge, term: s.term, got: s.got}
	s.mu.Unlock()
	for _, b := range again {
		h.number = b.number
		_ = s.publish(append(appendHeader(make([]byte, 0, 32+len(b.frames)), h), b.frames...))
	}
}

// handle handles a batch of the other end.
func (s *stream) handle(h header, frames []byte) error {
	s.mu.Lock()
	s.heard = time.Now()
	for len(s.sent) > 0 && s.sent[0].number <= h.got {
		s.size -= len(s.sent[0].frames)
		s.sent[0] = batch{}
		s.sent = s.sent[1:]
	}
	more := len(s.ends) > 0
	s.mu.Unlock()
	if more {
		s.stir() // the window may have opened
	}
	if h.missing {
		s.repeat(time.Now(), true)
	}
	if h.number == 0 {
		return nil
	}
	s.receiving.Lock()
	defer s.receiving.Unlock()
	if h.number != s.got+1 {
		s.mu.Lock()
		s.missing, s.quick = h.number > s.got, true // an earlier one was repeated because its acknowledgement was lost
		s.mu.Unlock()
		s.stir()
		return nil
	}
	var err error
	for len(frames) > 0 && err == nil {
		var f frame
		if f, frames, err = nextFrame(frames); err == nil {
			s.receive(f)
		}
	}
	s.mu.Lock()
	s.got, s.ackDue = h.number, true
	s.mu.Unlock()
	return err
}
