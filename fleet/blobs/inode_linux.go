package blobs

import (
	"os"
	"syscall"
)

// inodeOf returns the file's inode number and the time at which the inode was changed.
func inodeOf(info os.FileInfo) (inode uint64, changed int64) {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return sys.Ino, sys.Ctim.Nano()
	}
	return 0, 0
}
