//go:build race

package campaign_test

// raceEnabled: the race detector makes simulations some ten times slower.
const raceEnabled = true
