//go:build race

package server

// campaignDevices is smaller here because the race detector needs several times
// the processor time and memory.
const campaignDevices = 2000
