package server

import (
	"context"
	"errors"
	"log/slog"
	"time"

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

// holdDatabase waits until no other server serves the database, takes it over, opens the
// addresses of a server that stood by, and migrates the database to this version's schema. It
// cannot migrate earlier, because a running server needs the schema of its version. After the
// takeover, no session of the earlier server is left.
func (s *Server) holdDatabase(ctx context.Context, url string) (*pgxpool.Pool, error) {
	leases, err := postgres.NewLeases(url)
	if err != nil {
		return nil, err
	}
	s.lease = lease.NewKeeper(leases, lease.ThisProcess(s.cfg.NodeName, s.cfg.Version), lease.Options{
		Standby: s.cfg.Standby, Waiting: s.admin.standBy, Log: s.log,
		Check:   func(ctx context.Context) error { return s.checkDatabase(ctx, url) },
		Prepare: func(ctx context.Context) error { return prepareLease(ctx, leases, url) }})
	held, err := s.lease.Acquire(ctx)
	if err != nil {
		leases.Close()
		return nil, err
	}
	s.led, s.term = time.Now(), held.Term
	s.admin.waits.Store(nil)
	s.stages.run("lease of the database", s.lease.Run)
	s.log.Debug("serves the database", "term", held.Term)
	if s.cfg.Standby {
		if err := s.listenLater(ctx); err != nil {
			return nil, err
		}
	}
	if err := migrate(ctx, leases, held); err != nil {
		return nil, err
	}
	return leases.Open(ctx, held)
}

// checkDatabase returns an error if this process cannot serve the database. It changes nothing.
// It reads the secret key each time, which may have been replaced while the process stood by.
func (s *Server) checkDatabase(ctx context.Context, url string) error {
	secret, err := readSecret(s.cfg.DataDir)
	if err != nil {
		return &lease.UnfitError{Err: err}
	}
	db, err := postgres.Open(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := migrations.Check(ctx, db); err != nil {
		if _, newer := errors.AsType[*migrations.NewerError](err); newer {
			return &lease.UnfitError{Err: err}
		}
		return err
	}
	return checkSecret(ctx, postgres.New(db, postgres.Options{}), secret)
}

// prepareLease migrates a database in which no term can be recorded, because it is new, or was
// last used by a version that recorded none. Otherwise the migration waits until this process has
// the lease: two processes of different versions may be about to take over.
func prepareLease(ctx context.Context, leases *postgres.Leases, url string) error {
	ready, err := leases.Ready(ctx)
	if err != nil || ready {
		return err
	}
	db, err := openMigrated(ctx, url)
	if err != nil {
		return &lease.UnfitError{Err: err}
	}
	db.Close()
	return nil
}

func migrate(ctx context.Context, leases *postgres.Leases, held lease.Lease) error {
	db, err := leases.OpenForMigration(ctx, held)
	if err != nil {
		return err
	}
	defer db.Close()
	return migrations.Up(ctx, db)
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
