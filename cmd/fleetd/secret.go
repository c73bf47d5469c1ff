package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const secretBytes = 32

// secretKey returns the key that device credentials are derived from: from the
// environment, or from a file in the data directory that is made once. Without
// the same key devices must fetch new credentials, which they do only at boot.
func secretKey(dataDir string) ([]byte, error) {
	if s := os.Getenv("FLEETD_SECRET_KEY"); s != "" {
		key, err := hex.DecodeString(strings.TrimSpace(s))
		if err != nil || len(key) != secretBytes {
			return nil, errors.New("FLEETD_SECRET_KEY is not 64 hex digits; make one with: openssl rand -hex 32")
		}
		return key, nil
	}
	path := filepath.Join(dataDir, "secret.key")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newSecretKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the secret key: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(data)))
	if err != nil || len(key) != secretBytes {
		return nil, fmt.Errorf("%s does not hold 64 hex digits; restore it from a backup, or delete it and restart all devices", path)
	}
	return key, nil
}

// newSecretKey writes the file whole or not at all.
func newSecretKey(path string) ([]byte, error) {
	key := make([]byte, secretBytes)
	rand.Read(key) // never fails
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the data directory: %w", err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(hex.EncodeToString(key)+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("cannot write the secret key: %w", err)
	}
	return key, os.Rename(tmp, path)
}
