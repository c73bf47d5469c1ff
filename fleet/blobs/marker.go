package blobs

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"fleetd/fleet"
)

// marker is a file in the store's directory with a random name for the store. A mount
// that is gone leaves an empty directory behind, in which files would be stored that are
// hidden once the mount is back.
const marker = ".store"

// markOf returns what the directory's marker holds; it writes one if it is missing.
func markOf(dir string) (string, error) {
	at := filepath.Join(dir, marker)
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err == nil {
		_, err = f.WriteString(rand.Text())
		err = errors.Join(err, f.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	mark, err := os.ReadFile(at)
	return string(mark), err
}

// there returns an error unless the directory is the one that was opened.
func (s *Store) there() error {
	mark, err := os.ReadFile(filepath.Join(s.dir, marker))
	switch {
	case err == nil && string(mark) == s.mark:
		return nil
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return fleet.Refuse(fleet.ErrUnavailable, "blob_store.elsewhere")
	}
	return err
}

// inPlace runs write. It fails if the directory is not there before or afterwards.
func (s *Store) inPlace(write func() error) error {
	err := s.there()
	if err == nil {
		err = write()
	}
	if err == nil {
		err = s.there()
	}
	return err
}
