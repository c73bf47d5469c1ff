package enrolment

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"

	"fleetd/fleet"
)

// A CredentialsError is the reason why credentials were refused. Its text is short and
// constant, so it is suitable as a label of a metric.
type CredentialsError string

func (e CredentialsError) Error() string { return "credentials refused: " + string(e) }

// The reasons to refuse credentials.
const (
	CredentialsMalformed   CredentialsError = "malformed"    // not in the form that fleetd issues
	CredentialsForged      CredentialsError = "forged"       // the password does not match
	CredentialsUnknown     CredentialsError = "unknown"      // genuine, but the device is not on record
	CredentialsLater       CredentialsError = "later"        // the device cannot be let in now; it tries again
	CredentialsRule        CredentialsError = "rule"         // the device is not on record, and a rule refuses it
	CredentialsNotEnrolled CredentialsError = "not_enrolled" // the device waits, was rejected or is retired
	CredentialsOtherClient CredentialsError = "other_client" // the device is now bound to another Client-Id
	// The credentials of another device than the client id names.
	CredentialsOtherDevice CredentialsError = "other_device"
	CredentialsRevoked     CredentialsError = "revoked" // superseded by newer ones
	CredentialsOldKey      CredentialsError = "old_key" // signed with a key that a rotation has ended
	// Signed with a key that is not in this database, as after a restore.
	CredentialsUnknownKey CredentialsError = "unknown_key"
	// Without a proof of the device's key, with a wrong proof, or with one for another time.
	CredentialsKeyMissing CredentialsError = "key_missing"
	CredentialsKeyWrong   CredentialsError = "key_wrong"
	CredentialsProofTime  CredentialsError = "proof_time"
)

// LogValue keeps the password out of logs.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.ClientID) }

// String keeps the password out of errors.
func (c Credentials) String() string { return c.ClientID }

// signer issues and checks credentials. It stores none: the password is a MAC of the client id
// and the username.
type signer struct{ key []byte }

// KeySize is the length in bytes of the secret from which credentials are derived.
const KeySize = 32

func newSigner(secret []byte) (signer, error) {
	if len(secret) != KeySize {
		return signer{}, fmt.Errorf("the key of device credentials has %d bytes, want %d", len(secret), KeySize)
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "fleetd mqtt credentials v1", sha256.Size)
	return signer{key}, err
}

// clientIDPrefix is the vendor's form of client ids (protocol 2), which third-party tools can parse.
const clientIDPrefix = "GID_default@@@"

// issue makes the credentials of a device. With their optional proof they are at most 260 bytes
// longer than its ids; a CONNECT has room for 900 (protocol 2). claim.K is 0 for the first key
// and then omitted, as in credentials from before there were more keys.
func (s signer) issue(id fleet.DeviceID, clientID string, claim credentialClaim) *Credentials {
	claim.V = 1
	c := Credentials{
		ClientID:     mqttClientID(id, clientID),
		Username:     claim.text(),
		PublishTopic: "fleet/" + string(id) + "/up",
		WithProof:    claim.P != 0,
	}
	c.Password = s.password(c.ClientID, c.Username)
	if c.WithProof {
		return &c // no stock board has a key
	}
	claim.T = claimSocket
	forSocket := claim.text()
	c.Token = forSocket + "." + base64.RawURLEncoding.EncodeToString(s.mac(c.ClientID, forSocket))
	return &c
}

// claimSocket is the purpose named by the claim in a token. The claim in a username names no
// purpose, and neither is valid in place of the other.
const claimSocket = "ws"

// splitToken splits a token into the parts of a CONNECT. A malformed token yields an empty password.
func splitToken(token string) (username, password string) {
	username, mac, _ := strings.Cut(token, ".")
	raw, err := base64.RawURLEncoding.Strict().DecodeString(mac)
	if err != nil || len(token) > 300 {
		return "", ""
	}
	return username, base64.StdEncoding.EncodeToString(raw)
}

func (s signer) password(clientID, username string) string {
	return base64.StdEncoding.EncodeToString(s.mac(clientID, username))
}

func (s signer) mac(clientID, username string) []byte {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(clientID + "|" + username))
	return mac.Sum(nil)
}

// verify checks the password and returns the device and Client-Id of the credentials.
func (s signer) verify(clientID, username string, password []byte) (id fleet.DeviceID, client string, err error) {
	id, client, ok := parseMQTTClientID(clientID)
	if !ok {
		return "", "", CredentialsMalformed
	}
	if !hmac.Equal([]byte(s.password(clientID, username)), password) {
		return "", "", CredentialsForged
	}
	return id, client, nil
}

// A credentialClaim is the content of a username: the generations of the device's credentials
// and of the key that signed them.
type credentialClaim struct {
	V int    `json:"v"`
	N int32  `json:"n"`
	K int32  `json:"k,omitempty"`
	T string `json:"t,omitempty"` // purpose
	D string `json:"d,omitempty"` // device, if the purpose is [claimMQTT5]
	P int    `json:"p,omitempty"` // 1: valid only with a [connectProof]
}

func (c credentialClaim) text() string {
	text, _ := json.Marshal(c) // numbers and a constant
	return base64.RawURLEncoding.EncodeToString(text)
}

// readClaim parses a username. It returns the zero value if fleetd did not make it.
func readClaim(username string) credentialClaim {
	var c credentialClaim
	text, err := base64.RawURLEncoding.DecodeString(username)
	if err != nil || json.Unmarshal(text, &c) != nil {
		return credentialClaim{}
	}
	return c
}

func mqttClientID(id fleet.DeviceID, clientID string) string {
	name := string(id)
	if mac := id.MAC(); mac != "" {
		name = strings.ReplaceAll(mac, ":", "_")
	}
	return clientIDPrefix + name + "@@@" + clientID
}

func parseMQTTClientID(s string) (id fleet.DeviceID, clientID string, ok bool) {
	rest, ok := strings.CutPrefix(s, clientIDPrefix)
	if !ok || len(s) > 200 {
		return "", "", false
	}
	name, clientID, ok := strings.Cut(rest, "@@@")
	if !ok {
		return "", "", false
	}
	id, err := fleet.ParseDeviceID(name)
	// A device id has one form only: a connection has no second name.
	return id, clientID, err == nil && mqttClientID(id, clientID) == s
}

var clientIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// cleanClientID returns the Client-Id header, or "" if credentials cannot be bound to it.
func cleanClientID(s string) string {
	if !clientIDPattern.MatchString(s) {
		return ""
	}
	return s
}

// A credentialSerial is an [Admission]'s Serial: the generation of the credentials to issue
// and, in the lowest bit, whether the previous generation is still valid. After a rotation the
// previous generation is valid until the device has used the new credentials, because a device
// receives new credentials only when it starts.
type credentialSerial int32

func (s credentialSerial) generation() int32 { return int32(s >> 1) }
func (s credentialSerial) overlaps() bool    { return s&1 == 1 }

// accepts reports whether credentials of the generation are valid.
func (s credentialSerial) accepts(generation int32) bool {
	return generation == s.generation() || s.overlaps() && generation == s.generation()-1
}

func (s credentialSerial) revoked() credentialSerial { return credentialSerial(s.generation()+1) << 1 }
func (s credentialSerial) rotated() credentialSerial { return s.revoked() | 1 }
func (s credentialSerial) settled() credentialSerial { return s &^ 1 }
