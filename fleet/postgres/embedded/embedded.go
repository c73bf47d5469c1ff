// Package embedded runs a private PostgreSQL for one fleetd: the default for
// whoever names no database.
//
// The binaries are those installed on the machine. The cluster lies in the
// data directory, listens on a unix socket in its own 0700 directory and on
// nothing else, and is a child that the kernel stops when fleetd dies, be it by
// kill -9. A cluster is made once; it is never replaced and never deleted.
//
// PostgreSQL refuses to run as root, so under root it runs as the user
// "postgres" or "nobody". That user often cannot reach the data directory by
// its path (a checkout below a 0700 home). So the server never gets the path: it
// inherits the opened directory as file descriptor 3 and opens it as
// /proc/self/fd/3, which needs no right on the directories above. The same
// descriptor carries the lock that says a server, or what is left of one, still
// runs. Linux only, for both reasons and for the parent-death signal.
//
// It knows no schema: package migrations has that. It has no lock; one goroutine
// waits for the child to end.
package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"
)

const (
	superuser = "postgres" // bootstrap superuser of the cluster
	database  = "fleetd"   // name of the database and of the role that owns it
)

// Options configures [Start].
type Options struct {
	// DataDir is fleetd's data directory; the cluster is its folder "postgres".
	DataDir string

	// BinDir holds the server's binaries. Default: the newest supported
	// PostgreSQL found on the machine, or the one that made the cluster.
	BinDir string

	// Settings are further server settings, stronger than postgresql.conf.
	Settings map[string]string

	// Logger gets start, stop and long waits. Default: nothing is logged.
	Logger *slog.Logger
}

// A Server is a running PostgreSQL.
type Server struct {
	dir   dataDir
	lock  *os.File // keeps other fleetds off the data directory
	mount *os.File // the cluster's directory, locked; shared with the server
	proc  *process
	url   string
	log   *slog.Logger
}

// Start runs the cluster in opts.DataDir, creating it on first use, and returns when the database
// accepts connections. Its error is one sentence that explains what to do. Every obstacle to a
// start is detected before anything on the disk is changed.
//
// Cancelling ctx ends the start, not a server that has started.
func Start(ctx context.Context, opts Options) (*Server, error) {
	log := opts.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	dir, err := newDataDir(opts.DataDir)
	if err != nil {
		return nil, err
	}
	bin, who, err := dir.examine(ctx, opts.BinDir)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, log: log}
	if err := s.start(ctx, bin, who, opts.Settings); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, bin binaries, who owner, settings map[string]string) (err error) {
	began := time.Now()
	if s.lock, err = s.dir.acquire(ctx); err != nil {
		return err
	}
	if err := s.dir.ensureCluster(ctx, bin, who, s.log); err != nil {
		return err
	}
	if s.mount, err = lockDir(ctx, s.dir.cluster(), s.log); err != nil {
		return err
	}
	if s.url, err = connURL(s.dir.cluster(), database); err != nil {
		return err
	}
	if s.proc, err = launch(bin, who, s.mount, settings); err != nil {
		return fmt.Errorf("cannot run %s as user %s: %w", bin.path("postgres"), who.name, err)
	}
	if err := s.waitReady(ctx); err != nil {
		giveUp, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		s.proc.stop(giveUp) // err is more informative than how the process ended
		return err
	}
	s.log.Info("embedded PostgreSQL started", "version", bin.major, "directory", s.dir.cluster(),
		"pid", s.proc.pid(), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// URL returns the connection string of the database, for pgx.
func (s *Server) URL() string { return s.url }

// Done returns a channel that is closed when the server has ended, by [Server.Stop] or
// unexpectedly.
func (s *Server) Done() <-chan struct{} { return s.proc.exited }

// Err returns why the server ended: nil while it runs and after [Server.Stop].
func (s *Server) Err() error {
	err := s.proc.failure()
	if err == nil {
		return nil
	}
	return fmt.Errorf("embedded PostgreSQL ended unexpectedly (%w): see %s", err, s.dir.logs())
}

// Stop closes all connections, writes everything to disk and returns when the
// server is gone. When ctx ends first the server is cut short, which costs the
// next start a recovery, and no data. Stop may be called more than once.
func (s *Server) Stop(ctx context.Context) error {
	began := time.Now()
	err := s.proc.stop(ctx)
	s.release()
	if err == nil {
		s.log.Info("embedded PostgreSQL stopped", "took", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// release releases the locks. Closing a second time is harmless.
func (s *Server) release() {
	if s.proc != nil {
		s.proc.said.Close()
	}
	if s.mount != nil {
		s.mount.Close()
	}
	if s.lock != nil {
		s.lock.Close()
	}
}
