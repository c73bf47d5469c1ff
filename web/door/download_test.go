package door_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
	"fleetd/web/device"
	"fleetd/web/door"
)

// A depot has images in S3 and links to them, as PostgreSQL has, for the cores of a test.
type depot struct {
	t     testing.TB
	a     *authority
	store *blobs.Store
	log   lines

	// fault answers a request to S3 in its place, if it returns true.
	fault    atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	fetched  atomic.Int64 // requests with a presigned address
	mu       sync.Mutex
	links    map[[32]byte]firmware.Link
	finished int
}

// lines are what all processes of a test log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func presigned(r *http.Request) bool { return r.URL.Query().Has("X-Amz-Signature") }

func newDepot(t testing.TB) *depot {
	t.Setenv("AWS_ACCESS_KEY_ID", "fleetd-test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
	d := &depot{t: t, a: newAuthority(t), links: make(map[[32]byte]firmware.Link)}
	memory := s3mem.New()
	if err := memory.CreateBucket("blobs"); err != nil {
		t.Fatal(err)
	}
	s3 := gofakes3.New(memory).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if presigned(r) {
			d.fetched.Add(1)
		}
		if fault := d.fault.Load(); fault == nil || !(*fault)(w, r) {
			s3.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	var err error
	if d.store, err = blobs.Open(t.Context(), "s3://blobs/prefix?region=x&endpoint="+server.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.store.Close()
		if text := d.log.String(); strings.Contains(text, "X-Amz") {
			t.Errorf("the log has an address of S3:\n%s", text)
		}
	})
	return d
}

func (d *depot) fail(fault func(w http.ResponseWriter, r *http.Request) bool) { d.fault.Store(&fault) }

// FirmwareLink implements [firmware.LinkStore].
func (d *depot) FirmwareLink(_ context.Context, hash []byte, now time.Time) (firmware.Link, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.links[[32]byte(hash)]
	if !ok || !now.Before(l.ExpiresAt) {
		return firmware.Link{}, fleet.ErrNotFound
	}
	return l, nil
}

// FinishFirmwareLink implements [firmware.LinkStore].
func (d *depot) FinishFirmwareLink(_ context.Context, hash []byte, _ time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.links, [32]byte(hash))
	d.finished++
	return nil
}

// image stores size incompressible bytes.
func (d *depot) image(size int) (content []byte, key string) {
	content = make([]byte, size)
	rand.NewChaCha8([32]byte{byte(size)}).Read(content)
	key, err := d.store.PutFile(d.t.Context(), bytes.NewReader(content), int64(size))
	if err != nil {
		d.t.Fatal(err)
	}
	return content, key
}

// link makes a link, and returns its path.
func (d *depot) link(key string, size int) (l firmware.Link, path string) {
	l, path = firmware.NewLink("", firmware.Link{Deployment: uuid.Must(uuid.NewV7()), Device: "aabbccddeeff", Attempt: 2,
		Image: key, Size: int64(size)}, time.Minute, time.Now())
	d.mu.Lock()
	defer d.mu.Unlock()
	d.links[[32]byte(l.TokenHash)] = l
	return l, path
}

// A server is a core with downloads.
type server struct {
	*core
	*firmware.Downloads
	handler http.Handler

	mu   sync.Mutex
	seen map[uuid.UUID][]firmware.Transfer
}

func (d *depot) core(term int64, set func(o *firmware.DownloadsOptions)) *server {
	s := &server{seen: make(map[uuid.UUID][]firmware.Transfer)}
	o := firmware.DownloadsOptions{Links: d, Blobs: d.store, Addresses: d.store, Observe: s.observe, Log: d.log.logger()}
	if set != nil {
		set(&o)
	}
	s.Downloads = firmware.NewDownloads(o)
	router := chi.NewRouter()
	device.New(device.Options{Downloads: s.Downloads, ReadingEdge: door.ReadingEdge, Log: o.Log}).Routes(router)
	own := http.NewServeMux()
	own.Handle("/"+device.ReportsPath, device.ServeReports(s.Downloads, door.EdgeOf, o.Log))
	s.handler = router
	s.core = startCore(d.t, d.a, term, ownHandler{Handler: router, own: own, log: o.Log})
	return s
}

func (s *server) observe(t firmware.Transfer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[t.Deployment] = append(s.seen[t.Deployment], t)
}

// story returns the events as kind@bytes, without progress.
func (s *server) story(l firmware.Link) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.seen[l.Deployment] {
		if o.Kind != fleet.EvidenceBytes {
			all = append(all, fmt.Sprintf("%s@%d", o.Kind, o.Sent))
		}
	}
	return all
}

// wants waits until the events are these.
func (s *server) wants(l firmware.Link, want ...string) {
	s.t.Helper()
	if !eventually(func() bool { return slices.Equal(s.story(l), want) }) {
		s.t.Errorf("observed (-want +got)\n%s", cmp.Diff(want, s.story(l)))
	}
}

// ends waits until the downloads of the device have ended with this kind of event.
func (s *server) ends(l firmware.Link, kind fleet.EvidenceKind) firmware.Transfer {
	s.t.Helper()
	last := firmware.Transfer{}
	if !eventually(func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.seen[l.Deployment]); n > 0 {
			last = s.seen[l.Deployment][n-1]
		}
		return last.Kind == kind
	}) {
		s.t.Errorf("observed %v, want %s at the end", s.story(l), kind)
	}
	return last
}

func eventually(ok func() bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

func (d *depot) edge(name string, l door.Leader) *edge {
	e := startEdge(d.t, d.a, func(o *door.Options) {
		o.TLS, o.S3, o.Log = d.a.config(name, "edge"), blobs.Transport(door.S3Timeout), d.log.logger()
	})
	e.announce(d.t, l)
	return e
}

// begin begins a download and reads n bytes.
func (e *edge) begin(t testing.TB, path string, n int, headers ...string) (*http.Response, []byte) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, e.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := e.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	got := make([]byte, n)
	if _, err := io.ReadFull(resp.Body, got); err != nil {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	return resp, got
}

const imageSize = 16 << 20 // more than the sockets hold

// The answers of an edge that reads from S3 are those of the core, for each kind of request.
func TestDownloadFromS3(t *testing.T) {
	d := newDepot(t)
	c := d.core(1, nil)
	e := d.edge("edge-1", c.leader())
	direct := httptest.NewServer(c.handler)
	defer direct.Close()
	content, key := d.image(300_000)
	tag := `"` + key + `"`
	for _, tt := range []struct {
		method, header, ifRange string
		status                  int
		fetched                 int64 // from S3 by the edge
		used                    bool
	}{
		{"GET", "", "", 200, 1, true},
		{"GET", "bytes=0-", "", 206, 1, true},
		{"GET", "bytes=1000-", "", 206, 1, false},
		{"GET", "bytes=1000-", tag, 206, 1, false},
		{"GET", "bytes=1000-", `"another"`, 200, 1, true},
		{"GET", "bytes=10-19", "", 206, 0, false}, // a small part comes from the core
		{"GET", "bytes=-100000", "", 206, 1, false},
		{"GET", "bytes=300000-", "", 416, 0, false},
		{"GET", "lines=1-2", "", 200, 1, true},
		{"HEAD", "", "", 200, 0, false},
	} {
		t.Run(tt.method+" "+tt.header+" "+tt.ifRange, func(t *testing.T) {
			headers := []string{"X-None", "x"}
			if tt.header != "" {
				headers = append(headers, "Range", tt.header)
			}
			if tt.ifRange != "" {
				headers = append(headers, "If-Range", tt.ifRange)
			}
			_, path := d.link(key, len(content))
			want, wantBody := (&edge{url: direct.URL, client: direct.Client()}).do(t, tt.method, path, nil, headers...)
			before := d.fetched.Load()
			l, path := d.link(key, len(content))
			got, body := e.do(t, tt.method, path, nil, headers...)
			want.Header.Del("Date")
			got.Header.Del("Date")
			if got.StatusCode != tt.status || body != wantBody || got.ContentLength != want.ContentLength {
				t.Errorf("%s, %d bytes of %d; the core has %d", got.Status, len(body), got.ContentLength, len(wantBody))
			}
			if diff := cmp.Diff(want.Header, got.Header); diff != "" {
				t.Errorf("headers (-core +edge)\n%s", diff)
			}
			if n := d.fetched.Load() - before; n != tt.fetched {
				t.Errorf("%d requests to S3 by the edge, want %d", n, tt.fetched)
			}
			if tt.used {
				c.wants(l, "get@0", "downloaded@300000")
			}
			if !eventually(func() bool { return c.Room() == 500 && len(c.Active()) == 0 }) {
				t.Errorf("%d places are free", c.Room())
			}
			if again, _ := e.do(t, "GET", path, nil, "Range", "bytes=0-9"); (again.StatusCode == 404) != tt.used {
				t.Errorf("afterwards %s", again.Status)
			}
		})
	}
}

// A device that leaves resumes over the same link, through another edge, and the places of downloads
// are those of all edges.
func TestDeviceResumesAtAnotherEdge(t *testing.T) {
	d := newDepot(t)
	c := d.core(1, func(o *firmware.DownloadsOptions) { o.MaxConcurrent = 1 })
	one, two := d.edge("edge-1", c.leader()), d.edge("edge-2", c.leader())
	content, key := d.image(imageSize)
	l, path := d.link(key, imageSize)
	resp, got := one.begin(t, path, 1<<20)
	if !eventually(func() bool { return c.Active()[l.Deployment] >= 1<<20 }) || c.Room() != 0 {
		t.Errorf("the core knows of %v, and has %d places", c.Active(), c.Room())
	}
	other, path2 := d.link(key, imageSize)
	waited := make(chan []byte)
	go func() {
		_, body := two.do(t, "GET", path2, nil)
		waited <- []byte(body)
	}()
	time.Sleep(50 * time.Millisecond)
	if len(c.story(other)) > 0 {
		t.Error("a download that waits for a place has begun")
	}
	resp.Body.Close()
	if cut := c.ends(l, fleet.EvidenceCut); cut.Sent < 1<<20 || !cut.Reason.Is(firmware.TransferEnded) {
		t.Errorf("observed %+v", cut)
	}
	if body := <-waited; !bytes.Equal(body, content) {
		t.Errorf("the download that waited has %d bytes", len(body))
	}
	again, rest := two.do(t, "GET", path, nil, "Range", fmt.Sprintf("bytes=%d-", len(got)), "If-Range", resp.Header.Get("ETag"))
	if again.StatusCode != 206 || !bytes.Equal(append(got, rest...), content) {
		t.Errorf("%s, %d bytes", again.Status, len(rest))
	}
	c.ends(l, fleet.EvidenceDownloaded)
	if d.fetched.Load() != 3 {
		t.Errorf("%d requests to S3 by the edges", d.fetched.Load())
	}
}

// A device asks again while its old connection, over another edge, seems open. A revocation ends a
// download at an edge.
func TestDownloadsAreCutAtEdges(t *testing.T) {
	d := newDepot(t)
	c := d.core(1, nil)
	one, two := d.edge("edge-1", c.leader()), d.edge("edge-2", c.leader())
	content, key := d.image(imageSize)
	asked, path := d.link(key, imageSize)
	old, _ := one.begin(t, path, 10)
	if resp, body := two.do(t, "GET", path, nil); resp.StatusCode != 200 || body != string(content) {
		t.Errorf("%s, %d bytes", resp.Status, len(body))
	}
	c.wants(asked, "get@0", "get@0", fmt.Sprintf("downloaded@%d", imageSize))
	revoked, path := d.link(key, imageSize)
	cut, _ := one.begin(t, path, 10)
	d.mu.Lock()
	clear(d.links)
	d.mu.Unlock()
	c.Revoke(revoked.Deployment)
	if last := c.ends(revoked, fleet.EvidenceCut); !last.Reason.Is(firmware.TransferRevoked) {
		t.Errorf("observed %+v", last)
	}
	reports := one.Stats(door.Own).Passed
	fleettest.Eventually(t, "the edge has reported since", func() bool { return one.Stats(door.Own).Passed >= reports+2 })
	for name, body := range map[string]io.Reader{"the old connection": old.Body, "a revoked link": cut.Body} {
		if n, err := io.Copy(io.Discard, body); err == nil {
			t.Errorf("%s got the image, %d bytes", name, n)
		}
	}
}

// The leader dies. A download continues while no core leads, and the next core records it after it has checked
// the link; a device that was cut meanwhile resumes; a link that is revoked meanwhile does not survive.
func TestDownloadOutlivesTheLeader(t *testing.T) {
	d := newDepot(t)
	first := d.core(1, nil)
	e := d.edge("edge-1", first.leader())
	content, key := d.image(imageSize)
	whole, path := d.link(key, imageSize)
	resp, got := e.begin(t, path, 1<<20)
	broken, brokenPath := d.link(key, imageSize)
	half, gotHalf := e.begin(t, brokenPath, 1<<20)
	half.Body.Close()
	first.ends(broken, fleet.EvidenceCut)
	revoked, path := d.link(key, imageSize)
	gone, _ := e.begin(t, path, 10)
	late, path := d.link(key, imageSize)
	slow, gotSlow := e.begin(t, path, 1<<20)

	e.leaders.Announce(door.Leader{})
	first.die()
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(append(got, rest...), content) {
		t.Errorf("without a leader: %d bytes, %v", len(rest), err)
	}
	d.mu.Lock()
	delete(d.links, [32]byte(revoked.TokenHash))
	d.mu.Unlock()

	second := d.core(2, func(o *firmware.DownloadsOptions) { o.MaxConcurrent = 1 })
	e.announce(t, second.leader())
	second.wants(whole, fmt.Sprintf("downloaded@%d", imageSize))
	reports := e.Stats(door.Own).Passed
	fleettest.Eventually(t, "the edge has the core's answer", func() bool { return e.Stats(door.Own).Passed > reports })
	if n, err := io.Copy(io.Discard, gone.Body); err == nil || len(second.story(revoked)) > 0 {
		t.Errorf("a revoked image was sent, %d bytes; observed %v", n, second.story(revoked))
	}
	if !eventually(func() bool { return second.Room() == 0 && second.Active()[late.Deployment] >= 1<<20 }) {
		t.Errorf("the new core knows of %v, and has %d places", second.Active(), second.Room())
	}
	if rest, err = io.ReadAll(slow.Body); err != nil || !bytes.Equal(append(gotSlow, rest...), content) {
		t.Errorf("with another leader: %d bytes, %v", len(rest), err)
	}
	second.wants(late, fmt.Sprintf("downloaded@%d", imageSize))
	from := fmt.Sprintf("bytes=%d-", len(gotHalf))
	if resp, rest := e.do(t, "GET", brokenPath, nil, "Range", from); resp.StatusCode != 206 ||
		!bytes.Equal(append(gotHalf, rest...), content) {
		t.Errorf("resumed: %s, %d bytes", resp.Status, len(rest))
	}
	second.wants(broken, fmt.Sprintf("get@%d", len(gotHalf)), fmt.Sprintf("downloaded@%d", imageSize))
	fleettest.Eventually(t, "three links are used up", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.finished == 3
	})
}

// S3 refuses the edge, as with an address that has expired, or is not reachable, or sends other bytes:
// the core sends the image. It is asked for the next ones, too, for a while.
func TestEdgeCannotReadS3(t *testing.T) {
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request){
		"expired": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
		},
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusTemporaryRedirect)
		},
		"replaced": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"another"`)
			w.Header().Set("Content-Range", "bytes 0-299999/300000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(make([]byte, 300_000))
		},
		"other bytes": func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 300_000)) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDepot(t)
			c := d.core(1, nil)
			e := d.edge("edge-1", c.leader())
			content, key := d.image(300_000)
			d.fail(func(w http.ResponseWriter, r *http.Request) bool {
				if presigned(r) {
					fault(w, r)
				}
				return presigned(r)
			})
			for range 2 {
				l, path := d.link(key, len(content))
				if resp, body := e.do(t, "GET", path, nil); resp.StatusCode != 200 || body != string(content) {
					t.Errorf("%s, %d bytes", resp.Status, len(body))
				}
				c.ends(l, fleet.EvidenceDownloaded)
			}
			if d.fetched.Load() > 2 { // net/http sends a GET again if a connection that it used before is closed
				t.Errorf("%d requests to S3 by the edge", d.fetched.Load())
			}
			text := d.log.String()
			if !strings.Contains(text, "this edge cannot read from S3") ||
				strings.Count(text, "an edge cannot read from S3") != 1 {
				t.Errorf("log:\n%s", text)
			}
		})
	}
}

// S3 ends a connection in the middle. The edge reads on; if it cannot, it cuts the device, which
// resumes through the core.
func TestS3EndsInTheMiddle(t *testing.T) {
	for _, comesBack := range []bool{true, false} {
		d := newDepot(t)
		c := d.core(1, nil)
		e := d.edge("edge-1", c.leader())
		content, key := d.image(imageSize)
		var broken atomic.Bool
		d.fail(func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case !presigned(r), broken.Load() && comesBack:
				return false
			case broken.Swap(true):
				panic(http.ErrAbortHandler)
			}
			info, err := headOf(r)
			if err != nil {
				t.Error(err)
			}
			w.Header().Set("ETag", info.Get("ETag"))
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", imageSize-1, imageSize))
			w.Header().Set("Content-Length", fmt.Sprint(imageSize))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(content[:1<<20])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
		l, path := d.link(key, imageSize)
		resp, got := e.begin(t, path, 1<<20)
		rest, err := io.ReadAll(resp.Body)
		if comesBack {
			if err != nil || !bytes.Equal(append(got, rest...), content) {
				t.Errorf("S3 is back: %d bytes, %v", len(rest), err)
			}
			c.ends(l, fleet.EvidenceDownloaded)
			continue
		}
		if err == nil || len(rest) > 0 {
			t.Errorf("S3 is away: %d bytes more, %v", len(rest), err)
		}
		if last := c.ends(l, fleet.EvidenceCut); !last.Reason.Is(firmware.TransferUnreadable) {
			t.Errorf("observed %+v", last)
		}
		again, text := e.do(t, "GET", path, nil, "Range", fmt.Sprintf("bytes=%d-", 1<<20))
		if again.StatusCode != 206 || !bytes.Equal(append(got, text...), content) {
			t.Errorf("resumed: %s, %d bytes", again.Status, len(text))
		}
		c.ends(l, fleet.EvidenceDownloaded)
	}
}

// headOf returns the headers of the object that r is for.
func headOf(r *http.Request) (http.Header, error) {
	head, err := http.NewRequest(http.MethodHead, "http://"+r.Host+r.URL.Path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(head)
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	return resp.Header, nil
}

// An edge of an earlier version gets the image from the core, as does one if all downloads share a
// rate. A core of an earlier version sends the image itself, and one that takes over does no harm.
func TestDownloadsOfEarlierVersions(t *testing.T) {
	d := newDepot(t)
	c := d.core(1, nil)
	content, key := d.image(300_000)
	_, path := d.link(key, len(content))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: d.a.config("edge-0", "edge")}}
	defer client.CloseIdleConnections()
	r, _ := http.NewRequest("GET", "https://"+c.addr+path, nil)
	r.Header.Set("Fleetd-Edge", "http 192.0.2.1:5000 - 1")
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); !bytes.Equal(body, content) || resp.Header.Get(device.DelegationHeader) != "" {
		t.Errorf("an earlier edge: %d bytes, %v", len(body), resp.Header)
	}
	paced := d.core(1, func(o *firmware.DownloadsOptions) { o.BytesPerSecond = 100 << 20 })
	e := d.edge("edge-1", paced.leader())
	_, path = d.link(key, len(content))
	if _, body := e.do(t, "GET", path, nil); body != string(content) || d.fetched.Load() != 0 {
		t.Errorf("with a rate: %d bytes, %d of them from S3", len(body), d.fetched.Load())
	}

	large, key := d.image(imageSize)
	newer := d.core(2, nil)
	e.announce(t, newer.leader())
	_, path = d.link(key, imageSize)
	down, got := e.begin(t, path, 1<<20)
	for i, own := range []http.Handler{nil, http.NotFoundHandler()} { // before and after conversations at edges
		old := startCore(t, d.a, int64(3+i), ownHandler{Handler: newer.handler, own: own})
		e.announce(t, old.leader())
		fleettest.Eventually(t, "an earlier core is asked", func() bool { return e.Stats(door.Own).Passed > int64(i) })
	}
	if rest, err := io.ReadAll(down.Body); err != nil || !bytes.Equal(append(got, rest...), large) {
		t.Errorf("under an earlier core: %d bytes, %v", len(rest), err)
	}
}

// A node cannot report on the downloads of another edge, and lies change no record.
func TestForeignReports(t *testing.T) {
	d := newDepot(t)
	c := d.core(1, nil)
	e, other := d.edge("edge-1", c.leader()), d.edge("edge-2", c.leader())
	_, key := d.image(imageSize)
	l, path := d.link(key, imageSize)
	r, _ := http.NewRequest("GET", "https://"+c.addr+path, nil)
	r.Header.Set("Fleetd-Edge", "http 192.0.2.1:5000 - 1 s3")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: d.a.config("edge-1", "edge")}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	var to firmware.Delegation
	if err := json.Unmarshal([]byte(resp.Header.Get(device.DelegationHeader)), &to); err != nil {
		t.Fatal(err)
	}
	report := func(e *edge, change func(p *firmware.Progress)) string {
		t.Helper()
		p := to.Progress
		p.Sent = imageSize
		change(&p)
		body, _ := json.Marshal(device.DownloadReports{Downloads: []firmware.Progress{p}})
		status, answer, err := e.Ask(t.Context(), door.Question{Name: device.ReportsPath, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(status, " ", strings.Replace(string(answer), p.ID.String(), "id", 1))
	}
	const cut = `200 {"cut":["id"]}`
	for name, got := range map[string]string{
		"another edge": report(other, func(p *firmware.Progress) { p.Ended = true }),
		"an older GET": report(other, func(p *firmware.Progress) { p.Ended, p.ID = true, uuid.UUID{1} }),
		"no token":     report(e, func(p *firmware.Progress) { p.Ended, p.Token = true, "x" }),
		"other token":  report(e, func(p *firmware.Progress) { p.Ended, p.Token = true, strings.Repeat("A", 43) }),
		"negative":     report(e, func(p *firmware.Progress) { p.Ended, p.Offset = true, -1 }),
	} {
		if got != cut {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := report(e, func(p *firmware.Progress) { p.Sent = imageSize + 1 }); got != "200 {}" || c.Active()[l.Deployment] != 0 {
		t.Errorf("more bytes than the image has: %s, %v", got, c.Active())
	}
	c.wants(l, "get@0")
	for _, body := range []string{"", "garbage", `{"downloads":[{"id":"x"}]}`} {
		status, _, err := e.Ask(t.Context(), door.Question{Name: device.ReportsPath, Body: []byte(body)})
		if err != nil || status != 400 {
			t.Errorf("%q: %d, %v", body, status, err)
		}
	}
	if resp, _ := e.do(t, "POST", "/cluster/"+device.ReportsPath, strings.NewReader("{}")); resp.StatusCode != 404 {
		t.Errorf("a client reports: %s", resp.Status)
	}
	if resp, _ := e.do(t, "GET", path, nil, "Fleetd-Edge", "http 192.0.2.1:5000 - 1 s3", "Range", "bytes=0-99999"); resp.Header.Get(
		device.DelegationHeader) != "" {
		t.Error("a client got an address of S3")
	}
	if got := report(e, func(p *firmware.Progress) { p.Ended = true }); got != cut { // the client's GET is newer
		t.Errorf("after a newer GET: %s", got)
	}
}

// The edge stops in the middle: the core learns at once how far the device came.
func TestEdgeStopsDuringADownload(t *testing.T) {
	d := newDepot(t)
	c := d.core(1, nil)
	e := d.edge("edge-1", c.leader())
	_, key := d.image(imageSize)
	l, path := d.link(key, imageSize)
	resp, _ := e.begin(t, path, 1<<20)
	go e.stop()
	resp.Body.Close()
	if cut := c.ends(l, fleet.EvidenceCut); cut.Sent < 1<<20 {
		t.Errorf("observed %+v", cut)
	}
}
