package enrolment

import (
	"crypto/ed25519"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
)

// A device that is bound to its key also proves the key at each CONNECT. In MQTT 3.1.1 the
// broker cannot request a signature, so the device signs a time, based on the time in the
// answer to its poll, and appends both to the password:
//
//	PASSWORD.MILLISECONDS.SIGNATURE
//
// A proof is valid once: each must be later than the previous one. A device whose clock is off
// is refused, polls again and thereby learns the time.
const (
	// connectProofWindow is the largest accepted error of the device's clock.
	connectProofWindow = 5 * time.Minute
	// connectProofOverlap is how far a device's clock may be behind at the first CONNECT after
	// a start of fleetd, which does not have the proofs from before.
	connectProofOverlap = 30 * time.Second
)

// A connectProof is the part that a CONNECT appends to the password, or the zero value.
type connectProof struct {
	at        int64 // Unix milliseconds
	signature string
}

// ConnectMessage returns the message that a device signs for a CONNECT. at is in Unix milliseconds.
func ConnectMessage(clientID, username string, at int64) []byte {
	return []byte("fleetd device connect v1\n" + clientID + "\n" + username + "\n" + strconv.FormatInt(at, 10))
}

// splitConnectPassword splits a password into the issued part and the proof behind it. The
// alphabet of issued passwords has no full stop.
func splitConnectPassword(password []byte) (issued []byte, p connectProof) {
	text, rest, found := strings.Cut(string(password), ".")
	if !found {
		return password, connectProof{}
	}
	at, signature, _ := strings.Cut(rest, ".")
	n, err := strconv.ParseInt(at, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != at {
		return []byte(text), connectProof{}
	}
	return []byte(text), connectProof{at: n, signature: signature}
}

// A provedConnect is the result of checking the proof of a CONNECT. It is the zero value where
// no proof is required.
type provedConnect struct {
	key string // the device's key when the proof was checked
	at  int64
	err error
}

// checkConnectProof checks the proof of a CONNECT with genuine credentials.
func (e *Service) checkConnectProof(id fleet.DeviceID, clientID, username string, p connectProof) provedConnect {
	var key string
	e.with(id, func(st *standing) { key = st.key })
	if key == "" {
		return provedConnect{} // an operator cleared the key
	}
	proved := provedConnect{key: key, at: p.at}
	at := time.UnixMilli(p.at)
	switch {
	case p.signature == "":
		proved.err = CredentialsKeyMissing
	case e.o.Now().Sub(at).Abs() > connectProofWindow, at.Before(e.started.Add(-connectProofOverlap)):
		proved.err = CredentialsProofTime
	case !signedBy(key, ConnectMessage(clientID, username, p.at), p.signature):
		proved.err = CredentialsKeyWrong
	}
	return proved
}

// proved marks a proof as used. A proof from far ahead was accepted while fleetd's clock was
// wrong: it does not lock the device out until that time comes.
func (st *standing) proved(p provedConnect, now time.Time) error {
	switch {
	case p.err != nil:
		return p.err
	case p.key == "":
		return nil
	case p.key != st.key:
		return CredentialsKeyWrong
	case p.at <= st.provedAt && st.provedAt <= now.Add(connectProofWindow).UnixMilli():
		return CredentialsProofTime
	}
	st.provedAt = p.at
	return nil
}

// signedBy reports whether signature is a signature of message by key. Both are base64.
func signedBy(key string, message []byte, signature string) bool {
	public, err := base64.StdEncoding.Strict().DecodeString(key)
	if err != nil || len(public) != ed25519.PublicKeySize {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(signature)
	return err == nil && ed25519.Verify(public, message, raw)
}

// connectProofEvidence maps the reason why a CONNECT was refused to the evidence it gives: some
// client has the device's credentials but not its key. A wrong time is no evidence.
var connectProofEvidence = map[error]fleet.ConflictEvidence{
	CredentialsKeyMissing: fleet.EvidenceKeyMissing,
	CredentialsKeyWrong:   fleet.EvidenceKeyWrong,
}
