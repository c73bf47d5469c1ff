package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// stages are the parts of the server in the order in which they start. They stop in the
// opposite order, so each part stops before the parts that it needs.
type stages struct {
	log   *slog.Logger
	parts []stage
	died  chan error // from the first part that ended early
}

type stage struct {
	name  string
	start func(ctx context.Context) (stop func()) // nil after the call
	stop  func()
}

// stageTimeout bounds how long one part may take to stop, closeTimeout how long
// all of them may. Docker and systemd are configured to wait longer.
const (
	stageTimeout = 15 * time.Second
	closeTimeout = 45 * time.Second
)

func newStages(log *slog.Logger) *stages { return &stages{log: log, died: make(chan error, 1)} }

// run starts a part that runs until its context ends.
func (s *stages) run(name string, run func(context.Context) error) {
	s.onStop(name, s.launch(context.Background(), name, run))
}

// add registers a part that [stages.start] starts later, after all parts have been
// constructed and connected.
func (s *stages) add(name string, run func(context.Context) error) {
	s.parts = append(s.parts, stage{name: name, start: func(ctx context.Context) func() {
		return s.launch(ctx, name, run)
	}})
}

// start starts the added parts, in their order.
func (s *stages) start() {
	for i := range s.parts {
		if p := &s.parts[i]; p.start != nil {
			p.stop, p.start = p.start(context.Background()), nil
		}
	}
}

func (s *stages) launch(ctx context.Context, name string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := run(ctx)
		if ctx.Err() == nil {
			s.fail(fmt.Errorf("%s ended: %w", name, errors.Join(err, errors.New("it should run until fleetd stops"))))
		} else if err != nil && !errors.Is(err, context.Canceled) {
			s.log.Error("part stopped with an error", "part", name, "err", err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// onStop registers the function that ends a part that was started in another way.
func (s *stages) onStop(name string, stop func()) {
	s.parts = append(s.parts, stage{name: name, stop: stop})
}

func (s *stages) fail(err error) {
	select {
	case s.died <- err:
	default:
	}
}

// wait returns when ctx ends, or with the error of a part that failed.
func (s *stages) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.died:
		return err
	}
}

// stop ends all parts, the latest first. It does not wait for a part that takes too long.
// A part that never started runs with a context that has ended, to close its open
// resources.
func (s *stages) stop() {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	all, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for i := len(s.parts) - 1; i >= 0; i-- {
		p := s.parts[i]
		if p.start != nil {
			p.stop = p.start(over)
		}
		begin := time.Now()
		done := make(chan struct{})
		go func() {
			p.stop()
			close(done)
		}()
		inTime, cancel := context.WithTimeout(all, stageTimeout)
		select {
		case <-done:
			s.log.Debug("part stopped", "part", p.name, "took", time.Since(begin))
		case <-inTime.Done():
			s.log.Error("part did not stop in time", "part", p.name, "waited", time.Since(begin))
		}
		cancel()
	}
	s.parts = nil
}
