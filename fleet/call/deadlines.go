package call

import (
	"context"
	"sync"
	"time"

	"fleetd/internal/bounded"
)

// deadlineShare is the part of a timeout by which a call may wait longer.
const deadlineShare = 500

// deadlines makes contexts that end at the timeouts of calls. Calls that begin
// at about the same time share one: a context for each costs more than parsing
// the answer.
type deadlines struct {
	life context.Context // ends all

	mu     sync.Mutex
	latest *bounded.Cache[time.Duration, deadline] // by timeout
}

type deadline struct {
	ctx   context.Context
	end   context.CancelFunc
	until time.Time // calls that begin before this share it
}

// maxDeadlines bounds the timeouts that are kept. Few are in use at a time.
const maxDeadlines = 64

// after returns a context that ends when the timeout is over, or up to a
// [deadlineShare] of it later.
func (d *deadlines) after(timeout time.Duration) context.Context {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if same, ok := d.latest.Get(timeout); ok && now.Before(same.until) {
		return same.ctx
	}
	until := now.Add(timeout / deadlineShare)
	ctx, end := context.WithDeadline(d.life, until.Add(timeout))
	d.latest.Add(timeout, deadline{ctx, end, until})
	return ctx
}
