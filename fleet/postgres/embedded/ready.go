package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	pollInterval = 10 * time.Millisecond
	slowStart    = 5 * time.Second // then the wait is logged
	stopTimeout  = 5 * time.Second // for the shutdown after a failed start
)

// PostgreSQL's error codes.
const (
	noSuchDatabase  = "3D000"
	noSuchRole      = "28000"
	cannotConnect   = "57P03" // starting up, recovering or shutting down
	duplicateObject = "42710"
)

// waitReady returns when the database accepts connections, or with the reason
// why it never will.
func (s *Server) waitReady(ctx context.Context) error {
	slow := time.AfterFunc(slowStart, func() {
		s.log.Info("PostgreSQL is recovering from an abrupt end", "log", s.dir.logs())
	})
	defer slow.Stop()
	for {
		err := ping(ctx, s.url)
		switch code := sqlState(err); {
		case err == nil:
			return nil
		case code == noSuchDatabase || code == noSuchRole:
			return s.createDatabase(ctx)
		case code != "" && code != cannotConnect:
			return fmt.Errorf("embedded PostgreSQL refuses fleetd: %w", err)
		}
		select {
		case <-s.proc.exited:
			return s.startFailure()
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// createDatabase gives fleetd a database that it owns and nothing more: what
// it executes by mistake must not reach the server's files.
func (s *Server) createDatabase(ctx context.Context) error {
	cfg, err := pgx.ParseConfig(s.url)
	if err != nil {
		return err
	}
	cfg.User, cfg.Database = superuser, "postgres"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("embedded PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "CREATE ROLE "+database+" LOGIN"); err != nil && sqlState(err) != duplicateObject {
		return fmt.Errorf("embedded PostgreSQL: %w", err)
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+database+" OWNER "+database); err != nil {
		return fmt.Errorf("embedded PostgreSQL: %w", err)
	}
	return nil
}

// ping connects once. Without a server it costs a failed system call.
func ping(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}
