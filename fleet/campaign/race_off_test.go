//go:build !race

package campaign_test

// raceEnabled reports whether the race detector is on. It makes simulations about ten times
// slower.
const raceEnabled = false
