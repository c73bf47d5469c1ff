package device_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
	"fleetd/web/device"
)

// firmwareLinks stores links in the same way as the database.
type firmwareLinks struct {
	mu    sync.Mutex
	links map[string]firmware.Link
}

func (s *firmwareLinks) FirmwareLink(_ context.Context, hash []byte, now time.Time) (firmware.Link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.links[string(hash)]
	if !ok || !now.Before(l.ExpiresAt) {
		return firmware.Link{}, fleet.ErrNotFound
	}
	return l, nil
}

func (s *firmwareLinks) FinishFirmwareLink(_ context.Context, hash []byte, _ time.Time) error {
	time.Sleep(20 * time.Millisecond) // simulates the latency of a database
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, string(hash))
	return nil
}

func (s *firmwareLinks) revoke(deployment uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash, l := range s.links {
		if l.Deployment == deployment {
			delete(s.links, hash)
		}
	}
}

// depot serves images over a real socket.
type depot struct {
	*httptest.Server
	t         testing.TB
	links     firmwareLinks
	blobs     *blobs.Store
	downloads *firmware.Downloads
	handler   *device.Handler

	mu   sync.Mutex
	seen map[uuid.UUID][]firmware.Transfer
}

func newDepot(t testing.TB, o firmware.DownloadsOptions) *depot {
	t.Helper()
	store, err := blobs.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return newDepotOf(t, store, o)
}

func newDepotOf(t testing.TB, store *blobs.Store, o firmware.DownloadsOptions) *depot {
	t.Helper()
	d := &depot{t: t, links: firmwareLinks{links: map[string]firmware.Link{}}, seen: map[uuid.UUID][]firmware.Transfer{},
		blobs: store}
	t.Cleanup(func() { d.blobs.Close() })
	o.Links, o.Blobs, o.Observe = &d.links, d.blobs, d.observe
	d.downloads = firmware.NewDownloads(o)
	router := chi.NewRouter()
	d.handler = device.New(device.Options{Downloads: d.downloads})
	d.handler.Routes(router)
	d.Server = httptest.NewUnstartedServer(router)
	d.Config.ConnContext = device.WithConn
	d.Start()
	t.Cleanup(d.Close)
	return d
}

func (d *depot) observe(t firmware.Transfer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen[t.Deployment] = append(d.seen[t.Deployment], t)
}

// story returns the observed events as kind@bytes, without progress.
func (d *depot) story(deployment uuid.UUID) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, o := range d.seen[deployment] {
		if o.Kind != fleet.EvidenceBytes {
			all = append(all, fmt.Sprintf("%s@%d", o.Kind, o.Sent))
		}
	}
	return all
}

// downloaded waits until the device has the image, and returns the story. The device receives its
// last byte a moment before the event.
func (d *depot) downloaded(deployment uuid.UUID) (story []string) {
	d.t.Helper()
	fleettest.Eventually(d.t, "the image is downloaded", func() bool {
		story = d.story(deployment)
		n := len(story)
		return n > 0 && strings.HasPrefix(story[n-1], "downloaded@")
	})
	return story
}

// image stores size incompressible bytes.
func (d *depot) image(size int) (content []byte, key string) {
	d.t.Helper()
	content = make([]byte, size)
	rand.NewChaCha8([32]byte{byte(size)}).Read(content)
	key, err := d.blobs.PutFile(context.Background(), bytes.NewReader(content), int64(size))
	if err != nil {
		d.t.Fatal(err)
	}
	return content, key
}

// link creates a link to the image for a new deployment.
func (d *depot) link(key string, size int, ttl time.Duration) (firmware.Link, string) {
	l, address := firmware.NewLink(d.URL+"/", firmware.Link{Deployment: uuid.Must(uuid.NewV7()), Device: unit, Attempt: 2,
		Image: key, Size: int64(size)}, ttl, time.Now())
	d.links.mu.Lock()
	defer d.links.mu.Unlock()
	d.links.links[string(l.TokenHash)] = l
	return l, address
}

func get(t testing.TB, address string, headers ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Logf("reading the body: %v", err)
	}
	return resp, body
}
