package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

// framePresences are the presences by their byte in frames.
var framePresences = []fleet.Presence{fleet.PresencePending, fleet.PresenceOnline, fleet.PresenceUnresponsive,
	fleet.PresenceUnknownEdge, fleet.PresenceOffline}

// frameSlack is longer than a transaction, or a change of presence that waits to be written, takes: a frame may lack
// changes this old.
const frameSlack = 5 * time.Minute

// A byNumber has a value for each device, by the number of the device. Devices beyond its end have zero.
type byNumber[T byte | int32] []T

func (c *byNumber[T]) set(number int32, v T) {
	if n := int(number) + 1; n > len(*c) {
		*c = append(*c, make([]T, n-len(*c))...)
	}
	(*c)[number] = v
}

func (c byNumber[T]) at(number int) (v T) {
	if number < len(c) {
		return c[number]
	}
	return v
}

// fleetColumns are all devices at a moment. A device without a profile did not exist then.
type fleetColumns struct {
	at             time.Time
	profiles, tags byNumber[int32]
	presence       byNumber[byte]
}

// fleetAsOf returns all devices of a moment: the latest frame, and the changes since then.
func (s *Store) fleetAsOf(ctx context.Context, at time.Time) (*fleetColumns, error) {
	c := &fleetColumns{at: at}
	if err := s.addChanges(ctx, c); err != nil {
		return nil, fmt.Errorf("fleet as of %s: %w", at, domainError(err))
	}
	return c, nil
}

func (s *Store) addChanges(ctx context.Context, c *fleetColumns) error {
	var frame time.Time
	var profiles, tags []byte
	err := s.db.QueryRow(ctx, `
		SELECT at, presence, profiles, tags FROM fleet_frames WHERE at <= $1 ORDER BY at DESC LIMIT 1`, c.at).
		Scan(&frame, (*[]byte)(&c.presence), &profiles, &tags)
	if err != nil {
		return err
	}
	c.profiles, c.tags = readColumn(profiles), readColumn(tags)
	since := frame.Add(-frameSlack)
	var b pgx.Batch
	queueEach(&b, func(r struct{ Number, Profile, Tags int32 }) {
		c.profiles.set(r.Number, r.Profile)
		c.tags.set(r.Number, r.Tags)
	}, `SELECT number, profile_id, tags_id FROM device_states WHERE begun_at > $1 AND begun_at <= $2 ORDER BY begun_at`,
		since, c.at)
	queueEach(&b, func(r struct{ Number int32 }) { c.profiles.set(r.Number, 0) },
		`SELECT number FROM device_removals WHERE removed_at > $1`, since)
	queueEach(&b, func(r struct {
		Number   int32
		Presence fleet.Presence
	}) {
		c.presence.set(r.Number, presenceByte(r.Presence))
	}, `SELECT coalesce((SELECT number FROM device_names n WHERE n.device_id = c.device_id AND n.ended_at = 'infinity'), 0),
			presence
		FROM presence_changes c WHERE at > $1 AND at <= $2 ORDER BY at`, since, c.at)
	return s.db.SendBatch(ctx, &b).Close()
}

// queueEach adds a query whose rows are handed to a function.
func queueEach[T any](b *pgx.Batch, each func(T), sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			v, err := pgx.RowToStructByPos[T](rows)
			if err != nil {
				return err
			}
			each(v)
		}
		return rows.Err()
	})
}

func presenceByte(p fleet.Presence) byte { return byte(max(slices.Index(framePresences, p), 0)) }

func readColumn(b []byte) byNumber[int32] {
	c := make(byNumber[int32], len(b)/4)
	for i := range c {
		c[i] = int32(binary.BigEndian.Uint32(b[4*i:]))
	}
	return c
}

func writeColumn(c byNumber[int32]) []byte {
	b := make([]byte, 0, 4*len(c))
	for _, v := range c {
		b = binary.BigEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// deviceBits are some devices, by number: those whose bit is 1, in the order of PostgreSQL's get_bit.
type deviceBits []byte

func newDeviceBits(devices int) deviceBits { return make(deviceBits, (devices+7)/8) }

func (b deviceBits) add(number int) { b[number/8] |= 1 << (number % 8) }

func (b deviceBits) has(number int) bool {
	return number/8 < len(b) && b[number/8]&(1<<(number%8)) != 0
}

// all iterates over the numbers.
func (b deviceBits) all(yield func(int) bool) {
	for i := range 8 * len(b) {
		if b.has(i) && !yield(i) {
			return
		}
	}
}

func (b deviceBits) count() (n int) {
	for range b.all {
		n++
	}
	return n
}

// FrameFleet stores all devices as they are, for questions about moments from now on. Of frames older than two days
// the first of six hours stays.
func (s *Store) FrameFleet(ctx context.Context, now time.Time) error {
	c := fleetColumns{at: now}
	rows, _ := s.db.Query(ctx, `
		SELECT n.number, s.profile_id, s.tags_id, d.presence
		FROM device_names n JOIN devices d ON d.id = n.device_id
			JOIN device_states s ON s.number = n.number AND s.begun_at <= $1 AND s.ended_at > $1
		WHERE n.ended_at = 'infinity'`, now)
	var number, profile, tags int32
	var presence fleet.Presence
	_, err := pgx.ForEachRow(rows, []any{&number, &profile, &tags, &presence}, func() error {
		c.profiles.set(number, profile)
		c.tags.set(number, tags)
		c.presence.set(number, presenceByte(presence))
		return nil
	})
	if err == nil {
		_, err = s.db.Exec(ctx, `INSERT INTO fleet_frames (at, presence, profiles, tags) VALUES ($1, $2, $3, $4)
			ON CONFLICT DO NOTHING`, now, append([]byte{}, c.presence...), writeColumn(c.profiles), writeColumn(c.tags))
	}
	if err != nil {
		return fmt.Errorf("frame of the fleet: %w", domainError(err))
	}
	if err := s.countProfiles(ctx, now.Add(-frameSlack)); err != nil {
		return err
	}
	return s.thinFrames(ctx, now)
}

func (s *Store) thinFrames(ctx context.Context, now time.Time) error {
	_, err := s.db.Exec(ctx, `
		DELETE FROM fleet_frames WHERE at IN (SELECT at FROM (
			SELECT at, row_number() OVER (PARTITION BY date_bin($2, at, '2000-01-01Z') ORDER BY at) AS n
			FROM fleet_frames WHERE at < $1) old WHERE n > 1)`, now.Add(-framesKept).Truncate(frameStep), frameStep)
	if err != nil {
		return fmt.Errorf("delete old frames: %w", domainError(err))
	}
	return nil
}

const (
	framesKept = 2 * 24 * time.Hour // how long each frame is kept
	frameStep  = 6 * time.Hour      // between those that stay
	countStep  = time.Hour          // between stored counts, at most
)

// A profileChange is how the number of devices with a profile changes at a moment.
type profileChange struct {
	At      time.Time
	Profile int32
	By      int
}

// profileChanges are the changes within a period: a state counts from its beginning until its end.
const profileChanges = `
	SELECT begun_at, profile_id, 1 FROM device_states WHERE begun_at > $1 AND begun_at <= $2
	UNION ALL SELECT ended_at, profile_id, -1 FROM device_states WHERE ended_at > $1 AND ended_at <= $2`

// isCounted is whether devices with a profile are counted: those in service that have joined and run firmware. Of the
// time before the history began, the enrolment is not known.
const isCounted = `(in_service AND enrolment IN ('` + string(fleet.EnrolmentEnrolled) + `', '') AND kind NOT IN ('` +
	string(fleet.DevicePlugin) + `', '` + string(fleet.DeviceEndpoint) + `'))`

// countProfiles stores how many devices had which profile at a moment, from the latest moment that has it on. Of the
// time before the history began, each step is stored.
func (s *Store) countProfiles(ctx context.Context, at time.Time) error {
	begun, counts, err := s.profileCounts(ctx, at)
	if err != nil {
		return err
	}
	step := begun
	if begun.IsZero() {
		err = s.db.QueryRow(ctx, `SELECT versions_at FROM history_start`).Scan(&step)
		if err != nil {
			return fmt.Errorf("beginning of the history: %w", domainError(err))
		}
	}
	rows, _ := s.db.Query(ctx, `SELECT c.* FROM (`+profileChanges+`) c (at, profile, by)
		WHERE profile IN (SELECT id FROM device_profiles WHERE `+isCounted+`) ORDER BY at`, begun, at)
	var c profileChange
	var b pgx.Batch
	store := func(at time.Time) {
		var profiles, devices []int32
		for p, n := range counts {
			if n != 0 {
				profiles, devices = append(profiles, p), append(devices, int32(n))
			}
		}
		b.Queue(`INSERT INTO profile_counts (at, profiles, devices) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, at,
			append([]int32{}, profiles...), append([]int32{}, devices...))
	}
	next := step.Add(countStep)
	_, err = pgx.ForEachRow(rows, []any{&c.At, &c.Profile, &c.By}, func() error {
		for ; c.At.After(next); next = next.Add(countStep) {
			store(next)
		}
		counts[c.Profile] += c.By
		return nil
	})
	if err == nil {
		store(at)
		err = s.db.SendBatch(ctx, &b).Close()
	}
	if err != nil {
		return fmt.Errorf("counts of profiles: %w", domainError(err))
	}
	return nil
}

// profileCounts returns the latest stored counts that are not later than a moment, and their time.
func (s *Store) profileCounts(ctx context.Context, at time.Time) (time.Time, map[int32]int, error) {
	var of time.Time
	var profiles, devices []int32
	err := s.db.QueryRow(ctx, `SELECT at, profiles, devices FROM profile_counts WHERE at <= $1 ORDER BY at DESC LIMIT 1`, at).
		Scan(&of, &profiles, &devices)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return of, nil, fmt.Errorf("counts of profiles: %w", domainError(err))
	}
	counts := make(map[int32]int, len(profiles))
	for i, p := range profiles {
		counts[p] = int(devices[i])
	}
	return of, counts, nil
}
