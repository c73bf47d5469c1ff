package bus_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"fleetd/internal/bus"
)

// processorTime returns what the process has used, in user and system mode.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// pair is a core with its server, and an edge connected by TLS. With apart set,
// the edge is connected to the server of another core, so that messages take
// the route between both.
func pair(b *testing.B, apart bool) (core, edge *client, c bus.Cluster) {
	dir := newCluster(b)
	id := join(b, dir, "core", bus.Core)
	s := startServer(b, id)
	at := s
	if apart {
		at = startServer(b, join(b, dir, "core-2", bus.Core), s.Addr())
		await(b, "connected", func() bool { return s.Routes() == 1 && at.Routes() == 1 })
	}
	return connectTo(b, id, s), connectTo(b, join(b, dir, "edge", bus.Edge), at), id.Cluster
}

// BenchmarkRoundTrip measures a request of a core to an edge and its answer,
// one at a time: down to the edge, and up to the leader.
func BenchmarkRoundTrip(b *testing.B) {
	for name, apart := range map[string]bool{"one server": false, "route": true} {
		b.Run(name, func(b *testing.B) {
			core, edge, c := pair(b, apart)
			payload := make([]byte, 300)
			up := c.Up(1, "edge")
			if _, err := edge.Subscribe(c.Down("edge"), func(m *nats.Msg) { _ = edge.Publish(up, m.Data) }); err != nil {
				b.Fatal(err)
			}
			answers := make(chan *nats.Msg, 1)
			if _, err := core.ChanSubscribe(c.UpAll(1), answers); err != nil {
				b.Fatal(err)
			}
			roundTrip := func(timeout time.Duration) bool {
				core.publish(c.Down("edge"), string(payload))
				select {
				case <-answers:
					return true
				case <-time.After(timeout):
					return false
				}
			}
			await(b, "answered", func() bool { return edge.Flush() == nil && roundTrip(time.Second) })
			var took []time.Duration
			before := processorTime(b)
			for b.Loop() {
				start := time.Now()
				if !roundTrip(limit) {
					b.Fatal("no answer")
				}
				took = append(took, time.Since(start))
			}
			used := processorTime(b) - before
			slices.Sort(took)
			b.ReportMetric(float64(used.Microseconds())/float64(len(took)), "cpu-µs/op")
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// BenchmarkBatch measures messages of 16 KiB, each with 100 frames, from an
// edge to a core, at most 64 of them on the way.
func BenchmarkBatch(b *testing.B) {
	const window, frames = 64, 100
	for name, apart := range map[string]bool{"one server": false, "route": true} {
		b.Run(name, func(b *testing.B) {
			core, edge, c := pair(b, apart)
			batch := make([]byte, 16<<10)
			free := make(chan struct{}, window)
			if _, err := core.Subscribe(c.UpAll(1), func(*nats.Msg) { <-free }); err != nil {
				b.Fatal(err)
			}
			await(b, "subscribed", func() bool {
				if len(free) == 0 {
					free <- struct{}{}
				}
				return core.Flush() == nil && edge.Publish(c.Up(1, "edge"), nil) == nil && edge.Flush() == nil && len(free) == 0
			})
			before := processorTime(b)
			b.SetBytes(int64(len(batch)))
			for b.Loop() {
				free <- struct{}{}
				if err := edge.Publish(c.Up(1, "edge"), batch); err != nil {
					b.Fatal(err)
				}
			}
			for range window { // until all have arrived
				free <- struct{}{}
			}
			used := float64(processorTime(b)-before) / float64(time.Microsecond)
			b.ReportMetric(used/float64(b.N), "cpu-µs/message")
			b.ReportMetric(used*1000/float64(b.N*frames), "cpu-ns/frame")
		})
	}
}
