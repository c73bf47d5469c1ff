package postgres

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"fleetd/fleet"
	"fleetd/fleet/history"
)

var _ history.Store = (*Store)(nil)

// HistoryBegin returns how far the history goes back.
func (s *Store) HistoryBegin(ctx context.Context) (b history.Begin, err error) {
	if err := s.db.QueryRow(ctx, `SELECT at, versions_at FROM history_start`).Scan(&b.States, &b.Versions); err != nil {
		return b, fmt.Errorf("beginning of the history: %w", domainError(err))
	}
	b.States, b.Versions = b.States.UTC(), b.Versions.UTC()
	return b, nil
}

// stateRows are states with all that they refer to.
const stateRows = `
	SELECT s.number, n.device_id AS id, s.begun_at AS since, s.hold_since, s.hold_until,
		coalesce(s.hold_reason, '') AS hold_reason, p.kind, n.name, p.board, p.chip, p.version, t.tags, p.enrolment,
		NOT p.in_service AS retired, coalesce(p.inventory_id, '') AS inventory,
		coalesce(cardinality(i.tool_names), 0) AS tools_count
	FROM device_states s
		JOIN device_names n ON n.number = s.number AND n.begun_at <= s.begun_at AND n.ended_at > s.begun_at
		JOIN device_profiles p ON p.id = s.profile_id
		JOIN device_tag_sets t ON t.id = s.tags_id
		LEFT JOIN inventories i ON i.id = p.inventory_id `

// A stateRow is a state as stored: its hold may have ended before the state did.
type stateRow struct {
	Number int32
	history.Device
}

func (r stateRow) device(at time.Time) history.Device {
	d := r.Device
	d.Since = d.Since.UTC()
	if d.HoldUntil != nil && !d.HoldUntil.After(at) {
		d.HoldSince, d.HoldUntil, d.HoldReason = nil, nil, ""
	}
	return d
}

// statesAsOf returns what devices were at a moment, by number.
func (s *Store) statesAsOf(ctx context.Context, c *fleetColumns, numbers []int32) (map[int32]history.Device, error) {
	rows, _ := s.db.Query(ctx, stateRows+`WHERE s.number = ANY ($1) AND s.begun_at <= $2 AND s.ended_at > $2`, numbers, c.at)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[stateRow])
	if err != nil {
		return nil, fmt.Errorf("%d devices as of %s: %w", len(numbers), c.at, domainError(err))
	}
	states := make(map[int32]history.Device, len(found))
	for _, r := range found {
		d := r.device(c.at)
		d.Presence = framePresences[c.presence.at(int(r.Number))]
		states[r.Number] = d
	}
	return states, nil
}

// A pastPlace is the position of a device in a list.
type pastPlace struct {
	Number int32
	ID     fleet.DeviceID
	Title  string
}

// fewDevices is the number up to which devices are sorted; of more, an index of all is walked until the page is full.
const fewDevices = 2000

// Orders of lists of the past.
const (
	byTitle = "title_key, device_id"
	byID    = "device_id"
)

// pastPlaces returns the places of some devices at a moment in an order, from a cursor on.
func (s *Store) pastPlaces(ctx context.Context, at time.Time, bits deviceBits, order string, from *cursor, limit int) (
	[]pastPlace, error) {
	var w where
	if order == byID {
		w.and("ended_at = 'infinity'")
	} else {
		w.and("begun_at <= ? AND ended_at > ?", at, at)
	}
	if n := bits.count(); n <= fewDevices {
		numbers := make([]int32, 0, n)
		for number := range bits.all {
			numbers = append(numbers, int32(number))
		}
		w.and("number = ANY (?)", numbers)
	} else {
		w.and("CASE WHEN number < ? THEN get_bit(?::bytea, number) = 1 ELSE false END", 8*len(bits), []byte(bits))
	}
	compare := ">"
	if from.back() {
		order, compare = strings.ReplaceAll(order, ",", " DESC,")+" DESC", "<"
	}
	switch {
	case from != nil && order == byID:
		w.and("device_id > ?", from.ID)
	case from != nil:
		w.and("(title_key, device_id) "+compare+" (?, ?)", from.Key, from.ID)
	}
	rows, _ := s.db.Query(ctx, `SELECT number, device_id AS id, title_key AS title FROM device_names`+w.String()+
		` ORDER BY `+order+` LIMIT `+w.arg(limit+1), w.args...)
	return pgx.CollectRows(rows, pgx.RowToStructByName[pastPlace])
}

func numbersOf(places []pastPlace) []int32 {
	return collect(places, func(p pastPlace) int32 { return p.Number })
}

// PastDevices lists the devices of a moment by name.
func (s *Store) PastDevices(ctx context.Context, f history.Filter) (fleet.Page[history.Device], error) {
	none := fleet.Page[history.Device]{}
	from, err := parseCursor(f.Cursor, "past_devices")
	if err != nil {
		return none, err
	}
	c, bits, err := s.matching(ctx, f.At, f.Query)
	if err != nil {
		return none, err
	}
	limit := fleet.ClampLimit(f.Limit)
	found, err := s.pastPlaces(ctx, f.At, bits, byTitle, from, limit)
	if err != nil {
		return none, fmt.Errorf("devices as of %s: %w", f.At, domainError(err))
	}
	page := makePage(found, limit, from, func(p pastPlace) cursor {
		return cursor{List: "past_devices", Key: p.Title, ID: string(p.ID)}
	})
	states, err := s.statesAsOf(ctx, c, numbersOf(page.Items))
	if err != nil {
		return none, err
	}
	list := mapPage(page, func(p pastPlace) history.Device { return states[p.Number] })
	// A device may have been deleted since it was found.
	list.Items = slices.DeleteFunc(list.Items, func(d history.Device) bool { return d.ID == "" })
	return list, nil
}

// CountPast counts the devices of a moment.
func (s *Store) CountPast(ctx context.Context, at time.Time, q fleet.Query) (int, error) {
	_, bits, err := s.matching(ctx, at, q)
	return bits.count(), err
}

// PastCounts breaks the devices of a moment down.
func (s *Store) PastCounts(ctx context.Context, at time.Time, q fleet.Query) (counts history.Counts, err error) {
	c, bits, err := s.matching(ctx, at, q)
	if err != nil {
		return counts, err
	}
	held, err := s.holdsAsOf(ctx, at)
	if err != nil {
		return counts, err
	}
	profiles, tagSets, presences := map[int32]int{}, map[int32]int{}, map[string]int{}
	for n := range bits.all {
		counts.Total++
		profiles[c.profiles[n]]++
		tagSets[c.tags[n]]++
		presences[string(framePresences[c.presence.at(n)])]++
		if _, ok := held[int32(n)]; ok {
			counts.Held++
		}
	}
	versions, boards, tags := map[string]int{}, map[string]int{}, map[string]int{}
	known, err := s.profiles(ctx, slices.Collect(maps.Keys(profiles)))
	if err != nil {
		return counts, err
	}
	for id, n := range profiles {
		versions[known[id].Version] += n
		boards[known[id].Board] += n
	}
	sets, err := s.tagSets(ctx, slices.Collect(maps.Keys(tagSets)))
	if err != nil {
		return counts, err
	}
	for id, n := range tagSets {
		for _, tag := range sets[id] {
			tags[tag] += n
		}
	}
	counts.Versions, counts.Boards, counts.Presence = largest(versions), largest(boards), largest(presences)
	counts.Tags = largest(tags)
	return counts, nil
}

// largest returns the values with the largest counts.
func largest(counts map[string]int) []fleet.DeviceCount {
	list := make([]fleet.DeviceCount, 0, len(counts))
	for value, n := range counts {
		list = append(list, fleet.DeviceCount{Value: value, Count: n})
	}
	slices.SortFunc(list, func(a, b fleet.DeviceCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Value, b.Value))
	})
	return list[:min(len(list), history.MaxCounts)]
}

// A deviceProfile is a row of device_profiles, as far as it is counted and compared.
type deviceProfile struct {
	ID             int32
	InService      bool
	Board, Version string
	Enrolment      fleet.Enrolment
	Inventory      string
}

func (s *Store) profiles(ctx context.Context, ids []int32) (map[int32]deviceProfile, error) {
	rows, _ := s.db.Query(ctx, `SELECT id, in_service, board, version, enrolment, coalesce(inventory_id, '') FROM device_profiles
		WHERE id = ANY ($1)`, ids)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deviceProfile])
	if err != nil {
		return nil, fmt.Errorf("%d profiles: %w", len(ids), domainError(err))
	}
	profiles := make(map[int32]deviceProfile, len(list))
	for _, p := range list {
		profiles[p.ID] = p
	}
	return profiles, nil
}

func (s *Store) tagSets(ctx context.Context, ids []int32) (map[int32][]string, error) {
	rows, _ := s.db.Query(ctx, `SELECT id, tags FROM device_tag_sets WHERE id = ANY ($1)`, ids)
	sets := make(map[int32][]string, len(ids))
	var id int32
	var tags []string
	_, err := pgx.ForEachRow(rows, []any{&id, &tags}, func() error {
		sets[id] = slices.Clone(tags)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%d sets of tags: %w", len(ids), domainError(err))
	}
	return sets, nil
}

// holdsAsOf returns the reasons of the holds in force at a moment, by the number of the device.
func (s *Store) holdsAsOf(ctx context.Context, at time.Time) (map[int32]string, error) {
	rows, _ := s.db.Query(ctx, `SELECT number, hold_reason FROM device_states WHERE hold_since IS NOT NULL AND ended_at > $1
		AND begun_at <= $1 AND (hold_until IS NULL OR hold_until > $1)`, at)
	holds := map[int32]string{}
	var number int32
	var reason string
	_, err := pgx.ForEachRow(rows, []any{&number, &reason}, func() error {
		holds[number] = reason
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("holds as of %s: %w", at, domainError(err))
	}
	return holds, nil
}

// VersionSeries counts the devices in service that have joined and run firmware at moments.
func (s *Store) VersionSeries(ctx context.Context, moments []time.Time, q fleet.Query) (
	[]history.Series, error) {
	count := s.countAll
	if _, narrow := fleet.ScopeOf(ctx); narrow || !q.Empty() {
		count = func(ctx context.Context, moments []time.Time) (map[int32][]int, error) {
			return s.countMatching(ctx, moments, q)
		}
	}
	counts, err := count(ctx, moments)
	if err != nil {
		return nil, fmt.Errorf("versions from %s: %w", moments[0], domainError(err))
	}
	rows, _ := s.db.Query(ctx, `SELECT id, version FROM device_profiles WHERE id = ANY ($1) AND `+isCounted,
		slices.Collect(maps.Keys(counts)))
	series := map[string][]int{}
	var profile int32
	var version string
	_, err = pgx.ForEachRow(rows, []any{&profile, &version}, func() error {
		if series[version] == nil {
			series[version] = make([]int, len(moments))
		}
		for i, n := range counts[profile] {
			series[version][i] += n
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("versions of %d profiles: %w", len(counts), domainError(err))
	}
	all := make([]history.Series, 0, len(series))
	for version, counts := range series {
		all = append(all, history.Series{Version: version, Counts: counts})
	}
	return all, nil
}

// countAll counts all devices by profile at moments. It adds the changes since the latest stored counts, or since the
// moment before if that is later.
func (s *Store) countAll(ctx context.Context, moments []time.Time) (map[int32][]int, error) {
	type stored struct {
		Moment            int
		At                time.Time
		Profiles, Devices []int32
	}
	rows, _ := s.db.Query(ctx, `
		SELECT m.n - 1, c.at, c.profiles, c.devices FROM unnest($1::timestamptz[]) WITH ORDINALITY m (at, n),
			LATERAL (SELECT * FROM profile_counts WHERE at <= m.at ORDER BY at DESC LIMIT 1) c`, moments)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stored])
	if err != nil {
		return nil, err
	}
	since := append([]time.Time{{}}, moments[:len(moments)-1]...)
	bases := map[int]stored{}
	for _, b := range found {
		if b.At.After(since[b.Moment]) {
			since[b.Moment], bases[b.Moment] = b.At, b
		}
	}
	rows, _ = s.db.Query(ctx, `
		SELECT m.n - 1, c.profile, sum(c.by)::int
		FROM unnest($1::timestamptz[], $2::timestamptz[]) WITH ORDINALITY m (since, until, n), LATERAL (
			SELECT profile_id, 1 FROM device_states WHERE begun_at > m.since AND begun_at <= m.until
			UNION ALL SELECT profile_id, -1 FROM device_states WHERE ended_at > m.since AND ended_at <= m.until) c (profile, by)
		GROUP BY 1, 2`, since, moments)
	type change struct {
		profile int32
		by      int
	}
	changes := make([][]change, len(moments))
	var moment int
	var c change
	_, err = pgx.ForEachRow(rows, []any{&moment, &c.profile, &c.by}, func() error {
		changes[moment] = append(changes[moment], c)
		return nil
	})
	if err != nil {
		return nil, err
	}
	counts, now := map[int32][]int{}, map[int32]int{}
	for i := range moments {
		if base, ok := bases[i]; ok {
			clear(now)
			for j, p := range base.Profiles {
				now[p] = int(base.Devices[j])
			}
		}
		for _, c := range changes[i] {
			now[c.profile] += c.by
		}
		for p, n := range now {
			if counts[p] == nil {
				counts[p] = make([]int, len(moments))
			}
			counts[p][i] = n
		}
	}
	return counts, nil
}

// countMatching counts the devices that match a query now by profile at moments.
func (s *Store) countMatching(ctx context.Context, moments []time.Time, q fleet.Query) (map[int32][]int, error) {
	var of where
	of.terms(q, time.Now())
	of.scope(ctx)
	first, last := of.arg(moments[0]), of.arg(moments[len(moments)-1])
	rows, _ := s.db.Query(ctx, `
		SELECT begun_at, ended_at, profile_id FROM device_states WHERE begun_at <= `+last+` AND ended_at > `+first+`
		AND number IN (SELECT number FROM device_names WHERE ended_at = 'infinity' AND device_id IN (
			SELECT id FROM devices`+of.String()+`))`, of.args...)
	counts := map[int32][]int{}
	add := func(profile int32, at time.Time, by int) {
		if counts[profile] == nil {
			counts[profile] = make([]int, len(moments))
		}
		if i, _ := slices.BinarySearchFunc(moments, at, time.Time.Compare); i < len(moments) {
			counts[profile][i] += by // from the first moment that is not before the change
		}
	}
	var begun time.Time
	var ended pgtype.Timestamptz
	var profile int32
	_, err := pgx.ForEachRow(rows, []any{&begun, &ended, &profile}, func() error {
		add(profile, begun, 1)
		if ended.InfinityModifier == pgtype.Finite {
			add(profile, ended.Time, -1)
		}
		return nil
	})
	for _, list := range counts {
		for i := 1; i < len(list); i++ {
			list[i] += list[i-1]
		}
	}
	return counts, err
}

// DeviceStates lists the states of a device, newest first.
func (s *Store) DeviceStates(ctx context.Context, id fleet.DeviceID, since time.Time, limit int) (
	[]history.Device, error) {
	scoped, args := scopedTo(ctx, "device_id", cleanText(string(id)), since, limit)
	rows, _ := s.db.Query(ctx, stateRows+`
		WHERE s.ended_at > $2
			AND s.number = (SELECT number FROM device_names WHERE ended_at = 'infinity' AND device_id = $1`+scoped+`)
		ORDER BY s.begun_at DESC LIMIT $3`, args...)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[stateRow])
	if err == nil && len(found) == 0 {
		err = pgx.ErrNoRows
	}
	if err != nil {
		return nil, fmt.Errorf("states of device %s: %w", id, domainError(err))
	}
	return collect(found, func(r stateRow) history.Device { return r.device(r.Since) }), nil
}

// forgetStates deletes what was before the cutoff, and moves the beginning of the history there: to a frame, which
// has the presences from then on.
func (s *Store) forgetStates(ctx context.Context, before time.Time) (removed int64, err error) {
	var states, versions time.Time
	err = s.db.QueryRow(ctx, `
		UPDATE history_start h SET at = moved.at, versions_at = greatest(h.versions_at, least($1, moved.at))
		FROM (SELECT greatest(at, (SELECT min(f.at) FROM fleet_frames f WHERE f.at >= $1)) AS at FROM history_start) moved
		RETURNING h.at, h.versions_at`, before).Scan(&states, &versions)
	if err != nil {
		return 0, fmt.Errorf("move the beginning of the history: %w", domainError(err))
	}
	for _, t := range []struct {
		name, column string
		before       time.Time
	}{{"device_states", "ended_at", versions}, {"device_names", "ended_at", states}, {"fleet_frames", "at", states},
		{"profile_counts", "at", versions}, {"device_removals", "removed_at", states.Add(-frameSlack)}} {
		n, err := s.deleteBefore(ctx, t.name, t.column, t.before)
		if err != nil {
			return removed, err
		}
		removed += n
	}
	return removed, nil
}

// SweepHistory marks profiles and sets of tags that no state uses, and deletes those that were marked an hour ago: a
// transaction that chose one before it was marked has ended by then.
func (s *Store) SweepHistory(ctx context.Context) error {
	for table, column := range map[string]string{"device_profiles": "profile_id", "device_tag_sets": "tags_id"} {
		unused := `NOT EXISTS (SELECT FROM device_states WHERE ` + column + ` = t.id)`
		_, err := s.db.Exec(ctx, `DELETE FROM `+table+` t WHERE unused_since < now() - interval '1 hour' AND `+unused)
		if err == nil {
			_, err = s.db.Exec(ctx, `UPDATE `+table+` t SET unused_since = now() WHERE unused_since IS NULL AND `+unused)
		}
		if err != nil {
			return fmt.Errorf("sweep %s: %w", table, domainError(err))
		}
	}
	return nil
}
