package server

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

// secretKey returns the key from which device credentials are derived: from the
// environment, or from a file in the data directory that is created once. If
// the key changes, devices must fetch new credentials, which they do only at
// boot.
func secretKey(dataDir string) ([]byte, error) {
	if s := os.Getenv("FLEETD_SECRET_KEY"); s != "" {
		key, err := hex.DecodeString(strings.TrimSpace(s))
		if err != nil || len(key) != secretBytes {
			return nil, errors.New("FLEETD_SECRET_KEY is not 64 hex digits; create one with: openssl rand -hex 32")
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
	if err := checkPrivate(path); err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(data)))
	if err != nil || len(key) != secretBytes {
		return nil, fmt.Errorf("%s does not contain 64 hex digits; restore it from a backup, or delete it and restart all devices", path)
	}
	return key, nil
}

// checkPrivate refuses a key that everybody on the machine can read or change.
// The file's group may have access, as with secrets that are mounted into a
// container.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("cannot read the secret key: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return fmt.Errorf("%s is accessible to everybody on this machine (mode %o): run chmod 600 %s, and rotate the signing key if somebody may have read it", path, mode, path)
	}
	return nil
}

// newSecretKey writes the file completely or not at all.
func newSecretKey(path string) ([]byte, error) {
	key := make([]byte, secretBytes)
	rand.Read(key) // never fails
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the data directory: %w", err)
	}
	tmp := path + ".new"
	_ = os.Remove(tmp) // the file of a killed start would keep its mode
	if err := writeSynced(tmp, hex.EncodeToString(key)+"\n"); err != nil {
		return nil, fmt.Errorf("cannot write the secret key: %w", err)
	}
	return key, os.Rename(tmp, path)
}

// writeSynced writes a new file that only its owner can read, and syncs it to
// the disk.
func writeSynced(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}
