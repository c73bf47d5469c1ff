package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
)

// A Store keeps the lease. One goroutine uses it at a time.
type Store interface {
	// Current returns the lease as it is; the zero value if there was none yet.
	Current(ctx context.Context) (Lease, error)
	// Replace gives the lease to a process, with the next term, if it is still as it
	// was when it was judged to be over; else ok is false.
	Replace(ctx context.Context, over Lease, by uuid.UUID, holder Holder) (_ Lease, ok bool, err error)
	// Renew extends the lease; ok is false if the process has it no more.
	Renew(ctx context.Context, incarnation uuid.UUID) (ok bool, err error)
	// Release ends the lease at once.
	Release(ctx context.Context, incarnation uuid.UUID) error
	Close()
}

// Pauses and limits of a [Keeper].
const (
	look         = 200 * time.Millisecond  // at the lease of another process
	renewTimeout = 2500 * time.Millisecond // after it, and the pause before, the database is silent: within 5 s
	renewRetry   = 500 * time.Millisecond  // after a failure
	closeTimeout = 3 * time.Second
)

// errUnsure ends what runs under a lease whose renewal failed.
var errUnsure = errors.New("the lease of the database was not renewed")

// A Keeper gets the lease for this process and keeps it.
type Keeper struct {
	store       Store
	log         *slog.Logger
	incarnation uuid.UUID
	holder      Holder

	over Lease // as it was when it was judged to be over

	mu      sync.Mutex
	renewed time.Time       // when the last renewal that succeeded was asked for; monotonic
	sure    context.Context // ends at a renewal that fails
	unsure  context.CancelCauseFunc
	again   chan struct{} // closed when a renewal succeeds again
}

// NewKeeper returns the keeper of a process that has no lease yet.
func NewKeeper(store Store, holder Holder, log *slog.Logger) *Keeper {
	k := &Keeper{store: store, log: log, incarnation: uuid.Must(uuid.NewV7()), holder: holder,
		again: make(chan struct{})}
	k.sure, k.unsure = context.WithCancelCause(context.Background())
	k.unsure(errUnsure)
	return k
}

// Await returns when no other process has the lease, or a [HeldError] when
// the one that has it renews it. A process that died without a word to the
// database is watched for the length of a lease, however long ago that ended:
// a database that was away kept its holder from renewing, too.
func (k *Keeper) Await(ctx context.Context) error {
	first, err := k.store.Current(ctx)
	if err != nil {
		return fmt.Errorf("lease of the database: %w", err)
	}
	now := first
	for begun, waits := time.Now(), false; !k.isOver(now, time.Since(begun)); waits = true {
		if !now.same(first) {
			return &HeldError{By: now}
		}
		if !waits {
			k.log.Info("waiting for the lease of the process that served this database before", "holder", now.Holder,
				"at_most", Length)
		}
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return ctx.Err()
		}
		if now, err = k.store.Current(ctx); err != nil {
			return fmt.Errorf("lease of the database: %w", err)
		}
	}
	k.over = now
	return nil
}

// isOver judges a lease that was not renewed while it was watched.
func (k *Keeper) isOver(l Lease, watched time.Duration) bool {
	switch {
	case l.Term == 0, l.Released, k.over.Term > 0 && l.same(k.over):
		return true
	case watched >= Length && l.Left <= 0:
		return true
	}
	return l.gone()
}

// Acquire gets the lease as soon as no other process has it, or returns a
// [HeldError]. [Keeper.Run] must follow.
func (k *Keeper) Acquire(ctx context.Context) (Lease, error) {
	for {
		if err := k.Await(ctx); err != nil {
			return Lease{}, err
		}
		asked := time.Now()
		l, ok, err := k.store.Replace(ctx, k.over, k.incarnation, k.holder)
		if err != nil {
			return Lease{}, fmt.Errorf("lease of the database: %w", err)
		}
		if ok {
			k.confirm(asked)
			return l, nil
		}
	}
}

// Run renews the lease until ctx ends, and releases it then. It returns a
// [TakenError] if another process has it.
func (k *Keeper) Run(ctx context.Context) error {
	defer k.store.Close()
	pause := RenewEvery
	for {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return k.release(context.WithoutCancel(ctx))
		}
		asked := time.Now()
		ok, err := k.renew(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if k.doubt() {
				k.log.Warn("lease of the database not renewed; no calls are made until it is", "err", err)
			}
			pause = renewRetry
		case !ok:
			return k.replaced(ctx)
		default:
			if k.confirm(asked) {
				k.log.Info("lease of the database renewed again")
			}
			pause = RenewEvery
		}
	}
}

func (k *Keeper) renew(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	return k.store.Renew(ctx, k.incarnation)
}

func (k *Keeper) release(ctx context.Context) error {
	k.doubt()
	k.mu.Lock()
	k.renewed = time.Time{}
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if err := k.store.Release(ctx, k.incarnation); err != nil {
		return fmt.Errorf("lease of the database not released; it ends in %s: %w", Length, err)
	}
	return nil
}

func (k *Keeper) replaced(ctx context.Context) error {
	k.doubt()
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	by, err := k.store.Current(ctx)
	if err != nil {
		k.log.Warn("the process that has the lease of the database now is not known", "err", err)
	}
	return &TakenError{By: by}
}

// confirm notes a renewal that was asked for at a time, and reports whether the
// one before had failed.
func (k *Keeper) confirm(asked time.Time) (again bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewed = asked
	if k.sure.Err() == nil {
		return false
	}
	k.sure, k.unsure = context.WithCancelCause(context.Background())
	close(k.again)
	k.again = make(chan struct{})
	return true
}

// doubt notes a renewal that failed, and reports whether the one before had not.
func (k *Keeper) doubt() (first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	first = k.sure.Err() == nil
	k.unsure(errUnsure)
	return first
}

// Held reports whether the lease cannot have gone to another process yet. It is
// quick.
func (k *Keeper) Held() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Since(k.renewed) < Length
}

// Lead calls run while renewals succeed. ctx of run ends at the first one that
// fails, and run is called again after the next one that does not. Lead returns when
// run returned while the lease was sure, or ctx ended.
func (k *Keeper) Lead(ctx context.Context, run func(ctx context.Context) error) error {
	for {
		k.mu.Lock()
		sure, again := k.sure, k.again
		k.mu.Unlock()
		if sure.Err() == nil {
			err := lead(ctx, sure, run)
			if ctx.Err() != nil || sure.Err() == nil {
				return err
			}
			k.log.Warn("campaigns wait until the lease of the database is renewed")
			continue
		}
		select {
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

func lead(ctx, sure context.Context, run func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(sure, func() { cancel(errUnsure) })()
	return run(ctx)
}
