// Package scratch says where tests make PostgreSQL clusters: in memory where
// there is room, else in the temporary directory. It is a package because the tests of
// package embedded need it, and pgtest imports embedded.
//
// It has no state and starts nothing.
package scratch

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	memory = "/dev/shm"

	// room is what must be free in memory, in bytes: several test binaries run at
	// a time, and each may fill the max_wal_size of its cluster.
	room = 4 << 30
)

// Dir is in memory where there is room, else the temporary directory. To make
// and drop a database is to make and drop its 600 files: that takes a disk up to
// a second, and memory less than a tenth of one. Programs may not run from there.
func Dir() string {
	var fs unix.Statfs_t
	if unix.Statfs(memory, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || unix.Access(memory, unix.W_OK) != nil ||
		int64(fs.Bavail)*fs.Bsize < room {
		return os.TempDir()
	}
	return memory
}
