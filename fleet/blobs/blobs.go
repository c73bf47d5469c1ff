// Package blobs stores pictures and firmware images by the SHA-256 of their bytes, in a
// directory or in an S3 bucket.
//
// Blobs are checked against their keys when they are read: a damaged blob is an error, never
// a wrong picture or image. Equal bytes are stored once. Blobs that are too large for memory
// are checked before their first read, not at each one.
//
// A marker shows whether the directory or bucket is still the one that was opened. If it is
// not, for example because a mount is missing, no blob counts as missing and a directory
// stores nothing.
//
// It does not depend on the meaning of a blob. A [Sweeper] deletes blobs that no record names, and
// asks its owner for the names. One lock guards the list of intact blobs; it is not locked while a
// blob is read. 256 locks keep a sweep from deleting a blob while it is stored. The only goroutines
// are those of the HTTP connections to S3.
package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// A bucket stores objects by name: a directory, or an S3 bucket. This package makes the
// names; none comes from a request. The error for a missing object is [fs.ErrNotExist].
type bucket interface {
	// put stores data. A reader finds all of it, or the previous object.
	put(ctx context.Context, name string, data []byte) error
	// receive stores the size bytes of r in constant memory. It calls name for the object's
	// name after the last byte. If r or name fails, it stores nothing.
	receive(ctx context.Context, r io.Reader, size int64, name func() (string, error)) error
	// open reads length bytes from offset on; length < 0 reads to the end.
	open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, stamp, error)
	// remove deletes an object. Whether a missing object is an error depends on the bucket.
	remove(ctx context.Context, name string) error
	// list calls yield for the objects whose name begins with dir, in the order of their names,
	// from the first after the name on. It stops at yield's first error and returns it.
	list(ctx context.Context, dir, after string, yield func(object) error) error
	// removeOld deletes an object that was stored before a time. It reports false if it deleted nothing.
	removeOld(ctx context.Context, name string, before time.Time) (bool, error)
	// sweep deletes incomplete objects of receive from before a time, whose process died.
	sweep(ctx context.Context, before time.Time) error
	// there returns an error unless the bucket is the one that was opened.
	there(ctx context.Context) error
	close() error
}

// incoming holds objects whose hash is not known yet. If an object is there for a day, its
// process died.
const (
	incoming    = "incoming/"
	incomingTTL = 24 * time.Hour
)

// marker is an object with a random name for the bucket. A missing mount leaves an empty
// directory behind; files stored there would be hidden once the mount is back.
const marker = ".store"

// A Store stores blobs. It is safe for concurrent use, also by several processes.
type Store struct {
	bucket  bucket
	checks  checks
	storing [256]sync.RWMutex // by the first byte of the key, see [Store.lockOf]
}

func newStore(b bucket) *Store {
	return &Store{bucket: b, checks: checks{good: bounded.New[string, stamp](maxChecks)}}
}

var _ fleet.Blobs = (*Store)(nil)

// Open opens the store at a URL of the form file:///path or
// s3://bucket/prefix?endpoint=https://host&region=name. It creates a missing directory; a
// bucket must exist.
func Open(ctx context.Context, address string) (*Store, error) {
	if strings.HasPrefix(address, "s3:") {
		return openS3(ctx, address, s3Timeout)
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "file" || u.Host != "" || !filepath.IsAbs(u.Path) {
		return nil, fmt.Errorf("unknown blob URL%s; use file:///path/to/directory or s3://bucket/prefix", shown(address))
	}
	return OpenDir(u.Path)
}

// shown returns an address for an error message, "" if the address may contain a password.
func shown(address string) string {
	if address == "" || strings.Contains(address, "@") {
		return ""
	}
	return fmt.Sprintf(" %q", address)
}

// OpenDir opens the store in a directory and creates the directory if it does not exist.
func OpenDir(dir string) (*Store, error) {
	d, err := openDirectory(dir)
	if err != nil {
		return nil, err
	}
	return newStore(d), nil
}

// Put stores data and returns its key. Storing the bytes of a damaged blob again repairs it.
func (s *Store) Put(ctx context.Context, data []byte) (string, error) {
	key := keyOf(data)
	lock := s.lockOf(key)
	lock.RLock()
	defer lock.RUnlock()
	if err := s.bucket.put(ctx, path(key), data); err != nil {
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
	r, _, err := s.bucket.open(ctx, path(key), 0, -1)
	if err != nil {
		return nil, s.notRead(ctx, key, err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	switch {
	case err != nil:
		return nil, s.notRead(ctx, key, err)
	case keyOf(data) != key:
		return nil, damaged(key)
	}
	return data, nil
}

// Close releases the store's resources.
func (s *Store) Close() error { return s.bucket.close() }

func keyOf(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// path returns the name of a blob's object, in one of 256 directories.
func path(key string) string { return key[:2] + "/" + key }
