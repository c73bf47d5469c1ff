package postgres_test

import (
	"fmt"
	"sync"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/postgres"
)

// BenchmarkCallRows compares the group commit with one commit a row, in one run. It reports rows/s
// for several numbers of producers; each producer waits until its row is durable.
func BenchmarkCallRows(b *testing.B) {
	durable(b)
	for _, producers := range []int{1, 16, 64, 512} {
		for _, way := range []string{"single", "grouped"} {
			b.Run(fmt.Sprintf("rows/%s/%d", way, producers), func(b *testing.B) {
				insertCalls(b, benchStore(b, way),
					producers)
			})
			b.Run(fmt.Sprintf("calls/%s/%d", way, producers), func(b *testing.B) {
				wholeCalls(b, benchStore(b, way),
					producers)
			})
		}
	}
}

func benchStore(b *testing.B, way string) *postgres.Store {
	s := newStore(b)
	if way == "grouped" {
		run(b, s)
	}
	return s
}

// durable skips on a server that does not wait for the disk, such as the private servers of
// tests: there, a commit costs nothing.
func durable(b *testing.B) {
	var fsync string
	check(b, testDB(b).QueryRow(b.Context(), "SHOW fsync").Scan(&fsync))
	if fsync != "on" {
		b.Skip("set FLEETD_TEST_DATABASE_URL to a server that runs with fsync")
	}
}

func insertCalls(b *testing.B, s *postgres.Store, producers int) {
	produce(b, producers, func() error { return s.InsertCall(b.Context(), newCall("a085e3112233", fleet.CallSent)) })
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// wholeCalls writes both rows of a call, one after the other.
func wholeCalls(b *testing.B, s *postgres.Store, producers int) {
	produce(b, producers, func() error {
		c := newCall("a085e3112233", fleet.CallSent)
		if err := s.InsertCall(b.Context(), c); err != nil {
			return err
		}
		return s.FinishCall(b.Context(), finish(c, fleet.CallSucceeded,
			`{"content":[{"type":"text","text":"true"}],"isError":false}`))
	})
	b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

func produce(b *testing.B, producers int, one func() error) {
	work := make(chan struct{})
	var all sync.WaitGroup
	for range producers {
		all.Go(func() {
			for range work {
				if err := one(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	b.ResetTimer()
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	all.Wait()
	b.StopTimer()
}
