// Package heavy limits operations that cost much more than their request: how many one
// principal may start per minute, and how many may run at once. The console, REST and MCP
// share one [Limits] and check it before they read a request's body. Each of their operations
// declares its [Work] with its role.
//
// It does not depend on the operations. One lock guards the counts; there is no goroutine.
package heavy

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"fleetd/fleet"
)

// Work is a kind of heavy operation. Operations of one kind share a limit.
type Work string

const (
	None    Work = ""
	Import  Work = "import"  // reads a large text into memory, and compares it with devices
	Export  Work = "export"  // reads many rows
	Upload  Work = "upload"  // receives and parses a file
	Preview Work = "preview" // examines every device of a query
)

// A bound is the limit of one principal for one kind of work.
type bound struct{ perMinute, atOnce int }

// bounds are limits that a person, or a program with several requests in flight, does not
// reach. An import needs some ten times its file in memory, so only one runs at a time.
var bounds = map[Work]bound{
	Import:  {perMinute: 20, atOnce: 1},
	Export:  {perMinute: 30, atOnce: 2},
	Upload:  {perMinute: 120, atOnce: 4},
	Preview: {perMinute: 300, atOnce: 8},
}

// Valid reports whether w is one of the constants above.
func (w Work) Valid() bool { return w == None || bounds[w].atOnce > 0 }

// Limits counts the heavy work of all principals. The zero value is ready to use.
type Limits struct {
	mu   sync.Mutex
	used map[key]*use
}

type key struct {
	kind fleet.PrincipalKind
	id   string
	work Work
}

// A use is what one principal has left for one kind of work.
type use struct {
	left    float64 // requests that may start now
	at      time.Time
	running int
	waiting int
	ended   chan struct{} // closed when the next request ends
}

// settle is how long work waits for the previous work to end. A client may have received the
// whole response to that before its handler returned, and send the next request.
const settle = 2 * time.Second

// Begin starts work of a principal. The caller must call done when the work has ended. Begin
// returns [fleet.ErrTooMany] if the principal has reached a limit. A nil Limits has no
// limits.
func (l *Limits) Begin(ctx context.Context, by fleet.Principal, w Work) (done func(), err error) {
	b := bounds[w]
	if l == nil || b.atOnce == 0 {
		return func() {}, nil
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	k := key{by.Kind, cmp.Or(by.ID, by.Name), w}
	u := l.used[k]
	if u == nil {
		l.forget(now)
		u = &use{left: float64(b.perMinute), at: now, ended: make(chan struct{})}
		l.used[k] = u
	}
	u.refill(b, now)
	if u.left < 1 {
		return nil, fleet.Refuse(fleet.ErrTooMany, "heavy_rate", "limit", b.perMinute)
	}
	u.left--
	if !l.waitFor(ctx, u, b) {
		return nil, fleet.Refuse(fleet.ErrTooMany, "heavy_at_once", "limit", b.atOnce)
	}
	u.running++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		u.running--
		close(u.ended)
		u.ended = make(chan struct{})
	}), nil
}

// waitFor waits at most [settle] until there is room. The caller holds the lock.
func (l *Limits) waitFor(ctx context.Context, u *use, b bound) bool {
	if u.running < b.atOnce {
		return true
	}
	u.waiting++
	defer func() { u.waiting-- }()
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for u.running >= b.atOnce && ctx.Err() == nil {
		ended := u.ended
		l.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
		}
		l.mu.Lock()
	}
	return u.running < b.atOnce
}

func (u *use) refill(b bound, now time.Time) {
	passed := max(0, now.Sub(u.at).Minutes())
	u.left, u.at = math.Min(float64(b.perMinute), u.left+passed*float64(b.perMinute)), now
}

// forget occasionally drops counts that are back at their initial value, because principals
// come and go.
func (l *Limits) forget(now time.Time) {
	const many = 1000
	if l.used == nil {
		l.used = make(map[key]*use)
	}
	if len(l.used) < many {
		return
	}
	for k, u := range l.used {
		if u.running+u.waiting == 0 && now.Sub(u.at) >= time.Minute {
			delete(l.used, k)
		}
	}
}
