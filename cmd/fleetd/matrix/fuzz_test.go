package matrix

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Principals try operations in a random order, checked as in TestMatrix: for a
// few seconds with a fixed seed, or for FLEETD_MATRIX_TIME with
// FLEETD_MATRIX_SEED.
func TestRandomActs(t *testing.T) {
	t.Parallel()
	length, seed := 4*time.Second, uint64(1)
	if text := os.Getenv("FLEETD_MATRIX_TIME"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		seed = uint64(time.Now().UnixNano())
	}
	if text := os.Getenv("FLEETD_MATRIX_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("FLEETD_MATRIX_SEED=%d", seed)
	w := newWorld(t)
	w.watch()
	w.fix()
	ops, names, principals := w.operations(), slices.Sorted(maps.Keys(rows)), allTokens()
	for _, p := range principals {
		w.token(p)
	}
	for _, p := range operators() {
		w.signIn(p)
		principals = append(principals, p)
	}
	w.quiet()
	w.changes()
	w.settleDevices()
	defer func() { // also if an event did not come
		if t.Failed() {
			t.Logf("the latest acts:\n\t%s", strings.Join(w.log, "\n\t"))
		}
	}()
	random := rand.New(rand.NewPCG(seed, 0))
	acts := 0
	for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); acts++ {
		name := names[random.IntN(len(names))]
		id, _, _ := strings.Cut(name, "/")
		w.try(ops[id], name, principals[random.IntN(len(principals))], sides[random.IntN(len(sides))])
	}
	t.Logf("%d acts", acts)
}
