// Package authority returns the current rights of a principal.
//
// Some work continues after its request was answered: a campaign opens its next wave, a
// fan-out calls its next device, a stream sends its next event. Such work records the id of
// the requesting principal and calls this package before each act. Rights are in the
// database, and another process may change them there; a result is at most half a second old.
//
// The package does not depend on calls or campaigns: they decide what to do with the result.
// A [Service] is safe for concurrent use. Each [Service.Follow] has one goroutine until it is
// canceled.
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
	// PrincipalNow returns the principal with its rights at the given time, and
	// [fleet.ErrNotFound] if it may no longer act. It returns principals without a row
	// unchanged.
	PrincipalNow(ctx context.Context, p fleet.Principal, now time.Time) (fleet.Principal, error)
}

// Options configures a [Service]. Store is required.
type Options struct {
	Store Store
	// Changes returns the number of changes that this process has made to rights. A result
	// from before the latest change is not reused. If it is nil, only MaxAge limits reuse.
	Changes func() int64
	MaxAge  time.Duration    // of a cached result. Default: 500ms
	Now     func() time.Time // default: time.Now
}

// maxKept is the maximum number of cached results.
const maxKept = 1000

// A Service returns the current rights of principals.
type Service struct {
	o       Options
	reading singleflight.Group

	known *bounded.Cache[id, answer]
}

// An id identifies a principal that has a row.
type id struct {
	kind fleet.PrincipalKind
	id   string
}

type answer struct {
	principal fleet.Principal
	gone      bool
	changes   int64 // count of changes at the time of the read
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

// PrincipalNow returns the principal with its current rights, or an error that matches
// [fleet.ErrActorGone]. Any other error means that the rights could not be read; the
// principal must not act then.
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

// read reads the rights once for all concurrent callers.
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
		// The reading caller was canceled or failed, so this one reads for itself.
	}
}

// ErrChanged is the cause of a followed context whose principal now has other rights.
var ErrChanged = errors.New("the rights of the principal changed")

// Follow returns a context that ends within a second after the principal may no longer act or
// its role, scope or tools differ from those of p. Its cause is [fleet.ErrActorGone] or
// [ErrChanged]. While the rights cannot be read, the context does not end.
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
