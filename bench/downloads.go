package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/firmware"
	"fleetd/web/device"
)

type downloadsCommand struct {
	Devices int `help:"How many download at once." default:"500"`
	MiB     int `help:"Size of the image." default:"4"`
	KiBps   int `name:"kibps" help:"What each device reads in a second; 0 is as fast as it can." default:"256"`
}

// linkTable stores links in memory, because the database is not measured here.
type linkTable struct {
	mu    sync.Mutex
	links map[string]firmware.Link
}

func (t *linkTable) FirmwareLink(_ context.Context, hash []byte, _ time.Time) (firmware.Link, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.links[string(hash)]
	if !ok {
		return l, fleet.ErrNotFound
	}
	return l, nil
}

func (t *linkTable) FinishFirmwareLink(_ context.Context, hash []byte, _ time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.links, string(hash))
	return nil
}

// Run serves one image to many devices, which are one separate process, and
// prints the memory that this process needed.
func (c *downloadsCommand) Run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "fleetd-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	store, err := blobs.OpenDir(dir)
	if err != nil {
		return err
	}
	defer store.Close()
	links := &linkTable{links: make(map[string]firmware.Link)}
	downloads := firmware.NewDownloads(firmware.DownloadsOptions{Links: links, Blobs: store, MaxConcurrent: c.Devices})
	router := chi.NewRouter()
	device.New(device.Options{Downloads: downloads, Log: slog.New(slog.DiscardHandler)}).Routes(router)
	server := httptest.NewUnstartedServer(router)
	server.Config.ConnContext = device.WithConn
	server.Start()
	defer server.Close()
	urls, err := c.links(ctx, server.URL, store, links)
	if err != nil {
		return err
	}
	return c.measure(ctx, urls, downloads)
}

func (c *downloadsCommand) links(ctx context.Context, publicURL string, store *blobs.Store, table *linkTable) (
	urls []string, err error) {
	image := make([]byte, c.MiB<<20)
	rand.NewChaCha8([32]byte{}).Read(image)
	key, err := store.PutFile(ctx, bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return nil, err
	}
	for range c.Devices {
		l, url := firmware.NewLink(publicURL, firmware.Link{Deployment: uuid.Must(uuid.NewV7()), Image: key,
			Size: int64(len(image))}, time.Hour, time.Now())
		table.links[string(l.TokenHash)] = l
		urls = append(urls, url)
	}
	return urls, nil
}

func (c *downloadsCommand) measure(ctx context.Context, urls []string, downloads *firmware.Downloads) error {
	order, err := json.Marshal(fetchOrder{URLs: urls, BytesPerSecond: c.KiBps << 10})
	if err != nil {
		return err
	}
	child := exec.CommandContext(ctx, os.Args[0], "fetch")
	child.Stdin, child.Stderr = bytes.NewReader(order), os.Stderr
	runtime.GC()
	peak := peakMemory(downloads)
	began := time.Now()
	out, err := child.Output()
	heap, resident, active := peak()
	if err != nil {
		return fmt.Errorf("the devices' process: %w", err)
	}
	var r fetchReport
	if err := json.Unmarshal(out, &r); err != nil {
		return err
	}
	took := time.Since(began)
	fmt.Printf("%d devices, %d MiB each: %d whole images in %.1f s, %.0f MiB/s, %d at once\n", c.Devices, c.MiB, r.Whole,
		took.Seconds(),
		float64(r.Whole*c.MiB)/took.Seconds(), active)
	fmt.Printf("heap in use grew by %.1f MiB at most, resident memory by %.1f MiB (%.0f KiB per download)\n",
		heap/1024, resident/1024, resident/float64(max(active, 1)))
	if r.Failed > 0 {
		return fmt.Errorf("%d downloads failed: %s", r.Failed, r.Error)
	}
	return nil
}

// peakMemory watches this process until the returned function is called, which
// returns the growth in KiB.
func peakMemory(downloads *firmware.Downloads) func() (heap, resident float64, active int) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	heap0, resident0 := float64(m.HeapInuse), rss(os.Getpid())
	var heap, resident float64
	var active int
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			runtime.ReadMemStats(&m)
			heap, resident = max(heap, float64(m.HeapInuse)-heap0), max(resident, rss(os.Getpid())-resident0)
			active = max(active, len(downloads.Active()))
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() (float64, float64, int) { close(stop); <-stopped; return heap / 1024, resident, active }
}

type fetchCommand struct{}

type fetchOrder struct {
	URLs           []string
	BytesPerSecond int
}

type fetchReport struct {
	Whole, Failed int
	Error         string // of one failed download
}

// Run starts all downloads of its order at once, as devices do, and reports the
// result.
func (fetchCommand) Run() error {
	var o fetchOrder
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	var r fetchReport
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, url := range o.URLs {
		wg.Go(func() {
			err := fetch(url, o.BytesPerSecond)
			mu.Lock()
			defer mu.Unlock()
			if r.Whole++; err != nil {
				r.Whole--
				r.Failed++
				r.Error = err.Error()
			}
		})
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(r)
}

// fetch reads in the small pieces of a device's flash writer.
func fetch(url string, bytesPerSecond int) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true,
		ReadBufferSize: 2 << 10}}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", resp.Status)
	}
	buffer, began, got := make([]byte, 4<<10), time.Now(), int64(0)
	for got < resp.ContentLength {
		n, err := resp.Body.Read(buffer)
		got += int64(n)
		if err != nil && got < resp.ContentLength {
			return fmt.Errorf("after %d bytes: %w", got, err)
		}
		if bytesPerSecond > 0 {
			due := began.Add(time.Duration(got) * time.Second / time.Duration(bytesPerSecond))
			if ahead := time.Until(due); ahead > 100*time.Millisecond {
				time.Sleep(ahead)
			}
		}
	}
	return nil
}
