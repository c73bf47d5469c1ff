package fleettest

import "syscall"

// AwaitForks returns when each child process that is being started has begun to run its
// program. Until then the child has a copy of each open socket, so an address that a test has
// just closed is still in use. Call it between closing a listener and opening the next one.
func AwaitForks() {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
}
