package console

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Limits of live streams: each occupies a connection and a buffer of events. A browser opens at
// most six connections to one server, which its tabs share: a stream in each of six tabs would
// leave none for their pages.
const (
	maxStreams           = 512
	maxStreamsPerSession = 5
)

// streams counts the open live streams, and ends them all at once.
type streams struct {
	mu        sync.Mutex
	closed    bool
	next      int
	open      map[int]openStream
	bySession map[string]int
}

type openStream struct {
	session string
	end     context.CancelFunc
}

func newStreams() *streams {
	return &streams{open: make(map[int]openStream), bySession: make(map[string]int)}
}

var (
	errTooManyStreams = errors.New("too many live pages are open")
	errServerStops    = fmt.Errorf("%w: the server is stopping", context.Canceled)
)

// add admits a stream. It ends with ctx; done must be called after it.
func (s *streams) add(ctx context.Context, session string) (_ context.Context, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, errServerStops
	case len(s.open) >= maxStreams, s.bySession[session] >= maxStreamsPerSession:
		return nil, nil, errTooManyStreams
	}
	ctx, cancel := context.WithCancel(ctx)
	s.next++
	n := s.next
	s.open[n] = openStream{session, cancel}
	s.bySession[session]++
	return ctx, func() { s.remove(n, session) }, nil
}

func (s *streams) remove(n int, session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[n].end()
	delete(s.open, n)
	if s.bySession[session]--; s.bySession[session] == 0 {
		delete(s.bySession, session)
	}
}

// end ends the streams of a session, or of all sessions: permitted readers reconnect, and are
// checked again.
func (s *streams) end(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.open {
		if session == allSessions || o.session == session {
			o.end()
		}
	}
}

const allSessions = ""

// close ends every stream and refuses new ones.
func (s *streams) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end(allSessions)
}
