package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// joinTime is how long [Join] waits for a server that is just starting.
const joinTime = 15 * time.Second

// Join finds the server that another process runs in dataDir. The URL is valid for the life of
// this process. running is false if there is no such server.
func Join(dataDir string) (url string, running bool, err error) {
	d, err := newDataDir(dataDir)
	if err != nil {
		return "", false, err
	}
	for deadline := time.Now().Add(joinTime); ; time.Sleep(pollInterval) {
		busy, err := d.busy()
		if err != nil || !busy {
			return "", false, err
		}
		if url == "" { // before the cluster is made there is nothing to name
			url, err = connURL(d.cluster(), database)
		}
		if err == nil {
			err = ping(context.Background(), url)
		}
		if err == nil {
			return url, true, nil
		}
		if time.Now().After(deadline) {
			return "", false, fmt.Errorf("a fleetd uses %s, but its database does not answer (%w): see its log", d, err)
		}
	}
}

// Connect joins the server that runs in opts.DataDir or, if none does, starts
// one that lives until release. It is for commands that need the database for
// a moment, whether fleetd serves or not.
func Connect(ctx context.Context, opts Options) (url string, release func(context.Context) error, err error) {
	url, running, err := Join(opts.DataDir)
	if err != nil {
		return "", nil, err
	}
	if running {
		return url, func(context.Context) error { return nil }, nil
	}
	s, err := Start(ctx, opts)
	if err != nil {
		return "", nil, err
	}
	return s.URL(), s.Stop, nil
}

// Busy reports whether a process uses dataDir now.
func Busy(dataDir string) bool {
	d, err := newDataDir(dataDir)
	if err != nil {
		return false
	}
	busy, err := d.busy()
	return busy && err == nil
}

// busy reports whether a process holds the data directory's lock.
func (d dataDir) busy() (bool, error) {
	f, err := os.Open(d.lockFile())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, d.unreadable(err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return false, fmt.Errorf("lock of the data directory %s: %w", d, err)
	}
	return err != nil, nil
}
