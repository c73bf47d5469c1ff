// Package scratch determines where tests create PostgreSQL clusters: in memory if there is room,
// otherwise in the temporary directory. It is a package because the tests of package embedded
// need it, and pgtest imports embedded.
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

// Dir returns a directory in memory if there is room, otherwise the temporary directory. Creating
// and dropping a database creates and deletes its 600 files: that takes a disk up to a second,
// and memory less than a tenth of one. Programs may not run from there.
func Dir() string {
	var fs unix.Statfs_t
	if unix.Statfs(memory, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || unix.Access(memory, unix.W_OK) != nil ||
		int64(fs.Bavail)*fs.Bsize < room {
		return os.TempDir()
	}
	return memory
}
