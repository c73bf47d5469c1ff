package broker

import (
	"sync"
	"time"
)

const (
	throttleEvery = time.Hour // per key
	throttleKeys  = 1024
)

// A throttle says what is worth a log line: the first refusal of a client in an
// hour. A refused device tries again every ten seconds for ever. Keys are made
// by strangers, so only so many are kept; what does not fit is not logged.
type throttle struct {
	mu      sync.Mutex
	last    map[string]time.Time
	skipped int
}

// allow reports whether to log, and how many lines were left out since the
// last that was allowed.
func (t *throttle) allow(key string, now time.Time) (ok bool, skipped int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, known := t.last[key]; known && now.Sub(at) < throttleEvery {
		t.skipped++
		return false, 0
	}
	if len(t.last) >= throttleKeys {
		t.expire(now)
	}
	if len(t.last) >= throttleKeys {
		t.skipped++
		return false, 0
	}
	if t.last == nil {
		t.last = make(map[string]time.Time)
	}
	t.last[key] = now
	skipped, t.skipped = t.skipped, 0
	return true, skipped
}

func (t *throttle) expire(now time.Time) {
	for key, at := range t.last {
		if now.Sub(at) >= throttleEvery {
			delete(t.last, key)
		}
	}
}
