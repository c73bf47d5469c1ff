package server

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fleetd/fleet/enrolment"
)

const secretBytes = 32

// A secretKey is the key from which device credentials are derived: from the
// environment, or from a file in the data directory that is created once. If
// the key changes, devices must fetch new credentials, which they do only at
// boot.
type secretKey struct {
	key  []byte // nil if the file does not exist
	from string // the variable or the file
}

// secretVariable is the environment variable that replaces the file.
const secretVariable = "FLEETD_SECRET_KEY"

// readSecret reads the key, and creates nothing.
func readSecret(dataDir string) (s secretKey, err error) {
	if text := os.Getenv(secretVariable); text != "" {
		key, err := hex.DecodeString(strings.TrimSpace(text))
		if err != nil || len(key) != secretBytes {
			return s, errors.New("FLEETD_SECRET_KEY is not 64 hex digits; create one with: openssl rand -hex 32")
		}
		return secretKey{key, secretVariable}, nil
	}
	s.from = filepath.Join(dataDir, "secret.key")
	data, err := os.ReadFile(s.from)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("cannot read the secret key: %w", err)
	}
	if err := checkPrivate(s.from); err != nil {
		return s, err
	}
	s.key, err = hex.DecodeString(strings.TrimSpace(string(data)))
	if err != nil || len(s.key) != secretBytes {
		return s, fmt.Errorf("%s does not contain 64 hex digits; restore it from a backup, or delete it and restart all devices", s.from)
	}
	return s, nil
}

// create creates the key if its file does not exist.
func (s *secretKey) create() (err error) {
	if s.key == nil {
		s.key, err = newSecretKey(s.from)
	}
	return err
}

// check refuses a key that is not the one that the database is used with, and
// a missing one if the database is in use. The fingerprint is "" before the
// first start, and in a database of a version that stored none.
func (s secretKey) check(fingerprint string, used bool) error {
	const restore = "the right one is on the machine that served this database before, or in its backup; if it is lost, " +
		"make a new one with: fleetd key reset"
	switch {
	case s.key == nil && used:
		return fmt.Errorf("this database is used with a secret key, and %s does not exist: copy secret.key there, or set %s; %s",
			s.from, secretVariable, restore)
	case s.key == nil || fingerprint == "":
		return nil
	case subtle.ConstantTimeCompare([]byte(enrolment.Fingerprint(s.key)), []byte(fingerprint)) == 0:
		return fmt.Errorf("%s does not contain the secret key that this database is used with: replace it; %s", s.from, restore)
	}
	return nil
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
