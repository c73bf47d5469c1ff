package edge

import (
	"sync"
	"time"
)

const (
	throttleEvery = time.Hour // per key
	throttleKeys  = 1024
)

// A throttle decides what is logged: the first refusal of a client in an hour. A refused device
// retries every ten seconds for ever. Clients choose the keys, so the number of keys is limited;
// further keys are not logged.
type throttle struct {
	mu      sync.Mutex
	last    map[string]time.Time
	skipped int
}

// allow reports whether to log, and how many log lines were suppressed since the last allowed
// one.
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
