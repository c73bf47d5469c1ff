package server

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/cmd/fleetd/terminal"
	"fleetd/fleet/lease"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/embedded"
	"fleetd/migrations"
)

// A database is the store of one short command.
type database struct {
	store *postgres.Store
	close func()
}

// openDatabase opens the server's database for one command. It connects to the embedded
// one if that runs, and otherwise starts it for the command.
func openDatabase(ctx context.Context, f *Database, log *slog.Logger) (*database, error) {
	if err := terminal.ReadSecrets(terminal.WarnOpenSecret, f.secret()); err != nil {
		return nil, UsageError{err}
	}
	url, release := f.DatabaseURL, func(context.Context) error { return nil }
	if url == "" {
		var err error
		if url, release, err = embedded.Connect(ctx, embedded.Options{DataDir: f.DataDir, Logger: log}); err != nil {
			return nil, err
		}
	}
	pool, err := openMigrated(ctx, url)
	if err != nil {
		_ = release(context.WithoutCancel(ctx))
		return nil, err
	}
	return &database{store: postgres.New(pool, postgres.Options{Logger: log}), close: func() {
		pool.Close()
		_ = release(context.WithoutCancel(ctx)) // the command has already reported its outcome
	}}, nil
}

// holdDatabase waits until no other server serves the database, takes it over, and
// migrates it to this version's schema. It cannot migrate earlier, because a running
// server needs the schema of its version. After the takeover, no session of the earlier
// server is left.
func (s *Server) holdDatabase(ctx context.Context, url string) (*pgxpool.Pool, error) {
	leases, err := postgres.NewLeases(url)
	if err != nil {
		return nil, err
	}
	s.lease = lease.NewKeeper(leases, lease.ThisProcess(s.cfg.NodeName, s.cfg.Version), s.log)
	l, err := s.acquire(ctx, url)
	if err != nil {
		leases.Close()
		return nil, err
	}
	s.stages.run("lease of the database", s.lease.Run)
	s.log.Debug("serves the database", "term", l.Term)
	return leases.Open(ctx, l)
}

func (s *Server) acquire(ctx context.Context, url string) (l lease.Lease, err error) {
	if err := s.lease.Await(ctx); err != nil {
		return l, err
	}
	db, err := openMigrated(ctx, url)
	if err != nil {
		return l, err
	}
	db.Close()
	return s.lease.Acquire(ctx)
}

func openMigrated(ctx context.Context, url string) (*pgxpool.Pool, error) {
	pool, err := postgres.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	if err := migrations.Up(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

func quietLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }

type MigrateCommand struct{ Database }

func (c *MigrateCommand) Run(ctx context.Context) error {
	db, err := openDatabase(ctx, &c.Database, quietLogger())
	if err != nil {
		return err
	}
	db.close()
	return nil
}
