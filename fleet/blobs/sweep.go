package blobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// MinAge is the minimum age of a blob that a sweep deletes. A blob is stored before the record that
// names it, and storing it again makes it young: within this time, each upload commits its record.
const MinAge = 24 * time.Hour

// Limits of one sweep. The next sweep continues after its last blob.
const (
	maxSwept    = 100_000 // blobs looked at
	maxDeleted  = 10_000
	sweepChunk  = 500 // keys in one question about names
	maxOwnerLen = 100
)

// owner is an object with the id of the only database whose records name the blobs.
const owner = ".owner"

// An object is one of a bucket's, as listed.
type object struct {
	name     string
	size     int64
	modified time.Time
}

// SweeperOptions configures [Sweeper]. Store, Named and Database are required.
type SweeperOptions struct {
	Store *Store
	// Named returns those of the keys that a record names.
	Named func(ctx context.Context, keys []string) (map[string]bool, error)
	// Database is the id of the database with the records. Only one database may sweep a store: to
	// another, all its blobs would seem unnamed.
	Database string
	// Age is how long blobs stay that no record names. Default and minimum: [MinAge].
	Age time.Duration
	Log *slog.Logger
	Now func() time.Time // default: time.Now
}

// A Sweeper deletes blobs that no record names, such as those of deleted pictures, and of uploads
// whose record was never stored. It is safe for concurrent use.
type Sweeper struct {
	o              SweeperOptions
	mu             sync.Mutex // one sweep at a time; guards from
	from           string     // name of the last object of the sweep before; "" begins again
	deleted, bytes atomic.Int64
}

// NewSweeper returns a Sweeper.
func NewSweeper(o SweeperOptions) *Sweeper {
	o.Age = max(o.Age, MinAge)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Sweeper{o: o}
}

// Swept is what a sweep did, or all sweeps of a process.
type Swept struct {
	Seen, Deleted int
	Bytes         int64 // of the deleted blobs
}

// Total returns what all sweeps of this process deleted.
func (w *Sweeper) Total() Swept {
	return Swept{Deleted: int(w.deleted.Load()), Bytes: w.bytes.Load()}
}

// Sweep deletes unnamed blobs. It deletes none if the store belongs to another database, or belongs
// to this one for less than [MinAge]: a server that was started with a wrong database must not
// delete the files of the right one.
func (w *Sweeper) Sweep(ctx context.Context) (Swept, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began := w.o.Now()
	if err := w.o.Store.bucket.sweep(ctx, began.Add(-incomingTTL)); err != nil {
		return Swept{}, fmt.Errorf("sweep of the blob store: %w", err)
	}
	mine, err := w.owns(ctx, began)
	if err != nil || !mine {
		return Swept{}, err
	}
	done, err := w.sweep(ctx, began)
	if done.Deleted > 0 {
		w.deleted.Add(int64(done.Deleted))
		w.bytes.Add(done.Bytes)
		w.o.Log.Info("files deleted that no record names", "files", done.Deleted, "bytes", done.Bytes, "seen", done.Seen,
			"took", w.o.Now().Sub(began).Round(time.Millisecond))
	}
	if err != nil {
		return done, fmt.Errorf("sweep of the blob store: %w", err)
	}
	return done, nil
}

// owns reports whether the store has belonged to the database for long enough.
func (w *Sweeper) owns(ctx context.Context, now time.Time) (bool, error) {
	named, since, err := w.owner(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		if err := w.o.Store.bucket.there(ctx); err != nil {
			return false, err
		}
		return false, w.o.Store.bucket.put(ctx, owner, []byte(w.o.Database))
	}
	switch {
	case err != nil:
		return false, fmt.Errorf("owner of the blob store: %w", err)
	case named != w.o.Database:
		w.o.Log.Warn("the blob store belongs to another database, so no files are deleted; give each database its own "+
			"--blob-url, or delete the file .owner of the store if this is the only one", "database", w.o.Database)
		return false, nil
	}
	return now.Sub(since) >= MinAge, nil
}

func (w *Sweeper) owner(ctx context.Context) (named string, since time.Time, err error) {
	r, now, err := w.o.Store.bucket.open(ctx, owner, 0, -1)
	if err != nil {
		return "", time.Time{}, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxOwnerLen))
	return string(b), time.Unix(0, now.modified), err
}

// sweep looks at the objects in the order of their names, in chunks.
func (w *Sweeper) sweep(ctx context.Context, now time.Time) (done Swept, err error) {
	before := now.Add(-w.o.Age)
	var old []object
	for shard := range 256 {
		dir := fmt.Sprintf("%02x/", shard)
		if w.from != "" && dir < w.from[:len(dir)] {
			continue
		}
		err := w.o.Store.bucket.list(ctx, dir, w.from, func(o object) error {
			done.Seen++
			w.from = o.name
			if key := o.name[len(dir):]; keyPattern.MatchString(key) && path(key) == o.name && o.modified.Before(before) {
				old = append(old, o)
			}
			if len(old) >= sweepChunk {
				err := w.delete(ctx, old, before, &done)
				old = old[:0]
				if err != nil {
					return err
				}
			}
			if done.Seen >= maxSwept || done.Deleted >= maxDeleted {
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			return done, w.delete(ctx, old, before, &done)
		}
		if err != nil {
			return done, err
		}
	}
	w.from = ""
	return done, w.delete(ctx, old, before, &done)
}

var errEnough = errors.New("limit of one sweep reached")

// delete deletes those of the blobs that no record names. The question comes before the deletions,
// and each deletion looks at the age again: a record may have come to name a blob in between, but
// then its bytes have just been stored again.
func (w *Sweeper) delete(ctx context.Context, all []object, before time.Time, done *Swept) error {
	if len(all) == 0 {
		return nil
	}
	// If the mount or the bucket was replaced, the deletions would hit another store.
	if err := w.o.Store.bucket.there(ctx); err != nil {
		return err
	}
	keys := make([]string, len(all))
	for i, o := range all {
		keys[i] = o.name[len("00/"):]
	}
	named, err := w.o.Named(ctx, keys)
	if err != nil {
		return err
	}
	for i, key := range keys {
		if named[key] {
			continue
		}
		deleted, err := w.o.Store.deleteOld(ctx, key, before)
		if err != nil {
			return notDone("delete", key, err)
		}
		if deleted {
			done.Deleted++
			done.Bytes += all[i].size
		}
	}
	return nil
}

// deleteOld deletes a blob that was last stored before the time. While this process stores the blob,
// it leaves it.
func (s *Store) deleteOld(ctx context.Context, key string, before time.Time) (bool, error) {
	lock := s.lockOf(key)
	if !lock.TryLock() {
		return false, nil
	}
	defer lock.Unlock()
	deleted, err := s.bucket.removeOld(ctx, path(key), before)
	if deleted {
		s.checks.forget(key)
	}
	return deleted, err
}

// lockOf returns the lock of a blob's name. Storing a blob holds it as a reader, a sweep that deletes
// it as the writer.
func (s *Store) lockOf(key string) *sync.RWMutex {
	shard, _ := strconv.ParseUint(key[:2], 16, 8) // a key is hexadecimal
	return &s.storing[shard]
}
