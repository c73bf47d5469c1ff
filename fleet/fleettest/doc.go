// Package fleettest has what tests of the domain need: a call store in memory,
// devices that answer by script, and addresses for the programs that tests start.
// It contains no domain rules.
//
// It knows no SQL and no MQTT: tests of those use package pgtest, and package sim.
// Each fake has one lock, so that a test may use it from several goroutines.
package fleettest
