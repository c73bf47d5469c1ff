package api

import (
	"net/http"
	"sync"

	"fleetd/fleet"
)

// maxStreams is how many event streams a token may have open: each costs a connection, a buffer,
// and work for every event.
const maxStreams = 20

// streamCount counts the open event streams of each token.
type streamCount struct {
	mu   sync.Mutex
	open map[string]int
}

// enter counts a stream; the caller must call leave after it. It returns a problem if there are too
// many.
func (s *streamCount) enter(token string) (leave func(), _ *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[token] >= maxStreams {
		p := refused(http.StatusTooManyRequests, fleet.Refuse(fleet.ErrTooMany, "too_many_streams", "limit", maxStreams))
		p.retryAfter = 10
		return nil, p
	}
	if s.open == nil {
		s.open = make(map[string]int)
	}
	s.open[token]++
	return func() { s.leave(token) }, nil
}

func (s *streamCount) leave(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[token]--; s.open[token] == 0 {
		delete(s.open, token)
	}
}
