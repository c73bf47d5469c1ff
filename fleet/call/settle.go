package call

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fleetd/fleet"
)

// Limits of the settler.
const (
	maxUnsettled      = 20_000
	maxUnsettledBytes = 64 << 20
	settleBatch       = 256
	settleTimeout     = 10 * time.Second // of one try: a hung session may hold a lock on a row
	firstSettlePause  = 100 * time.Millisecond
	settlePause       = 5 * time.Second // the longest between tries
	settleGrace       = 5 * time.Second // at shutdown
)

// A settler stores outcomes of calls after a write of their records failed. A failed write may
// still take effect: a database that hung may execute it later. So the settler stores the
// outcome until the database confirms it, whatever the record contains by then.
//
// Outcomes wait in memory, up to a limit. Beyond it no call is made (see [Service.enter]), so
// there is always room for the calls in flight.
type settler struct {
	store    Store
	log      *slog.Logger
	announce func(*fleet.Call)

	life  context.Context // ends when close gives up
	end   context.CancelFunc
	hurry chan struct{} // closed when fleetd stops: no more pauses
	once  sync.Once

	mu      sync.Mutex
	line    []*unsettled // oldest first
	bytes   int
	working bool
	worker  sync.WaitGroup
}

type unsettled struct {
	call    fleet.Call
	settled chan struct{}
}

func (u *unsettled) size() int { return 1000 + len(u.call.Arguments) + len(u.call.Result) }

// An unsettledError means that a write of a call's record failed. Settled is closed when the
// record is correct.
type unsettledError struct {
	err     error
	settled <-chan struct{}
}

func (e *unsettledError) Error() string { return e.err.Error() }
func (e *unsettledError) Unwrap() error { return e.err }

func newSettler(store Store, log *slog.Logger, announce func(*fleet.Call)) *settler {
	life, end := context.WithCancel(context.Background())
	return &settler{store: store, log: log, announce: announce, life: life, end: end, hurry: make(chan struct{})}
}

// add queues a call with its outcome; settled is closed when the outcome is recorded.
func (s *settler) add(c *fleet.Call) (settled <-chan struct{}) {
	u := &unsettled{call: *c, settled: make(chan struct{})}
	u.call.Evidence = slices.Clone(c.Evidence)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line = append(s.line, u)
	s.bytes += u.size()
	if !s.working {
		s.working = true
		s.worker.Go(s.work)
	}
	return u.settled
}

func (s *settler) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.line) >= maxUnsettled || s.bytes >= maxUnsettledBytes
}

// work stores outcomes until none waits.
func (s *settler) work() {
	hurry, away := s.hurry, false
	for pause := firstSettlePause; s.life.Err() == nil; pause = min(2*pause, settlePause) {
		batch := s.next()
		if len(batch) == 0 {
			if away {
				s.log.Info("all outcomes of calls are on record again")
			}
			return
		}
		err := s.try(batch)
		if rowRefused(err) {
			err = s.tryEach(batch)
		}
		if err == nil {
			s.remove(len(batch))
			pause = firstSettlePause / 2
			continue
		}
		if !away {
			away = true
			s.log.Error("outcomes of calls not stored; trying until they are", "count", s.waiting(), "err", err)
		}
		select {
		case <-time.After(pause):
		case <-hurry:
			hurry = nil
		case <-s.life.Done():
		}
	}
}

// next returns the oldest calls; without any, it records that the settler is idle.
func (s *settler) next() []*unsettled {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.line) == 0 {
		s.working = false
	}
	return slices.Clone(s.line[:min(len(s.line), settleBatch)])
}

func (s *settler) try(batch []*unsettled) error {
	ctx, cancel := context.WithTimeout(s.life, settleTimeout)
	defer cancel()
	calls := make([]*fleet.Call, len(batch))
	for i, u := range batch {
		calls[i] = &u.call
	}
	return s.store.SettleCalls(ctx, calls)
}

// tryEach drops calls that the store refuses. Settling a call twice does no harm.
func (s *settler) tryEach(batch []*unsettled) error {
	for _, u := range batch {
		err := s.try([]*unsettled{u})
		if rowRefused(err) {
			s.log.Error("the store cannot take the outcome of a call", "call", u.call.ID, "device", u.call.Device,
				"state", u.call.State, "err", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rowRefused reports whether the store refused the record because of its content, and not
// because of trouble in the store.
func rowRefused(err error) bool {
	return errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) || errors.Is(err, fleet.ErrNotFound)
}

func (s *settler) remove(n int) {
	s.mu.Lock()
	done := slices.Clone(s.line[:n])
	s.line = slices.Delete(s.line, 0, n)
	for _, u := range done {
		s.bytes -= u.size()
	}
	s.mu.Unlock()
	for _, u := range done {
		s.announce(&u.call)
		close(u.settled)
	}
}

func (s *settler) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.line)
}

// close waits a moment for the remaining calls. No call may be added after it.
func (s *settler) close() {
	s.once.Do(func() { close(s.hurry) })
	grace := time.AfterFunc(settleGrace, s.end)
	defer grace.Stop()
	s.worker.Wait()
	s.end()
	if n := s.waiting(); n > 0 {
		s.log.Error("outcomes of calls not stored; the next start closes those that are on record", "count", n)
	}
}
