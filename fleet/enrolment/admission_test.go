package enrolment_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// An unknown device has no credentials before its row is stored; a known one gets the
// credentials that it has.
func TestNoCredentialsThatTheStoreDoesNotKnow(t *testing.T) {
	accept := withRules(rulesOf(t, enrolment.Rule{Action: enrolment.RuleAccept, Devices: []fleet.DeviceID{unit}}))
	for name, o := range map[string]struct {
		mode    fleet.EnrolmentMode
		options func(*enrolment.Options)
	}{"open": {mode: fleet.EnrolOpen}, "rule": {fleet.EnrolByCode, accept}} {
		t.Run(name, func(t *testing.T) {
			s := new(admissionStore)
			e := newEnrolments(t, s, o.mode, o.options)
			s.setAway(true)
			a, err := e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, At: time.Now()})
			if !errors.Is(err, fleet.ErrUnavailable) || a != (enrolment.PollAnswer{}) || e.Known(unit) {
				t.Fatalf("while the store is away: %+v, %v", a, err)
			}
			drain(t, e) // an orderly stop
			s.setAway(false)
			e = newEnrolments(t, s, o.mode, o.options)
			c := poll(t, e, uuid1).Session
			if c == nil || s.row(unit).Enrolment != fleet.EnrolmentEnrolled {
				t.Fatalf("it got %+v, and stored is %+v", c, s.row(unit))
			}
			s.setAway(true)
			e = newEnrolments(t, &admissionStore{rows: s.rows}, o.mode, o.options) // as after kill -9
			if why := auth(e, c); why != "" {
				t.Errorf("credentials from before the end: %q", why)
			}
		})
	}
}

// If a new binding of a known device cannot be stored, it is dropped.
func TestBindingThatCannotBeStored(t *testing.T) {
	key := ed25519.NewKeyFromSeed(slices.Repeat([]byte{1}, 32))
	s := new(admissionStore)
	k := &keyed{t: t, e: newEnrolments(t, s, fleet.EnrolOpen, nil), elf: "a", at: time.Now()}
	own := k.poll(uuid1, enrolment.KeyProof{}).Session
	s.setAway(true)
	a, err := k.e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid2, ELFSHA256: "a", At: k.at})
	if !errors.Is(err, fleet.ErrUnavailable) || a.Session != nil {
		t.Errorf("another Client-Id, in open mode: %+v, %v", a, err)
	}
	if why := auth(k.e, own); why != "" {
		t.Errorf("the device itself, afterwards: %q", why)
	}
	challenge := k.poll(uuid1, enrolment.KeyProof{Key: public(key)}).KeyChallenge
	c := k.poll(uuid1, sign(key, uuid1, challenge)).Session
	if c == nil || c.WithProof || auth(k.e, c) != "" {
		t.Errorf("a device whose key cannot be bound now got %+v", c)
	}
	s.setAway(false)
	if c := k.prove(uuid1, key).Session; c == nil || !c.WithProof || s.row(unit).Key != public(key) {
		t.Errorf("when the store is back it got %+v, and stored is %+v", c, s.row(unit))
	}
}

// The credentials from before a rotation end when the device has connected with the new ones.
// If the process dies, they stay revoked.
func TestEndOfARotationOutlivesAKill(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolOpen, nil)
	killed := func() { e = newEnrolments(t, s, fleet.EnrolOpen, nil) }
	before := poll(t, e, uuid1).Session
	must(t, e.Rotate(t.Context(), ann, unit))
	after := poll(t, e, uuid1).Session
	killed()
	if auth(e, before) != "" || auth(e, after) != "" {
		t.Error("one of the overlapping credentials is refused")
	}
	if why := auth(e, before); why != enrolment.CredentialsRevoked {
		t.Errorf("the old ones, after the new were used: %q", why)
	}
	running := s.row(unit)
	killed()
	if old, own := auth(e, before), auth(e, after); old != enrolment.CredentialsRevoked || own != "" {
		t.Errorf("after a kill: the old ones %q, the new ones %q", old, own)
	}
	if running.ELFSHA256 != "9f2c4d6b" || running.Version != "2.4.2" {
		t.Errorf("the CONNECT changed what is stored of the device to %+v", running)
	}
	must(t, e.Rotate(t.Context(), ann, unit))
	s.setAway(true)
	if why := auth(e, poll(t, e, uuid1).Session); why != "" {
		t.Errorf("while the store is away the device is refused: %q", why)
	}
	s.setAway(false)
	drain(t, e)
	killed()
	if why := auth(e, after); why != enrolment.CredentialsRevoked {
		t.Errorf("the old ones, after the store was away: %q", why)
	}
}

// A decision about something else does not restore credentials that ended while it was stored.
func TestEndOfARotationDuringADecision(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode, nil)
	poll(t, e, uuid1)
	must(t, e.Approve(t.Context(), bob, unit, ""))
	before := poll(t, e, uuid1).Session
	must(t, e.Rotate(t.Context(), bob, unit))
	after := poll(t, e, uuid1).Session
	poll(t, e, uuid2) // requests to be let in, and is not let in
	var connecting sync.WaitGroup
	s.saving = func() {
		connecting.Go(func() { auth(e, after) }) // waits until the decision is stored
		for auth(e, before) == "" {
			runtime.Gosched()
		}
	}
	must(t, e.Reject(t.Context(), bob, unit))
	connecting.Wait()
	if why := auth(e, before); why != enrolment.CredentialsRevoked {
		t.Errorf("after the decision the old ones are refused as %q", why)
	}
	e = newEnrolments(t, s, fleet.EnrolByCode, nil) // as after kill -9
	if why := auth(e, before); why != enrolment.CredentialsRevoked {
		t.Errorf("after a kill the old ones are refused as %q", why)
	}
}

// A code that a device shows lets it in even if the process dies meanwhile.
func TestCodeOutlivesAKill(t *testing.T) {
	s := new(admissionStore)
	code := poll(t, newEnrolments(t, s, fleet.EnrolByCode, nil), uuid1).Activation.Code
	e := newEnrolments(t, s, fleet.EnrolByCode, nil)
	if id, err := e.Claim(t.Context(), bob, code); err != nil || id != unit || poll(t, e, uuid1).Session == nil {
		t.Errorf("the code %s is good for %q, %v", code, id, err)
	}
}

// A known device with a new build is answered once the build is stored, or after a short
// timeout if the store is slow.
func TestNewsOfAKnownDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(slowStore)
		e := newEnrolments(t, &s.admissionStore, fleet.EnrolOpen, func(o *enrolment.Options) { o.Store = s })
		poll(t, e, uuid1)
		news := func(version string) time.Duration {
			began := time.Now()
			a, err := e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, Version: version, At: began})
			if err != nil || a.Session == nil {
				t.Fatalf("the device got %+v, %v", a, err)
			}
			return time.Since(began)
		}
		s.takes = 20 * time.Millisecond
		if took := news("2.5.0"); took != s.takes || s.latest.Version != "2.5.0" {
			t.Errorf("answered after %v with %q stored", took, s.latest.Version)
		}
		if took := news("2.5.0"); took != 0 {
			t.Errorf("it says nothing new, and is answered after %v", took)
		}
		s.takes = 8 * time.Second
		if took := news("2.6.0"); took != 500*time.Millisecond {
			t.Errorf("with a store that hangs, answered after %v", took)
		}
		time.Sleep(time.Minute) // the write continues until it is done
	})
}

// slowStore delays each write of polls.
type slowStore struct {
	admissionStore
	takes  time.Duration
	mu     sync.Mutex
	writes int
}

func (s *slowStore) SavePolls(ctx context.Context, polls []enrolment.PollRecord) error {
	s.mu.Lock()
	s.writes++
	s.mu.Unlock()
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.admissionStore.SavePolls(ctx, polls)
}

// Devices that join together share writes, and wait for at most two.
func TestJoinersShareWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 400
		s := &slowStore{takes: 50 * time.Millisecond}
		e := newEnrolments(t, &s.admissionStore, fleet.EnrolOpen, func(o *enrolment.Options) { o.Store = s })
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				began := time.Now()
				a, err := e.Poll(enrolment.BootPoll{Device: fleet.DeviceID(fmt.Sprintf("c%011x", i)), ClientID: uuid1, At: began})
				if err != nil || a.Session == nil || time.Since(began) > 2*s.takes {
					t.Errorf("device %d: %+v, %v, after %v", i, a, err, time.Since(began))
				}
			})
		}
		wg.Wait()
		if s.count() != n || s.writes > 2 {
			t.Errorf("%d devices are stored by %d writes, want %d by 2 at most", s.count(), s.writes, n)
		}
	})
}

// In any order of events, a device with credentials can connect with them, even after the process
// was killed, until an operator or another unit that was let in ends them, and never afterwards.
func TestCredentialsOutliveKills(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newAdmissionModel(t, seed).run(120) })
	}
}

// An admissionModel is one device id, two units that use it, an operator, and a process that is
// killed now and then.
type admissionModel struct {
	t       *testing.T
	r       *rand.Rand
	s       *admissionStore
	e       *enrolment.Service
	mode    fleet.EnrolmentMode
	away    bool
	good    *enrolment.Credentials            // must be let in
	dead    map[string]*enrolment.Credentials // must not be let in, by password
	history []string
}

func newAdmissionModel(t *testing.T, seed uint64) *admissionModel {
	m := &admissionModel{t: t, r: rand.New(rand.NewPCG(seed, 1)), s: new(admissionStore),
		mode: fleet.EnrolByCode, dead: map[string]*enrolment.Credentials{}}
	if seed%2 == 0 {
		m.mode = fleet.EnrolOpen
	}
	m.start()
	return m
}

func (m *admissionModel) start() {
	m.e = newEnrolments(m.t, m.s, m.mode, nil)
}

func (m *admissionModel) run(steps int) {
	for range steps {
		op, do := m.pick()
		m.history = append(m.history, op)
		do()
		m.check()
		if m.t.Failed() {
			m.t.Fatalf("after %v", m.history)
		}
	}
}

func (m *admissionModel) pick() (string, func()) {
	client := []string{uuid1, uuid2}[m.r.IntN(2)]
	switch n := m.r.IntN(20); {
	case n < 8:
		return "poll " + client[:4], func() { m.poll(client) }
	case n < 10:
		return "away", func() { m.away = true; m.s.setAway(true) }
	case n < 13:
		return "back", m.back
	case n < 15:
		return "kill", func() { m.back(); m.start() }
	case n < 16:
		return "revoke", func() { m.ends(m.e.Revoke(m.t.Context(), ann, unit)) }
	case n < 17:
		return "reject", func() {
			asks := len(m.e.Waiting()) > 0
			if err := m.e.Reject(m.t.Context(), ann, unit); !asks {
				m.ends(err)
			}
		}
	default:
		return "approve", func() {
			again := len(m.e.Waiting()) > 0 && m.e.Waiting()[0].Again
			if err := m.e.Approve(m.t.Context(), ann, unit, ""); again {
				m.ends(err)
			}
		}
	}
}

func (m *admissionModel) back() { m.away = false; m.s.setAway(false) }

// ends records a decision that revokes the credentials.
func (m *admissionModel) ends(err error) {
	if err == nil && m.good != nil {
		m.dead[m.good.Password] = m.good
		m.good = nil
	}
}

func (m *admissionModel) poll(client string) {
	a, err := m.e.Poll(enrolment.BootPoll{Device: unit, ClientID: client, At: time.Now()})
	if err != nil && !m.away {
		m.t.Errorf("refused: %v", err)
	}
	if a.Session == nil {
		return
	}
	if m.good != nil && m.good.Password != a.Session.Password {
		m.ends(nil) // in open mode another unit takes the place
	}
	delete(m.dead, a.Session.Password)
	m.good = a.Session
}

func (m *admissionModel) check() {
	if m.good != nil {
		if why := auth(m.e, m.good); why != "" {
			m.t.Errorf("the device is refused: %s", why)
		}
	}
	for _, c := range m.dead {
		if why := auth(m.e, c); why == "" {
			m.t.Error("credentials that were ended are good")
		}
	}
}
