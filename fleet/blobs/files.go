package blobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

var (
	_ fleet.BlobFiles     = (*Store)(nil)
	_ fleet.BlobAddresses = (*Store)(nil)
)

// PutFile stores size bytes of r under their SHA-256, in constant memory. It fails if r holds
// more or fewer bytes.
func (s *Store) PutFile(ctx context.Context, r io.Reader, size int64) (key string, err error) {
	in := &upload{r: r, size: size, hash: sha256.New()}
	if size == 0 {
		_, in.err = in.Read(nil) // a bucket need not read from an empty upload
	}
	var lock *sync.RWMutex // once the key is known
	defer func() {
		if lock != nil {
			lock.RUnlock()
		}
	}()
	err = s.bucket.receive(ctx, in, size, func() (string, error) {
		if in.err != io.EOF {
			return "", cmp.Or(in.err, io.ErrUnexpectedEOF)
		}
		key = hex.EncodeToString(in.hash.Sum(nil))
		lock = s.lockOf(key)
		lock.RLock()
		return path(key), nil
	})
	switch {
	case in.err != nil && in.err != io.EOF:
		return "", in.err
	case err != nil:
		return "", notStored(cmp.Or(key, "incoming"), err)
	}
	return key, nil
}

// An upload reads and hashes size bytes of r. It records its error, to distinguish an
// interrupted upload from a full disk. If r holds more than size bytes, it fails before the
// last byte, so that a bucket that counts bytes does not accept it as complete.
type upload struct {
	r       io.Reader
	size, n int64
	hash    hash.Hash
	err     error // of the upload; io.EOF after the last byte
}

func (u *upload) Read(p []byte) (n int, err error) {
	if u.err != nil {
		return 0, u.err
	}
	if left := u.size - u.n; left > 0 {
		if int64(len(p)) > left {
			p = p[:left]
		}
		n, err = u.r.Read(p)
		u.n += int64(n)
		u.hash.Write(p[:n])
	}
	if err == nil && u.n == u.size {
		err = u.end()
	}
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF && u.n == u.size:
		u.err = io.EOF
		return n, io.EOF
	case err == io.EOF || errors.Is(err, errTooLong):
		u.err = fleet.Refuse(fleet.ErrInvalid, "wrong_size", "size", u.size)
	default:
		u.err = fleet.Refuse(fleet.ErrInvalid, "broken_upload.bytes_of", "n", u.n, "size", u.size)
	}
	return 0, u.err
}

var errTooLong = errors.New("more bytes than announced")

// end returns io.EOF if r has ended.
func (u *upload) end() error {
	var more [1]byte
	n, err := io.ReadFull(u.r, more[:])
	if n > 0 {
		return errTooLong
	}
	return err
}

func notStored(key string, err error) error {
	return notDone("write", key, err)
}

// OpenRange opens length bytes of a blob from offset on; length < 0 means to the end. It
// checks the whole blob against its key before this process first reads it, and again after
// it was changed.
func (s *Store) OpenRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if !keyPattern.MatchString(key) {
		return nil, unknown(key)
	}
	for range maxReopened {
		if err := s.check(ctx, key); err != nil {
			return nil, err
		}
		r, now, err := s.bucket.open(ctx, path(key), offset, length)
		if err != nil {
			return nil, s.notRead(ctx, key, err)
		}
		if s.checks.match(key, now) {
			return r, nil
		}
		r.Close()
	}
	return nil, notDone("read", key, errors.New("the blob changes while it is read"))
}

// Address implements [fleet.BlobAddresses]. Only blobs in S3 have addresses. Like OpenRange, it checks
// the whole blob before this process first uses it. It does not ask S3 whether the object is still that
// one: the reader compares the ETag.
func (s *Store) Address(ctx context.Context, key string, life time.Duration) (fleet.BlobAddress, error) {
	b, ok := s.bucket.(*s3Bucket)
	if !ok {
		return fleet.BlobAddress{}, nil
	}
	if !keyPattern.MatchString(key) {
		return fleet.BlobAddress{}, unknown(key)
	}
	if err := s.check(ctx, key); err != nil {
		return fleet.BlobAddress{}, err
	}
	checked, ok := s.checks.good.Get(key)
	if !ok || checked.etag == "" {
		return fleet.BlobAddress{}, nil
	}
	u, err := b.core.PresignedGetObject(ctx, b.bucket, b.prefix+path(key), life, nil)
	if err != nil {
		return fleet.BlobAddress{}, notDone("read", key, err)
	}
	return fleet.BlobAddress{URL: u.String(), ETag: checked.etag}, nil
}

// DeleteFile deletes a blob.
func (s *Store) DeleteFile(ctx context.Context, key string) error {
	if !keyPattern.MatchString(key) {
		return nil
	}
	err := s.bucket.remove(ctx, path(key))
	if errors.Is(err, fs.ErrNotExist) {
		err = s.bucket.there(ctx)
	}
	if err != nil {
		return notDone("delete", key, err)
	}
	s.checks.forget(key)
	return nil
}

// checks are the blobs found intact, each with the stamp of its object at that time.
type checks struct {
	flight singleflight.Group // many devices ask for a new image at once
	good   *bounded.Cache[string, stamp]
}

// A stamp distinguishes objects of the same name. Replacing a file allows any modification
// time, but not a chosen inode or inode change time. In S3, the server sets the time.
type stamp struct {
	modified int64 // nanoseconds
	size     int64 // for files only
	inode    uint64
	changed  int64 // nanoseconds; 0 if the system does not provide it
	etag     string
}

const maxChecks = 10_000

// maxReopened is how often a blob may be replaced, for example by uploads of equal bytes,
// between its check and its opening.
const maxReopened = 20

// check hashes a blob unless it was already found intact.
func (s *Store) check(ctx context.Context, key string) error {
	if s.checks.has(key) {
		return nil
	}
	_, err, _ := s.checks.flight.Do(key, func() (any, error) {
		if s.checks.has(key) {
			return nil, nil
		}
		// Other callers wait for the result too, so it must not depend on this caller's
		// context.
		return nil, s.checkContent(context.WithoutCancel(ctx), key)
	})
	return err
}

func (s *Store) checkContent(ctx context.Context, key string) error {
	r, now, err := s.bucket.open(ctx, path(key), 0, -1)
	if err != nil {
		return s.notRead(ctx, key, err)
	}
	defer r.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, r); err != nil {
		return s.notRead(ctx, key, err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != key {
		return damaged(key)
	}
	s.checks.add(key, now)
	return nil
}

func (c *checks) has(key string) bool {
	return c.good.Contains(key)
}

// match reports whether an opened blob is the checked one. If it is not, it was replaced and
// must be checked again.
func (c *checks) match(key string, now stamp) bool {
	then, ok := c.good.Get(key)
	if ok && then != now {
		c.good.Remove(key)
	}
	return ok && then == now
}

func (c *checks) add(key string, now stamp) {
	c.good.Add(key, now)
}

func (c *checks) forget(key string) {
	c.good.Remove(key)
}

func unknown(key string) error {
	return fleet.Refuse(fleet.ErrNotFound, "unknown_blob", "key", key)
}

func damaged(key string) error {
	return fleet.Refuse(fleet.ErrUnavailable, "blob_damaged", "key", key)
}

// notDone returns the error that the caller sees, wrapping the full error for the log.
func notDone(verb, key string, err error) error {
	if _, ok := errors.AsType[*fleet.Error](err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", fleet.Refuse(fleet.ErrUnavailable, "blob_store."+verb, "key", key,
		"detail", cause(err)), err)
}

// cause returns the cause of a failure without paths and addresses, which callers must not
// see.
func cause(err error) string {
	if text := cmp.Or(fleet.SystemCause(err), s3Cause(err)); text != "" {
		return text
	}
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), isNet && timeout.Timeout():
		return "timed out"
	case isNet:
		return "no connection"
	}
	return "unknown"
}

func (s *Store) notRead(ctx context.Context, key string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.bucket.there(ctx); err == nil {
			return unknown(key)
		}
	}
	return notDone("read", key, err)
}

// A cancelable stops reading when its context ends.
type cancelable struct {
	ctx context.Context
	r   io.Reader
}

func (c cancelable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
