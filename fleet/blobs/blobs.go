// Package blobs keeps pictures and firmware images by the SHA-256 of their
// bytes, in a directory.
//
// What is read back is checked against its key: a damaged file is an error,
// never a wrong picture or image. Equal bytes are kept once. Files that are too
// large for memory are checked before their first reading, not at each one.
//
// A marker shows whether the directory is still the one that was opened. Where it is
// not, as while a mount is gone, nothing is stored and no file counts as missing.
//
// It does not know what a blob means or who refers to it: retention is the job of
// the owner. One lock guards the list of files that were found whole; it is not held
// while a file is read. There is no goroutine.
package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"

	"fleetd/fleet"
)

// A Store keeps blobs. It is safe for concurrent use, also by several processes.
type Store struct {
	bucket *blob.Bucket
	dir    string
	mark   string // of the directory
	checks checks
}

var _ fleet.Blobs = (*Store)(nil)

// Open opens the store at a URL of the form file:///path, and creates the
// directory unless it exists.
func Open(address string) (*Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("the blob URL %q cannot be read: write file:///path/to/directory", address)
	}
	switch {
	case u.Scheme == "s3":
		return nil, fmt.Errorf("the blob URL %q asks for S3, which this version does not support; use file:///path/to/directory", address)
	case u.Scheme != "file" || u.Host != "" || !filepath.IsAbs(u.Path):
		return nil, fmt.Errorf("the blob URL %q is not supported: write file:///path/to/directory", address)
	}
	return OpenDir(u.Path)
}

// OpenDir opens the store in a directory, and creates it unless it exists.
func OpenDir(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("the blob directory cannot be made: %w; choose another with --blob-url", err)
	}
	probe, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return nil, fmt.Errorf("the blob directory %s cannot be written: %w; give fleetd the right to, or choose another with --blob-url", dir, err)
	}
	probe.Close()
	os.Remove(probe.Name())
	// The temporary file must be in the directory of its blob: only then is the
	// rename atomic.
	bucket, err := fileblob.OpenBucket(dir, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		return nil, fmt.Errorf("the blob directory %s: %w", dir, err)
	}
	s := &Store{bucket: bucket, dir: dir}
	if s.mark, err = markOf(dir); err != nil {
		return nil, fmt.Errorf("the blob directory %s has no marker that can be read: %w", dir, err)
	}
	if err := s.sweep(context.Background(), time.Now().Add(-incomingTTL)); err != nil {
		return nil, fmt.Errorf("the blob directory %s: %w", dir, err)
	}
	return s, nil
}

// Put stores data and returns its key. Stored again, a damaged blob is whole again.
func (s *Store) Put(ctx context.Context, data []byte) (string, error) {
	key := keyOf(data)
	err := s.inPlace(func() error { return s.bucket.WriteAll(ctx, path(key), data, nil) })
	if err != nil {
		return "", notStored(key, err)
	}
	return key, nil
}

var keyPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Get returns the bytes of a blob, or [fleet.ErrNotFound].
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	if !keyPattern.MatchString(key) {
		return nil, unknown(key)
	}
	data, err := s.bucket.ReadAll(ctx, path(key))
	switch {
	case err != nil:
		return nil, s.notRead(key, err)
	case keyOf(data) != key:
		return nil, damaged(key)
	}
	return data, nil
}

// Close frees the store.
func (s *Store) Close() error { return s.bucket.Close() }

func keyOf(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// path spreads blobs over 256 directories.
func path(key string) string { return key[:2] + "/" + key }
