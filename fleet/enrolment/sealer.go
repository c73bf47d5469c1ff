package enrolment

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// A Sealer encrypts keys in the database with the server's secret: a copy of the database alone
// reveals none of them.
type Sealer struct{ aead cipher.AEAD }

// ErrSealed means that a key in the database was sealed with another secret.
var ErrSealed = errors.New("sealed with another secret key: restore the secret.key (or FLEETD_SECRET_KEY) that belongs to this database")

// Fingerprint identifies the server's secret and reveals nothing about it: it derives from the
// secret for this purpose only.
func Fingerprint(secret []byte) string {
	digest, err := hkdf.Key(sha256.New, secret, nil, "fleetd fingerprint v1", 32)
	if err != nil {
		panic(err) // 32 bytes are not too long
	}
	return hex.EncodeToString(digest)
}

// NewSealer returns a sealer for the server's secret of [KeySize] bytes.
func NewSealer(secret []byte) (*Sealer, error) {
	if len(secret) != KeySize {
		return nil, fmt.Errorf("the secret key has %d bytes, want %d", len(secret), KeySize)
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "fleetd sealed keys v1", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &Sealer{aead}, err
}

// seal encrypts a key for the place called name. It cannot be opened under another name, so
// moving it within the database makes it unreadable.
func (s *Sealer) seal(name string, key []byte) []byte {
	return s.aead.Seal(nil, nil, key, []byte(name))
}

// Seal encrypts a secret of another package for the place called name.
func (s *Sealer) Seal(name string, key []byte) []byte { return s.seal(name, key) }

// Open decrypts a secret that Seal encrypted.
func (s *Sealer) Open(name string, sealed []byte) ([]byte, error) { return s.open(name, sealed) }

func (s *Sealer) open(name string, sealed []byte) ([]byte, error) {
	key, err := s.aead.Open(nil, nil, sealed, []byte(name))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, ErrSealed)
	}
	return key, nil
}

// randomKey makes a key of [KeySize] bytes.
func randomKey() []byte {
	key := make([]byte, KeySize)
	rand.Read(key) // never fails
	return key
}
