package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Free space below which nothing is begun: a new cluster takes 40 MB, and one
// that cannot write its log stops in the middle of the work.
const (
	freeForNew   = 200 << 20
	freeForStart = 32 << 20
)

// dataDir is fleetd's data directory as an absolute path.
type dataDir string

func newDataDir(path string) (dataDir, error) {
	if path == "" {
		return "", errors.New("no data directory given: set --data-dir")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("data directory %s: %w", path, err)
	}
	return dataDir(abs), nil
}

func (d dataDir) cluster() string  { return filepath.Join(string(d), "postgres") }
func (d dataDir) unborn() string   { return filepath.Join(string(d), "postgres.new") }
func (d dataDir) lockFile() string { return filepath.Join(string(d), "postgres.lock") }
func (d dataDir) logs() string     { return filepath.Join(d.cluster(), "log") }

// examine detects obstacles to a start before a byte is written. It returns the binaries to start
// and the user to run them as.
func (d dataDir) examine(ctx context.Context, binDir string) (binaries, owner, error) {
	major, err := d.major()
	if err != nil {
		return binaries{}, owner{}, err
	}
	who, need := newOwner, uint64(freeForNew)
	if major != 0 {
		who, need = d.clusterOwner, freeForStart
	}
	user, err := who()
	if err != nil {
		return binaries{}, owner{}, err
	}
	bin, err := findBinaries(ctx, binDir, major, d.cluster())
	if err != nil {
		return binaries{}, owner{}, err
	}
	return bin, user, d.checkSpace(need)
}

// major is the PostgreSQL version that made the cluster; 0 before the cluster exists.
func (d dataDir) major() (int, error) {
	if _, err := os.Stat(filepath.Join(string(d), "PG_VERSION")); err == nil {
		return 0, fmt.Errorf("%s is itself a PostgreSQL data directory: choose another --data-dir, or name that server with --database-url", d)
	}
	entries, err := os.ReadDir(d.cluster())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, d.unreadable(err)
	case len(entries) == 0:
		return 0, nil
	}
	b, err := os.ReadFile(filepath.Join(d.cluster(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%s holds files but no PostgreSQL cluster: move it away, or choose another --data-dir",
			d.cluster())
	}
	if err != nil {
		return 0, d.unreadable(err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION does not name a supported PostgreSQL version (%.20q): move the directory away, or choose another --data-dir",
			d.cluster(), b)
	}
	return major, nil
}

// checkSpace checks the file system of d, or of its nearest parent.
func (d dataDir) checkSpace(need uint64) error {
	path := string(d)
	var st unix.Statfs_t
	for unix.Statfs(path, &st) != nil {
		if path == filepath.Dir(path) {
			return nil // Unknown; making the directory will report the error.
		}
		path = filepath.Dir(path)
	}
	if free := st.Bavail * uint64(st.Bsize); free < need && st.Blocks > 0 { // /proc has no blocks
		return fmt.Errorf("only %d MB are free on the disk of %s, and PostgreSQL needs %d MB to start: free some space, or choose another --data-dir",
			free>>20, d, need>>20)
	}
	return nil
}

// unreadable converts a read error to advice.
func (d dataDir) unreadable(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("data directory %s: %w: choose another --data-dir", d, err)
	}
	return fmt.Errorf("data directory %s is not readable for user %s: run fleetd as the user that started it first, or choose another --data-dir",
		d, currentUser())
}

// unwritable converts a write error to advice.
func (d dataDir) unwritable(err error) error {
	var cause unix.Errno
	if !errors.As(err, &cause) {
		return fmt.Errorf("data directory %s: %w", d, err)
	}
	return fmt.Errorf("user %s cannot write to the data directory %s (%w): make it writable, or choose another --data-dir",
		currentUser(), d, cause)
}
