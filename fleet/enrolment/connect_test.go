package enrolment_test

import (
	"crypto/ed25519"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// credentialsFrom returns credentials from another installation with the same secret.
// generation is how often they were revoked there.
func credentialsFrom(t *testing.T, generation int) *enrolment.Credentials {
	t.Helper()
	e := newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil)
	c := poll(t, e, uuid1).Session
	for range generation {
		must(t, e.Revoke(t.Context(), ann, unit))
		c = poll(t, e, uuid1).Session
	}
	return c
}

// A board that is not on record keeps connecting with the credentials it has. It is let in, or
// listed, as if it had polled.
func TestConnectIsTheFirstPollOfAnUnknownDevice(t *testing.T) {
	here := netip.MustParsePrefix("192.0.2.0/24") // auth connects from there
	rule := func(r enrolment.Rule) func(*testing.T, *enrolment.Options) {
		return func(t *testing.T, o *enrolment.Options) { o.Rules = rulesOf(t, r) }
	}
	bound := func(t *testing.T, o *enrolment.Options) {
		now := time.Now()
		o.Serials = newSerials(t, &serialStore{rows: map[string]enrolment.SerialKey{
			"SN-1": {Serial: "SN-1", Device: unit, BoundAt: &now}}}, testKey)
	}
	polled := func(t *testing.T, e *enrolment.Service) { poll(t, e, uuid1) }
	for _, tt := range []struct {
		name       string
		mode       fleet.EnrolmentMode
		options    func(*testing.T, *enrolment.Options)
		before     func(*testing.T, *enrolment.Service)
		generation int
		want       enrolment.CredentialsError
		listed     bool
		why        enrolment.WaitReason
	}{
		{name: "open", mode: fleet.EnrolOpen},
		{name: "open, credentials that were revoked and given again", mode: fleet.EnrolOpen, generation: 2},
		{name: "open, to be shown by code", mode: fleet.EnrolOpen,
			options: func(_ *testing.T, o *enrolment.Options) {
				o.ByCode = func(fleet.DeviceID) bool { return true }
			},
			want: enrolment.CredentialsNotEnrolled, listed: true, why: enrolment.WaitConnects},
		{name: "open, proved a serial number", mode: fleet.EnrolOpen, options: bound,
			want: enrolment.CredentialsNotEnrolled, listed: true, why: enrolment.WaitSerial},
		{name: "code", mode: fleet.EnrolByCode, want: enrolment.CredentialsNotEnrolled, listed: true,
			why: enrolment.WaitConnects},
		{name: "approval", mode: fleet.EnrolByApproval, want: enrolment.CredentialsNotEnrolled, listed: true,
			why: enrolment.WaitConnects},
		{name: "code, a rule accepts the network", mode: fleet.EnrolByCode,
			options: rule(enrolment.Rule{Action: enrolment.RuleAccept, Networks: []netip.Prefix{here}})},
		{name: "code, a rule accepts a board, and a CONNECT names none", mode: fleet.EnrolByCode,
			options: rule(enrolment.Rule{Action: enrolment.RuleAccept, Boards: []string{"atoms3"}}),
			want:    enrolment.CredentialsNotEnrolled, listed: true, why: enrolment.WaitConnects},
		{name: "code, a rule accepts one that proved a serial number", mode: fleet.EnrolByCode,
			options: func(t *testing.T, o *enrolment.Options) {
				bound(t, o)
				o.Rules = rulesOf(t, enrolment.Rule{Action: enrolment.RuleAccept, Devices: []fleet.DeviceID{unit}})
			},
			want: enrolment.CredentialsNotEnrolled, listed: true, why: enrolment.WaitSerial},
		{name: "a rule refuses", mode: fleet.EnrolByCode,
			options: rule(enrolment.Rule{Action: enrolment.RuleRefuse, Devices: []fleet.DeviceID{unit}}),
			want:    enrolment.CredentialsRule},
		{name: "no room", mode: fleet.EnrolByCode, options: func(_ *testing.T, o *enrolment.Options) { o.MaxDevices = 1 },
			before: func(t *testing.T, e *enrolment.Service) {
				for i := range 5000 { // one for each shard
					e.Poll(enrolment.BootPoll{Device: fleet.DeviceID("c" + padded(i)), ClientID: uuid2, At: time.Now()})
				}
			}, want: enrolment.CredentialsLater},
		// An operator's decision stays in force.
		{name: "polled, and shows its code", mode: fleet.EnrolByCode, before: polled,
			want: enrolment.CredentialsNotEnrolled, listed: true},
		{name: "rejected", mode: fleet.EnrolOpen, before: func(t *testing.T, e *enrolment.Service) {
			poll(t, e, uuid1)
			must(t, e.Reject(t.Context(), ann, unit))
		}, want: enrolment.CredentialsNotEnrolled},
		{name: "retired", mode: fleet.EnrolOpen, before: func(t *testing.T, e *enrolment.Service) {
			poll(t, e, uuid1)
			e.Retired(unit)
		}, want: enrolment.CredentialsNotEnrolled},
		{name: "revoked", mode: fleet.EnrolOpen, before: func(t *testing.T, e *enrolment.Service) {
			poll(t, e, uuid1)
			must(t, e.Revoke(t.Context(), ann, unit))
		}, want: enrolment.CredentialsRevoked},
		{name: "rejected and let in again", mode: fleet.EnrolByApproval, before: func(t *testing.T, e *enrolment.Service) {
			poll(t, e, uuid1)
			must(t, e.Reject(t.Context(), ann, unit))
			must(t, e.Approve(t.Context(), ann, unit, ""))
		}, want: enrolment.CredentialsRevoked},
		{name: "another Client-Id was let in", mode: fleet.EnrolByApproval,
			before: func(t *testing.T, e *enrolment.Service) {
				poll(t, e, uuid2)
				must(t, e.Approve(t.Context(), ann, unit, ""))
			}, want: enrolment.CredentialsOtherClient},
		{name: "another Client-Id waits", mode: fleet.EnrolByApproval,
			before: func(t *testing.T, e *enrolment.Service) { poll(t, e, uuid2) },
			want:   enrolment.CredentialsOtherClient, listed: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := new(admissionStore)
			e := newEnrolments(t, s, tt.mode, func(o *enrolment.Options) {
				if tt.options != nil {
					tt.options(t, o)
				}
			})
			if tt.before != nil {
				tt.before(t, e)
			}
			c := credentialsFrom(t, tt.generation)
			if got := auth(e, c); got != tt.want {
				t.Errorf("refused: %q, want %q", got, tt.want)
			}
			at := slices.IndexFunc(e.Waiting(), func(w enrolment.WaitingDevice) bool { return w.Device == unit })
			if at >= 0 != tt.listed || at >= 0 && e.Waiting()[at].Why != tt.why {
				t.Errorf("waiting: %+v", e.Waiting())
			}
			if tt.want != "" {
				return
			}
			if a := s.row(unit); a.Enrolment != fleet.EnrolmentEnrolled || a.ClientID != uuid1 {
				t.Errorf("let in before it is stored: %+v", a)
			}
			if p := s.latest; p.Kind != enrolment.PollConnect || p.Version+p.Board != "" || p.RemoteAddr != "192.0.2.9" {
				t.Errorf("stored %+v", p)
			}
			// The same holds after a restart, and older credentials stay revoked.
			again := newEnrolments(t, s, tt.mode, nil)
			if got := auth(again, c); got != "" {
				t.Errorf("after a restart: %q", got)
			}
			if tt.generation > 0 {
				if got := auth(again, credentialsFrom(t, tt.generation-1)); got != enrolment.CredentialsRevoked {
					t.Errorf("credentials that were revoked: %q", got)
				}
			}
			if poll(t, again, uuid1).Session == nil {
				t.Error("its next poll got no credentials")
			}
		})
	}
}

func padded(i int) string {
	const digits = "00000000000"
	text := digits
	for at := len(text) - 1; i > 0; at, i = at-1, i/10 {
		text = text[:at] + string(rune('0'+i%10)) + text[at+1:]
	}
	return text
}

// A device that is listed after its CONNECT is let in by an operator and connects with the
// credentials it has.
func TestListedByConnectAndApproved(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode, nil)
	c, older := credentialsFrom(t, 1), credentialsFrom(t, 0)
	auth(e, c)
	if got := auth(e, older); got != enrolment.CredentialsRevoked {
		t.Errorf("credentials that were revoked before: %q", got)
	}
	w := e.Waiting()
	if len(w) != 1 || w[0].RemoteAddr != "192.0.2.9" || w[0].LastPoll.IsZero() {
		t.Fatalf("waiting: %+v", w)
	}
	must(t, e.Approve(t.Context(), ann, unit, w[0].Code))
	if got := auth(e, c); got != "" {
		t.Errorf("approved, and refused: %q", got)
	}
	if got := auth(e, older); got != enrolment.CredentialsRevoked {
		t.Errorf("after the approval, credentials that were revoked before: %q", got)
	}
}

// Credentials that require the proof of a key stay invalid without it, even if the key is not
// on record. The included firmware polls again when it is refused.
func TestConnectWithAKeyThatIsNotOnRecord(t *testing.T) {
	key := ed25519.NewKeyFromSeed(slices.Repeat([]byte{1}, 32))
	elsewhere := &keyed{t: t, e: newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil), elf: "a", at: time.Now()}
	c := elsewhere.prove(uuid1, key).Session
	k := &keyed{t: t, e: newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil), elf: "a", at: time.Now()}
	if got := k.connect(c, key, time.Now()); got != string(enrolment.CredentialsNotEnrolled) {
		t.Errorf("with a key that nobody knows: %q", got)
	}
	if w := k.e.Waiting(); len(w) != 1 || w[0].Why != enrolment.WaitKey {
		t.Errorf("waiting: %+v", w)
	}
	own := k.prove(uuid1, key).Session
	if own == nil || len(k.e.Waiting()) != 0 {
		t.Fatalf("its poll got %+v; %d wait", own, len(k.e.Waiting()))
	}
	if got := k.connect(own, key, time.Now()); got != "" {
		t.Errorf("after its poll: %q", got)
	}
}

// While the store is unavailable an unknown device must try again; a known one connects.
func TestConnectWhileTheStoreIsAway(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolOpen, nil)
	known, err := e.Poll(enrolment.BootPoll{Device: "c00000000001", ClientID: uuid2, At: time.Now()})
	must(t, err)
	c := credentialsFrom(t, 0)
	s.setAway(true)
	for range 2 {
		if got := auth(e, c); got != enrolment.CredentialsLater {
			t.Errorf("while the store is away: %q", got)
		}
	}
	if got := auth(e, known.Session); got != "" {
		t.Errorf("a known device: %q", got)
	}
	s.setAway(false)
	if got := auth(e, c); got != "" || s.row(unit).Enrolment != fleet.EnrolmentEnrolled {
		t.Errorf("when it is back: %q, stored %+v", got, s.row(unit))
	}
	if _, err := e.Authenticate(c.ClientID, c.Username, []byte("wrong"), ""); !errors.Is(err, enrolment.CredentialsForged) {
		t.Errorf("a wrong password: %v", err)
	}
}

// The token of a WebSocket counts like a password.
func TestWebSocketOfAnUnknownDevice(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolOpen, nil)
	if _, err := e.AuthenticateToken(unit, uuid1, credentialsFrom(t, 0).Token, "192.0.2.9"); err != nil {
		t.Fatal(err)
	}
	if p := s.latest; p.Given != fleet.TransportWebSocket || p.RemoteAddr != "192.0.2.9" {
		t.Errorf("stored %+v", p)
	}
}
