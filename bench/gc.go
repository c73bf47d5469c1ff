package main

import (
	"os"
	"runtime/debug"
)

// The garbage collector is set as cmd/fleetd sets it.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
}
