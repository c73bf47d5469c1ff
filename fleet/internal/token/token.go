// Package token makes the secrets of one-time links. A link is unguessable, and
// only the hash of its token is stored.
//
// It knows neither links nor their lifetime: who issues one stores the hash with
// the time at which it ends. There is no state.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
)

// New returns a token of 256 random bits as text that fits into a URL.
func New() string {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	return base64.RawURLEncoding.EncodeToString(secret)
}

// WellFormed reports whether text can be a token: others are not looked up.
func WellFormed(text string) bool { return len(text) == base64.RawURLEncoding.EncodedLen(32) }

// Hash returns the SHA-256 of a token, as it is stored.
func Hash(text string) []byte {
	h := sha256.Sum256([]byte(text))
	return h[:]
}
