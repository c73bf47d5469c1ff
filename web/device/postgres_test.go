package device_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/picture"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/web/device"
)

// testStore is a store on a new database.
func testStore(t testing.TB) *postgres.Store {
	t.Helper()
	return postgres.New(pgtest.New(t), postgres.Options{})
}

// newStoredSite is a site over a real database, as fleetd starts it.
func newStoredSite(t testing.TB, store *postgres.Store, mode fleet.EnrolmentMode) *site {
	t.Helper()
	s := &site{}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.enrolments, err = enrolment.New(enrolment.Options{Store: store, Mode: mode, Key: make([]byte, enrolment.KeySize),
		Events: &s.events})
	check(err)
	check(s.enrolments.Load(t.Context()))
	s.presences = fleet.NewPresences(fleet.PresenceOptions{Store: store, Node: "n1"})
	s.blobs, err = blobs.OpenDir(t.TempDir())
	check(err)
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "fleet.example.org:1883"})
	check(err)
	router := chi.NewRouter()
	s.Server = httptest.NewServer(router)
	s.snapshots = picture.New(picture.Options{Links: store, Store: store, Blobs: s.blobs, PublicURL: s.URL,
		Events: &s.events})
	device.New(device.Options{Enrolments: s.enrolments, Snapshots: s.snapshots,
		BootPolls: bootPolls(s.enrolments, s.presences, answers, nil)}).Routes(router)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.enrolments.Run(ctx) }()
	go func() { done <- s.presences.Run(ctx) }()
	t.Cleanup(func() {
		s.Close()
		cancel()
		<-done
		<-done
		s.blobs.Close()
	})
	return s
}

// A device joins, connects and uploads, and all of it is stored in the database.
func TestDeviceLifeInPostgreSQL(t *testing.T) {
	store := testStore(t)
	v := pollVectors(t)[0]
	ann := fleet.Principal{Kind: fleet.KindOperator, Name: "ann", Role: fleet.RoleOperator}
	connection := fleet.Connection{Device: unit, Node: "n1", Epoch: 1, Transport: "mqtt", RemoteAddr: "192.0.2.7",
		At: time.Now()}
	t.Run("first life", func(t *testing.T) {
		s := newStoredSite(t, store, fleet.EnrolByCode)
		s.send(t, "POST", "/xiaozhi/ota/", v.Headers, strings.NewReader(v.Body))
		if _, err := s.enrolments.Claim(t.Context(), ann, s.enrolments.Waiting()[0].Code); err != nil {
			t.Fatal(err)
		}
		s.presences.Connected(connection)
		url, _ := s.uploadURL(t, time.Minute)
		events := s.events.Subscribe(8, func(e *fleet.Event) bool { return e.Kind == fleet.EventSnapshot })
		defer events.Close()
		if status, text := upload(t, url, form("file", jpegOf(drawing(64, 48)))); status != 200 {
			t.Fatalf("upload: status %d: %s", status, text)
		}
		if status, _ := upload(t, url, form("file", jpegOf(drawing(64, 48)))); status != 403 {
			t.Errorf("second upload: status %d", status)
		}
		id := uuid.MustParse((<-events.C).Subject)
		if shot, data, err := s.snapshots.Picture(t.Context(), id); err != nil || len(data) == 0 || shot.Device != unit {
			t.Errorf("snapshot %+v: %v", shot, err)
		}
	})
	d, err := store.Device(t.Context(), unit)
	if err != nil || d.Enrolment != fleet.EnrolmentEnrolled || d.ClaimCode != "" || d.Presence != fleet.PresenceOnline ||
		d.Board != "bread-compact-wifi" || d.Version != "2.4.2" || d.Slot != "ota_0" || d.Transport != "mqtt" ||
		d.ClientID != uuid1 {
		t.Errorf("stored %+v: %v", d, err)
	}
	t.Run("second life", func(t *testing.T) {
		s := newStoredSite(t, store, fleet.EnrolByCode)
		resp, body := s.send(t, "POST", "/xiaozhi/ota/", v.Headers, strings.NewReader(v.Body))
		checkBearable(t, resp, body)
		if !strings.Contains(body, `"mqtt"`) {
			t.Errorf("after a restart the device got %s", body)
		}
		fleettest.Eventually(t, "the device is offline after a restart", func() bool {
			d, err := store.Device(t.Context(), unit)
			return err == nil && d.Presence == fleet.PresenceOffline
		})
	})
}

func TestWaitingDevicesAreForgottenInPostgreSQL(t *testing.T) {
	store := testStore(t)
	record := enrolment.PollRecord{Poll: enrolment.BootPoll{Device: unit, At: time.Now().Add(-48 * time.Hour)},
		Admission: enrolment.Admission{Device: unit, Enrolment: fleet.EnrolmentWaiting, ClaimCode: "123456", Challenge: "x"}}
	if err := store.SavePolls(t.Context(), []enrolment.PollRecord{record}); err != nil {
		t.Fatal(err)
	}
	gone, err := store.ForgetWaiting(t.Context(), time.Now().Add(-24*time.Hour))
	if err != nil || len(gone) != 1 {
		t.Errorf("forgotten: %v, %v", gone, err)
	}
	if _, err := store.Device(t.Context(), unit); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("the forgotten device: %v", err)
	}
}

// TestHostileFactsInPostgreSQL sends values that the database could reject.
func TestHostileFactsInPostgreSQL(t *testing.T) {
	store := testStore(t)
	headers := func(i int) map[string]string {
		return map[string]string{"Device-Id": fmt.Sprintf("%012x", i), "User-Agent": "b/2.4.2", "Client-Id": uuid1}
	}
	n := 0
	t.Run("polls", func(t *testing.T) {
		s := newStoredSite(t, store, fleet.EnrolOpen)
		for _, body := range oddBodies(t) {
			n++
			resp, answer := s.send(t, "POST", "/xiaozhi/ota/", headers(n), strings.NewReader(body))
			checkBearable(t, resp, answer)
		}
	})
	for i := range n {
		id := fleet.DeviceID(fmt.Sprintf("%012x", i+1))
		if f, err := store.Facts(t.Context(), id); err != nil {
			t.Errorf("facts %+v: %v", f, err)
		}
	}
}
