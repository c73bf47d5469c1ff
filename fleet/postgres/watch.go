package postgres

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Intervals of a [Watch].
const (
	watchEvery   = time.Second
	watchTimeout = 2 * time.Second // a database that takes longer for an empty statement hangs
)

// A Watch checks whether the database answers. It uses a separate connection that no other work
// delays; its goroutine is [Watch.Run].
type Watch struct {
	config *pgx.ConnConfig
	log    *slog.Logger
	since  atomic.Int64 // in milliseconds of Unix time; 0 while the database answers
}

// NewWatch returns a watch over the pool's database.
func NewWatch(pool *pgxpool.Pool, log *slog.Logger) *Watch {
	config := pool.Config().ConnConfig
	config.RuntimeParams["application_name"] = "fleetd watch"
	return &Watch{config: config, log: log}
}

// Away returns the time since which the database has not answered; zero while it does.
func (w *Watch) Away() time.Time {
	if ms := w.since.Load(); ms != 0 {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}

// Run queries the database each second until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	var conn *pgx.Conn
	defer func() { w.close(conn) }()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		asked := time.Now()
		err := w.ask(ctx, &conn)
		if ctx.Err() != nil {
			return nil
		}
		switch away := w.Away(); {
		case err != nil && away.IsZero():
			w.since.Store(asked.UnixMilli())
			w.log.Warn("the database does not answer", "err", err)
		case err == nil && !away.IsZero():
			w.since.Store(0)
			w.log.Info("the database answers again", "after", time.Since(away).Round(time.Millisecond))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *Watch) ask(ctx context.Context, conn **pgx.Conn) (err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	if *conn == nil {
		if *conn, err = pgx.ConnectConfig(ctx, w.config); err != nil {
			return err
		}
	}
	if err = (*conn).Ping(ctx); err != nil {
		w.close(*conn)
		*conn = nil
	}
	return err
}

func (w *Watch) close(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), watchTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
