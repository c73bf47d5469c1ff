// Package fleettest has helpers for tests of the domain: a call store in memory, devices that
// answer by script, and addresses for the programs that tests start. It contains no domain
// rules.
//
// It uses neither SQL nor MQTT: tests of those use package pgtest and package sim. Each fake
// has one lock, so a test may use it from several goroutines.
package fleettest
