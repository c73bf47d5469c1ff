package door_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BenchmarkPass compares requests through an edge with requests straight to the handler. Client,
// edge and core share the process: the difference of cpu-µs is what the edge and the connection
// behind it cost.
func BenchmarkPass(b *testing.B) {
	page := make([]byte, 2<<20)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/large" {
			w.Header().Set("Content-Length", "2097152")
			_, _ = w.Write(page)
			return
		}
		_, _ = w.Write(page[:300])
	})
	direct := httptest.NewServer(handler)
	defer direct.Close()
	a := newAuthority(b)
	c, e := startCore(b, a, 1, handler), startEdge(b, a, nil)
	e.announce(b, c.leader())
	for _, bb := range []struct {
		name, url string
		clients   int
		body      int
	}{
		{"small/1/direct", direct.URL + "/api/v1/x", 1, 200}, {"small/1/edge", e.url + "/api/v1/x", 1, 200},
		{"small/64/direct", direct.URL + "/api/v1/x", 64, 200}, {"small/64/edge", e.url + "/api/v1/x", 64, 200},
		{"down-2MB/4/direct", direct.URL + "/large", 4, 200}, {"down-2MB/4/edge", e.url + "/large", 4, 200},
		{"up-2MB/4/direct", direct.URL + "/api/v1/x", 4, 2 << 20}, {"up-2MB/4/edge", e.url + "/api/v1/x", 4, 2 << 20},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			took := make([]time.Duration, b.N)
			jobs := make(chan int, b.N)
			for i := range b.N {
				jobs <- i
			}
			close(jobs)
			before := processorTime()
			b.ResetTimer()
			var clients sync.WaitGroup
			for range bb.clients {
				clients.Go(func() {
					for i := range jobs {
						began := time.Now()
						resp, err := e.client.Post(bb.url, "application/json", bytes.NewReader(page[:bb.body]))
						if err != nil {
							b.Error(err)
							return
						}
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
						took[i] = time.Since(began)
					}
				})
			}
			clients.Wait()
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(took[b.N/2].Nanoseconds())/1e3, "p50-µs")
			b.ReportMetric(float64((processorTime()-before).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
		})
	}
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
