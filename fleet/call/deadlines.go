package call

import (
	"context"
	"sync"
	"time"

	"fleetd/internal/bounded"
)

// deadlineShare limits how late a shared deadline may end: by timeout/deadlineShare.
const deadlineShare = 500

// deadlines makes contexts that end at the timeouts of calls. Calls that begin at about the
// same time share a context: one for each call costs more than parsing the answer.
type deadlines struct {
	life context.Context // its end ends all of them

	mu     sync.Mutex
	latest *bounded.Cache[time.Duration, deadline] // by timeout
}

type deadline struct {
	ctx   context.Context
	end   context.CancelFunc
	until time.Time // calls that begin before this share it
}

// maxDeadlines limits the number of cached timeouts. Few are in use at a time.
const maxDeadlines = 64

// after returns a context that ends when the timeout is over, or up to 1/[deadlineShare] of it
// later.
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
