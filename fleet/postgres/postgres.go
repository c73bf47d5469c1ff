// Package postgres stores the fleet in PostgreSQL: one file per subject, each statement next to
// the method that runs it.
//
// Every change by an operator shares a transaction with its audit entry. Call records go through
// a group commit (see [Store.Run]): they are durable when the method returns, at several times
// the rate of single commits. Every list is bounded, and paged by key.
//
// It decides nothing: rules are functions of the domain, or constraints of the tables.
// [Store.Run] is the goroutine that commits call records; [Store.Lead] has another, which watches
// the connection of the campaign engine. The locks guard their queues and are never held during a
// statement.
package postgres

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
)

// Store stores the data of package fleet and its subjects.
type Store struct {
	db    *pgxpool.Pool
	log   *slog.Logger
	calls *committer

	outbox  Outbox                // nil: no event is delivered
	timer   Timer                 // nil: no run of a schedule is queued
	defined func(context.Context) // see OnDefinitions; may be nil

	started time.Time // devices that are connected now connected after it

	mu       sync.Mutex
	orphaned map[fleet.DeviceID]fleet.PresenceChange // see SavePresence
}

// Options configures a [Store]. The zero value is ready to use.
type Options struct {
	// Logger receives errors that no caller sees. Default: none.
	Logger *slog.Logger
	// FlushTimeout bounds one write of call records. Default: 30s.
	FlushTimeout time.Duration
}

// New returns a store over a migrated database.
func New(db *pgxpool.Pool, o Options) *Store {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FlushTimeout == 0 {
		o.FlushTimeout = 30 * time.Second
	}
	return &Store{db: db, log: o.Logger, started: time.Now(), calls: newCommitter(db, o.Logger, o.FlushTimeout),
		orphaned: make(map[fleet.DeviceID]fleet.PresenceChange)}
}

// Run groups the commits of call records until ctx ends, then stores the queued ones. Before and
// after Run, each record commits alone.
func (s *Store) Run(ctx context.Context) error { return s.calls.run(ctx) }
