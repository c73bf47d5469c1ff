package web

import (
	"context"
	"sync"
)

// Bounds of live streams: each holds a connection and a buffer of events.
const (
	maxStreams            = 512
	maxStreamsPerOperator = 16
)

// streams counts the live streams that are open, and ends them all at once.
type streams struct {
	mu         sync.Mutex
	closed     bool
	next       int
	open       map[int]context.CancelFunc
	byOperator map[string]int
}

func newStreams() *streams {
	return &streams{open: make(map[int]context.CancelFunc), byOperator: make(map[string]int)}
}

// add admits a stream. It ends with ctx; done must be called after it. ok is
// false if there are too many, or the server stops.
func (s *streams) add(ctx context.Context, operator string) (_ context.Context, done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.open) >= maxStreams || s.byOperator[operator] >= maxStreamsPerOperator {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancel(ctx)
	s.next++
	n := s.next
	s.open[n] = cancel
	s.byOperator[operator]++
	return ctx, func() { s.remove(n, operator) }, true
}

func (s *streams) remove(n int, operator string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[n]()
	delete(s.open, n)
	if s.byOperator[operator]--; s.byOperator[operator] == 0 {
		delete(s.byOperator, operator)
	}
}

// close ends every stream and lets no more begin.
func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, cancel := range s.open {
		cancel()
	}
}
