package embedded

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// socketPort is only part of the socket's file name.
const socketPort = "5432"

// maxSocketPath is what fits into sun_path with its closing NUL.
const maxSocketPath = 107

// connURL is the connection string of a database of the cluster at dir.
func connURL(dir, db string) (string, error) {
	host, err := socketHost(dir)
	if err != nil {
		return "", err
	}
	q := url.Values{"host": {host}, "port": {socketPort}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User(database), Path: "/" + db, RawQuery: q.Encode()}
	return u.String(), nil
}

// socketHost is the socket's directory. A path that is too long for a socket,
// or that a connection string would take apart at its comma, is named through
// a descriptor of this process, which its children (pg_dump) can use as well.
// It stays open for good, as the connection string may.
func socketHost(dir string) (string, error) {
	socket := filepath.Join(dir, ".s.PGSQL."+socketPort)
	if len(socket) <= maxSocketPath && !strings.Contains(socket, ",") {
		return dir, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("socket directory %s: %w", dir, err)
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), nil
}
