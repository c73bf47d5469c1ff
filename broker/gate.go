package broker

import (
	"sync"
	"time"
)

// A gate lets in so many connections at a time. When it is full, accepting
// stops and the kernel's queue holds who comes.
type gate struct {
	mu            sync.Mutex
	inside, limit int
}

func newGate(limit int) *gate { return &gate{limit: limit} }

func (g *gate) try() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside >= g.limit {
		return false
	}
	g.inside++
	return true
}

// enter waits for room. It returns false when done is closed first.
func (g *gate) enter(done <-chan struct{}) bool {
	for !g.try() {
		select {
		case <-done:
			return false
		case <-time.After(50 * time.Millisecond): // full is an emergency: no need to be prompt
		}
	}
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
}
