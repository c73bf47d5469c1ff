package call

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/google/uuid"
)

// callIDSlack is how far the time in a call's id may lie ahead of the call's creation: the store
// finds a call's partition by that time.
const callIDSlack = time.Minute

// callIDs are the ids of this process's calls. Calls that wait for the same device are sent in
// the order of their ids.
var callIDs idSequence

// An idSequence makes ids of version 7: 48 bits of milliseconds, 12 bits of their fraction, and
// a random rest. Each id is greater than the one before, unless the clock was set back by more than
// [callIDSlack]. (The ids of [uuid.NewV7] would lie ahead for as long as the clock was wrong.)
type idSequence struct {
	mu   sync.Mutex
	last int64 // the first 60 bits of the latest id, without the version
}

func (s *idSequence) next(now time.Time) uuid.UUID {
	const perMilli = 1 << 12
	at := now.UnixMilli()*perMilli + int64(now.Nanosecond())%int64(time.Millisecond)*perMilli/int64(time.Millisecond)
	s.mu.Lock()
	if ahead := s.last - at; ahead >= 0 && ahead <= callIDSlack.Milliseconds()*perMilli {
		at = s.last + 1
	}
	s.last = at
	s.mu.Unlock()
	id := uuid.New()
	binary.BigEndian.PutUint64(id[:8], uint64(at)/perMilli<<16|7<<12|uint64(at)%perMilli)
	return id
}
