package enrolment_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// The server verifies the message that the firmware signs.
func TestDeviceKeyVectors(t *testing.T) {
	text, err := os.ReadFile("../../firmware/host/tests/vectors/device_key.json")
	must(t, err)
	var v struct {
		Device    fleet.DeviceID `json:"device_id"`
		Client    string         `json:"client_id"`
		Key       string         `json:"public_key"`
		Challenge string
		Message   string
		Seed      string
		Signature string
		Connect   struct {
			Client   string `json:"client_id"`
			UnixMS   int64  `json:"unix_ms"`
			Username string
			Password string
			Message  string
			Sent     string
		}
	}
	must(t, json.Unmarshal(text, &v))
	if got := string(enrolment.KeyMessage(v.Device, v.Client, v.Challenge)); got != v.Message {
		t.Errorf("the message is %q", got)
	}
	seed, err := hex.DecodeString(v.Seed)
	must(t, err)
	key := ed25519.NewKeyFromSeed(seed)
	if public(key) != v.Key || base64.StdEncoding.EncodeToString(ed25519.Sign(key, []byte(v.Message))) != v.Signature {
		t.Error("the vector is not consistent")
	}
	c := v.Connect
	if got := string(enrolment.ConnectMessage(c.Client, c.Username, c.UnixMS)); got != c.Message {
		t.Errorf("the message at a CONNECT is %q", got)
	}
	issued := &enrolment.Credentials{ClientID: c.Client, Username: c.Username, Password: c.Password}
	if withProof(issued, key, c.UnixMS) != c.Sent {
		t.Error("the vector of the CONNECT is not consistent")
	}
}

func public(key ed25519.PrivateKey) string {
	return base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
}

// A keyed is a unit that polls with or without a proof of its key.
type keyed struct {
	t   *testing.T
	e   *enrolment.Service
	elf string
	at  time.Time
}

func (k *keyed) poll(client string, proof enrolment.KeyProof) enrolment.PollAnswer {
	k.t.Helper()
	a, err := k.e.Poll(enrolment.BootPoll{Device: unit, ClientID: client, ELFSHA256: k.elf, RemoteAddr: "192.0.2.1",
		Proof: proof, At: k.at})
	must(k.t, err)
	return a
}

// prove polls as the included firmware does.
func (k *keyed) prove(client string, key ed25519.PrivateKey) enrolment.PollAnswer {
	k.t.Helper()
	a := k.poll(client, enrolment.KeyProof{Key: public(key)})
	if a.KeyChallenge == "" {
		return a
	}
	if a.Session != nil {
		k.t.Fatal("credentials came with the challenge")
	}
	return k.poll(client, sign(key, client, a.KeyChallenge))
}

func sign(key ed25519.PrivateKey, client, challenge string) enrolment.KeyProof {
	signature := ed25519.Sign(key, enrolment.KeyMessage(unit, client, challenge))
	return enrolment.KeyProof{Key: public(key), Challenge: challenge,
		Signature: base64.StdEncoding.EncodeToString(signature)}
}

// connect sends the CONNECT of a device whose clock shows at, and returns the reason if it is refused.
func (k *keyed) connect(c *enrolment.Credentials, key ed25519.PrivateKey, at time.Time) string {
	k.t.Helper()
	if !c.WithProof || c.Token != "" {
		k.t.Fatalf("credentials without a proof, or for a WebSocket, are given to a device with a key: %+v", *c)
	}
	with := *c
	with.Password = withProof(c, key, at.UnixMilli())
	return string(auth(k.e, &with))
}

func withProof(c *enrolment.Credentials, key ed25519.PrivateKey, at int64) string {
	signature := ed25519.Sign(key, enrolment.ConnectMessage(c.ClientID, c.Username, at))
	return fmt.Sprintf("%s.%d.%s", c.Password, at, base64.StdEncoding.EncodeToString(signature))
}

func TestDeviceKey(t *testing.T) {
	own := ed25519.NewKeyFromSeed(slices.Repeat([]byte{1}, 32))
	other := ed25519.NewKeyFromSeed(slices.Repeat([]byte{2}, 32))
	s := new(conflictStore)
	start := func() *enrolment.Service {
		return newEnrolments(t, &s.admissionStore, fleet.EnrolOpen, func(o *enrolment.Options) { o.Conflicts = s })
	}
	k := &keyed{t, start(), "9f2c4d6b", time.Now()}
	before := k.poll(uuid1, enrolment.KeyProof{}).Session // as firmware without a key
	if before == nil || k.prove(uuid1, own).Session == nil {
		t.Fatal("no credentials")
	}
	settled := k.prove(uuid1, own).Session
	if auth(k.e, before) != "" || k.connect(settled, own, k.at) != "" || auth(k.e, before) == "" {
		t.Error("the credentials from before the key are good after those for the key were used")
	}
	refused := func(what string, a enrolment.PollAnswer, kind fleet.ConflictEvidence) {
		t.Helper()
		c := k.e.Conflict(unit)
		if a.Session != nil || a.Activation != nil || c == nil || !slices.Contains(c.Evidence, kind) {
			t.Errorf("%s: %+v, conflict %+v", what, a, c)
		}
	}
	refused("the Client-Id alone", k.poll(uuid1, enrolment.KeyProof{}), fleet.EvidenceKeyMissing)
	refused("another key", k.prove(uuid1, other), fleet.EvidenceKeyWrong)
	challenge := k.poll(uuid1, enrolment.KeyProof{Key: public(own)}).KeyChallenge
	forged := sign(other, uuid1, challenge)
	forged.Key = public(own)
	refused("a signature by another key", k.poll(uuid1, forged), fleet.EvidenceKeyWrong)
	refused("a signature for another Client-Id", k.poll(uuid1, sign(own, uuid2, challenge)), fleet.EvidenceKeyWrong)
	k.at = k.at.Add(2 * time.Minute)
	if a := k.poll(uuid1, sign(own, uuid1, challenge)); a.Session != nil || a.KeyChallenge == "" {
		t.Errorf("an old challenge: %+v", a)
	}
	if k.prove(uuid1, own).Session == nil {
		t.Error("the device itself got no credentials while the conflict stands")
	}
	if a := k.poll(uuid2, enrolment.KeyProof{}); a.Session != nil {
		t.Error("another Client-Id got the device's credentials")
	}

	drain(t, k.e)
	k.e = start()
	refused("after a restart, the Client-Id alone", k.poll(uuid1, enrolment.KeyProof{}), fleet.EvidenceKeyMissing)
	if k.prove(uuid1, own).Session == nil {
		t.Error("after a restart the device got no credentials")
	}
	must(t, k.e.ClearKey(t.Context(), ann, unit))
	if k.prove(uuid1, other).Session == nil {
		t.Error("after the key was cleared the next one was not bound")
	}
	refused("the key from before", k.prove(uuid1, own), fleet.EvidenceKeyWrong)
	if last := s.audit[len(s.audit)-1]; last != "ann device.clear_key a085e3112233" {
		t.Errorf("the audit ends with %s", last)
	}
}

// A client that knows the password, or replays an earlier CONNECT, is refused. The device
// itself is accepted, even if its clock is a few minutes off.
func TestDeviceKeyAtConnect(t *testing.T) {
	own := ed25519.NewKeyFromSeed(slices.Repeat([]byte{1}, 32))
	other := ed25519.NewKeyFromSeed(slices.Repeat([]byte{2}, 32))
	s := new(conflictStore)
	now := time.Now()
	start := func() *enrolment.Service {
		return newEnrolments(t, &s.admissionStore, fleet.EnrolOpen, func(o *enrolment.Options) {
			o.Conflicts, o.Now = s, func() time.Time { return now }
		})
	}
	k := &keyed{t, start(), "9f2c4d6b", now}
	c := k.prove(uuid1, own).Session
	password := func(p string) string {
		with := *c
		with.Password = p
		return string(auth(k.e, &with))
	}
	conflict := func(want fleet.ConflictEvidence) {
		t.Helper()
		v := k.e.Conflict(unit)
		if want == "" && v != nil || want != "" && (v == nil || !slices.Contains(v.Evidence, want)) {
			t.Errorf("conflict %+v, want evidence %q", v, want)
		}
	}
	for _, ahead := range []time.Duration{-4 * time.Minute, -time.Minute, 0, time.Millisecond, 4 * time.Minute} {
		now = now.Add(10 * time.Minute)
		if got := k.connect(c, own, now.Add(ahead)); got != "" {
			t.Errorf("a clock that is %v ahead: %s", ahead, got)
		}
	}
	now = now.Add(10 * time.Minute)
	sent := withProof(c, own, now.UnixMilli())
	if got := password(sent); got != "" {
		t.Fatalf("the device: %s", got)
	}
	stamp := strconv.FormatInt(now.UnixMilli()+1, 10)
	signature := sent[strings.LastIndex(sent, ".")+1:]
	for _, try := range []struct{ what, password, why string }{
		{"the same CONNECT again", sent, "proof_time"},
		{"an earlier one", withProof(c, own, now.Add(-time.Second).UnixMilli()), "proof_time"},
		{"a clock far behind", withProof(c, own, now.Add(-6*time.Minute).UnixMilli()), "proof_time"},
		{"a clock far ahead", withProof(c, own, now.Add(6*time.Minute).UnixMilli()), "proof_time"},
		{"no clock", withProof(c, own, 0), "proof_time"},
		{"a time that overflows", c.Password + ".9223372036854775808." + signature, "key_missing"},
		{"the end of time", c.Password + ".9223372036854775807." + signature, "proof_time"},
		{"a time in another form", c.Password + ".0" + stamp + "." + signature, "key_missing"},
		{"another password", "A" + sent[1:], "forged"},
	} {
		if got := password(try.password); got != try.why {
			t.Errorf("%s is refused as %q, want %q", try.what, got, try.why)
		}
	}
	must(t, k.e.ResolveConflict(t.Context(), ann, unit, enrolment.ConflictResolution{Act: enrolment.ConflictDismiss}))
	for _, try := range []struct {
		what, password, why string
		evidence            fleet.ConflictEvidence
	}{
		{"the password alone", c.Password, "key_missing", fleet.EvidenceKeyMissing},
		{"another time under the signature", c.Password + "." + stamp + "." + signature, "key_wrong", fleet.EvidenceKeyWrong},
		{"another key", withProof(c, other, now.UnixMilli()+1), "key_wrong", fleet.EvidenceKeyWrong},
		{"a signature that is none", c.Password + "." + stamp + ".!", "key_wrong", fleet.EvidenceKeyWrong},
	} {
		conflict("")
		if got := password(try.password); got != try.why {
			t.Errorf("%s is refused as %q, want %q", try.what, got, try.why)
		}
		conflict(try.evidence)
		must(t, k.e.ResolveConflict(t.Context(), ann, unit, enrolment.ConflictResolution{Act: enrolment.ConflictDismiss}))
	}
	if got := k.connect(c, own, now.Add(time.Second)); got != "" {
		t.Errorf("after all that the device is refused: %s", got)
	}

	right := now
	now = now.Add(time.Hour) // fleetd's clock is wrong for a while, and therefore the device's, too
	if got := k.connect(c, own, now); got != "" {
		t.Errorf("an hour later: %s", got)
	}
	now = right.Add(time.Minute)
	if got := k.connect(c, own, now); got != "" {
		t.Errorf("after fleetd's clock was set right the device is refused: %s", got)
	}

	drain(t, k.e)
	now = now.Add(time.Minute)
	k.e = start()
	if got := password(sent); got != "proof_time" {
		t.Errorf("after a restart a CONNECT from before it is refused as %q", got)
	}
	if got := k.connect(c, own, now.Add(-20*time.Second)); got != "" {
		t.Errorf("after a restart the device, whose clock is behind, is refused: %s", got)
	}
	must(t, k.e.ClearKey(t.Context(), ann, unit))
	if got := password(c.Password); got != "" {
		t.Errorf("after the key was cleared the device is refused: %s", got)
	}
}

// An image on trial binds no key, because the previous image may have none.
func TestAnImageOnTrialBindsNoKey(t *testing.T) {
	own := ed25519.NewKeyFromSeed(slices.Repeat([]byte{1}, 32))
	k := &keyed{t, newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil), "9f2c4d6b", time.Now()}
	k.poll(uuid1, enrolment.KeyProof{})
	k.elf = "aaaaaaaa"
	if a := k.prove(uuid1, own); a.Session == nil {
		t.Fatalf("an image on trial got %+v", a)
	}
	k.elf = "9f2c4d6b"
	if a := k.poll(uuid1, enrolment.KeyProof{}); a.Session == nil {
		t.Errorf("the image before, which has no key, got %+v", a)
	}
}

// A device that joins at its first poll is bound to its key before it gets credentials.
func TestADeviceThatJoinsAtOnceProvesItsKey(t *testing.T) {
	own := ed25519.NewKeyFromSeed(slices.Repeat([]byte{1}, 32))
	k := &keyed{t, newEnrolments(t, new(admissionStore), fleet.EnrolOpen, nil), "9f2c4d6b", time.Now()}
	if a := k.prove(uuid1, own); a.Session == nil {
		t.Fatalf("it got %+v", a)
	}
	if a := k.poll(uuid1, enrolment.KeyProof{}); a.Session != nil {
		t.Error("the Client-Id alone got its credentials")
	}
}
