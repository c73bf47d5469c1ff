package voice

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/upstream"
)

// lines contains the state of the upstreams that conversations have used.
type lines struct {
	mu   sync.Mutex
	byID map[uuid.UUID]*line
}

// A line is the state of one upstream: its health, and whether it is tried.
type line struct {
	changed time.Time // when the upstream was changed
	breaker breaker
	open    atomic.Int64 // open conversations

	mu     sync.Mutex
	health upstream.Health
}

// of returns the state of an upstream. An upstream that was changed starts with a new state.
func (l *lines) of(u *Upstream) *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID = make(map[uuid.UUID]*line)
	}
	known := l.byID[u.ID]
	if known == nil || known.changed.Before(u.Changed) {
		known = &line{changed: u.Changed}
		l.byID[u.ID] = known
	}
	return known
}

func (l *line) allow(now time.Time) fleet.ConversationEnd { return l.breaker.allow(now) }

// note records the outcome of opening a conversation and its duration; "" is success.
func (l *line) note(how fleet.ConversationEnd, took time.Duration, now time.Time) {
	l.breaker.note(how, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	at := now.UTC()
	switch {
	case how == "":
		l.health.LastSuccess, l.health.HelloIn, l.health.Failures = &at, took, 0
	case how.Failed():
		l.health.Failures++
		l.health.Failed++
		l.health.LastFailure, l.health.LastError = &at, how
	}
}

// Health returns the upstream's health; the zero value before its first conversation since it was
// created or changed.
func (r *Relay) Health(id uuid.UUID, changed time.Time) upstream.Health {
	r.lines.mu.Lock()
	l := r.lines.byID[id]
	r.lines.mu.Unlock()
	if l == nil || l.changed.Before(changed) {
		return upstream.Health{}
	}
	return l.state()
}

// A HealthReport is the health of an upstream since it was changed.
type HealthReport struct {
	ID      uuid.UUID
	Changed time.Time
	upstream.Health
}

// Healths returns the health of all upstreams that conversations have used.
func (r *Relay) Healths() (all []HealthReport) {
	r.lines.mu.Lock()
	defer r.lines.mu.Unlock()
	for id, l := range r.lines.byID {
		all = append(all, HealthReport{id, l.changed, l.state()})
	}
	return all
}

func (l *line) state() upstream.Health {
	retry := l.breaker.closedUntil(time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.health
	h.Open, h.RetryAt = int(l.open.Load()), retry
	return h
}

// closedUntil returns the time until which the upstream is not tried; nil if it is tried.
func (b *breaker) closedUntil(now time.Time) *time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < breakAfter || !now.Before(b.retryAt) {
		return nil
	}
	at := b.retryAt.UTC()
	return &at
}

// Identity of the device that a check simulates: no maker assigns this address.
const (
	checkDevice = "02:00:00:00:00:01"
	checkClient = "00000000-0000-4000-8000-000000000001"
)

// Check exchanges hellos with an upstream now, as a device without tools.
func Check(ctx context.Context, u Upstream, timeout time.Duration) upstream.Check {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := u.check(ctx, begin.Add(timeout))
	c := upstream.Check{OK: err == nil, Error: openEnd(err), Took: time.Since(begin)}
	if errors.Is(err, context.DeadlineExceeded) && c.Error == fleet.EndedLost {
		c.Error = fleet.EndedNoHello
	}
	return c
}

func (u *Upstream) check(ctx context.Context, until time.Time) error {
	if u.findNew != nil {
		id, _ := fleet.ParseDeviceID(checkDevice) // a constant
		url, token, err := u.findNew(ctx, Poll{Device: id, ClientID: checkClient})
		if err != nil {
			return err
		}
		u = u.at(url, token)
	}
	up, err := u.dial(ctx, checkClient, checkDevice, "")
	if err != nil {
		return err
	}
	defer up.close()
	stop := context.AfterFunc(ctx, up.close)
	defer stop()
	_, err = up.hello([]byte(`{"type":"hello","version":1,"transport":"websocket","features":{},"audio_params":`+
		`{"format":"opus","sample_rate":16000,"channels":1,"frame_duration":60}}`), until, func([]byte) {})
	return err
}

// Check runs [Check] and records the outcome for conversations and [Relay.Health].
func (r *Relay) Check(ctx context.Context, u Upstream) upstream.Check {
	c := Check(ctx, u, r.o.HelloTimeout)
	if ctx.Err() == nil {
		r.lines.of(&u).note(c.Error, c.Took, time.Now())
	}
	return c
}
