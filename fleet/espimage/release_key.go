package espimage

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// PEM blocks of keys, as openssl writes them.
const (
	privateBlock = "PRIVATE KEY"
	publicBlock  = "PUBLIC KEY"
)

// NewReleaseKey generates a key pair that signs manifests, both keys in PEM.
func NewReleaseKey() (private, public []byte, err error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	open, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: privateBlock, Bytes: secret}),
		pem.EncodeToMemory(&pem.Block{Type: publicBlock, Bytes: open}), nil
}

// ParseReleaseSecret parses the private key.
func ParseReleaseSecret(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != privateBlock {
		return nil, errors.New("no private key in PEM found; it begins with -----BEGIN PRIVATE KEY-----")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	secret, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("manifests need an Ed25519 key, not a %T", key)
	}
	return secret, nil
}

// ParseReleaseKeys parses one or more public keys.
func ParseReleaseKeys(text []byte) ([]ed25519.PublicKey, error) {
	var keys []ed25519.PublicKey
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		if block.Type == privateBlock {
			return nil, errors.New("this is a private key, which fleetd must not have; give it the public key")
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", len(keys)+1, err)
		}
		public, ok := key.(ed25519.PublicKey)
		if !ok {
			return nil, fmt.Errorf("key %d: manifests need an Ed25519 key, not a %T", len(keys)+1, key)
		}
		keys = append(keys, public)
	}
	if len(keys) == 0 {
		return nil, errors.New("no PEM block found; a public key begins with -----BEGIN PUBLIC KEY-----")
	}
	return keys, nil
}
