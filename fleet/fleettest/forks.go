package fleettest

import "syscall"

// AwaitForks returns when each child process that is being started runs its program.
// Until then it has a copy of each open socket, and an address that a test has just
// closed is in use. Call it between the close and the next listener.
func AwaitForks() {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
}
