//go:build race

package server

// campaignDevices: the race detector takes several times the processor time
// and memory of what it watches.
const campaignDevices = 2000
