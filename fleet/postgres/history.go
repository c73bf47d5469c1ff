package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

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

// stateColumns are those of states in devices and in device_states.
const stateColumns = `hold_since, hold_until, tools_count, in_service, title_key, name_key, board_key, tags_key, version,
	version_key, inventory_id, chip, kind, enrolment, name, board, tags, hold_reason`

// asOf returns the states of a moment as a table with the columns of devices, so that the conditions of a query about
// devices apply to it, too.
func asOf(at string) string {
	return `(SELECT id, state_since AS since, ` + stateColumns + ` FROM devices WHERE state_since <= ` + at + `
		UNION ALL SELECT device_id, since, ` + stateColumns + ` FROM device_states WHERE since <= ` + at + ` AND until > ` +
		at + `) devices`
}

// frameSlack is longer than a change of presence waits until it is stored: a frame may lack changes this old.
const frameSlack = "interval '5 minutes'"

// presenceAsOf returns two parts of a WITH clause: framed has the presences of the latest frame, changed those of the
// devices that changed since then.
func presenceAsOf(at, name string) string {
	frame := `(SELECT coalesce(max(at), '-infinity') FROM presence_frames WHERE at <= ` + at + `)`
	return `framed` + name + ` AS (SELECT unnest(devices) AS id, presence FROM presence_frames WHERE at = ` + frame + `),
		changed` + name + ` AS MATERIALIZED (SELECT DISTINCT ON (device_id) device_id AS id, presence FROM presence_changes
			WHERE at > ` + frame + ` - ` + frameSlack + ` AND at <= ` + at + ` ORDER BY device_id, presence_changes.at DESC)`
}

// present joins a table with the parts of presenceAsOf. A device without any was never connected.
func present(table, name string) string {
	return `(SELECT devices.*, coalesce(changed.presence, framed.presence, 'pending') AS presence
		FROM ` + table + ` LEFT JOIN framed` + name + ` framed ON framed.id = devices.id
			LEFT JOIN changed` + name + ` changed ON changed.id = devices.id) devices`
}

// askPast runs a statement over all devices of a moment, and hands its rows to scan. The planner cannot know how many
// devices a frame of presence has; were it to walk through it once for each device, an answer would take minutes.
func (s *Store) askPast(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	return pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL enable_nestloop = off; SET LOCAL work_mem = '32MB'`); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, sql, args...)
		return scan(rows)
	})
}

// eachPast is [Store.askPast] with a function that is called for each row.
func (s *Store) eachPast(ctx context.Context, sql string, args, into []any, each func() error) error {
	return s.askPast(ctx, sql, args, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, into, each)
		return err
	})
}

// pastStates is [Store.askPast] for rows that are states.
func (s *Store) pastStates(ctx context.Context, sql string, args []any) (found []stateRow, err error) {
	err = s.askPast(ctx, sql, args, func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByName[stateRow])
		return err
	})
	return found, err
}

// past adds the conditions of a query about a moment, and of the scope: what a device is now decides whether it
// exists for the principal.
func (w *where) past(ctx context.Context, q fleet.Query, at time.Time) {
	w.query(q, at)
	w.scopeOf(ctx, "id")
}

type stateRow struct {
	ID                                   fleet.DeviceID
	Since                                time.Time
	HoldSince, HoldUntil                 *time.Time
	ToolsCount                           int
	InService                            bool
	Version, Chip, Name, Board           string
	InventoryID, HoldReason              *string
	Kind                                 fleet.DeviceKind
	Enrolment                            fleet.Enrolment
	Tags                                 []string
	Presence                             fleet.Presence
	TitleKey, NameKey, BoardKey, TagsKey string
	VersionKey                           []int64
}

func (r stateRow) device(at time.Time) history.Device {
	d := history.Device{ID: r.ID, Kind: r.Kind, Name: r.Name, Board: r.Board, Chip: r.Chip, Version: r.Version,
		Tags: r.Tags, Enrolment: r.Enrolment, Retired: !r.InService, ToolsCount: r.ToolsCount, Presence: r.Presence,
		Since: r.Since.UTC()}
	if r.InventoryID != nil {
		d.Inventory = *r.InventoryID
	}
	if r.HoldSince != nil && (r.HoldUntil == nil || r.HoldUntil.After(at)) {
		d.HoldSince, d.HoldUntil, d.HoldReason = r.HoldSince, r.HoldUntil, *r.HoldReason
	}
	return d
}

// PastDevices lists the devices of a moment by name.
func (s *Store) PastDevices(ctx context.Context, f history.Filter) (fleet.Page[history.Device], error) {
	none := fleet.Page[history.Device]{}
	from, err := parseCursor(f.Cursor, "past_devices")
	if err != nil {
		return none, err
	}
	var w where
	at := w.arg(f.At) + "::timestamptz"
	table, key := asOf(at), "title_key"
	if !f.Query.Empty() {
		key = "(title_key || '')" // see [Store.Devices]
	}
	if f.Query.Asks("presence") {
		table = present(table, "")
	}
	w.past(ctx, f.Query, f.At)
	direction, compare := " ASC", ">"
	if from.back() {
		direction, compare = " DESC", "<"
	}
	if from != nil {
		w.and("("+key+", id) "+compare+" (?::text, ?)", from.Key, from.ID)
	}
	limit := fleet.ClampLimit(f.Limit)
	order := ` ORDER BY title_key` + direction + `, id` + direction
	page := `SELECT id, since, ` + stateColumns + ` FROM ` + table + w.String() +
		` ORDER BY ` + key + direction + `, id` + direction + ` LIMIT ` + w.arg(limit+1)
	found, err := s.pastStates(ctx, `WITH `+presenceAsOf(at, "")+`, found AS MATERIALIZED (`+page+`) SELECT * FROM `+
		present("found devices", "")+order, w.args)
	if err != nil {
		return none, fmt.Errorf("devices as of %s: %w", f.At, domainError(err))
	}
	return mapPage(makePage(found, limit, from, func(r stateRow) cursor {
		return cursor{List: "past_devices", Key: r.TitleKey, ID: string(r.ID)}
	}), func(r stateRow) history.Device { return r.device(f.At) }), nil
}

// CountPast counts the devices of a moment.
func (s *Store) CountPast(ctx context.Context, at time.Time, q fleet.Query) (n int, err error) {
	var w where
	moment := w.arg(at) + "::timestamptz"
	table, with := asOf(moment), ""
	if q.Asks("presence") {
		table, with = present(table, ""), "WITH "+presenceAsOf(moment, "")
	}
	w.past(ctx, q, at)
	err = s.askPast(ctx, with+` SELECT count(*) FROM `+table+w.String(), w.args, func(rows pgx.Rows) (err error) {
		n, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("count devices as of %s: %w", at, domainError(err))
	}
	return n, nil
}

// isHeld is whether the hold of a state is in force.
func isHeld(at string) string {
	return `(hold_since IS NOT NULL AND (hold_until IS NULL OR hold_until > ` + at + `))`
}

// PastCounts breaks the devices of a moment down, in one pass.
func (s *Store) PastCounts(ctx context.Context, at time.Time, q fleet.Query) (history.Counts, error) {
	var w where
	moment := w.arg(at) + "::timestamptz"
	w.past(ctx, q, at)
	// GROUPING returns the bits of what is not grouped by.
	const all, byVersion, byBoard, byPresence, byTags, byHold = 31, 15, 23, 27, 29, 30
	sql := fmt.Sprintf(`WITH %s, grouped AS MATERIALIZED (
			SELECT GROUPING(version, board, presence, tags, held) AS part, version, board, presence, tags, held,
				count(*)::int AS n
			FROM (SELECT version, board, presence, tags, %s AS held FROM %s%s) devices
			GROUP BY GROUPING SETS ((), (version), (board), (presence), (tags), (held))),
		counted AS (SELECT part, coalesce(version, board, presence, held::text, '') AS value, n FROM grouped WHERE part <> %d
			UNION ALL SELECT part, tag, sum(n)::int FROM grouped, unnest(tags) AS tag WHERE part = %[5]d GROUP BY part, tag)
		SELECT part, value, n FROM (
			SELECT *, row_number() OVER (PARTITION BY part ORDER BY n DESC, value) AS place FROM counted) ranked
		WHERE place <= %d ORDER BY part, place`, presenceAsOf(moment, ""), isHeld(moment), present(asOf(moment), ""),
		w.String(), byTags, history.MaxCounts)
	var c history.Counts
	var part int
	var one fleet.DeviceCount
	err := s.eachPast(ctx, sql, w.args, []any{&part, &one.Value, &one.Count}, func() error {
		switch part {
		case all:
			c.Total = one.Count
		case byVersion:
			c.Versions = append(c.Versions, one)
		case byBoard:
			c.Boards = append(c.Boards, one)
		case byPresence:
			c.Presence = append(c.Presence, one)
		case byTags:
			c.Tags = append(c.Tags, one)
		case byHold:
			if one.Value == "true" {
				c.Held = one.Count
			}
		}
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("counts as of %s: %w", at, domainError(err))
	}
	return c, nil
}

// changedFields are conditions on a state before (b) and after (a).
var changedFields = map[history.Field]string{
	history.FieldAdded: "b.id IS NULL", history.FieldRemoved: "a.id IS NULL", history.FieldVersion: "a.version <> b.version",
	history.FieldName: "a.name <> b.name", history.FieldBoard: "a.board <> b.board", history.FieldTags: "a.tags <> b.tags",
	history.FieldEnrolment: "a.enrolment <> b.enrolment", history.FieldPresence: "a.presence <> b.presence",
	history.FieldTools: "a.id IS NOT NULL AND b.id IS NOT NULL AND a.inventory_id IS DISTINCT FROM b.inventory_id",
	history.FieldHold:  "a.held <> b.held OR a.held AND a.hold_reason <> b.hold_reason",
}

// DiffStates lists the devices in service that differ between two moments by id, and counts them.
func (s *Store) DiffStates(ctx context.Context, f history.DiffFilter) (history.Diff, error) {
	d := history.Diff{Counts: map[history.Field]int{}}
	at, err := parseCursor(f.Cursor, "past_changes")
	if err == nil && at.back() {
		err = fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
	}
	if err != nil {
		return d, err
	}
	var w where
	side := func(moment time.Time, name string) (with, table string) {
		m := w.arg(moment) + "::timestamptz"
		inner := where{args: w.args}
		inner.terms(f.Query, moment)
		hit := "true"
		if len(inner.conds) > 0 {
			hit = strings.Join(inner.conds, " AND ")
		}
		outer := where{args: inner.args}
		outer.and("in_service")
		outer.scopeOf(ctx, "id")
		w.args = outer.args
		return presenceAsOf(m, name), `(SELECT *, ` + isHeld(m) + ` AS held, ` + hit + ` AS hit FROM ` +
			present(asOf(m), name) + outer.String() + `)`
	}
	withB, before := side(f.From, "b")
	withA, after := side(f.To, "a")
	fields := make([]string, len(history.Fields))
	for i, field := range history.Fields {
		fields[i] = `CASE WHEN ` + changedFields[field] + ` THEN '` + string(field) + `' END`
	}
	from := ""
	if at != nil {
		from = at.ID
	}
	limit := fleet.ClampLimit(f.Limit)
	only := w.arg(string(f.Field))
	sql := `WITH ` + withB + `, ` + withA + `,
		differing AS MATERIALIZED (SELECT id, fields FROM (
			SELECT coalesce(a.id, b.id) AS id, array_remove(ARRAY[` + strings.Join(fields, ", ") + `], NULL) AS fields
			FROM ` + before + ` b FULL JOIN ` + after + ` a ON a.id = b.id WHERE a.hit OR b.hit) compared WHERE fields <> '{}')
		SELECT '' AS id, ARRAY[field] AS fields, count(*)::int AS n FROM differing, unnest(fields) AS field GROUP BY field
		UNION ALL SELECT '', '{}', count(*)::int FROM differing
		UNION ALL (SELECT id, fields, 0 FROM differing WHERE id > ` + w.arg(from) + ` AND (` + only + ` = '' OR ` + only +
		` = ANY (fields)) ORDER BY id LIMIT ` + w.arg(limit+1) + `)`
	var changes []history.Change
	var id fleet.DeviceID
	var names []history.Field
	var n int
	err = s.eachPast(ctx, sql, w.args, []any{&id, &names, &n}, func() error {
		switch {
		case id != "":
			changes = append(changes, history.Change{Device: id, Fields: names})
		case len(names) == 0:
			d.Devices = n
		default:
			d.Counts[names[0]] = n
		}
		names = nil
		return nil
	})
	if err != nil {
		return d, fmt.Errorf("changes from %s to %s: %w", f.From, f.To, domainError(err))
	}
	slices.SortFunc(changes, func(x, y history.Change) int { return strings.Compare(string(x.Device), string(y.Device)) })
	d.Page = makePage(changes, limit, at, func(c history.Change) cursor {
		return cursor{List: "past_changes", ID: string(c.Device)}
	})
	d.Page.Prev = ""
	return d, s.addStates(ctx, d.Page.Items, f)
}

// addStates adds what the devices were at both moments, and the names of tools that differ.
func (s *Store) addStates(ctx context.Context, changes []history.Change, f history.DiffFilter) error {
	ids := collect(changes, func(c history.Change) fleet.DeviceID { return c.Device })
	before, err := s.statesAsOf(ctx, f.From, ids)
	if err != nil {
		return err
	}
	after, err := s.statesAsOf(ctx, f.To, ids)
	if err != nil {
		return err
	}
	for i := range changes {
		c := &changes[i]
		c.Before, c.After = before[c.Device], after[c.Device]
	}
	return s.addTools(ctx, changes)
}

// statesAsOf returns what devices in service were at a moment.
func (s *Store) statesAsOf(ctx context.Context, moment time.Time, ids []fleet.DeviceID) (
	map[fleet.DeviceID]*history.Device, error) {
	var w where
	at := w.arg(moment) + "::timestamptz"
	w.and("id = ANY (?)", ids)
	w.and("in_service")
	found, err := s.pastStates(ctx, `WITH `+presenceAsOf(at, "")+`, found AS MATERIALIZED (SELECT * FROM `+asOf(at)+
		w.String()+`) SELECT * FROM `+present("found devices", ""), w.args)
	if err != nil {
		return nil, fmt.Errorf("%d devices as of %s: %w", len(ids), moment, domainError(err))
	}
	states := make(map[fleet.DeviceID]*history.Device, len(found))
	for _, r := range found {
		d := r.device(moment)
		states[d.ID] = &d
	}
	return states, nil
}

// addTools adds the names of the tools that were added and removed.
func (s *Store) addTools(ctx context.Context, changes []history.Change) error {
	wanted := map[string]bool{}
	for _, c := range changes {
		if slices.Contains(c.Fields, history.FieldTools) {
			wanted[c.Before.Inventory], wanted[c.After.Inventory] = true, true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	rows, _ := s.db.Query(ctx, `SELECT id, tool_names FROM inventories WHERE id = ANY ($1)`,
		slices.Collect(maps.Keys(wanted)))
	tools := map[string][]string{}
	var id string
	var names []string
	_, err := pgx.ForEachRow(rows, []any{&id, &names}, func() error {
		tools[id] = slices.Clone(names)
		return nil
	})
	if err != nil {
		return fmt.Errorf("tools of %d inventories: %w", len(wanted), domainError(err))
	}
	without := func(all, out []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(out, name) })
	}
	for i := range changes {
		if c := &changes[i]; slices.Contains(c.Fields, history.FieldTools) {
			before, after := tools[c.Before.Inventory], tools[c.After.Inventory]
			c.ToolsAdded, c.ToolsRemoved = without(after, before), without(before, after)
		}
	}
	return nil
}

// VersionSeries counts the devices in service that run firmware at moments.
func (s *Store) VersionSeries(ctx context.Context, moments []time.Time, q fleet.Query) (
	[]history.VersionCounts, error) {
	var w where
	// A state counts from the first moment that is not before its beginning, and not from the first one that is not
	// before its end. width_bucket counts the bounds up to a time: with bounds a microsecond later, those before it.
	bounds := w.arg(collect(moments, func(at time.Time) time.Time { return at.Add(time.Microsecond) })) + "::timestamptz[]"
	first, last := w.arg(moments[0]), w.arg(moments[len(moments)-1])
	var of where
	of.args = w.args
	of.and("in_service")
	of.and("kind NOT IN ('" + string(fleet.DevicePlugin) + "', '" + string(fleet.DeviceEndpoint) + "')")
	if _, narrow := fleet.ScopeOf(ctx); narrow || !q.Empty() {
		in := where{args: of.args}
		in.terms(q, time.Now())
		in.scope(ctx)
		of.args = in.args
		of.and("id IN (SELECT id FROM devices" + in.String() + ")")
	}
	rows, _ := s.db.Query(ctx, `
		SELECT version, width_bucket(since, `+bounds+`) AS first, width_bucket(until, `+bounds+`) AS last, count(*)::int
		FROM (SELECT id, version, state_since AS since, 'infinity'::timestamptz AS until, in_service, kind FROM devices
				WHERE state_since <= `+last+`
			UNION ALL SELECT device_id, version, since, until, in_service, kind FROM device_states
				WHERE until > `+first+` AND since <= `+last+`) devices`+of.String()+` GROUP BY 1, 2, 3`, of.args...)
	series := map[string]*history.VersionCounts{}
	var version string
	var begin, end, n int
	_, err := pgx.ForEachRow(rows, []any{&version, &begin, &end, &n}, func() error {
		v := series[version]
		if v == nil {
			v = &history.VersionCounts{Version: version, Deltas: make([]int, len(moments))}
			series[version] = v
		}
		if begin < end {
			v.Deltas[begin] += n
			if end < len(moments) {
				v.Deltas[end] -= n
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("versions from %s: %w", moments[0], domainError(err))
	}
	all := make([]history.VersionCounts, 0, len(series))
	for _, v := range series {
		all = append(all, *v)
	}
	return all, nil
}

// DeviceStates lists the states of a device, newest first.
func (s *Store) DeviceStates(ctx context.Context, id fleet.DeviceID, since time.Time, limit int) (
	[]history.Device, error) {
	scoped, args := scopedTo(ctx, "id", cleanText(string(id)), since, limit)
	rows, _ := s.db.Query(ctx, `
		SELECT *, '' AS presence FROM (
			SELECT id, state_since AS since, `+stateColumns+` FROM devices WHERE id = $1
			UNION ALL SELECT device_id, since, `+stateColumns+` FROM device_states WHERE device_id = $1 AND until > $2) devices
		WHERE true`+scoped+` ORDER BY since DESC LIMIT $3`, args...)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[stateRow])
	if err == nil && len(found) == 0 {
		err = pgx.ErrNoRows
	}
	if err != nil {
		return nil, fmt.Errorf("states of device %s: %w", id, domainError(err))
	}
	return collect(found, func(r stateRow) history.Device { return r.device(r.Since) }), nil
}

// FramePresence stores the presence of all devices, for questions about moments from now on. Of frames older than a
// week the first of six hours stays.
func (s *Store) FramePresence(ctx context.Context, now time.Time) error {
	if _, err := s.db.Exec(ctx, `SELECT frame_presence($1)`, now); err != nil {
		return fmt.Errorf("presence of all devices: %w", domainError(err))
	}
	_, err := s.db.Exec(ctx, `
		DELETE FROM presence_frames WHERE at IN (SELECT at FROM (
			SELECT at, row_number() OVER (PARTITION BY date_bin('6 hours', at, '2000-01-01Z') ORDER BY at) AS n
			FROM (SELECT DISTINCT at FROM presence_frames WHERE at < $1) frames) old WHERE n > 1)`,
		now.Add(-framesKept).Truncate(6*time.Hour))
	if err != nil {
		return fmt.Errorf("delete old frames of presence: %w", domainError(err))
	}
	return nil
}

// framesKept is how long each frame of presence is kept.
const framesKept = 7 * 24 * time.Hour

// forgetStates deletes what was before the cutoff, and moves the beginning of the history there: to a frame, which
// has the presences from then on.
func (s *Store) forgetStates(ctx context.Context, before time.Time) (removed int64, err error) {
	var states, versions time.Time
	err = s.db.QueryRow(ctx, `
		UPDATE history_start h SET at = moved.at, versions_at = greatest(h.versions_at, least($1, moved.at))
		FROM (SELECT greatest(at, (SELECT min(f.at) FROM presence_frames f WHERE f.at >= $1)) AS at FROM history_start) moved
		RETURNING h.at, h.versions_at`, before).Scan(&states, &versions)
	if err != nil {
		return 0, fmt.Errorf("move the beginning of the history: %w", domainError(err))
	}
	for _, t := range []struct {
		name, column string
		before       time.Time
	}{{"device_states", "until", versions}, {"presence_frames", "at", states}} {
		n, err := s.deleteBefore(ctx, t.name, t.column, t.before)
		if err != nil {
			return removed, err
		}
		removed += n
	}
	return removed, nil
}
