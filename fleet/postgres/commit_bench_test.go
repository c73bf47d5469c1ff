package postgres_test

import (
	"sync"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/postgres"
)

// BenchmarkCallRows compares the group commit with one commit a row, in one
// run: rows/s with so many producers, each waiting for its row to be durable.
func BenchmarkCallRows(b *testing.B) {
	for _, producers := range []int{1, 16, 64, 512} {
		name := map[int]string{1: "1", 16: "16", 64: "64", 512: "512"}[producers]
		b.Run("single/"+name, func(b *testing.B) { insertCalls(b, newStore(b), producers) })
		b.Run("grouped/"+name, func(b *testing.B) {
			s := newStore(b)
			run(b, s)
			insertCalls(b, s, producers)
		})
		b.Run("grouped-whole-call/"+name, func(b *testing.B) {
			s := newStore(b)
			run(b, s)
			wholeCalls(b, s, producers)
		})
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
		return s.FinishCall(b.Context(), finish(c, fleet.CallSucceeded, `{"content":[{"type":"text","text":"true"}],"isError":false}`))
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
