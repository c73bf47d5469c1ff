package enrolment

import (
	"crypto/ed25519"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
)

// A device that is bound to its key proves it at each CONNECT, too. MQTT 3.1.1 gives the
// broker no way to ask for a signature, so the device signs the time that the answer to
// its poll gave it, and appends both to the password:
//
//	PASSWORD.MILLISECONDS.SIGNATURE
//
// A proof is good once: each has to be later than the one before. A device whose clock is
// off is refused, polls again and so learns the time.
const (
	// connectProofWindow is how far the device's clock may be off.
	connectProofWindow = 5 * time.Minute
	// connectProofOverlap is how far behind a device's clock may be at the first CONNECT
	// after a start of fleetd, which does not know the proofs from before.
	connectProofOverlap = 30 * time.Second
)

// A connectProof is what a CONNECT appends to the password; the zero value if nothing.
type connectProof struct {
	at        int64 // Unix milliseconds
	signature string
}

// ConnectMessage is what a device signs for a CONNECT at the time, in Unix milliseconds.
func ConnectMessage(clientID, username string, at int64) []byte {
	return []byte("fleetd device connect v1\n" + clientID + "\n" + username + "\n" + strconv.FormatInt(at, 10))
}

// splitConnectPassword returns the password as it was issued, and what follows it. The
// alphabet of what is issued has no full stop.
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

// A provedConnect is what the proof of a CONNECT is worth; the zero value where none is
// wanted.
type provedConnect struct {
	key string // the device's, when it was checked
	at  int64
	err error
}

// checkConnectProof judges the proof of a CONNECT with genuine credentials.
func (e *Service) checkConnectProof(id fleet.DeviceID, clientID, username string, p connectProof) provedConnect {
	var key string
	e.with(id, func(st *standing) { key = st.key })
	if key == "" {
		return provedConnect{} // an operator cleared it
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

// proved uses a proof up. One from far ahead was taken while fleetd's clock was wrong:
// it does not shut the device out until that time comes.
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

// signedBy reports whether the signature of message is by the key, both base64.
func signedBy(key string, message []byte, signature string) bool {
	public, err := base64.StdEncoding.Strict().DecodeString(key)
	if err != nil || len(public) != ed25519.PublicKeySize {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(signature)
	return err == nil && ed25519.Verify(public, message, raw)
}

// connectProofEvidence is what a refused CONNECT shows: that somebody has the device's
// credentials and not its key. A wrong time shows nothing.
var connectProofEvidence = map[error]fleet.ConflictEvidence{
	CredentialsKeyMissing: fleet.EvidenceKeyMissing,
	CredentialsKeyWrong:   fleet.EvidenceKeyWrong,
}
