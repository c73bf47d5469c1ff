// Package rollout carries campaigns out: it opens waves, dispatches their
// images, gathers the evidence about each, judges, and goes on or stops.
//
// It has a clock and one goroutine, and no rules: what evidence means, when a
// wave is good and what an abort rule says are plain functions in package
// campaign. The engine receives evidence, asks the rules, stores what they say,
// and only then acts: a device is notified of an image after the row that says so
// is durable. So a new engine that reads the rows knows all that a dead one
// knew, and nothing is sent twice.
//
// One engine works in a database at a time ([Leader]).
package rollout
