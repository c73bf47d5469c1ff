// Package fleettest has what tests of the domain need: a call store in memory
// and devices that answer by script. It contains no domain rules.
//
// It knows no SQL and no MQTT: tests of those use package pgtest, and package sim.
// Each fake has one lock, so that a test may use it from several goroutines.
package fleettest
