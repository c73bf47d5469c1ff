package postgres_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/picture"
	"fleetd/fleet/postgres"
)

func shotOf(device fleet.DeviceID, kind picture.SnapshotKind, at time.Time) picture.Snapshot {
	return picture.Snapshot{ID: uuid.Must(uuid.NewV7()), Kind: kind, Device: device, Blob: "b", MediaType: "image/png",
		Width: 1, Height: 2, Size: 3, CreatedAt: at}
}

// A gallery is paged in both directions, and a picture's neighbours are those in the gallery.
func TestSnapshotGallery(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	ctx, unit := t.Context(), fleet.DeviceID("a085e3112233")
	const all = 7
	for i := range all {
		kind := picture.SnapshotScreen
		if i%3 == 1 {
			kind = picture.SnapshotCamera
		}
		at := now().Add(-time.Duration(i/2) * time.Hour) // pairs of the same time
		check(t, s.CreateSnapshot(ctx, shotOf(unit, kind, at)))
	}
	check(t, s.CreateSnapshot(ctx, shotOf("a085e3112234", picture.SnapshotScreen, now())))
	var walked []picture.Snapshot
	f := picture.Filter{Device: unit, Limit: 3}
	var last fleet.Page[picture.Snapshot]
	for more := true; more; more = f.Cursor != "" {
		page, err := s.Snapshots(ctx, f)
		check(t, err)
		walked, f.Cursor, last = append(walked, page.Items...), page.Next, page
	}
	order := func(list []picture.Snapshot) (ids []string) {
		for i, n := range list {
			ids = append(ids, n.ID.String())
			if i > 0 && (n.CreatedAt.After(list[i-1].CreatedAt) || n.CreatedAt.Equal(list[i-1].CreatedAt) &&
				n.ID.String() > list[i-1].ID.String()) {
				t.Errorf("picture %d is newer than the one before", i)
			}
		}
		return ids
	}
	if len(order(walked)) != all {
		t.Fatalf("%d pictures, want %d", len(walked), all)
	}
	back, err := s.Snapshots(ctx, picture.Filter{Device: unit, Limit: 3, Cursor: last.Prev})
	check(t, err)
	same(t, order(back.Items), order(walked[3:6]))
	for i, n := range walked {
		before, after, err := s.SnapshotsAround(ctx, picture.Filter{Device: unit}, n)
		check(t, err)
		if (before == nil) != (i == 0) || before != nil && before.ID != walked[i-1].ID ||
			(after == nil) != (i == len(walked)-1) || after != nil && after.ID != walked[i+1].ID {
			t.Errorf("around %d: %v and %v", i, before, after)
		}
	}
	for name, tt := range map[string]struct {
		f    picture.Filter
		want func(picture.Snapshot) bool
	}{
		"camera": {picture.Filter{Kind: picture.SnapshotCamera},
			func(n picture.Snapshot) bool { return n.Kind == picture.SnapshotCamera }},
		"since": {picture.Filter{Since: now().Add(-time.Hour)},
			func(n picture.Snapshot) bool { return !n.CreatedAt.Before(now().Add(-time.Hour)) }},
		"until": {picture.Filter{Until: now().Add(-time.Hour)},
			func(n picture.Snapshot) bool { return n.CreatedAt.Before(now().Add(-time.Hour)) }},
	} {
		tt.f.Device = unit
		got, err := s.Snapshots(ctx, tt.f)
		check(t, err)
		want := 0
		for _, n := range walked {
			if tt.want(n) {
				want++
			}
		}
		for _, n := range got.Items {
			if !tt.want(n) {
				t.Errorf("%s: %+v", name, n)
			}
		}
		if len(got.Items) != want || want == 0 || want == len(walked) {
			t.Errorf("%s: %d pictures, want %d", name, len(got.Items), want)
		}
	}
	for _, cursor := range []string{"x", "eyJsIjoic25hcHNob3RzIiwiayI6IngiLCJpIjoieCJ9"} {
		_, err := s.Snapshots(ctx, picture.Filter{Device: unit, Cursor: cursor})
		wantKind(t, err, fleet.ErrInvalid)
	}
}

// blobFree are the columns with a hash, picture or image that name no blob of their own, with the reason.
var blobFree = map[string]string{
	"release_images.image": "a foreign key to images", "campaign_images.image": "a foreign key to images",
	"deployments.image": "a foreign key to campaign_images", "image_layouts.image": "a foreign key to images",
	"image_parts.image":    "a foreign key to image_layouts",
	"firmware_links.image": "without the row of images, no download is served",
}

// Each column that could name a blob is known to the sweep, and each that is known keeps its blob.
func TestNamedBlobs(t *testing.T) {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	ctx := t.Context()
	rows, _ := db.Query(ctx, `
		SELECT table_name || '.' || column_name FROM information_schema.columns
		WHERE table_schema = 'public' AND column_name ~ '(blob|picture|image|sha256)'
			AND column_name NOT LIKE '%elf_sha256' AND data_type IN ('text', 'bytea', 'character varying')`)
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	check(t, err)
	named := postgres.BlobColumns()
	if len(columns) < len(named) {
		t.Fatalf("only the columns %v", columns)
	}
	for _, column := range columns {
		if !named[column] && blobFree[column] == "" {
			t.Errorf("the column %s may name blobs: add it to blobColumns, or say here why it does not", column)
		}
	}
	shot := shotOf("a085e3112233", picture.SnapshotScreen, now())
	shot.Blob = strings.Repeat("a", 64)
	check(t, s.CreateSnapshot(ctx, shot))
	hash := [32]byte{1}
	l := picture.URLLink{TokenHash: hash[:], Purpose: fleet.LinkPreview, Device: "a085e3112233",
		Blob: strings.Repeat("b", 64), ExpiresAt: now()}
	check(t, s.CreateURLLink(ctx, l))
	_, err = db.Exec(ctx, `INSERT INTO call_waits VALUES ($1, now(), false, $2)`, uuid.New(), strings.Repeat("c", 64))
	check(t, err)
	found, err := s.NamedBlobs(ctx, []string{shot.Blob, l.Blob, strings.Repeat("c", 64), strings.Repeat("d", 64), ""})
	check(t, err)
	same(t, found, map[string]bool{shot.Blob: true, l.Blob: true, strings.Repeat("c", 64): true})
}

// scaleSnapshots makes TestGalleryScale run with a million pictures.
const scaleSnapshots = "FLEETD_SCALE_SNAPSHOTS"

// TestGalleryScale checks that no question of a gallery or of the sweep reads a table of a million
// pictures as a whole.
func TestGalleryScale(t *testing.T) {
	if os.Getenv(scaleSnapshots) == "" {
		t.Skipf("set %s=1 to explain the queries over a million pictures", scaleSnapshots)
	}
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	ctx := t.Context()
	fanOut := loadSnapshots(t, db)
	unit := fleet.DeviceID("d00007")
	scans := func() (n int) { // of all that has happened: sessions report their counts when they end
		db.Reset()
		time.Sleep(time.Second)
		check(t, db.QueryRow(ctx, `SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'snapshots'`).Scan(&n))
		return n
	}
	before := scans()
	first, err := s.Snapshots(ctx, picture.Filter{Device: unit})
	check(t, err)
	keys := make([]string, 500)
	for i := range keys {
		keys[i] = fmt.Sprintf("%064d", i)
	}
	for name, ask := range map[string]func() error{
		"first page":  func() error { _, err := s.Snapshots(ctx, picture.Filter{Device: unit}); return err },
		"second page": func() error { _, err := s.Snapshots(ctx, picture.Filter{Device: unit, Cursor: first.Next}); return err },
		"rare kind": func() error {
			_, err := s.Snapshots(ctx, picture.Filter{Device: unit, Kind: picture.SnapshotCamera})
			return err
		},
		"a day": func() error {
			_, err := s.Snapshots(ctx, picture.Filter{Device: unit, Since: now().Add(-48 * time.Hour),
				Until: now().Add(-24 * time.Hour)})
			return err
		},
		"neighbours": func() error {
			_, _, err := s.SnapshotsAround(ctx, picture.Filter{Device: unit}, first.Items[9])
			return err
		},
		"fan-out":     func() error { _, err := s.Snapshots(ctx, picture.Filter{FanOut: fanOut}); return err },
		"callers":     func() error { _, err := s.Callers(ctx, first.Items); return err },
		"named blobs": func() error { _, err := s.NamedBlobs(ctx, keys); return err },
	} {
		atMost(t, 50*time.Millisecond, name, ask)
	}
	if after := scans(); after != before {
		t.Errorf("%d scans of the whole table", after-before)
	}
}

// loadSnapshots stores a million pictures of a thousand devices, one in a thousand by a camera, and a
// fan-out to all devices.
func loadSnapshots(t *testing.T, db *pgxpool.Pool) (fanOut uuid.UUID) {
	t.Helper()
	fanOut = uuid.Must(uuid.NewV7())
	for _, sql := range []string{
		`INSERT INTO snapshots (id, device_id, call_id, blob, media_type, width, height, size, created_at, kind)
			SELECT gen_random_uuid(), 'd' || lpad((i % 1000)::text, 5, '0'), gen_random_uuid(), lpad(i::text, 64, '0'),
				'image/png', 1, 1, 1, now() - i * interval '1 minute',
				CASE WHEN i / 1000 % 1000 = 999 THEN 'camera' ELSE 'screen' END
			FROM generate_series(0, 999999) i`,
		`INSERT INTO fanouts (id, actor_kind, actor_id, actor_name, actor_role, query, tool, arguments, max_in_flight, timeout_ms,
			state, targets, skipped, created_at, finished_at, canceled_by)
			VALUES ('` + fanOut.String() + `', 'operator', 'o', 'o', 'admin', '', 'self.screen.snapshot', '{}', 1, 1000,
				'completed', 1000, 0, now(), now(), '')`,
		`INSERT INTO fanout_targets (fanout_id, device_id) SELECT '` + fanOut.String() + `', 'd' || lpad(i::text, 5, '0')
			FROM generate_series(0, 999) i`,
		`ANALYZE`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%.60s: %v", sql, err)
		}
	}
	return fanOut
}
