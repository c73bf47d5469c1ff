package device_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/call"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/picture"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/fleet/telemetry"
	"fleetd/web/device"
)

// dumpSite stores uploads over real HTTP in a real database.
type dumpSite struct {
	*httptest.Server
	store     *postgres.Store
	blobs     *blobs.Store
	links     *picture.URLLinks
	dumps     *telemetry.CoreDumps
	snapshots *picture.Service
}

func newDumpSite(t *testing.T) *dumpSite {
	t.Helper()
	s := &dumpSite{store: postgres.New(pgtest.New(t), postgres.Options{})}
	var err error
	if s.blobs, err = blobs.OpenDir(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.blobs.Close() })
	poll := enrolment.PollRecord{Poll: enrolment.BootPoll{Device: unit, ClientID: "c1", Version: "1.1.0",
		ELFSHA256: strings.Repeat("9f", 32), At: time.Now().UTC()},
		Admission: enrolment.Admission{Device: unit, Enrolment: fleet.EnrolmentEnrolled, ClientID: "c1"}}
	if err := s.store.SavePolls(t.Context(), []enrolment.PollRecord{poll}); err != nil {
		t.Fatal(err)
	}
	router := chi.NewRouter()
	s.Server = httptest.NewServer(router)
	t.Cleanup(s.Close)
	s.links = picture.NewURLLinks(s.store, s.URL, nil)
	calls := call.New(call.Options{Store: s.store, Targets: fleet.NewTargets(s.store, s.store), URLs: s.links,
		Events: &fleet.Events{}})
	s.dumps = telemetry.NewCoreDumps(telemetry.CoreDumpsOptions{Links: s.store, Store: s.store, Blobs: s.blobs,
		Calls: calls, Devices: s.store, Inventories: s.store})
	s.snapshots = picture.New(picture.Options{Links: s.store, Store: s.store, Blobs: s.blobs,
		PublicURL: s.URL})
	device.New(device.Options{Snapshots: s.snapshots, CoreDumps: s.dumps}).Routes(router)
	return s
}

func (s *dumpSite) url(t *testing.T, ttl time.Duration) string {
	t.Helper()
	url, err := s.links.CoreDumpURL(t.Context(), unit, uuid.Must(uuid.NewV7()), ttl)
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func (s *dumpSite) kept(t *testing.T) []telemetry.CoreDump {
	t.Helper()
	dumps, err := s.store.CoreDumps(context.Background(), unit, 100)
	if err != nil {
		t.Fatal(err)
	}
	return dumps
}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func TestCoreDumpUpload(t *testing.T) {
	s := newDumpSite(t)
	dump := noise(64 << 10)
	if status, text := upload(t, s.url(t, time.Minute), form("file", dump)); status != 200 {
		t.Fatalf("status %d: %s", status, text)
	}
	kept := s.kept(t)
	if len(kept) != 1 {
		t.Fatalf("%d core dumps kept", len(kept))
	}
	c, data, err := s.dumps.Content(t.Context(), admin, kept[0].ID)
	if err != nil || !bytes.Equal(data, dump) || c.Device != unit || c.Size != 64<<10 || c.Version != "1.1.0" ||
		c.BuildFrom != telemetry.BuildFromDevice {
		t.Errorf("%+v, %d bytes: %v", c, len(data), err)
	}
	// The same bytes again are the same core dump, which the device has not erased.
	if status, text := upload(t, s.url(t, time.Minute), form("file", dump)); status != 200 || len(s.kept(t)) != 1 {
		t.Errorf("again: status %d: %s; %d kept", status, text, len(s.kept(t)))
	}
}

func TestHostileCoreDumps(t *testing.T) {
	s := newDumpSite(t)
	good := noise(3000)
	two := bytes.TrimSuffix(form("file", good), []byte("--\r\n"))
	two = append(append(two, "\r\n"...), form("file", good)[len("--"+screenBoundary+"\r\n"):]...)
	tests := []struct {
		name string
		body []byte
		want int
	}{
		{"a core dump", form("file", good), 200},
		{"1 MiB", form("file", noise(telemetry.MaxCoreDumpBytes)), 200},
		{"one byte more", form("file", noise(telemetry.MaxCoreDumpBytes+1)), 413},
		{"5 MB", form("file", make([]byte, 5<<20)), 413},
		{"empty", form("file", nil), 400},
		{"nothing", nil, 400},
		{"no form", good, 400},
		{"two parts", two, 400},
		{"another field", form("dump", good), 400},
		{"a field before it", append(bytes.TrimSuffix(form("x", []byte("y")), []byte("--\r\n")),
			form("file", good)[len("--"+screenBoundary):]...), 400},
		{"cut off", form("file", good)[:2000], 400},
		{"without the form's end", bytes.TrimSuffix(form("file", good), []byte("--\r\n")), 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := len(s.kept(t))
			url := s.url(t, time.Minute)
			status, text := upload(t, url, tt.body)
			if status != tt.want || len(text) > 200 {
				t.Errorf("status %d, want %d: %s", status, tt.want, text)
			}
			if kept := len(s.kept(t)) - before; kept != 0 != (tt.want == 200) {
				t.Errorf("%d core dumps kept", kept)
			}
			if again, _ := upload(t, url, form("file", good)); again != 403 {
				t.Errorf("a second use: status %d", again)
			}
		})
	}
}

// A link serves one purpose: a picture's link accepts no core dump, and a core dump's link no
// picture.
func TestCoreDumpLinks(t *testing.T) {
	s := newDumpSite(t)
	shown, err := s.links.UploadURL(t.Context(), unit, uuid.New(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	preview, err := s.links.PreviewURL(t.Context(), unit, uuid.New(), strings.Repeat("0", 64), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		url  string
		want int
	}{
		"a picture's":  {shown, 415},
		"a preview's":  {s.URL + "/u/" + strings.Split(preview, "/")[4], 403},
		"expired":      {s.url(t, -time.Second), 403},
		"unknown":      {s.URL + "/u/" + strings.Repeat("A", 43), 403},
		"no token":     {s.URL + "/u/x", 403},
		"for download": {strings.Replace(s.url(t, time.Minute), "/u/", "/u/x", 1), 403},
	} {
		if status, text := upload(t, tt.url, form("file", noise(2000))); status != tt.want {
			t.Errorf("%s: status %d, want %d: %s", name, status, tt.want, text)
		}
	}
	if kept := s.kept(t); len(kept) != 0 {
		t.Errorf("%d core dumps kept", len(kept))
	}
	if status, _ := upload(t, s.url(t, time.Minute), form("file", jpegOf(drawing(64, 48)))); status != 200 {
		t.Errorf("a core dump may have any content: status %d", status)
	}
	if shots, err := s.store.Snapshots(t.Context(), picture.Filter{Device: unit}); err != nil || len(shots.Items) != 0 {
		t.Errorf("it was taken for a picture: %v %v", shots, err)
	}
}
