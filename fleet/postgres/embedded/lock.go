package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// How long a start waits for the data directory: for a command like "fleetd
// token create" to finish with it, and for the server of a fleetd that died to
// write everything to disk.
const (
	commandTime  = 2 * time.Second
	shutdownTime = time.Minute
)

// acquire makes the data directory if need be and takes its lock, which ends
// with this process.
func (d dataDir) acquire(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, d.unwritable(err)
	}
	f, err := os.OpenFile(d.lockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, d.unwritable(err)
	}
	switch err := flock(ctx, f, commandTime); {
	case errors.Is(err, unix.EWOULDBLOCK):
		defer f.Close()
		return nil, fmt.Errorf("data directory %s is in use by another fleetd (%s): stop that one first, or choose another --data-dir", d, holder(f))
	case err != nil:
		f.Close()
		return nil, fmt.Errorf("data directory %s cannot be locked: %w", d, err)
	}
	f.Truncate(0)
	fmt.Fprintf(f, "%d\n", os.Getpid()) // only the wording of an error depends on it
	return f, nil
}

// lockDir opens a cluster's directory and locks it. The server and all its
// processes inherit the descriptor: the lock is free when the last is gone.
func lockDir(ctx context.Context, dir string, log *slog.Logger) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	slow := time.AfterFunc(time.Second, func() {
		log.Info("waiting for the previous PostgreSQL to shut down", "directory", dir)
	})
	defer slow.Stop()
	if err := flock(ctx, f, shutdownTime); err != nil {
		f.Close()
		return nil, fmt.Errorf("a PostgreSQL from an earlier start still runs in %s (%w): end it first (its pid is in postmaster.pid)", dir, err)
	}
	return f, nil
}

// flock takes the exclusive lock on f, or gives up after wait.
func flock(ctx context.Context, f *os.File, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// holder returns the process that wrote the lock file.
func holder(f *os.File) string {
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
		return fmt.Sprintf("pid %d", pid)
	}
	return "just starting"
}
