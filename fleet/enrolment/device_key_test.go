package enrolment_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// What the firmware signs is what is verified here.
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
}

func public(key ed25519.PrivateKey) string {
	return base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
}

// A keyed is a unit that proves a key at its polls, or does not.
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
	if auth(k.e, settled) != "" || auth(k.e, before) == "" {
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

// An image on trial binds no key: the one before it may have none.
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
