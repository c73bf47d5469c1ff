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

// A Store stores the lease. Only one goroutine uses it at a time.
type Store interface {
	// Current returns the current lease; the zero value if there has been none.
	Current(ctx context.Context) (Lease, error)
	// Replace gives the lease to a process, with the next term, if it still equals over,
	// which the process judged to have ended for a reason; otherwise ok is false. The new
	// term, with the reason, and the end of the previous one are on record from then on.
	Replace(ctx context.Context, over Lease, why Reason, by uuid.UUID, holder Holder) (_ Lease, ok bool, err error)
	// Renew extends the lease; ok is false if the process no longer has it.
	Renew(ctx context.Context, incarnation uuid.UUID) (ok bool, err error)
	// Release ends the lease at once.
	Release(ctx context.Context, incarnation uuid.UUID) error
	Close()
}

// Intervals and timeouts of a [Keeper].
const (
	look         = 200 * time.Millisecond  // interval between checks of another process's lease
	renewTimeout = 2500 * time.Millisecond // with the preceding pause, at most 5 s until the database counts as silent
	renewRetry   = 500 * time.Millisecond  // after a failure
	closeTimeout = 3 * time.Second
)

// errUnsure ends work under a lease whose renewal failed.
var errUnsure = errors.New("the lease of the database was not renewed")

// Options configures a [Keeper].
type Options struct {
	// Standby makes [Keeper.Acquire] wait while another process has the lease, however long,
	// also while the database is unavailable. Without it, Acquire returns a [HeldError].
	Standby bool
	// Check returns an [UnfitError] if this process cannot serve the database as it is. Acquire
	// calls it first, after each change of the holder, when the database answers again, and before
	// it takes the lease. Default: nothing is checked.
	Check func(ctx context.Context) error
	// Prepare makes a database ready for [Store.Replace], or returns an [UnfitError]. Acquire calls
	// it when no other process has the lease. Default: the database is ready.
	Prepare func(ctx context.Context) error
	// Waiting is called when Acquire stands by, and when the holder, or whether the database
	// answers, changes. Default: no call.
	Waiting func(holder Lease, away bool)
	// Log is the logger. Default: none.
	Log *slog.Logger
}

// A Keeper acquires the lease for this process and renews it.
type Keeper struct {
	store       Store
	options     Options
	log         *slog.Logger
	incarnation uuid.UUID
	holder      Holder

	mu      sync.Mutex
	renewed time.Time       // when the last successful renewal was requested; monotonic
	sure    context.Context // ends when a renewal fails
	unsure  context.CancelCauseFunc
	again   chan struct{} // closed when a renewal succeeds again
}

// NewKeeper returns the keeper of a process that does not have the lease yet.
func NewKeeper(store Store, holder Holder, o Options) *Keeper {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{store: store, options: o, log: o.Log, incarnation: uuid.Must(uuid.NewV7()), holder: holder,
		again: make(chan struct{})}
	k.sure, k.unsure = context.WithCancelCause(context.Background())
	k.unsure(errUnsure)
	return k
}

// Run renews the lease until ctx ends, and then releases it. It returns a [TakenError] if
// another process has the lease.
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
				k.log.Warn("could not renew the lease of the database; no calls are made until it is renewed", "err", err)
			}
			pause = renewRetry
		case !ok:
			return k.replaced(ctx)
		default:
			if k.confirm(asked) {
				k.log.Info("renewed the lease of the database again")
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
		return fmt.Errorf("could not release the lease of the database; it ends in %s: %w", Length, err)
	}
	return nil
}

func (k *Keeper) replaced(ctx context.Context) error {
	k.doubt()
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	by, err := k.store.Current(ctx)
	if err != nil {
		k.log.Warn("cannot determine the new holder of the lease of the database", "err", err)
	}
	return &TakenError{By: by}
}

// confirm records a successful renewal that was requested at a time, and reports whether the
// previous one had failed.
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

// doubt records a failed renewal, and reports whether the previous one had succeeded.
func (k *Keeper) doubt() (first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	first = k.sure.Err() == nil
	k.unsure(errUnsure)
	return first
}

// Held reports whether the lease certainly has not gone to another process yet. It is fast.
func (k *Keeper) Held() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Since(k.renewed) < Length
}

// Lead calls run while renewals succeed. The context of run ends when a renewal fails, and
// Lead calls run again after the next successful renewal. Lead returns when run returns while
// the lease is certain, or when ctx ends.
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
