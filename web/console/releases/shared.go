package releases

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/internal/bounded"
)

// A sharedCache keeps results that take the database a moment, for all viewers: while one of them
// waits for a result, the others wait for the same.
type sharedCache[T any] struct {
	mu  sync.Mutex
	all *bounded.Cache[uuid.UUID, *sharedResult[T]]
}

type sharedResult[T any] struct {
	mu   sync.Mutex // locked while it is computed
	at   time.Time
	last T
}

func newSharedCache[T any](size int) *sharedCache[T] {
	return &sharedCache[T]{all: bounded.New[uuid.UUID, *sharedResult[T]](size)}
}

func (c *sharedCache[T]) result(id uuid.UUID) *sharedResult[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.all.Get(id)
	if !ok {
		r = new(sharedResult[T])
		c.all.Add(id, r)
	}
	return r
}

// get returns the result for id: the last one if it is younger than most and, with current, still
// about the present; otherwise that of compute.
func (c *sharedCache[T]) get(id uuid.UUID, now time.Time, most time.Duration, current func(T) bool,
	compute func() (T, error)) (T, error) {
	r := c.result(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	age := now.Sub(r.at)
	if !r.at.IsZero() && age >= 0 && age < most && (current == nil || current(r.last)) {
		return r.last, nil
	}
	last, err := compute()
	if err == nil {
		r.at, r.last = now, last
	}
	return last, err
}
