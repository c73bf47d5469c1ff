package device_test

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/picture"
	"fleetd/web/device"
)

const (
	unit  = fleet.DeviceID("a085e3112233")
	uuid1 = "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10"
)

// pollStore stores the last write of each poll.
type pollStore struct {
	mu      sync.Mutex
	records map[fleet.DeviceID]enrolment.PollRecord
}

func (s *pollStore) Admissions(context.Context) ([]enrolment.Admission, error) { return nil, nil }

func (s *pollStore) SavePolls(_ context.Context, polls []enrolment.PollRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records == nil {
		s.records = make(map[fleet.DeviceID]enrolment.PollRecord)
	}
	for _, p := range polls {
		s.records[p.Poll.Device] = p
	}
	return nil
}

func (*pollStore) DropWaiting(context.Context, []fleet.DeviceID) error { return nil }

func (s *pollStore) ForgetWaiting(context.Context, time.Time) ([]fleet.DeviceID, error) {
	return nil, nil
}

func (s *pollStore) CreateDevice(context.Context, fleet.Principal, enrolment.Admission, string, time.Time) error {
	return nil
}

func (s *pollStore) SaveAdmission(context.Context, fleet.Principal, string, enrolment.Admission, time.Time) error {
	return nil
}

// pictureStore stores links and snapshots in the same way as the database.
type pictureStore struct {
	mu    sync.Mutex
	links map[string]picture.URLLink
	shots []picture.Snapshot
}

func (s *pictureStore) CreateURLLink(_ context.Context, l picture.URLLink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links == nil {
		s.links = make(map[string]picture.URLLink)
	}
	s.links[string(l.TokenHash)] = l
	return nil
}

func (s *pictureStore) UseURLLink(_ context.Context, hash []byte, purpose fleet.LinkPurpose, now time.Time) (
	picture.URLLink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.links[string(hash)]
	if !ok || l.Purpose != purpose || !now.Before(l.ExpiresAt) {
		return picture.URLLink{}, fleet.ErrNotFound
	}
	delete(s.links, string(hash))
	return l, nil
}

func (s *pictureStore) DeleteExpiredURLLinks(context.Context, time.Time) error { return nil }

func (s *pictureStore) CreateSnapshot(_ context.Context, shot picture.Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shots = append(s.shots, shot)
	return nil
}

func (s *pictureStore) Snapshot(_ context.Context, id uuid.UUID) (picture.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, shot := range s.shots {
		if shot.ID == id {
			return shot, nil
		}
	}
	return picture.Snapshot{}, fleet.ErrNotFound
}

func (s *pictureStore) SnapshotOfCall(context.Context, uuid.UUID) (picture.Snapshot, error) {
	return picture.Snapshot{}, fleet.ErrNotFound
}

func (s *pictureStore) SnapshotsOfCall(_ context.Context, call uuid.UUID, _ int) (list []picture.Snapshot, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, shot := range s.shots {
		if shot.Call == call {
			list = append(list, shot)
		}
	}
	return list, nil
}

func (s *pictureStore) LatestSnapshots(context.Context, []fleet.DeviceID) (map[fleet.DeviceID]picture.Snapshot, error) {
	return nil, nil
}

func (s *pictureStore) Snapshots(context.Context, picture.Filter) (page fleet.Page[picture.Snapshot], err error) {
	return page, nil
}

func (s *pictureStore) SnapshotsAround(context.Context, picture.Filter, picture.Snapshot) (before,
	after *picture.Snapshot, err error) {
	return nil, nil, nil
}

func (s *pictureStore) Callers(context.Context, []picture.Snapshot) (map[uuid.UUID]fleet.Principal, error) {
	return nil, nil
}

type noPresences struct{}

func (noPresences) SavePresence(context.Context, []fleet.PresenceChange) error { return nil }
func (noPresences) LoseEdge(context.Context, string, []fleet.DeviceID, fleet.Reason, time.Time) ([]fleet.DeviceID,
	error) {
	return nil, nil
}
func (noPresences) ResetPresence(context.Context, []fleet.DeviceID, []string, fleet.Reason, time.Time) (int64, error) {
	return 0, nil
}
func (noPresences) SavePresenceSample(context.Context, time.Time) error { return nil }
func (noPresences) PresenceSamples(context.Context, time.Time) ([]fleet.PresenceSample, error) {
	return nil, nil
}

// bootPolls assembles the boot polls from the parts of a site.
func bootPolls(e *enrolment.Service, p *fleet.Presences, answers *enrolment.PollAnswers,
	offers enrolment.Offers) *enrolment.BootPolls {
	return enrolment.NewBootPolls(enrolment.BootPollsOptions{Enrolments: e, Presences: p, Answers: answers,
		Offers: offers})
}

// site is the whole HTTP side for devices over stores in memory, on a real server.
type site struct {
	*httptest.Server
	polls      pollStore
	pictures   pictureStore
	events     fleet.Events
	enrolments *enrolment.Service
	presences  *fleet.Presences
	snapshots  *picture.Service
	blobs      *blobs.Store
	blobDir    string
}

func newSite(t testing.TB, mode fleet.EnrolmentMode) *site {
	t.Helper()
	s := &site{blobDir: t.TempDir()}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.enrolments, err = enrolment.New(enrolment.Options{Store: &s.polls, Mode: mode, Key: make([]byte, enrolment.KeySize),
		PublicName: "fleet.example.org"})
	check(err)
	s.presences = fleet.NewPresences(fleet.PresenceOptions{Store: noPresences{}})
	s.blobs, err = blobs.OpenDir(s.blobDir)
	check(err)
	t.Cleanup(func() { s.blobs.Close() })
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "fleet.example.org:1883"})
	check(err)
	router := chi.NewRouter()
	s.Server = httptest.NewServer(router)
	t.Cleanup(s.Close)
	s.snapshots = picture.New(picture.Options{Links: &s.pictures, Store: &s.pictures, Blobs: s.blobs,
		PublicURL: s.URL, Presences: s.presences, Events: &s.events})
	device.New(device.Options{Enrolments: s.enrolments, Snapshots: s.snapshots,
		BootPolls: bootPolls(s.enrolments, s.presences, answers, nil)}).Routes(router)
	return s
}

// flush writes the queued polls.
func (s *site) flush(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.enrolments.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func (s *site) stored(id fleet.DeviceID) enrolment.PollRecord {
	s.polls.mu.Lock()
	defer s.polls.mu.Unlock()
	return s.polls.records[id]
}

// client is as simple as a device: no redirects, no compression, no keep-alive.
var client = &http.Client{
	Timeout:       5 * time.Minute, // in case the server hangs
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
}

func drawing(w, h int) image.Image {
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			img.SetNRGBA(x, y, color.NRGBA{uint8(x), uint8(y), uint8(x ^ y), 255})
		}
	}
	return img
}

func jpegOf(img image.Image) []byte {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, img, nil); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func pngOf(img image.Image) []byte {
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err)
	}
	return b.Bytes()
}
