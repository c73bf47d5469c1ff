package call

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Pauses and limits of a fan-out whose database is unavailable.

const (
	fanOutPause     = 50 * time.Millisecond // the first one
	fanOutPauseMax  = 5 * time.Second
	fanOutDBTimeout = 10 * time.Second // of one read or write; after that the database counts as unavailable
)

// background runs do unless fleetd is not up yet or is stopping.
func (s *FanOuts) background(do func(ctx context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil || s.life.Err() != nil {
		return
	}
	life := s.life
	s.running.Go(func() { do(life) })
}

// haltIfEnded halts a fan-out whose end the database did not confirm, as soon as the database
// is available and shows the end.
func (s *FanOuts) haltIfEnded(id uuid.UUID) {
	s.background(func(ctx context.Context) {
		var f FanOut
		err := s.untilStored(ctx, func(ctx context.Context) (err error) {
			f, err = s.Get(ctx, id)
			return err
		}, func(error) {})
		if err == nil && f.State != FanOutRunning {
			s.halt(id)
		}
	})
}

// withdraw cancels a fan-out whose creation the database did not confirm: its maker got an
// error, but the next start would run the fan-out. Either withdraw records the fan-out as
// canceled before a delayed creation, or it ends the one on record.
func (s *FanOuts) withdraw(f FanOut) {
	now := s.now()
	f.State, f.FinishedAt = FanOutCanceled, &now
	s.background(func(ctx context.Context) {
		err := s.untilStored(ctx, func(ctx context.Context) error {
			err := s.store.CreateFanOut(ctx, &f, nil)
			if errors.Is(err, fleet.ErrConflict) {
				err = s.store.FinishFanOut(ctx, systemActor, f.ID, FanOutCanceled, now)
			}
			return err
		}, func(error) {})
		if err != nil && !errors.Is(err, fleet.ErrConflict) && ctx.Err() == nil {
			s.log.Error("a fan-out whose creation failed may be on record", "fanout", f.ID, "err", err)
		}
	})
}

var systemActor = fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd"}

// untilStored calls do until the database accepts it, with growing pauses. It returns errors
// that are not caused by an unavailable database, and the error of ctx.
func (s *FanOuts) untilStored(ctx context.Context, do func(context.Context) error, failed func(error)) error {
	return s.untilDone(ctx, func() error {
		bounded, cancel := context.WithTimeout(ctx, fanOutDBTimeout)
		defer cancel()
		return do(bounded)
	}, failed)
}

// untilDone is untilStored for a do that limits its database time itself.
func (s *FanOuts) untilDone(ctx context.Context, do func() error, failed func(error)) error {
	for pause := fanOutPause; ; pause = min(2*pause, fanOutPauseMax) {
		err := do()
		if err == nil || ctx.Err() != nil || rowRefused(err) || errors.Is(err, fleet.ErrOffline) ||
			errors.Is(err, ErrTalking) || errors.Is(err, fleet.ErrActorGone) {
			return err
		}
		failed(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// persist is untilStored, and shows the fan-out as blocked meanwhile.
func (r *fanOutRun) persist(do func(context.Context) error) error {
	return r.showStuck(func(stalled func(error)) error { return r.s.untilStored(r.ctx, do, stalled) })
}

// showStuck shows the fan-out as waiting for the database, from the first call of stalled until
// do returns.
func (r *fanOutRun) showStuck(do func(stalled func(error)) error) error {
	stuck := false
	defer func() {
		if stuck {
			r.unstuck()
		}
	}()
	return do(func(err error) {
		if !stuck && r.ctx.Err() == nil {
			stuck = true
			r.noteStuck(err)
		}
	})
}

func (r *fanOutRun) noteStuck(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck++; r.stuck == 1 {
		r.stuckSince = r.s.now()
		r.s.log.Error("a fan-out waits for the database", "fanout", r.f.ID, "err", err)
	}
	r.changed.Store(true)
}

func (r *fanOutRun) unstuck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck--; r.stuck == 0 && r.ctx.Err() == nil {
		r.s.log.Info("the fan-out goes on", "fanout", r.f.ID)
	}
	r.changed.Store(true)
}

func (r *fanOutRun) blocked() *FanOutBlock {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck == 0 {
		return nil
	}
	return &FanOutBlock{Code: BlockDatabase, Since: r.stuckSince}
}

// Blocked returns what blocks the fan-out, or nil. It needs no database.
func (s *FanOuts) Blocked(id uuid.UUID) *FanOutBlock {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		return r.blocked()
	}
	return nil
}
