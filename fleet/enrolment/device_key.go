package enrolment

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"

	"fleetd/fleet"
)

// The included firmware makes an Ed25519 key pair at its first boot and proves it at each poll: it
// names the public key, receives a challenge, signs it and polls again. The key of the first proof
// is bound to the device together with its Client-Id. From then on a poll without a proof gets no
// credentials, even with the right Client-Id, and credentials are valid only with a [connectProof].
//
// Challenges are not stored: they contain their time and a MAC, so polls of another unit cannot
// use up the device's challenges. Replaying one within its lifetime gains nothing: anyone who
// could read it could also read the answer to it.

const deviceChallengeTTL = time.Minute

// A KeyProof is the proof of the device's key in a poll, as its headers contain it.
type KeyProof struct {
	Key       string // Device-Key: the public key, base64; "" for stock devices
	Challenge string // Device-Key-Challenge; "" at the first of two polls
	Signature string // Device-Key-Signature: signature of [KeyMessage], base64
}

// KeyMessage returns the message that a device signs.
func KeyMessage(id fleet.DeviceID, clientID, challenge string) []byte {
	return []byte("fleetd device key v1\n" + string(id) + "\n" + clientID + "\n" + challenge)
}

// A keyVerdict is the result of checking a poll's proof.
type keyVerdict int

const (
	keyNone   keyVerdict = iota // the device has no key, and the poll names none
	keyAsk                      // the poll names the device's key, or the first one, and has not proved it yet
	keyProved                   // the proof is right
	keyMissing
	keyWrong // another key, or a signature that does not match
)

// newChallengeKey makes the key that authenticates this process's challenges.
func newChallengeKey() []byte {
	key := make([]byte, sha256.Size)
	rand.Read(key) // never fails
	return key
}

func (e *Service) keyChallenge(p BootPoll, at time.Time) string {
	stamp := binary.BigEndian.AppendUint64(nil, uint64(at.Unix()))
	mac := hmac.New(sha256.New, e.challengeKey)
	mac.Write(append(stamp, string(p.Device)+"\n"+p.ClientID...))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(stamp)[:24])
}

func (e *Service) challengeGood(p BootPoll) bool {
	raw, err := base64.RawURLEncoding.DecodeString(p.Proof.Challenge)
	if err != nil || len(raw) != 24 {
		return false
	}
	at := time.Unix(int64(binary.BigEndian.Uint64(raw)), 0)
	age := p.At.Sub(at)
	return age > -time.Second && age < deviceChallengeTTL &&
		subtle.ConstantTimeCompare([]byte(e.keyChallenge(p, at)), []byte(p.Proof.Challenge)) == 1
}

// judgeKey judges the key proof in a poll of a unit with the bound Client-Id. bound is the
// device's key; trial reports that the poll names a different build than the previous one.
func (e *Service) judgeKey(p BootPoll, bound string, trial bool) keyVerdict {
	key, err := base64.StdEncoding.Strict().DecodeString(p.Proof.Key)
	named := p.Proof.Key != "" && err == nil && len(key) == ed25519.PublicKeySize
	switch {
	case !named && bound == "":
		return keyNone // an unreadable key does not count
	case bound == "" && trial:
		return keyNone // the previous build may have no key, and the device may return to it
	case !named:
		return keyMissing
	case bound != "" && bound != p.Proof.Key:
		return keyWrong
	case p.Proof.Challenge == "" || !e.challengeGood(p):
		return keyAsk
	}
	if !signedBy(p.Proof.Key, KeyMessage(p.Device, p.ClientID, p.Proof.Challenge), p.Proof.Signature) {
		return keyWrong
	}
	return keyProved
}

// admitBound answers the device's own Client-Id: with credentials if it has no key or proved
// it, with a challenge if it has not proved it yet.
func (e *Service) admitBound(st *standing, p BootPoll, d *pollDecision) {
	trial := st.elf.Value() != "" && p.ELFSHA256 != st.elf.Value()
	switch e.judgeKey(p, st.key, trial) {
	case keyAsk:
		d.answer = PollAnswer{KeyChallenge: e.keyChallenge(p, p.At)}
		return
	case keyMissing:
		d.keyEvidence = fleet.EvidenceKeyMissing
		return
	case keyWrong:
		d.keyEvidence = fleet.EvidenceKeyWrong
		return
	case keyProved:
		if st.key == "" {
			st.key = strings.Clone(p.Proof.Key)
			// Credentials given without a proof end when the device has used the new ones.
			if st.serial.overlaps() {
				st.serial = st.serial.revoked()
			} else {
				st.serial = st.serial.rotated()
			}
			e.o.Log.Info("device bound to its key", "device", p.Device, "remote", p.RemoteAddr)
		}
	}
	d.answer = e.session(st, p.Device)
}

// ClearKey removes the device's key: the next key that it proves is bound. Use it for a device
// whose flash was restored, or that will run firmware without a key.
func (e *Service) ClearKey(ctx context.Context, by fleet.Principal, id fleet.DeviceID) error {
	err := e.decide(ctx, by, "device.clear_key", id, func(a *Admission) error {
		if a.Key == "" {
			return fleet.Refuse(fleet.ErrConflict, "no_device_key", "device", id)
		}
		a.Key = ""
		return nil
	})
	if err == nil {
		e.duplicates.forget(id)
	}
	return err
}
