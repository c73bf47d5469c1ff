// Package authority answers what a principal may do now.
//
// Work goes on after the request that asked for it was answered: a campaign opens
// its next wave, a fan-out calls its next device, a stream sends its next event.
// Such work keeps the id of the principal that asked, and asks this package each
// time it is about to act. What a principal may do is in the database and may
// change there by another process; an answer is half a second old at most.
//
// The package knows neither calls nor campaigns: what they do with the answer is
// their decision. A [Service] is safe for concurrent use; each [Service.Follow] has
// one goroutine until it is canceled.
package authority

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// A Store reads the rights of operators and tokens.
type Store interface {
	// PrincipalNow returns the principal as it may act at the given time, and
	// [fleet.ErrNotFound] if it may not act any more. Principals without a row come
	// back as they are.
	PrincipalNow(ctx context.Context, p fleet.Principal, now time.Time) (fleet.Principal, error)
}

// Options configures a [Service]. Store is required.
type Options struct {
	Store Store
	// Changes counts the changes that this process makes to rights: an answer from
	// before the latest one is not used. Nil: only MaxAge bounds an answer.
	Changes func() int64
	MaxAge  time.Duration    // of an answer. Default: 500ms
	Now     func() time.Time // nil: the clock
}

// maxKept bounds the answers that are kept.
const maxKept = 1000

// A Service answers what principals may do.
type Service struct {
	o       Options
	reading singleflight.Group

	known *bounded.Cache[id, answer]
}

// An id names a principal that has a row.
type id struct {
	kind fleet.PrincipalKind
	id   string
}

type answer struct {
	principal fleet.Principal
	gone      bool
	changes   int64 // when it was read
	readAt    time.Time
}

var _ fleet.Authority = (*Service)(nil)

// New returns a service.
func New(o Options) *Service {
	o.MaxAge = cmp.Or(o.MaxAge, 500*time.Millisecond)
	if o.Changes == nil {
		o.Changes = func() int64 { return 0 }
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	return &Service{o: o, known: bounded.New[id, answer](maxKept)}
}

// PrincipalNow returns the principal as it may act now, or an error that matches
// [fleet.ErrActorGone]. Any other error means that the rights could not be read:
// then the principal must not act yet.
func (s *Service) PrincipalNow(ctx context.Context, p fleet.Principal) (fleet.Principal, error) {
	if p.ID == "" {
		return p, nil
	}
	changes := s.o.Changes()
	key, now := id{p.Kind, p.ID}, s.o.Now()
	known, ok := s.known.Get(key)
	if !ok || known.changes != changes || now.Sub(known.readAt) >= s.o.MaxAge || now.Before(known.readAt) {
		var err error
		if known, err = s.read(ctx, key, p, changes, now); err != nil {
			return fleet.Principal{}, err
		}
	}
	if known.gone {
		return fleet.Principal{}, fleet.ActorGone(p)
	}
	return known.principal, nil
}

// read reads the rights once for all that ask at the same time.
func (s *Service) read(ctx context.Context, key id, p fleet.Principal, changes int64, now time.Time) (answer, error) {
	name := fmt.Sprint(key, changes)
	for {
		led := false
		v, err, _ := s.reading.Do(name, func() (any, error) {
			led = true
			current, err := s.o.Store.PrincipalNow(ctx, p, now)
			gone := errors.Is(err, fleet.ErrNotFound)
			if err != nil && !gone {
				return nil, fmt.Errorf("rights of %s %q: %w", p.Kind, p.Name, err)
			}
			a := answer{current, gone, changes, now}
			s.known.Add(key, a)
			return a, nil
		})
		if err == nil {
			return v.(answer), nil
		}
		if led || ctx.Err() != nil {
			return answer{}, err
		}
		// The one that read was canceled, or failed; this one reads for itself.
	}
}

// ErrChanged is the cause of a followed context whose principal has other rights now.
var ErrChanged = errors.New("the rights of the principal changed")

// Follow returns a context that ends within a second after the principal is gone, or
// has another role, scope or tools than p. Its cause is [fleet.ErrActorGone] or
// [ErrChanged]. While the rights cannot be read, it stays.
func (s *Service) Follow(ctx context.Context, p fleet.Principal) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(s.o.MaxAge / 2)
		defer tick.Stop()
		for {
			current, err := s.PrincipalNow(ctx, p)
			switch {
			case errors.Is(err, fleet.ErrActorGone):
				end(err)
			case err == nil && !current.SameAccess(p):
				end(ErrChanged)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { end(context.Canceled) }
}
