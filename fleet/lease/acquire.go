package lease

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errSlow means that the database began to answer, but not in time.
var errSlow = errors.New("the database is too slow")

// An acquisition is the wait of one process for the lease.
//
// It watches the lease of a process that died without releasing it for [Length], however long
// ago that lease ended, because an unavailable database may also have prevented the renewals.
// For the same reason the watch begins again after each time that the database did not answer,
// or that this process was suspended.
type acquisition struct {
	*Keeper
	started time.Time
	seen    Lease     // at the last look
	begun   time.Time // every look since then found the lease as it is in seen
	last    time.Time // when the last look ended
	why     Reason    // of the last attempt to replace a holder
	noted   bool      // the wait for this holder has been logged
	away    bool      // the database did not answer the last look
}

// Acquire acquires the lease when no other process has it. If its holder renews it, Acquire
// waits for its end ([Options.Standby]) or returns a [HeldError]. The caller must then call
// [Keeper.Run].
func (k *Keeper) Acquire(ctx context.Context) (Lease, error) {
	a := acquisition{Keeper: k, started: time.Now()}
	// An error of the first look is more likely a mistake in the configuration than an outage.
	first, err := k.store.Current(ctx)
	if err != nil {
		return Lease{}, ofLease(err)
	}
	if err := a.check(ctx); err != nil && (!errors.Is(err, errSlow) || !a.goesOn(ctx, err)) {
		return Lease{}, err
	}
	a.watch(first)
	for {
		why := a.over()
		if why == "" {
			a.note()
		} else if l, ok, err := a.replace(ctx, why); ok || !a.goesOn(ctx, err) {
			return l, err
		}
		if err := a.look(ctx); err != nil {
			return Lease{}, err
		}
	}
}

func ofLease(err error) error { return fmt.Errorf("lease of the database: %w", err) }

// watch begins to watch a lease.
func (a *acquisition) watch(l Lease) { a.seen, a.begun, a.last = l, time.Now(), time.Now() }

// over returns why the lease has ended; "" if it may not have ended.
func (a *acquisition) over() Reason {
	switch l := a.seen; {
	case a.away:
		return ""
	case l.Term == 0:
		return First
	case l.Incarnation == a.incarnation: // the answer to Replace was lost
		return a.why
	case l.Released:
		return Released
	case l.gone():
		return Gone
	case time.Since(a.begun) >= Length && l.Left <= 0:
		return Silent
	}
	return ""
}

// replace replaces the holder; ok is false if it renewed its lease, or if another process was
// faster.
func (a *acquisition) replace(ctx context.Context, why Reason) (l Lease, ok bool, err error) {
	if err := a.check(ctx); err != nil {
		return Lease{}, false, err
	}
	if a.options.Prepare != nil {
		if err := a.options.Prepare(ctx); err != nil {
			return Lease{}, false, err
		}
	}
	a.why = why
	asked := time.Now()
	ctx, cancel := a.bound(ctx)
	defer cancel()
	if l, ok, err = a.store.Replace(ctx, a.seen, why, a.incarnation, a.holder); err != nil {
		return Lease{}, false, ofLease(err)
	}
	if ok {
		a.confirm(asked)
		if a.options.Standby && a.seen.Term > 0 {
			a.log.Info("takes the database over", "term", l.Term, "reason", why, "previous", a.seen.Holder,
				"stood_by", time.Since(a.started).Round(time.Millisecond))
		}
	}
	return l, ok, nil
}

// look waits and then reads the lease. Its error ends the acquisition.
func (a *acquisition) look(ctx context.Context) error {
	pause := look
	if a.away {
		pause = renewRetry
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return ctx.Err()
	}
	l, err := a.current(ctx)
	if err != nil {
		if a.goesOn(ctx, ofLease(err)) {
			return nil
		}
		return ofLease(err)
	}
	previous, back := a.seen, a.away
	if back || !l.same(previous) || time.Since(a.last) > renewTimeout {
		a.watch(l)
	} else {
		a.seen, a.last = l, time.Now()
	}
	changed := l.Incarnation != previous.Incarnation
	a.noted = a.noted && !changed
	if a.away = false; back {
		a.log.Info("the database answers again")
		a.notify()
	}
	switch {
	case l.Released, l.same(previous) && !back:
	case !a.options.Standby:
		return &HeldError{By: l}
	case changed, back:
		if err := a.check(ctx); !a.goesOn(ctx, err) {
			return err
		}
	}
	return nil
}

func (a *acquisition) current(ctx context.Context) (Lease, error) {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	return a.store.Current(ctx)
}

func (a *acquisition) check(ctx context.Context) error {
	if a.options.Check == nil {
		return nil
	}
	bounded, cancel := a.bound(ctx)
	defer cancel()
	err := a.options.Check(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errSlow, err)
	}
	return err
}

// bound limits how long a process that stands by waits for an answer of the database.
func (a *acquisition) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.options.Standby {
		return context.WithTimeout(ctx, renewTimeout)
	}
	return context.WithCancel(ctx)
}

// goesOn reports whether the acquisition continues after a result: without an error, or if a
// process stands by and the database merely did not answer.
func (a *acquisition) goesOn(ctx context.Context, err error) bool {
	if err == nil {
		return true
	}
	if _, unfit := errors.AsType[*UnfitError](err); unfit || !a.options.Standby || ctx.Err() != nil {
		return false
	}
	if !a.away {
		a.away = true
		a.log.Warn("the database does not answer; standing by until it does", "err", err)
		a.notify()
	}
	return true
}

// note logs the wait, once for each holder.
func (a *acquisition) note() {
	switch {
	case a.noted, a.away:
		return
	case a.options.Standby:
		a.log.Info("stands by until another process no longer serves the database", "holder", a.seen.Holder,
			"term", a.seen.Term, "since", a.seen.Since.UTC())
		a.notify()
	default:
		a.log.Info("waiting for the lease of the previous process of this database", "holder", a.seen.Holder,
			"at_most", Length)
	}
	a.noted = true
}

func (a *acquisition) notify() {
	if a.options.Standby && a.options.Waiting != nil {
		a.options.Waiting(a.seen, a.away)
	}
}
