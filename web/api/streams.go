package api

import (
	"net/http"
	"strconv"
	"sync"
)

// maxStreams is how many event streams a token may hold open: each costs a
// connection, a buffer, and work for every event.
const maxStreams = 20

// streamCount counts the open event streams of each token.
type streamCount struct {
	mu   sync.Mutex
	open map[string]int
}

// enter counts a stream in; leave must be called after it. The problem says
// that there are too many.
func (s *streamCount) enter(token string) (leave func(), _ *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[token] >= maxStreams {
		return nil, &problem{Status: http.StatusTooManyRequests, Title: http.StatusText(http.StatusTooManyRequests),
			Code:   "too_many_streams",
			Detail: "the token has " + strconv.Itoa(maxStreams) + " event streams open already; close one first", retryAfter: 10}
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
