// Package token creates the secrets of one-time links. A link is unguessable, and only the
// hash of its token is stored.
//
// It does not depend on the kind of link or its lifetime: the issuer stores the hash with the
// expiry time. There is no state.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
)

// New returns a token of 256 random bits as URL-safe text.
func New() string {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	return base64.RawURLEncoding.EncodeToString(secret)
}

// WellFormed reports whether text has the form of a token. Other texts are not looked up.
func WellFormed(text string) bool { return len(text) == base64.RawURLEncoding.EncodedLen(32) }

// Hash returns the SHA-256 of a token, in the stored form.
func Hash(text string) []byte {
	h := sha256.Sum256([]byte(text))
	return h[:]
}
