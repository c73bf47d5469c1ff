package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
)

func TestBandwidthIsShared(t *testing.T) {
	const size, rate = 200_000, 1_000_000
	d := newDepot(t, firmware.DownloadsOptions{BytesPerSecond: rate, MaxConcurrent: 8})
	_, key := d.image(size)
	began := time.Now()
	var wg sync.WaitGroup
	for range 5 {
		l, address := d.link(key, size, time.Minute)
		wg.Go(func() {
			if resp, body := get(t, address); resp.StatusCode != 200 || len(body) != size {
				t.Errorf("%s, %d bytes", resp.Status, len(body))
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			progress := slices.DeleteFunc(slices.Clone(d.seen[l.Deployment]),
				func(o firmware.Transfer) bool { return o.Kind != fleet.EvidenceBytes })
			if took := time.Since(began); len(progress) > int(took/(500*time.Millisecond))+1 {
				t.Errorf("%d reports of progress in %v", len(progress), took)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("1 MB at 1 MB/s took %v", took)
	}
}

// TestDownloadOutlivesTheDeadlinesOfRequests: the deadlines of other requests must not break a long
// download.
func TestDownloadOutlivesTheDeadlinesOfRequests(t *testing.T) {
	const size = 200_000
	d := newDepot(t, firmware.DownloadsOptions{BytesPerSecond: 80_000, MaxConcurrent: 8})
	inner := d.Config.Handler
	d.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if err := errors.Join(rc.SetReadDeadline(time.Now().Add(time.Second)),
			rc.SetWriteDeadline(time.Now())); err != nil { // expired before the first byte
			t.Error(err)
		}
		inner.ServeHTTP(w, r)
	})
	content, key := d.image(size)
	_, address := d.link(key, size, time.Minute)
	began := time.Now()
	if resp, body := get(t, address); resp.StatusCode != 200 || !bytes.Equal(body, content) {
		t.Errorf("%s, %d bytes", resp.Status, len(body))
	}
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("the download took %v: it proves nothing", took)
	}
}

// TestManyDownloadsTakeLittleMemory lets 200 devices download 4 MiB at once.
func TestManyDownloadsTakeLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("800 MB over loopback")
	}
	const devices, size = 200, 4 << 20
	d := newDepot(t, firmware.DownloadsOptions{})
	d.handler.SetTimeouts(time.Minute, 5*time.Minute) // the first waits until the last has begun
	_, key := d.image(size)
	var wg, reading sync.WaitGroup
	peak := watchMemory(t)
	reading.Add(1)
	for range devices {
		_, address := d.link(key, size, time.Hour)
		wg.Go(func() {
			if err := download(address, size, &reading); err != nil {
				t.Error(err)
			}
		})
	}
	fleettest.Eventually(t, "all downloads at once", func() bool { return len(d.downloads.Active()) == devices })
	reading.Done()
	wg.Wait()
	heap, rss := peak()
	t.Logf("%d downloads of %d MiB at once: heap grew %d MiB, RSS %d MiB at most (clients included)", devices, size>>20,
		heap>>20, rss>>20)
	if heap > devices*128<<10 {
		t.Errorf("the heap grew by %d MiB", heap>>20)
	}
}

// download starts to read the image after all others have begun.
func download(address string, size int64, reading *sync.WaitGroup) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", u.Path, u.Host)
	reading.Wait()
	n, err := io.Copy(io.Discard, struct{ io.Reader }{c})
	if err == nil && n < size {
		err = fmt.Errorf("got %d bytes", n)
	}
	return err
}

// watchMemory returns the peak growth of heap and resident memory since the call, with the default
// settings of the collector in fleetd.
func watchMemory(t *testing.T) func() (heap, rss int64) {
	percent := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	heap0, rss0 := int64(m.HeapInuse), residentBytes(t)
	var heap, rss int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			runtime.ReadMemStats(&m)
			heap, rss = max(heap, int64(m.HeapInuse)-heap0), max(rss, residentBytes(t)-rss0)
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() (int64, int64) { close(stop); <-stopped; return heap, rss }
}

func residentBytes(t *testing.T) int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc")
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
