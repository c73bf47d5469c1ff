package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/history"
	"fleetd/fleet/trend"
)

// Times of the counting of trends, from the end of an hour.
const (
	trendSettles  = frameSlack          // changes of presence and reports are written by then
	trendFinal    = usageDone           // none of its calls changes any more
	trendBackfill = 30 * 24 * time.Hour // how far back the first run counts
	trendIdle     = 7 * 24 * time.Hour  // after this time, a group without devices is not counted
	queryIdle     = 30 * 24 * time.Hour // after this time, the figures of a query that is not wanted are deleted
)

// Limits of the groups that are counted at a time.
var trendGroupLimits = map[trend.GroupKind]int{trend.OfBoard: 50, trend.OfVersion: 50, trend.OfTag: 100,
	trend.OfQuery: fleet.MaxFilters + 100}

// maxTrendKeys is the number of keys of a row; the others are added up.
const maxTrendKeys = 60

// trendLock is the key of the lock of the counting: "trends" in ASCII.
const trendLock = 0x7472656e6473

// CountTrends counts the hours that have ended and are not counted, newest first, and reports how many. An hour is
// counted in memory; its rows, those of its day and its mark are replaced in one transaction. Hours of a time when no
// process counted are counted later from the same records.
func (s *Store) CountTrends(ctx context.Context, now time.Time) (hours int, err error) {
	if err := s.addTrendHours(ctx, now); err != nil {
		return 0, fmt.Errorf("hours of trends: %w", domainError(err))
	}
	if err := s.wantQueries(ctx, now); err != nil {
		return 0, fmt.Errorf("groups of trends: %w", domainError(err))
	}
	rows, _ := s.db.Query(ctx, `
		SELECT hour, state FROM trend_marks WHERE state = 'due' AND hour <= $1 OR state = 'counted' AND hour <= $2
		ORDER BY hour DESC`, now.Add(-trendSettles-time.Hour), now.Add(-trendFinal-time.Hour))
	type mark struct {
		Hour  time.Time
		State string
	}
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[mark])
	if err != nil {
		return 0, fmt.Errorf("hours of trends: %w", domainError(err))
	}
	for _, m := range due {
		count := s.countTrendHour
		if m.State == "counted" {
			count = s.recountCalls
		}
		if err := count(ctx, m.Hour.UTC(), now); err != nil {
			return hours, fmt.Errorf("trends of %s: %w", m.Hour.UTC().Format(time.RFC3339), domainError(err))
		}
		hours++
	}
	if hours == 0 {
		return 0, nil
	}
	return hours, s.forgetTrends(ctx, now)
}

// addTrendHours adds the hours since the newest known one. The first run adds each hour for which the history has
// states of devices.
func (s *Store) addTrendHours(ctx context.Context, now time.Time) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO trend_marks (hour)
		SELECT h FROM generate_series(greatest(coalesce((SELECT max(hour) FROM trend_marks),
				(SELECT date_trunc('hour', at, 'UTC') FROM history_start)),
				date_trunc('hour', $1::timestamptz - $2::interval, 'UTC')),
			$1::timestamptz, interval '1 hour') h
		ON CONFLICT DO NOTHING`, now, trendBackfill)
	return err
}

// wantQueries adds the groups of saved filters and of scopes, from the present hour on.
func (s *Store) wantQueries(ctx context.Context, now time.Time) error {
	rows, _ := s.db.Query(ctx, `
		SELECT query FROM filters UNION SELECT scope FROM operators WHERE scope <> '' AND rest = '' AND disabled_at IS NULL
		UNION SELECT scope FROM tokens WHERE scope <> '' AND revoked_at IS NULL ORDER BY 1`)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	wanted := []string{}
	for _, text := range texts {
		if q, err := fleet.ParseQuery(text); err == nil && history.CheckQuery(q) == nil {
			wanted = append(wanted, q.Text)
		}
	}
	_, err = s.db.Exec(ctx, `
		INSERT INTO trend_groups (kind, value, since, last_wanted)
		SELECT 'query', value, $2, $3 FROM unnest($1::text[]) value LIMIT $4
		ON CONFLICT (kind, value) DO UPDATE SET last_wanted = excluded.last_wanted
		WHERE trend_groups.last_wanted < excluded.last_wanted - interval '10 minutes'`,
		wanted, now.UTC().Truncate(time.Hour), now, trendGroupLimits[trend.OfQuery])
	return err
}

// forgetTrends deletes figures that are too old, and groups that are not counted any more.
func (s *Store) forgetTrends(ctx context.Context, now time.Time) error {
	for _, d := range []struct {
		sql    string
		before time.Time
	}{
		{`DELETE FROM trend_hours WHERE at < $1`, now.Add(-trend.HoursKept).Truncate(24 * time.Hour)},
		{`DELETE FROM trend_days WHERE at < $1`, now.Add(-trend.DaysKept)},
		{`DELETE FROM trend_marks WHERE hour < $1`, now.Add(-trend.DaysKept)},
		{`WITH gone AS (DELETE FROM trend_groups WHERE kind = 'query' AND last_wanted < $1 RETURNING id),
			hours AS (DELETE FROM trend_hours WHERE group_id IN (SELECT id FROM gone))
			DELETE FROM trend_days WHERE group_id IN (SELECT id FROM gone)`, now.Add(-queryIdle)},
		{`DELETE FROM trend_groups WHERE kind <> 'query' AND last_wanted < $1`, now.Add(-trend.DaysKept)},
	} {
		if _, err := s.db.Exec(ctx, d.sql, d.before); err != nil {
			return fmt.Errorf("delete old trends: %w", domainError(err))
		}
	}
	return nil
}

// A trendGroup is a group while an hour is counted.
type trendGroup struct {
	trend.Group
	id     int // 0: not stored yet
	since  time.Time
	wanted bool // has devices
	counts map[trend.Metric]map[string]int64
}

func (g *trendGroup) add(m trend.Metric, key string, n int64) {
	of := g.counts[m]
	if of == nil {
		of = map[string]int64{}
		g.counts[m] = of
	}
	of[key] += n
}

// A trendCount counts an hour.
type trendCount struct {
	hour, end time.Time
	groups    map[trend.Group]*trendGroup
	fleet     *trendGroup
	columns   *fleetColumns
	profiles  map[int32]trendProfile
	tagSets   map[int32][]string
	queries   []*trendGroup
	members   []deviceBits // of the queries
	watched   bool         // fleetd ran at the end of the hour
}

// A trendProfile is a row of device_profiles, as far as trends count it. Firmware is whether its devices have joined
// and run firmware.
type trendProfile struct {
	ID                  int32
	Board, Version      string
	InService, Firmware bool
}

// countTrendHour counts all metrics of an hour.
func (s *Store) countTrendHour(ctx context.Context, hour, now time.Time) error {
	known, err := s.HistoryBegin(ctx)
	if err != nil {
		return err
	}
	if hour.Add(time.Hour).Before(known.States) {
		_, err := s.db.Exec(ctx, `UPDATE trend_marks SET state = 'skipped' WHERE hour = $1 AND state = 'due'`, hour)
		return err
	}
	c, err := s.newTrendCount(ctx, hour)
	if err != nil {
		return err
	}
	ws, err := s.conversationDevices(ctx)
	if err != nil {
		return err
	}
	c.countDevices(ws)
	for _, e := range trendEvents {
		if err := s.countEvents(ctx, c, e); err != nil {
			return err
		}
	}
	return s.saveTrends(ctx, c, trend.Metrics, "due", now)
}

// recountCalls counts the calls of an hour again, once none of them can change. If there are fewer now, retention has
// removed some, and the counts stay.
func (s *Store) recountCalls(ctx context.Context, hour, now time.Time) error {
	c, err := s.newTrendCount(ctx, hour)
	if err != nil {
		return err
	}
	if err := s.countEvents(ctx, c, callEvents); err != nil {
		return err
	}
	return s.saveTrends(ctx, c, []trend.Metric{trend.Outcomes, trend.Tools}, "counted", now)
}

// newTrendCount reads the devices of the end of an hour, and the groups that are counted in it.
func (s *Store) newTrendCount(ctx context.Context, hour time.Time) (*trendCount, error) {
	c := &trendCount{hour: hour, end: hour.Add(time.Hour), groups: map[trend.Group]*trendGroup{},
		profiles: map[int32]trendProfile{}}
	if err := s.readTrendGroups(ctx, c); err != nil {
		return nil, err
	}
	err := s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM presence_samples WHERE at BETWEEN $1 AND $2)`,
		c.end.Add(-trendSettles), c.end.Add(trendSettles)).Scan(&c.watched)
	if err != nil {
		return nil, err
	}
	at := c.end
	if begin, err := s.HistoryBegin(ctx); err != nil {
		return nil, err
	} else if at.Before(begin.States) {
		at = begin.States
	}
	if c.columns, err = s.fleetAsOf(ctx, at); err != nil {
		return nil, err
	}
	ids, sets := map[int32]bool{}, map[int32]bool{}
	for n, profile := range c.columns.profiles {
		if profile != 0 {
			ids[profile], sets[c.columns.tags.at(n)] = true, true
		}
	}
	rows, _ := s.db.Query(ctx, `SELECT id, board, version, in_service, `+isCounted+` FROM device_profiles WHERE id = ANY ($1)`,
		slices.Collect(maps.Keys(ids)))
	profiles, err := pgx.CollectRows(rows, pgx.RowToStructByPos[trendProfile])
	if err != nil {
		return nil, err
	}
	for _, p := range profiles {
		c.profiles[p.ID] = p
	}
	if c.tagSets, err = s.tagSets(ctx, slices.Collect(maps.Keys(sets))); err != nil {
		return nil, err
	}
	for _, g := range c.queries {
		bits, err := s.queryMembers(ctx, c.columns, g.Value)
		if err != nil {
			return nil, err
		}
		c.members = append(c.members, bits)
	}
	c.addLargestGroups()
	return c, nil
}

// queryMembers returns the devices in service that match a query.
func (s *Store) queryMembers(ctx context.Context, c *fleetColumns, text string) (deviceBits, error) {
	q, err := fleet.ParseQuery(text)
	if err != nil {
		return nil, err
	}
	tests, err := s.pastTerms(fleet.WithoutScope(ctx), c.at, append([]fleet.Term{notRetired}, q.Terms...))
	if err != nil {
		return nil, err
	}
	return c.matching(tests), nil
}

func (s *Store) readTrendGroups(ctx context.Context, c *trendCount) error {
	rows, _ := s.db.Query(ctx, `SELECT id, kind, value, since FROM trend_groups WHERE last_wanted >= $1
		AND (kind <> 'query' OR since <= $2) ORDER BY id`, c.hour.Add(-trendIdle), c.hour)
	var id int
	var kind trend.GroupKind
	var value string
	var since time.Time
	_, err := pgx.ForEachRow(rows, []any{&id, &kind, &value, &since}, func() error {
		g := c.group(trend.Group{Kind: kind, Value: value})
		g.id, g.since = id, since
		if kind == trend.OfQuery {
			c.queries = append(c.queries, g)
		}
		return nil
	})
	c.fleet = c.group(trend.Group{Kind: trend.WholeFleet})
	c.fleet.wanted = true
	return err
}

// group returns a group, which it adds if it is missing.
func (c *trendCount) group(g trend.Group) *trendGroup {
	of := c.groups[g]
	if of == nil {
		of = &trendGroup{Group: g, counts: map[trend.Metric]map[string]int64{}}
		c.groups[g] = of
	}
	return of
}

// addLargestGroups adds the boards, versions and tags with the most devices, up to the limits.
func (c *trendCount) addLargestGroups() {
	sizes := map[trend.Group]int{}
	for n := range c.columns.profiles {
		c.ownGroups(n, func(g trend.Group) { sizes[g]++ })
	}
	left := maps.Clone(trendGroupLimits)
	for g := range c.groups {
		left[g.Kind]--
	}
	order := slices.SortedFunc(maps.Keys(sizes), func(a, b trend.Group) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a.Value, b.Value))
	})
	for _, g := range order {
		if c.groups[g] == nil {
			if left[g.Kind] <= 0 {
				continue
			}
			left[g.Kind]--
		}
		c.group(g).wanted = true
	}
}

// ownGroups calls a function with the board, the version and the tags of a device in service.
func (c *trendCount) ownGroups(number int, each func(trend.Group)) {
	p := c.profiles[c.columns.profiles.at(number)]
	if !p.InService {
		return
	}
	if p.Board != "" {
		each(trend.Group{Kind: trend.OfBoard, Value: p.Board})
	}
	if p.Version != "" {
		each(trend.Group{Kind: trend.OfVersion, Value: p.Version})
	}
	for _, tag := range c.tagSets[c.columns.tags.at(number)] {
		each(trend.Group{Kind: trend.OfTag, Value: tag})
	}
}

// groupsOf returns the groups that a device counts for: number 0 is a device that is not known any more.
func (c *trendCount) groupsOf(number int, into []*trendGroup) []*trendGroup {
	into = append(into[:0], c.fleet)
	if number == 0 {
		return into
	}
	c.ownGroups(number, func(g trend.Group) {
		if of := c.groups[g]; of != nil {
			into = append(into, of)
		}
	})
	for i, q := range c.queries {
		if c.members[i].has(number) {
			into = append(into, q)
		}
	}
	return into
}

// countDevices counts the devices in service at the end of the hour.
func (c *trendCount) countDevices(ws byNumber[byte]) {
	var groups []*trendGroup
	for n, profile := range c.columns.profiles {
		p := c.profiles[profile]
		if !p.InService {
			continue
		}
		presence := string(framePresences[c.columns.presence.at(n)])
		if presence == string(fleet.PresenceOffline) && ws.at(n) != 0 {
			presence = trend.KeyBetween
		}
		groups = c.groupsOf(n, groups)
		for _, g := range groups {
			if c.watched {
				g.add(trend.Devices, presence, 1)
			}
			if p.Firmware {
				g.add(trend.Versions, p.Version, 1)
				g.add(trend.Boards, p.Board, 1)
			}
		}
	}
}

// conversationDevices returns the devices that connect only for conversations.
func (s *Store) conversationDevices(ctx context.Context) (ws byNumber[byte], err error) {
	var b pgx.Batch
	queueKeys(&b, &ws, `SELECT number AS key FROM device_names n JOIN devices d ON d.id = n.device_id
		WHERE n.ended_at = 'infinity' AND d.transport_given = 'ws'`, nil)
	return ws, s.db.SendBatch(ctx, &b).Close()
}

// A trendEvent is a query for the events of an hour, from $1 to $2: the number of the device (0 if it is not known any
// more), two keys and a count. The first metric has the first key, the second metric, if there is one, the second.
type trendEvent struct {
	metrics []trend.Metric
	sql     string
	ids     bool // $3 and $4 are the ids of calls
}

const trendNumber = ` LEFT JOIN device_names n ON n.device_id = e.device_id AND n.ended_at = 'infinity'`

var callEvents = trendEvent{[]trend.Metric{trend.Outcomes, trend.Tools}, `
	SELECT coalesce(n.number, 0), e.state,
		CASE WHEN EXISTS (SELECT FROM tool_definitions d WHERE d.tool = e.tool) THEN e.tool ELSE E'\x01' END, e.count
	FROM (SELECT device_id, state, tool, count(*) AS count FROM calls
		WHERE id >= $3 AND id < $4 AND created_at >= $1 AND created_at < $2 GROUP BY 1, 2, 3) e` + trendNumber, true}

var trendEvents = []trendEvent{callEvents,
	{[]trend.Metric{trend.Crashes}, `
	SELECT coalesce(n.number, 0), e.reason, '', e.count
	FROM (SELECT device_id, params->>'reset_reason' AS reason, count(*) AS count FROM report_changes
		WHERE code = 'restarted' AND at >= $1 AND at < $2 AND params->>'reset_reason' IN ('panic', 'watchdog', 'brownout')
		GROUP BY 1, 2) e` + trendNumber, false},
	{[]trend.Metric{trend.Connections}, `
	SELECT coalesce(n.number, 0), '', '', e.count
	FROM (SELECT device_id, count(*) AS count FROM presence_changes WHERE at >= $1 AND at < $2
		AND presence = 'online' AND evidence_code = '` + fleet.PresenceConnected + `' GROUP BY 1) e
	` + trendNumber + ` LEFT JOIN devices d ON d.id = e.device_id WHERE d.transport_given IS DISTINCT FROM 'ws'`, false},
	{[]trend.Metric{trend.Conversations}, `
	SELECT coalesce(n.number, 0), '', '', e.count
	FROM (SELECT device_id, count(*) AS count FROM conversations
		WHERE created_at >= $1 AND created_at < $2 GROUP BY 1) e` +
		trendNumber, false},
	// Of devices that reported in the hour: the average of what they reported.
	{[]trend.Metric{trend.Signal}, `
	SELECT coalesce(n.number, 0), e.dbm::text, '', 1
	FROM (SELECT device_id, round(avg(rssi))::int AS dbm FROM (
			SELECT device_id, rssi FROM vitals_points WHERE at >= $1 AND at < $2 AND rssi IS NOT NULL
			UNION ALL SELECT device_id, rssi FROM vitals_hours WHERE at >= $1 AND at < $2 AND rssi IS NOT NULL) p
		GROUP BY 1) e` + trendNumber, false},
}

// countEvents adds the events of an hour to the groups of their devices.
func (s *Store) countEvents(ctx context.Context, c *trendCount, e trendEvent) error {
	args := []any{c.hour, c.end}
	if e.ids {
		args = append(args, idFloor(c.hour.Add(-idSlack)), idFloor(c.end.Add(idSlack)))
	}
	rows, _ := s.db.Query(ctx, e.sql, args...)
	var number int32
	var keys [2]string
	var n int64
	var groups []*trendGroup
	_, err := pgx.ForEachRow(rows, []any{&number, &keys[0], &keys[1], &n}, func() error {
		groups = c.groupsOf(int(number), groups)
		for _, g := range groups {
			for i, m := range e.metrics {
				g.add(m, keys[i], n)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", e.metrics[0], err)
	}
	return nil
}

// saveTrends replaces the rows of metrics of an hour and of its day, unless another process has.
func (s *Store) saveTrends(ctx context.Context, c *trendCount, metrics []trend.Metric, was string,
	now time.Time) error {
	var calls int64
	for _, n := range c.fleet.counts[trend.Outcomes] {
		calls += n
	}
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var before int64
		err := tx.QueryRow(ctx, `SELECT calls FROM trend_marks WHERE hour = $1 AND state = $2 FOR UPDATE`, c.hour, was).Scan(&before)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(trendLock)); err != nil {
			return err
		}
		if calls >= before {
			if err := c.replace(ctx, tx, metrics, now); err != nil {
				return err
			}
		}
		state := "counted"
		if was == "counted" || now.Sub(c.end) >= trendFinal {
			state = "done"
		}
		_, err = tx.Exec(ctx, `UPDATE trend_marks SET state = $2, calls = greatest(calls, $3) WHERE hour = $1`, c.hour, state, calls)
		return err
	})
}

func (c *trendCount) replace(ctx context.Context, tx pgx.Tx, metrics []trend.Metric, now time.Time) error {
	if err := c.storeGroups(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `DELETE FROM trend_hours WHERE at = $1 AND metric = ANY ($2)`, c.hour, metrics); err != nil {
		return err
	}
	var rows [][]any
	for _, g := range c.groups {
		for _, m := range metrics {
			counts := g.counts[m]
			// Without a row, a metric of states is unknown: so a group has one even if it has no devices.
			if len(counts) == 0 && (!m.OfState() || m == trend.Signal || m == trend.Devices && !c.watched) {
				continue
			}
			keys, values := largestKeys(counts)
			rows = append(rows, []any{g.id, m, c.hour, keys, values})
		}
	}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"trend_hours"}, []string{"group_id", "metric", "at", "keys", "counts"},
		pgx.CopyFromRows(rows))
	if err != nil || c.hour.Before(now.Add(-trend.HoursKept)) {
		return err
	}
	day := c.hour.Truncate(24 * time.Hour)
	if _, err := tx.Exec(ctx, `DELETE FROM trend_days WHERE at = $1 AND metric = ANY ($2)`, day, metrics); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		WITH hours AS MATERIALIZED (SELECT * FROM trend_hours WHERE at >= $1 AND at < $1::timestamptz + interval '24 hours'
			AND metric = ANY ($2)),
		sums AS (SELECT group_id, metric, array_agg(key) AS keys, array_agg(n) AS counts
			FROM (SELECT group_id, metric, u.key, sum(u.n)::bigint AS n FROM hours, unnest(keys, counts) u (key, n)
				GROUP BY 1, 2, 3) k GROUP BY 1, 2)
		INSERT INTO trend_days (group_id, metric, at, hours, keys, counts)
		SELECT h.group_id, h.metric, $1, h.n, coalesce(s.keys, '{}'), coalesce(s.counts, '{}')
		FROM (SELECT group_id, metric, count(*) AS n FROM hours GROUP BY 1, 2) h LEFT JOIN sums s USING (group_id, metric)`,
		day, metrics)
	return err
}

// storeGroups stores the groups that have devices, and gives them their ids.
func (c *trendCount) storeGroups(ctx context.Context, tx pgx.Tx) error {
	var kinds, values []string
	for _, g := range c.groups {
		if g.wanted && g.Kind != trend.OfQuery {
			kinds, values = append(kinds, string(g.Kind)), append(values, g.Value)
		}
	}
	rows, _ := tx.Query(ctx, `
		INSERT INTO trend_groups (kind, value, since, last_wanted)
		SELECT kind, value, $3, $4 FROM unnest($1::text[], $2::text[]) g (kind, value)
		ON CONFLICT (kind, value) DO UPDATE SET since = least(trend_groups.since, excluded.since),
			last_wanted = greatest(trend_groups.last_wanted, excluded.last_wanted)
		RETURNING id, kind, value`, kinds, values, c.hour, c.end)
	var id int
	var kind trend.GroupKind
	var value string
	_, err := pgx.ForEachRow(rows, []any{&id, &kind, &value}, func() error {
		c.groups[trend.Group{Kind: kind, Value: value}].id = id
		return nil
	})
	maps.DeleteFunc(c.groups, func(_ trend.Group, g *trendGroup) bool { return g.id == 0 })
	return err
}

// largestKeys returns the largest counts, and the sum of the others.
func largestKeys(counts map[string]int64) (keys []string, values []int64) {
	keys = slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var others int64
	if len(keys) > maxTrendKeys {
		for _, key := range keys[maxTrendKeys:] {
			others += counts[key]
		}
		keys = keys[:maxTrendKeys]
	}
	values = make([]int64, 0, len(keys)+1)
	for _, key := range keys {
		values = append(values, counts[key])
	}
	if others == 0 {
		return append([]string{}, keys...), values
	}
	if i := slices.Index(keys, trend.KeyOthers); i >= 0 {
		values[i] += others
		return keys, values
	}
	return append(keys, trend.KeyOthers), append(values, others)
}
