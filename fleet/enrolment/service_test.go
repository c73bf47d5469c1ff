package enrolment_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
)

// newEnrolments starts the service in a mode over a store.
func newEnrolments(t *testing.T, s *admissionStore, mode fleet.EnrolmentMode,
	change func(*enrolment.Options)) *enrolment.Service {
	t.Helper()
	o := enrolment.Options{Store: s, Mode: mode, Key: testKey, PublicName: "fleet.example.org"}
	if change != nil {
		change(&o)
	}
	e, err := enrolment.New(o)
	if err == nil {
		err = e.Load(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func poll(t *testing.T, e *enrolment.Service, client string) enrolment.PollAnswer {
	t.Helper()
	a, err := e.Poll(enrolment.BootPoll{Device: unit, ClientID: client, Version: "2.4.2", ELFSHA256: "9f2c4d6b",
		At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// auth returns the reason why the credentials were refused, or "".
func auth(e *enrolment.Service, c *enrolment.Credentials) enrolment.CredentialsError {
	_, err := e.Authenticate(c.ClientID, c.Username, []byte(c.Password), "192.0.2.9")
	var why enrolment.CredentialsError
	errors.As(err, &why)
	return why
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDeviceJoinsByCode(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode, nil)
	first, again := poll(t, e, uuid1), poll(t, e, uuid1)
	if first.Session != nil || first.Activation == nil {
		t.Fatalf("an unknown device got %+v", first)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the code changed between polls: %s", diff)
	}
	act := first.Activation
	if act.Message != "fleet.example.org\n"+act.Code || len(act.Code) != 6 || act.Challenge == "" {
		t.Errorf("activation %+v", act)
	}
	if e.Activate(unit, uuid1) {
		t.Error("activated before it was claimed")
	}
	id, err := e.Claim(t.Context(), ann, act.Code[:3]+" "+act.Code[3:])
	if err != nil || id != unit {
		t.Fatalf("Claim = %q, %v", id, err)
	}
	if !e.Activate(unit, uuid1) || e.Activate(unit, uuid2) {
		t.Error("activation is not bound to the Client-Id")
	}
	got := poll(t, e, uuid1)
	if got.Activation != nil || got.Session == nil {
		t.Fatalf("after the claim: %+v", got)
	}
	if why := auth(e, got.Session); why != "" {
		t.Errorf("its credentials are refused: %s", why)
	}
	if got.Session.ClientID != "GID_default@@@a0_85_e3_11_22_33@@@"+uuid1 ||
		got.Session.PublishTopic != "fleet/a085e3112233/up" {
		t.Errorf("credentials %+v", got.Session)
	}
	if _, err := e.Claim(t.Context(), ann, act.Code); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a second claim of the code: %v", err)
	}
	if diff := cmp.Diff([]string{"ann device.claim a085e3112233"}, s.audit); diff != "" {
		t.Error(diff)
	}
}

func TestEnrolmentSurvivesARestart(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode, nil)
	code := poll(t, e, uuid1).Activation.Code
	drain(t, e)
	e = newEnrolments(t, s, fleet.EnrolByCode, nil)
	if again := poll(t, e, uuid1).Activation.Code; again != code {
		t.Errorf("code %s became %s", code, again)
	}
	_, err := e.Claim(t.Context(), ann, code)
	must(t, err)
	c := poll(t, e, uuid1).Session
	e = newEnrolments(t, s, fleet.EnrolByCode, nil)
	if why := auth(e, c); why != "" {
		t.Errorf("credentials refused after a restart: %s", why)
	}
	if r := e.Running(unit); r.ELFSHA256 != "9f2c4d6b" || r.Version != "2.4.2" || r.InventoryFresh {
		t.Errorf("running %+v", r)
	}
}

// A program that simulates a board names no hardware. An unreadable poll changes
// nothing about that.
func TestSoftwareIsRecognised(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolOpen, nil)
	for _, tt := range []struct {
		name string
		poll enrolment.BootPoll
		want bool
	}{
		{"body that cannot be read, first", enrolment.BootPoll{Broken: true}, false},
		{"neither chip nor partitions", enrolment.BootPoll{Version: "2.1.1"}, true},
		{"body that cannot be read", enrolment.BootPoll{Broken: true}, true},
		{"chip", enrolment.BootPoll{Chip: "esp32s3"}, false},
		{"partitions", enrolment.BootPoll{Layout: new(fleet.FlashLayout)}, false},
		{"body that cannot be read, of a board", enrolment.BootPoll{Broken: true}, false},
	} {
		tt.poll.Device, tt.poll.ClientID = unit, uuid1
		_, err := e.Poll(tt.poll)
		must(t, err)
		if got := e.Running(unit).Software; got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// drain writes pending changes by running the service for a moment.
func drain(t *testing.T, e *enrolment.Service) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, e.Run(ctx))
}

// A code lets in the device that showed it, not one that polled under the same Device-Id a
// moment before the code was typed.
func TestCodeBelongsToTheClientThatAsked(t *testing.T) {
	e := newEnrolments(t, new(admissionStore), fleet.EnrolByCode, nil)
	shown := poll(t, e, uuid1).Activation.Code
	thief := poll(t, e, uuid2).Activation.Code
	if shown == thief {
		t.Fatal("both clients show one code")
	}
	if _, err := e.Claim(t.Context(), ann, shown); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("the displaced code was taken: %v", err)
	}
	shown = poll(t, e, uuid1).Activation.Code
	_, err := e.Claim(t.Context(), ann, shown)
	must(t, err)
	// The same holds if an enrolled device polls with a new Client-Id.
	other := poll(t, e, uuid2)
	uuid3 := strings.Replace(uuid2, "0", "3", 1)
	third := poll(t, e, uuid3)
	if other.Session != nil || third.Session != nil || other.Activation.Code == third.Activation.Code {
		t.Fatalf("strangers got %+v and %+v", other, third)
	}
	if _, err := e.Claim(t.Context(), ann, other.Activation.Code); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("the code of the second client was taken for the third: %v", err)
	}
}

func TestNewClientIDNeedsADecision(t *testing.T) {
	var kicked []fleet.DeviceID
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByApproval, func(o *enrolment.Options) {
		o.Kick = func(id fleet.DeviceID, cause fleet.Cause) {
			if !cause.Reason.Is(fleet.CauseRevoked) || cause.Text == "" {
				t.Errorf("the cause is %v", cause)
			}
			kicked = append(kicked, id)
		}
	})
	poll(t, e, uuid1)
	must(t, e.Approve(t.Context(), ann, unit, ""))
	old := poll(t, e, uuid1).Session

	if a := poll(t, e, uuid2); a.Session != nil || a.Activation == nil {
		t.Fatalf("another Client-Id got %+v", a)
	}
	if w := e.Waiting(); len(w) != 1 || !w[0].Again || w[0].ClientID != uuid2 {
		t.Errorf("waiting: %+v", w)
	}
	if why := auth(e, old); why != "" || poll(t, e, uuid1).Session == nil {
		t.Errorf("the known client lost its credentials: %s", why)
	}

	must(t, e.Reject(t.Context(), ann, unit))
	if a := poll(t, e, uuid2); a != (enrolment.PollAnswer{}) || auth(e, old) != "" || len(e.Waiting()) != 0 {
		t.Errorf("after the request was rejected: %+v, %q, %v", a, auth(e, old), e.Waiting())
	}
	uuid3 := strings.Replace(uuid2, "0", "3", 1)
	poll(t, e, uuid3)
	drain(t, e)
	if row := s.row(unit); row.NewClientID != uuid3 || row.ClientID != uuid1 {
		t.Errorf("stored %+v", row)
	}
	must(t, e.Approve(t.Context(), ann, unit, ""))
	fresh := poll(t, e, uuid3).Session
	if fresh == nil || auth(e, fresh) != "" {
		t.Fatalf("the approved client got %+v", fresh)
	}
	if why := auth(e, old); why != enrolment.CredentialsOtherClient {
		t.Errorf("the old client's credentials: %q", why)
	}
	if diff := cmp.Diff([]fleet.DeviceID{unit}, kicked); diff != "" {
		t.Error(diff)
	}
	// Back to the first Client-Id: credentials issued to it long ago stay revoked.
	poll(t, e, uuid1)
	must(t, e.Approve(t.Context(), ann, unit, ""))
	if why := auth(e, old); why != enrolment.CredentialsRevoked {
		t.Errorf("credentials of an earlier binding: %q", why)
	}
}

func TestOpenModeRebindsOnlyWhoIsAway(t *testing.T) {
	connected := true
	e := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, func(o *enrolment.Options) {
		o.Connected = func(fleet.DeviceID) bool { return connected }
	})
	old := poll(t, e, uuid1).Session
	if old == nil || auth(e, old) != "" {
		t.Fatalf("the device did not join: %+v", old)
	}
	if a := poll(t, e, uuid2); a.Session != nil {
		t.Error("rebound while connected")
	}
	connected = false
	if a := poll(t, e, uuid2); a.Session == nil || auth(e, a.Session) != "" || auth(e, old) == "" ||
		len(e.Waiting()) != 0 {
		t.Errorf("not rebound while away: %+v", a)
	}
}

// Two units that poll in turn do not take the credentials from each other forever. Once the
// conflict is detected, the credentials stay where they are until an operator decides.
func TestOpenModeLeavesContestedCredentials(t *testing.T) {
	e := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil)
	var last *enrolment.Credentials
	for _, client := range []string{uuid1, uuid2, uuid1} {
		if a := poll(t, e, client); a.Session != nil {
			last = a.Session
		}
	}
	if e.Conflict(unit) == nil {
		t.Fatal("units that ask in turn are no conflict")
	}
	refused := 0
	for _, client := range []string{uuid2, uuid1, uuid2, uuid1} {
		if poll(t, e, client).Session == nil {
			refused++
		}
	}
	if refused != 2 || auth(e, last) != "" {
		t.Errorf("%d of 4 polls were refused, want 2; the credentials issued before: %q", refused, auth(e, last))
	}
}

func TestOpenModeStillAsksForSomeCodes(t *testing.T) {
	e := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, func(o *enrolment.Options) {
		o.ByCode = func(fleet.DeviceID) bool { return true }
	})
	a := poll(t, e, uuid1)
	if a.Session != nil || a.Activation == nil {
		t.Fatalf("joined without its code: %+v", a)
	}
	if _, err := e.Claim(t.Context(), ann, a.Activation.Code); err != nil {
		t.Fatal(err)
	}
	if a := poll(t, e, uuid1); a.Session == nil {
		t.Errorf("claimed, and still not let in: %+v", a)
	}
}

func TestClientIDMissingOrOdd(t *testing.T) {
	for _, odd := range []string{"", "with space", "a@@@b", strings.Repeat("x", 4096), "\x00", "ümlaut"} {
		e := newEnrolments(t, new(admissionStore), fleet.EnrolByCode, nil)
		a := poll(t, e, odd)
		if a.Activation == nil || a.Session != nil {
			t.Fatalf("%.20q: %+v", odd, a)
		}
		_, err := e.Claim(t.Context(), ann, a.Activation.Code)
		must(t, err)
		c := poll(t, e, odd).Session
		if c == nil || auth(e, c) != "" || c.ClientID != "GID_default@@@a0_85_e3_11_22_33@@@" {
			t.Errorf("%.20q: claimed, got %+v", odd, c)
		}
		if b := poll(t, e, uuid1); b.Session != nil {
			t.Errorf("%.20q: another Client-Id got its credentials", odd)
		}
	}
	e := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil)
	poll(t, e, uuid1)
	if a := poll(t, e, ""); a != (enrolment.PollAnswer{}) {
		t.Errorf("a poll without Client-Id for a bound device got %+v", a)
	}
}

func TestAnOutageStopsNoKnownDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(admissionStore)
		e := newEnrolments(t, s, fleet.EnrolByCode, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		defer func() { cancel(); <-done }()
		_, err := e.Claim(ctx, ann, poll(t, e, uuid1).Activation.Code)
		must(t, err)

		s.setAway(true)
		if poll(t, e, uuid1).Session == nil {
			t.Error("a known device was not served")
		}
		newcomer, err := e.Poll(enrolment.BootPoll{Device: "b00000000001", ClientID: uuid2, At: time.Now()})
		must(t, err)
		time.Sleep(time.Hour)
		if _, err := e.Claim(ctx, ann, newcomer.Activation.Code); err == nil {
			t.Fatal("a claim succeeded without a database")
		}
		if e.Activate("b00000000001", uuid2) {
			t.Error("the claim that failed let the device in")
		}

		s.setAway(false)
		time.Sleep(10 * time.Second)
		if s.row("b00000000001").ClaimCode != newcomer.Activation.Code {
			t.Errorf("after the outage the store has %+v", s.row("b00000000001"))
		}
		_, err = e.Claim(ctx, ann, newcomer.Activation.Code)
		must(t, err)
	})
}

// A poll that waits to be written must not undo a later decision.
func TestDecisionIsNotUndoneByAnOlderPoll(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode, nil)
	code := poll(t, e, uuid1).Activation.Code
	s.saving = func() { poll(t, e, uuid1) } // still waiting at this moment
	_, err := e.Claim(t.Context(), ann, code)
	must(t, err)
	drain(t, e)
	if row := s.row(unit); row.Enrolment != fleet.EnrolmentEnrolled || row.ClaimCode != "" {
		t.Errorf("stored %+v", row)
	}
}

func TestFloodOfUnknownDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(admissionStore)
		e := newEnrolments(t, s, fleet.EnrolByCode, func(o *enrolment.Options) { o.MaxWaiting = 100 })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		defer func() { cancel(); <-done }()
		_, err := e.Claim(ctx, ann, poll(t, e, uuid1).Activation.Code)
		must(t, err)

		flood := func() (refused int) {
			for i := range 1000 {
				id := fleet.DeviceID(fmt.Sprintf("c%011x", i))
				if _, err := e.Poll(enrolment.BootPoll{Device: id, At: time.Now()}); errors.Is(err, fleet.ErrUnavailable) {
					refused++
				}
			}
			return refused
		}
		if refused := flood(); refused != 0 || len(e.Waiting()) != 100 {
			t.Errorf("%d refused, %d wait; want 0, 100", refused, len(e.Waiting()))
		}
		if poll(t, e, uuid1).Session == nil {
			t.Error("the flood kept a known device out")
		}
		time.Sleep(time.Second)
		if n := s.count(); n > 101 {
			t.Errorf("%d devices stored, want 101 at most", n)
		}
		genuine := enrolment.BootPoll{Device: "b00000000001", ClientID: uuid2}
		e.Poll(genuine)
		time.Sleep(time.Minute)
		genuine.At = time.Now()
		if _, err := e.Poll(genuine); err != nil || !slices.ContainsFunc(e.Waiting(),
			func(w enrolment.WaitingDevice) bool { return w.Device == genuine.Device }) {
			t.Errorf("after the flood: %v, %v", err, e.Waiting())
		}
		time.Sleep(25 * time.Hour)
		if n := s.count(); n != 1 || len(e.Waiting()) != 0 {
			t.Errorf("a day later %d devices are stored, %d wait; want 1, 0", n, len(e.Waiting()))
		}
	})
}

func TestClaimingIsLimited(t *testing.T) {
	now := time.Now()
	e := newEnrolments(t, new(admissionStore), fleet.EnrolByCode, func(o *enrolment.Options) {
		o.Now = func() time.Time { return now }
	})
	code := poll(t, e, uuid1).Activation.Code
	wrong := "000000"
	if code == wrong {
		wrong = "000001"
	}
	viewer := fleet.Principal{Kind: fleet.KindOperator, ID: "3", Name: "vic", Role: fleet.RoleViewer}
	if _, err := e.Claim(t.Context(), viewer, code); !errors.Is(err, fleet.ErrForbidden) {
		t.Errorf("a viewer's claim: %v", err)
	}
	for _, odd := range []string{"", "12345", "1234567", "12345a", "１２３４５６"} {
		if _, err := e.Claim(t.Context(), ann, odd); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("code %q: %v", odd, err)
		}
	}
	for range 10 {
		if _, err := e.Claim(t.Context(), ann, wrong); !errors.Is(err, fleet.ErrNotFound) {
			t.Fatal(err)
		}
	}
	if _, err := e.Claim(t.Context(), ann, code); !errors.Is(err, fleet.ErrTooMany) {
		t.Errorf("the eleventh try: %v", err)
	}
	now = now.Add(7 * time.Second)
	if _, err := e.Claim(t.Context(), bob, code); err != nil {
		t.Errorf("another operator: %v", err)
	}
	if _, err := e.Claim(t.Context(), ann, wrong); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a try after a pause: %v", err)
	}
}

func TestRunningKnowsAFreshInventory(t *testing.T) {
	now := time.Now()
	e := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, func(o *enrolment.Options) {
		o.Now = func() time.Time { return now }
	})
	fresh := func() bool { return e.Running(unit).InventoryFresh }
	e.Listed(unit, "9f2c4d6b", now) // unknown: nothing to record
	poll(t, e, uuid1)
	if fresh() {
		t.Error("fresh before any listing")
	}
	e.Listed(unit, "9f2c4d6b", now)
	if !fresh() {
		t.Error("not fresh after a listing")
	}
	if _, err := e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, Version: "2.4.2", At: now}); err != nil ||
		!fresh() {
		t.Errorf("a poll with a broken body forgot the build: %v", err)
	}
	now = now.Add(24 * time.Hour)
	if fresh() {
		t.Error("fresh after a day")
	}
	e.Listed(unit, "9f2c4d6b", now)
	e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, Version: "2.4.3", ELFSHA256: "beef", At: now})
	if fresh() {
		t.Error("fresh with another build")
	}
}

func TestEnrolmentMemoryPerDevice(t *testing.T) {
	const n = 50_000
	s := new(admissionStore)
	elf := strings.Repeat("9f2c", 16)
	for i := range n {
		s.put(enrolment.Admission{Device: fleet.DeviceID(fmt.Sprintf("%012x", i)), Enrolment: fleet.EnrolmentEnrolled,
			ClientID: uuid1, ELFSHA256: elf, Version: "2.4.2", InventoryELF: elf, InventoryAt: time.Now()})
	}
	var e *enrolment.Service
	per := fleettest.HeapPer(n, func(i int) {
		if i == 0 {
			e = newEnrolments(t, s, fleet.EnrolByCode, nil)
		}
	})
	t.Logf("%d bytes per device, without its id and Client-Id", per)
	if per > 260 {
		t.Errorf("%d bytes per device", per)
	}
	runtime.KeepAlive(e)
}

func TestStoredWaitsForPolls(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolOpen, nil) // without Run, nothing is written unless requested
	poll(t, e, uuid1)
	must(t, e.Stored(t.Context()))
	if _, ok := s.rows[unit]; !ok {
		t.Error("the device is not in the store")
	}
	s.away = true
	poll(t, e, uuid1)
	if err := e.Stored(t.Context()); err == nil {
		t.Error("a store that is away gave no error")
	}
}

func TestApprovalIsForTheCodeThatWasSeen(t *testing.T) {
	e := newEnrolments(t, &admissionStore{}, fleet.EnrolByApproval, nil)
	first := poll(t, e, "5f0c0f4e-6f0a-4c7e-9d0e-000000000001").Activation.Code
	second := poll(t, e, "5f0c0f4e-6f0a-4c7e-9d0e-000000000002").Activation.Code
	if err := e.Approve(t.Context(), ann, unit, first); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("a code that is shown no more was approved: %v", err)
	}
	must(t, e.Approve(t.Context(), ann, unit, second))
}

// A unit that polls under the id of an enrolled device without being that device must not
// change its record: a campaign uses the record to choose the image.
func TestStrangerDoesNotChangeTheDevice(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByApproval, nil)
	poll(t, e, uuid1)
	must(t, e.Approve(t.Context(), ann, unit, ""))
	if a := poll(t, e, uuid1); a.Session == nil {
		t.Fatalf("the device got %+v", a)
	}
	stranger := func() {
		t.Helper()
		_, err := e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid2, At: time.Now(), Board: "other-board",
			BoardType: "other", Chip: "esp32c3", RemoteAddr: "192.0.2.66",
			Version: "9.9.9", ELFSHA256: strings.Repeat("e", 64), Language: "xx", Facts: json.RawMessage(`{"a":1}`)})
		must(t, err)
	}
	stranger() // while the device's own poll waits to be stored
	must(t, e.Stored(t.Context()))
	if p := s.latest; p.Kind != enrolment.PollStart || p.ClientID != uuid1 ||
		p.Version != "2.4.2" || p.RemoteAddr != "192.0.2.66" {
		t.Errorf("of the device's poll is stored %+v", p)
	}
	stranger()
	drain(t, e)
	row := s.row(unit)
	if row.NewClientID != uuid2 {
		t.Errorf("the stranger's request is not on record: %+v", row)
	}
	if p := s.latest; p.Kind != enrolment.PollStranger || p.ClientID != uuid2 || p.Facts != nil ||
		p.Board+p.BoardType+p.Chip+p.Version+p.ELFSHA256+p.Language != "" {
		t.Errorf("stored %+v", p)
	}
}
