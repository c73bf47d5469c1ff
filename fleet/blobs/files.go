package blobs

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
	"golang.org/x/sync/singleflight"

	"fleetd/fleet"
)

var _ fleet.BlobFiles = (*Store)(nil)

// incoming holds files whose hash is not known yet. What lies there for a day
// was left by a process that died.
const (
	incoming    = "incoming/"
	incomingTTL = 24 * time.Hour
)

// PutFile stores size bytes of r under their SHA-256, in constant memory. It
// refuses an r that holds more or fewer.
func (s *Store) PutFile(ctx context.Context, r io.Reader, size int64) (key string, err error) {
	draft := incoming + rand.Text()
	defer s.bucket.Delete(context.WithoutCancel(ctx), draft) // not there if the writing failed
	if err := s.there(); err != nil {
		return "", notStored(draft, err)
	}
	if key, err = s.receive(ctx, draft, r, size); err != nil {
		return "", err
	}
	if err := s.inPlace(func() error { return s.bucket.Copy(ctx, path(key), draft, nil) }); err != nil {
		return "", notStored(key, err)
	}
	return key, nil
}

// receive writes r to the draft, and returns the key of what it read.
func (s *Store) receive(ctx context.Context, draft string, r io.Reader, size int64) (string, error) {
	ctx, discard := context.WithCancel(ctx) // before Close, it throws the draft away
	defer discard()
	w, err := s.bucket.NewWriter(ctx, draft, nil)
	if err != nil {
		return "", notStored(draft, err)
	}
	in := &reading{r: io.LimitReader(r, size+1)}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(hash, w), in)
	switch {
	case in.err != nil:
		err = fleet.Refuse(fleet.ErrInvalid, "broken_upload.bytes_of", "n", n, "size", size)
	case err != nil:
		err = notStored(draft, err)
	case n != size:
		err = fleet.Refuse(fleet.ErrInvalid, "wrong_size", "size", size)
	}
	if err != nil {
		discard()
		w.Close()
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", notStored(draft, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// reading records errors of the upload, to distinguish an upload that breaks off
// from a full disk.
type reading struct {
	r   io.Reader
	err error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

func notStored(key string, err error) error {
	return notDone("write", key, err)
}

// OpenRange opens length bytes of a blob from offset on; length < 0 means to
// its end. The blob as a whole is checked against its key before this process
// reads from it for the first time, and again when its file was changed.
func (s *Store) OpenRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if !keyPattern.MatchString(key) {
		return nil, unknown(key)
	}
	if err := s.check(ctx, key); err != nil {
		return nil, err
	}
	r, err := s.bucket.NewRangeReader(ctx, path(key), offset, length, nil)
	if err != nil {
		return nil, s.notRead(key, err)
	}
	if err := s.check(ctx, key); err != nil { // the file may have been replaced before it was opened
		r.Close()
		return nil, err
	}
	return r, nil
}

// DeleteFile forgets a blob.
func (s *Store) DeleteFile(ctx context.Context, key string) error {
	if !keyPattern.MatchString(key) {
		return nil
	}
	err := s.bucket.Delete(ctx, path(key))
	if gcerrors.Code(err) == gcerrors.NotFound {
		err = s.there()
	}
	if err != nil {
		return notDone("delete", key, err)
	}
	return nil
}

// checks are the blobs found to be whole, each as its file was then.
type checks struct {
	flight singleflight.Group // many devices ask for a new image at once
	mu     sync.Mutex
	good   map[string]stamp
}

// A stamp identifies a file among those of the same name. Who replaces a file
// can give it any time of modification, but not its inode, nor the time at which
// the inode was changed.
type stamp struct {
	modified time.Time
	size     int64
	inode    uint64
	changed  int64 // nanoseconds; 0 where the system does not say
}

func (s *Store) stamp(ctx context.Context, key string) (stamp, error) {
	a, err := s.bucket.Attributes(ctx, path(key))
	if err != nil {
		return stamp{}, s.notRead(key, err)
	}
	now := stamp{modified: a.ModTime, size: a.Size}
	var info os.FileInfo
	if a.As(&info) {
		now.inode, now.changed = inodeOf(info)
	}
	return now, nil
}

const maxChecks = 10_000

func (s *Store) check(ctx context.Context, key string) error {
	now, err := s.stamp(ctx, key)
	if err != nil {
		return err
	}
	if s.checks.known(key, now) {
		return nil
	}
	_, err, _ = s.checks.flight.Do(key, func() (any, error) {
		if s.checks.known(key, now) {
			return nil, nil
		}
		// Other callers wait for the result too: it must not depend on this
		// caller's context.
		if err := s.checkContent(context.WithoutCancel(ctx), key); err != nil {
			return nil, err
		}
		s.checks.add(key, now)
		return nil, nil
	})
	return err
}

func (s *Store) checkContent(ctx context.Context, key string) error {
	r, err := s.bucket.NewReader(ctx, path(key), nil)
	if err != nil {
		return s.notRead(key, err)
	}
	defer r.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, r); err != nil {
		return s.notRead(key, err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != key {
		return damaged(key)
	}
	return nil
}

func (c *checks) known(key string, now stamp) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	then, ok := c.good[key]
	return ok && then.size == now.size && then.modified.Equal(now.modified) && then.inode == now.inode &&
		then.changed == now.changed
}

func (c *checks) add(key string, now stamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.good == nil || len(c.good) >= maxChecks {
		c.good = make(map[string]stamp)
	}
	c.good[key] = now
}

func unknown(key string) error {
	return fleet.Refuse(fleet.ErrNotFound, "unknown_blob", "key", fleet.CleanText(key, 80))
}

func damaged(key string) error {
	return fleet.Refuse(fleet.ErrUnavailable, "blob_damaged", "key", key)
}

// notDone is what the caller sees of a failure, before the whole of it for the log.
func notDone(verb, key string, err error) error {
	if _, ok := errors.AsType[*fleet.Error](err); ok {
		return err
	}
	detail := cmp.Or(fleet.SystemCause(err), gcerrors.Code(err).String())
	return fmt.Errorf("%w: %w", fleet.Refuse(fleet.ErrUnavailable, "blob_store."+verb, "key", fleet.CleanText(key, 80),
		"detail", detail), err)
}

func (s *Store) notRead(key string, err error) error {
	if gcerrors.Code(err) == gcerrors.NotFound {
		if err = s.there(); err == nil {
			return unknown(key)
		}
	}
	return notDone("read", key, err)
}

// sweep deletes what was left behind while it was being received.
func (s *Store) sweep(ctx context.Context, before time.Time) error {
	all := s.bucket.List(&blob.ListOptions{Prefix: incoming})
	for {
		draft, err := all.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listing unfinished uploads: %w", err)
		}
		if draft.ModTime.Before(before) && strings.HasPrefix(draft.Key, incoming) {
			if err := s.bucket.Delete(ctx, draft.Key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
				return fmt.Errorf("deleting an unfinished upload: %w", err)
			}
		}
	}
}
