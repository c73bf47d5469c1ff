package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
)

// A bulkBench is a registry of n devices with the services that act on many.
func bulkBench(t *testing.T, n int) (*fleet.Devices, *pgxpool.Pool) {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	_, err := db.Exec(t.Context(), `
		INSERT INTO devices (id, created_at, presence_since, enrolment, board, board_key, name, name_key)
		SELECT 'd' || lpad(i::text, 5, '0'), now(), now(), 'enrolled', 'b', 'b', 'n' || i, 'n' || i
		FROM generate_series(0, $1 - 1) i`, n)
	check(t, err)
	return fleet.NewDevices(fleet.DevicesOptions{Store: s, Targets: fleet.NewTargets(s, s), Events: new(fleet.Events),
		Kick: func(fleet.DeviceID, fleet.Cause) {}, Retiring: func(fleet.DeviceID) {}}), db
}

var root = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "root", Role: fleet.RoleAdmin}

// An act on many devices changes all of them or none, also if the second page fails.
func TestBulkIsAllOrNothing(t *testing.T) {
	const n = fleet.BulkPage + 3
	_, db := bulkBench(t, n)
	s := postgres.New(db, postgres.Options{})
	q := query(t, "")
	ids, err := s.DeviceIDs(t.Context(), q)
	check(t, err)
	refused := errors.New("no")
	pages := 0
	plan := func(first bool, ids []fleet.DeviceID, devices []fleet.Device) (fleet.DeviceChanges, error) {
		if pages++; first != (pages == 1) || len(ids) != len(devices) {
			t.Errorf("page %d: first is %t, %d ids, %d devices", pages, first, len(ids), len(devices))
		}
		c := fleet.DeviceChanges{Act: fleet.BulkRetire, At: time.Now()}
		for _, d := range devices {
			c.Changes = append(c.Changes, fleet.DeviceChange{ID: d.ID})
		}
		return c, nil
	}
	err = s.ChangeDevices(t.Context(), root, ids, plan, func() error { return refused })
	if !errors.Is(err, refused) || pages != 2 {
		t.Fatalf("%d pages, then %v", pages, err)
	}
	var retired, entries int
	check(t, db.QueryRow(t.Context(), `SELECT count(*) FROM devices WHERE retired_at IS NOT NULL`).Scan(&retired))
	check(t, db.QueryRow(t.Context(), `SELECT count(*) FROM audit_entries`).Scan(&entries))
	if retired != 0 || entries != 0 {
		t.Errorf("%d devices and %d entries of what was undone", retired, entries)
	}
}

// Two acts on the same devices take turns.
func TestBulkActsTakeTurns(t *testing.T) {
	devices, db := bulkBench(t, 500)
	done := make(chan error)
	for i := range 4 {
		go func() {
			_, err := devices.Bulk(t.Context(), fleet.BulkRequest{Actor: root, Act: fleet.BulkTag,
				Tags: []string{fmt.Sprintf("t%d", i)}})
			done <- err
		}()
	}
	for range 4 {
		check(t, <-done)
	}
	var n int
	check(t, db.QueryRow(t.Context(), `SELECT count(*) FROM devices WHERE tags = '{t0,t1,t2,t3}'`).Scan(&n))
	if n != 500 {
		t.Errorf("%d devices have all four tags, want 500", n)
	}
}

// TestBulkSpeed times acts on 10,000 devices, or on FLEETD_BULK_DEVICES. It fails only far above
// the usual time.
func TestBulkSpeed(t *testing.T) {
	n := 2000
	if text := os.Getenv("FLEETD_BULK_DEVICES"); text != "" {
		_, err := fmt.Sscan(text, &n)
		check(t, err)
	}
	devices, _ := bulkBench(t, n)
	for _, r := range []fleet.BulkRequest{
		{Act: fleet.BulkTag, Tags: []string{"lab"}},
		{Act: fleet.BulkUntag, Tags: []string{"lab"}},
		{Act: fleet.BulkHold, Reason: "bench"},
		{Act: fleet.BulkRelease},
		{Act: fleet.BulkRetire, Confirm: n},
	} {
		r.Actor = root
		start := time.Now()
		p, err := devices.PreviewBulk(t.Context(), r)
		check(t, err)
		previewed := time.Since(start)
		start = time.Now()
		done, err := devices.Bulk(t.Context(), r)
		check(t, err)
		took := time.Since(start)
		t.Logf("%s of %d devices: preview %v, act %v", r.Act, n, previewed.Round(time.Millisecond),
			took.Round(time.Millisecond))
		if p.Targets != n || done.Targets != n {
			t.Errorf("%s: preview of %d, done %d, want %d", r.Act, p.Targets, done.Targets, n)
		}
		fleettest.Within(t, string(r.Act), took, 2*time.Minute)
	}
}
