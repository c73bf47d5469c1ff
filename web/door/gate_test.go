package door

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Requests that waited are let go by importance and age, 64 at a time; one that does not answer
// makes room a second later.
func TestOrderOfRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, to := newGate(1000), &leader{}
		var mu sync.Mutex
		var passed []string
		waiters := make(map[string]*waiter)
		for i := range 100 {
			for r, name := range []string{"known", "poll", "other"} {
				if r < 2 && i >= 10 {
					continue
				}
				name = fmt.Sprint(name, "-", i)
				w := &waiter{rank: rank(r)}
				waiters[name] = w
				go func() {
					if got, err := g.wait(t.Context(), w, time.Minute, false); got != to || err != nil {
						t.Errorf("%s: %v", name, err)
					}
					mu.Lock()
					defer mu.Unlock()
					passed = append(passed, name)
				}()
				synctest.Wait()
			}
		}
		expect := func(what string, most int) {
			t.Helper()
			synctest.Wait()
			var want []string
			for r, name := range []string{"known", "poll", "other"} {
				for i := 0; i < 100 && (r == 2 || i < 10) && len(want) < most; i++ {
					want = append(want, fmt.Sprint(name, "-", i))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			got := slices.Clone(passed) // those of one moment run in any order
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %d passed: %v", what, len(got), got)
			}
		}
		expect("no core leads", 0)
		g.open(to)
		expect("a core leads", maxReleases)
		g.reached(waiters["known-0"], to)
		expect("one was answered", maxReleases+1)
		g.missed(waiters["known-1"], to)
		mu.Lock()
		for _, name := range passed {
			g.leave(waiters[name])
		}
		mu.Unlock()
		expect("the leader is away", maxReleases+1)
		time.Sleep(retryEvery)
		expect("one tries", maxReleases+2)
		time.Sleep(releaseTimeout)
		expect("it has no answer yet, but did not fail", 120)
	})
}
