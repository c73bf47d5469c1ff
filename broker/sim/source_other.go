//go:build !linux

package sim

import "syscall"

// chooseLate does nothing where the system has no such option.
func chooseLate(string, string, syscall.RawConn) error { return nil }
