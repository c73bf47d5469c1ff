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

// The included firmware makes an Ed25519 key pair at its first boot, and proves it at
// each poll: it names the public key, is answered with a challenge, signs that and polls
// again. The key of the first proof is bound to the device with its Client-Id; from then
// on a poll without a proof gets no credentials, however well it knows the Client-Id, and
// credentials are good with a [connectProof] alone.
//
// Challenges are not kept: they carry their time and a MAC, so that polls of another
// unit cannot use up those of the device. One that is replayed within its time gains
// nothing beyond what whoever could read it has read in the answer to it.

const deviceChallengeTTL = time.Minute

// A KeyProof is what a poll says of the device's key, as the headers have it.
type KeyProof struct {
	Key       string // Device-Key: the public key, base64; "" of stock devices
	Challenge string // Device-Key-Challenge; "" at the first of two polls
	Signature string // Device-Key-Signature: of [KeyMessage], base64
}

// KeyMessage is what a device signs.
func KeyMessage(id fleet.DeviceID, clientID, challenge string) []byte {
	return []byte("fleetd device key v1\n" + string(id) + "\n" + clientID + "\n" + challenge)
}

// A keyVerdict is what a poll's proof is worth.
type keyVerdict int

const (
	keyNone   keyVerdict = iota // the device has no key, and the poll names none
	keyAsk                      // the poll names the device's key, or the first one, and is yet to prove it
	keyProved                   // rightly
	keyMissing
	keyWrong // another key, or a signature that does not fit
)

// newChallengeKey makes the key of this process's challenges.
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

// judgeKey judges the poll of a unit with the bound Client-Id. bound is the device's key;
// trial says that the poll names another build than the one before.
func (e *Service) judgeKey(p BootPoll, bound string, trial bool) keyVerdict {
	key, err := base64.StdEncoding.Strict().DecodeString(p.Proof.Key)
	named := p.Proof.Key != "" && err == nil && len(key) == ed25519.PublicKeySize
	switch {
	case !named && bound == "":
		return keyNone // a key that cannot be read does not count
	case bound == "" && trial:
		return keyNone // the build before may have no key, and the device may go back to it
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

// admitBound answers the device's own Client-Id: with credentials if it has no key or
// proved it, with a challenge if it is yet to.
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
			// What was given without a proof dies when the device has used what it gets now.
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

// ClearKey forgets the device's key: the next one that it proves is bound. It is for a
// device whose flash was restored, or that is to run firmware without a key.
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
