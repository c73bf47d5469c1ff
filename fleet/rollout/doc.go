// Package rollout carries campaigns out: it opens waves, dispatches their images, collects the
// evidence about each deployment, judges waves, and continues or stops.
//
// The package has a clock and one goroutine, but no rules. The meaning of evidence, the verdict
// on a wave and the result of an abort rule are plain functions in package campaign. The engine
// receives evidence, applies the rules, stores the result, and only then acts: a device is
// notified of an image only after the row with that state is durable. So a new engine that
// reads the rows has all the information of a dead one, and sends nothing twice.
//
// One engine works in a database at a time ([Leader]).
package rollout
