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

	"golang.org/x/sync/singleflight"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

var _ fleet.BlobFiles = (*Store)(nil)

// PutFile stores size bytes of r under their SHA-256, in constant memory. It
// refuses an r that holds more or fewer.
func (s *Store) PutFile(ctx context.Context, r io.Reader, size int64) (key string, err error) {
	in := &upload{r: r, size: size, hash: sha256.New()}
	if size == 0 {
		_, in.err = in.Read(nil) // a bucket need not read from an empty upload
	}
	err = s.bucket.receive(ctx, in, size, func() (string, error) {
		if in.err != io.EOF {
			return "", cmp.Or(in.err, io.ErrUnexpectedEOF)
		}
		key = hex.EncodeToString(in.hash.Sum(nil))
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

// An upload reads and hashes size bytes of r. It keeps its error, to distinguish an
// upload that breaks off from a full disk. It fails before its last bytes if r holds
// more than size, so that a bucket which counts bytes does not take it for complete.
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

// end returns io.EOF if r is at its end.
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

// OpenRange opens length bytes of a blob from offset on; length < 0 means to
// its end. The blob as a whole is checked against its key before this process
// reads from it for the first time, and again when it was changed.
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

// DeleteFile forgets a blob.
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

// checks are the blobs found to be whole, each as its object was then.
type checks struct {
	flight singleflight.Group // many devices ask for a new image at once
	good   *bounded.Cache[string, stamp]
}

// A stamp identifies an object among those of the same name. Somebody who replaces a
// file can give it any time of modification, but can choose neither its inode nor the
// time at which the inode was changed. In S3 the server sets the time.
type stamp struct {
	modified int64 // nanoseconds
	size     int64 // of a file
	inode    uint64
	changed  int64 // nanoseconds; 0 where the system does not say
	etag     string
}

const maxChecks = 10_000

// maxReopened bounds how often a blob may be replaced, as by uploads of equal bytes,
// between its check and its opening.
const maxReopened = 20

// check hashes a blob unless it was found whole before.
func (s *Store) check(ctx context.Context, key string) error {
	if s.checks.has(key) {
		return nil
	}
	_, err, _ := s.checks.flight.Do(key, func() (any, error) {
		if s.checks.has(key) {
			return nil, nil
		}
		// Other callers wait for the result too: it must not depend on this
		// caller's context.
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

// match reports whether an opened blob is the one that was checked. If not, the blob
// was replaced since, and is checked again.
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

// notDone is what the caller sees of a failure, before the whole of it for the log.
func notDone(verb, key string, err error) error {
	if _, ok := errors.AsType[*fleet.Error](err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", fleet.Refuse(fleet.ErrUnavailable, "blob_store."+verb, "key", key,
		"detail", cause(err)), err)
}

// cause names the cause of a failure without paths and addresses, which callers
// must not see.
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

// A cancelable stops reading once its context ends.
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
