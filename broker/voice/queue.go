package voice

import (
	"sync"
	"time"
)

// lateAudio is the age at which a waiting frame is too old to be played.
const lateAudio = 600 * time.Millisecond

// A queue contains frames to be sent to the upstream. It never grows: a frame replaces the oldest
// if the queue is full.
type queue struct {
	mu    sync.Mutex
	ring  []queued
	first int
	n     int
	wake  chan struct{} // has an element while the queue may have frames
}

type queued struct {
	frame     []byte
	timestamp uint32
	at        time.Time
}

func newQueue(frame time.Duration) *queue {
	return &queue{ring: make([]queued, min(max(int(lateAudio/frame), 10), 60)), wake: make(chan struct{}, 1)}
}

// push copies a frame into the queue and returns how many it displaced.
func (q *queue) push(frame []byte, timestamp uint32, at time.Time) (dropped int) {
	q.mu.Lock()
	if q.n == len(q.ring) {
		q.first, q.n, dropped = (q.first+1)%len(q.ring), q.n-1, 1
	}
	slot := &q.ring[(q.first+q.n)%len(q.ring)]
	slot.frame, slot.timestamp, slot.at = append(slot.frame[:0], frame...), timestamp, at
	q.n++
	q.mu.Unlock()
	q.notify()
	return dropped
}

// notify wakes the reader.
func (q *queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n == 0
}

// pop appends the oldest frame that is not late to dst, and returns how many late frames it
// dropped.
func (q *queue) pop(dst []byte, now time.Time) (frame []byte, timestamp uint32, ok bool, dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; q.n > 0; dropped++ {
		slot := &q.ring[q.first]
		q.first, q.n = (q.first+1)%len(q.ring), q.n-1
		if now.Sub(slot.at) <= lateAudio {
			return append(dst, slot.frame...), slot.timestamp, true, dropped
		}
	}
	return dst, 0, false, dropped
}
