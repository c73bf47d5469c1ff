package jobs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/picture"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/jobs"
	"fleetd/fleet/postgres/pgtest"
)

// A picture that has exceeded its retention loses its row and its file, unless another picture has the
// same bytes.
func TestFilesOfOldPictures(t *testing.T) {
	db, dir := pgtest.New(t), t.TempDir()
	store := postgres.New(db, postgres.Options{})
	files, err := blobs.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files.Close() })
	long := time.Now().Add(-72 * time.Hour)
	keep := func(text string, at time.Time) (key string) {
		key, err := files.Put(t.Context(), []byte(text))
		err = errors.Join(err, os.Chtimes(filepath.Join(dir, key[:2], key), long, long))
		if at.IsZero() {
			return key
		}
		err = errors.Join(err, store.CreateSnapshot(t.Context(), picture.Snapshot{ID: uuid.Must(uuid.NewV7()),
			Kind: picture.SnapshotCamera, Device: "a085e3112233", Blob: key, MediaType: "image/png", Width: 1, Height: 1,
			Size: 1, CreatedAt: at}))
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	old, named, shared, orphan := keep("old", long), keep("named", time.Now()), keep("shared", long), keep("orphan", time.Time{})
	if keep("shared", time.Now()) != shared {
		t.Fatal("equal bytes have two keys")
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, ".owner"), []byte("db"), 0o600),
		os.Chtimes(filepath.Join(dir, ".owner"), long, long)); err != nil {
		t.Fatal(err)
	}
	sweeper := blobs.NewSweeper(blobs.SweeperOptions{Store: files, Named: store.NamedBlobs, Database: "db"})
	j, err := jobs.New(db, store, jobs.Options{Retention: postgres.Retention{Snapshots: 24 * time.Hour},
		Interval: time.Second, Sweep: func(ctx context.Context) error {
			_, err := sweeper.Sweep(ctx)
			return err
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	fleettest.Eventually(t, "the files are deleted", func() bool { return sweeper.Total().Deleted >= 2 })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for key, stays := range map[string]bool{old: false, orphan: false, named: true, shared: true} {
		if _, err := files.Get(t.Context(), key); (err == nil) != stays || err != nil && !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("the file %s: %v, stays: %v", key, err, stays)
		}
	}
	if left, err := store.Snapshots(t.Context(), picture.Filter{Device: "a085e3112233"}); err != nil || len(left.Items) != 2 {
		t.Errorf("%d pictures left, %v", len(left.Items), err)
	}
}
