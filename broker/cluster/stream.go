package cluster

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"time"
)

const (
	batchSize  = 256 << 10 // of frames; one longer frame is sent alone
	window     = 8 << 20   // bytes of batches that await an acknowledgement
	maxQueued  = 64 << 20  // bytes of frames that are not acknowledged
	maxBody    = 960 << 10 // of a frame: an existing NATS cluster may limit messages to 1 MiB
	ackDelay   = 20 * time.Millisecond
	beatEvery  = time.Second // a batch without frames, from which the other end learns of a loss
	maxScratch = 512 << 10   // bytes of a buffer that is kept

	silentAfter = 5 * time.Second
)

var (
	// errFull means that a stream has as much to send as it may hold.
	errFull = errors.New("the link to the other node is full")
	// errTooLong means that a frame does not fit into a message of the bus.
	errTooLong = errors.New("the message is too long for the link between the nodes")
)

// A stream is one end of the two streams between an edge and a core: it sends frames, and receives
// those of the other end, each once and in order, although the bus may lose batches.
//
// The receiver discovers a loss by a batch that comes after a gap, or by a beat, which contains the
// number of the latest batch. It then asks for everything after the batch that it got. It names the
// round of the batch that made it ask: requests of an earlier round are answered already.
type stream struct {
	version    byte // of the format
	edge, term uint64
	publish    func(batch []byte) error
	receive    func(frame) // called by one goroutine at a time, in order

	mu     sync.Mutex
	queue  [][]byte // frames that are not in a batch yet, each element no longer than one
	queued int      // bytes of queue
	sent   []batch  // not acknowledged
	size   int      // of sent, in bytes
	next   uint64   // the batch to publish next: one of sent, or the one after them
	number uint64   // of the latest batch
	round  uint64   // 1, and one more each time sent is repeated
	got    uint64   // the latest batch received
	gap    uint64   // round of a batch that came after a gap; 0 for none
	ackDue bool
	beat   bool // publish a batch without frames at once
	ask    bool // it asks for one in return
	timer  *time.Timer
	armed  bool // the timer runs
	heard  time.Time
	began  time.Time
	lag    lag
	ended  bool
	wake   chan struct{} // has an element if there is something to publish

	sending   sync.Mutex // held while batches are published
	scratch   []byte
	receiving sync.Mutex // held while frames are received
}

// A batch is one message on the bus.
type batch struct {
	number uint64
	frames []byte
}

func newStream(version byte, edge, term uint64, publish func([]byte) error, receive func(frame)) *stream {
	now := time.Now()
	return &stream{version: version, edge: edge, term: term, publish: publish, receive: receive, round: 1, next: 1,
		wake: make(chan struct{}, 1), heard: now, began: now, lag: lag{now: math.MaxInt64, before: math.MaxInt64}}
}

// at returns a time as the stream's own batches carry it.
func (s *stream) at(t time.Time) int64 { return t.Sub(s.began).Milliseconds() }

// A lag is by how many milliseconds the stream's own clock is ahead of the one in the batches that it
// receives: the least difference seen, because batches that took longer make it greater. It counts
// for a minute or two, because clocks run at slightly different speeds.
type lag struct {
	since       int64 // when now was begun
	now, before int64
}

const lagPeriod = int64(time.Minute / time.Millisecond)

func (l *lag) observe(own, received int64) {
	if own-l.since >= lagPeriod {
		*l = lag{since: own, now: math.MaxInt64, before: l.now}
	}
	l.now = min(l.now, own-received)
}

// overdue reports whether the other end's clock has certainly passed a time. A batch may have waited
// in the bus, or in the sockets of this process while it was frozen.
func (s *stream) overdue(due uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at(time.Now())-min(s.lag.now, s.lag.before) > int64(due)
}

// add queues a frame.
func (s *stream) add(k kind, conn uint64, body []byte) error {
	if len(body) > maxBody {
		return errTooLong
	}
	s.mu.Lock()
	if s.queued+s.size+len(body) > maxQueued {
		s.mu.Unlock()
		return errFull
	}
	s.put(k, conn, body)
	s.mu.Unlock()
	s.stir()
	return nil
}

// announce queues a frame that must not be lost, however much is queued: there are few of them for
// each connection.
func (s *stream) announce(k kind, conn uint64, body []byte) error {
	if len(body) > maxBody {
		return errTooLong // it would stay at the head of the queue
	}
	s.mu.Lock()
	s.put(k, conn, body)
	s.mu.Unlock()
	s.stir()
	return nil
}

func (s *stream) put(k kind, conn uint64, body []byte) {
	last := len(s.queue) - 1
	if last < 0 || len(s.queue[last])+len(body)+maxFrameHeader > batchSize {
		s.queue, last = append(s.queue, nil), last+1
	}
	before := len(s.queue[last])
	s.queue[last] = appendFrame(s.queue[last], k, conn, body)
	s.queued += len(s.queue[last]) - before
}

func (s *stream) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// hear records that the other end lives, before its batch is handled.
func (s *stream) hear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = time.Now()
}

// forsake makes the stream silent until something is received.
func (s *stream) forsake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = s.heard.Add(-silentAfter)
}

// silent reports whether nothing has been received for silentAfter.
func (s *stream) silent(now time.Time) bool { return s.silentFor(now) >= silentAfter }

// silentFor returns how long ago something was received.
func (s *stream) silentFor(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Sub(s.heard)
}

// stop ends the stream: when it returns, no frame is being received or published, and none will be.
// Frames may still be added, for rest.
func (s *stream) stop() {
	s.mu.Lock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.sending.Lock()
	s.scratch = nil
	s.sending.Unlock()
	s.receiving.Lock()
	defer s.receiving.Unlock() // a lock that is free has ended its section
}

// rest returns the frames that the other end may not have received, of a stream that has stopped.
func (s *stream) rest() (frames [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.sent {
		frames = append(frames, b.frames)
	}
	return append(frames, s.queue...)
}

// restartable reports whether the other end got something, and therefore could not begin again.
func (s *stream) restartable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.number > 0 && (len(s.sent) == 0 || s.sent[0].number > 1)
}

// run publishes until ctx ends.
func (s *stream) run(ctx context.Context) {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		select {
		case <-s.wake:
			runtime.Gosched() // on a busy machine others add to the batch
			s.flush()
		case <-beat.C:
			s.mu.Lock()
			s.beat = true
			s.mu.Unlock()
			s.flush()
		case <-ctx.Done():
			s.flush()
			return
		}
	}
}

// resume compares both ends after the connection to the bus was lost: each end learns what it missed.
func (s *stream) resume() {
	s.mu.Lock()
	s.beat, s.ask = true, true
	s.mu.Unlock()
	s.stir()
}

// flush publishes what is due, as far as the window allows. What the bus does not accept stays due;
// the next beat tries again.
func (s *stream) flush() {
	s.sending.Lock()
	defer s.sending.Unlock()
	for {
		h, frames, due := s.take()
		if !due {
			return
		}
		h.size = len(frames)
		s.scratch = append(appendHeader(s.scratch[:0], h), frames...)
		err := s.publish(s.scratch)
		if cap(s.scratch) > maxScratch {
			s.scratch = nil
		}
		if err != nil {
			return
		}
		if h.number > 0 {
			s.published(h)
		}
	}
}

// take returns what to publish next.
func (s *stream) take() (h header, frames []byte, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return h, nil, false
	}
	h = header{version: s.version, edge: s.edge, term: s.term, got: s.got, round: s.round, missing: s.gap,
		at: uint64(s.at(time.Now()))}
	switch {
	case s.beat: // first, since the other end waits for it
		h.latest, h.ask = s.next-1, s.ask
		s.beat, s.ask = false, false
	case s.next <= s.number:
		b := s.sent[s.next-s.sent[0].number]
		h.number, frames = b.number, b.frames
	case len(s.queue) > 0 && s.size < window:
		frames = s.queue[0]
		s.queue[0] = nil
		if s.queue = s.queue[1:]; len(s.queue) == 0 {
			s.queue = nil
		}
		s.number++
		s.queued -= len(frames)
		s.size += len(frames)
		s.sent = append(s.sent, batch{s.number, frames})
		h.number = s.number
	default:
		return h, nil, false
	}
	s.ackDue, s.gap = false, 0
	return h, frames, true
}

// published records that the bus accepted a batch.
func (s *stream) published(h header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.round == h.round && s.next == h.number { // neither repeated nor acknowledged meanwhile
		s.next++
	}
}

// acknowledged removes the batches that the other end got.
func (s *stream) acknowledged(got uint64) {
	n := 0
	for n < len(s.sent) && s.sent[n].number <= got {
		s.size -= len(s.sent[n].frames)
		s.sent[n] = batch{}
		n++
	}
	if s.sent = s.sent[n:]; len(s.sent) == 0 {
		s.sent = nil
	}
	s.next = max(s.next, got+1)
}

// handle handles a batch of the other end. The frames stay valid for their receiver until it returns.
func (s *stream) handle(h header, frames []byte) error {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	accepted, err := s.accept(h, frames)
	if !accepted || err != nil {
		return err
	}
	for len(frames) > 0 && !s.hasEnded() {
		var f frame
		f, frames, _ = nextFrame(frames) // checked by accept
		s.receive(f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got, s.ackDue = h.number, true
	if !s.armed && !s.ended {
		s.armed = true
		if s.timer == nil {
			s.timer = time.AfterFunc(ackDelay, s.acknowledge)
		} else {
			s.timer.Reset(ackDelay)
		}
	}
	return nil
}

func (s *stream) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// accept handles the header of a batch. It reports whether the frames are the next ones.
func (s *stream) accept(h header, frames []byte) (bool, error) {
	if h.number > 0 {
		if err := checkFrames(frames); err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return false, nil
	case h.got > s.number:
		return false, errAhead
	}
	s.heard = time.Now()
	if h.version >= 2 {
		s.lag.observe(s.at(s.heard), int64(h.at))
	}
	s.acknowledged(h.got)
	if h.missing == s.round && len(s.sent) > 0 && s.next > s.sent[0].number {
		s.round++
		s.next = s.sent[0].number
	}
	s.beat = s.beat || h.ask
	accepted := h.number == s.got+1
	switch {
	case accepted:
	case h.number > s.got || h.number == 0 && h.latest > s.got:
		s.gap, s.beat = h.round, true
	case h.number > 0:
		s.beat = true // repeated, because an acknowledgement was lost
	}
	if s.beat || s.next <= s.number || len(s.queue) > 0 {
		s.stir()
	}
	return accepted, nil
}

// acknowledge publishes an acknowledgement unless a batch has carried it meanwhile.
func (s *stream) acknowledge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if s.ackDue && !s.ended {
		s.beat = true
		s.stir()
	}
}
