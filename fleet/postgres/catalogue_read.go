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

	"fleetd/fleet"
	"fleetd/fleet/catalogue"
)

// offers is where inventories are listed now, by the devices that exist for the reader.
type offers struct {
	places  map[string][]catalogue.Place // by inventory
	narrow  bool                         // the reader has a scope
	devices []string                     // of the scope, offering or not
	tooMany bool                         // devices of the scope; devices is then incomplete
}

// offers reads where inventories are listed on a board and a version, or, for "", on all. A scope can ask
// for any property of a device, so the devices themselves are read for it, once for all that a page
// counts. The whole fleet is counted in device_offers: a row of devices is ten times as wide and changes
// with each sign of life, which rules out a scan of an index alone.
func (s *Store) offers(ctx context.Context, board, version string) (o offers, err error) {
	var w where
	with, from, more := "", "device_offers", ""
	if _, o.narrow = fleet.ScopeOf(ctx); o.narrow {
		w.scope(ctx)
		with = `WITH scope AS MATERIALIZED (SELECT id, in_service, inventory_id, board, version FROM devices` + w.String() + `)`
		more = ` UNION ALL SELECT '', '', '', 0, array_agg(id) FROM (SELECT id FROM scope LIMIT ` +
			w.arg(catalogue.MaxScopeDevices+1) + `) s`
		w.conds, from = []string{"in_service", "inventory_id IS NOT NULL"}, "scope"
	}
	w.andText("board = ?", board)
	w.andText("version = ?", version)
	sql := with + ` SELECT inventory_id, board, version, count(*), NULL::text[] FROM ` + from + w.String() + ` GROUP BY 1, 2, 3` + more
	rows, _ := s.db.Query(ctx, sql, w.args...)
	o.places = map[string][]catalogue.Place{}
	var inventory string
	var p catalogue.Place
	var devices []string
	_, err = pgx.ForEachRow(rows, []any{&inventory, &p.Board, &p.Version, &p.Devices, &devices}, func() error {
		if inventory == "" {
			o.devices, o.tooMany = devices, len(devices) > catalogue.MaxScopeDevices
		} else {
			o.places[inventory] = append(o.places[inventory], p)
		}
		return nil
	})
	if err != nil {
		return o, fmt.Errorf("where tools are offered: %w", domainError(err))
	}
	return o, nil
}

// held is the condition that the setting keeps models from a definition d.
const held = `(d.waiting IS NOT NULL AND EXISTS (SELECT FROM tool_catalogue c
	WHERE c.waits = 'new_and_changed' OR c.waits = 'new' AND d.waiting = 'new'))`

// definitions narrows a statement about definitions d to those that exist for the reader: for a
// scope, those that one of its devices offers; for a model, those that it may call.
func (w *where) definitions(ctx context.Context, o offers, offeredOnly bool) {
	listed := `SELECT FROM inventory_tools t WHERE t.tool = d.tool AND t.digest = d.digest`
	if fleet.ToolScopeOf(ctx) != nil {
		w.conds = append(w.conds, w.namedTool(ctx, "d.tool"), "d.audience = 'model'", "NOT "+held)
		listed += " AND t.audience = 'model'"
	}
	if offeredOnly {
		w.and("EXISTS ("+listed+" AND t.inventory_id IN (SELECT unnest(?::text[])))", slices.Collect(maps.Keys(o.places)))
	}
}

type entryRow struct {
	Tool        string
	ForModels   bool
	Definitions int
	Waiting     int
}

// Catalogue returns a page of the catalogue, by name.
func (s *Store) Catalogue(ctx context.Context, f catalogue.Filter, now time.Time) (none catalogue.Page, err error) {
	at, err := parseCursor(f.Cursor, "catalogue")
	if err != nil {
		return none, err
	}
	o, err := s.offers(ctx, f.Board, f.Version)
	if err != nil {
		return none, err
	}
	var w where
	w.definitions(ctx, o, o.narrow || f.Board != "" || f.Version != "")
	if f.Name != "" {
		w.and(`d.tool ILIKE ?`, "%"+likeEscaper.Replace(cleanText(f.Name))+"%")
	}
	order := "ASC"
	if at != nil && at.back() {
		order = "DESC"
		w.and("d.tool < ?", at.ID)
	} else if at != nil {
		w.and("d.tool > ?", at.ID)
	}
	having := ""
	switch f.Audience {
	case fleet.AudienceModel:
		having = " HAVING bool_or(d.audience = 'model')"
	case fleet.AudienceUser:
		having = " HAVING NOT bool_or(d.audience = 'model')"
	}
	if f.Waiting {
		w.conds = append(w.conds, `d.tool IN (SELECT tool FROM tool_definitions WHERE waiting IS NOT NULL)`)
	}
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `
		SELECT d.tool, bool_or(d.audience = 'model') AS for_models, count(*) AS definitions,
			count(*) FILTER (WHERE d.waiting IS NOT NULL) AS waiting
		FROM tool_definitions d`+w.String()+` GROUP BY 1`+having+` ORDER BY 1 `+order+` LIMIT `+w.arg(limit+1), w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[entryRow])
	if err != nil {
		return none, fmt.Errorf("catalogue of tools: %w", domainError(err))
	}
	page := makePage(list, limit, at, func(r entryRow) cursor { return cursor{List: "catalogue", ID: r.Tool} })
	names := make([]string, len(page.Items))
	for i, r := range page.Items {
		names[i] = r.Tool
	}
	counts, err := s.countOffers(ctx, names, o)
	if err != nil {
		return none, fmt.Errorf("inventories of tools: %w", domainError(err))
	}
	usage, err := s.usage(ctx, o, names, f.Version, catalogue.Since(now))
	if err != nil {
		return none, err
	}
	of := map[string]*catalogue.Usage{}
	for i := range usage {
		u := &usage[i]
		if of[u.Tool] == nil {
			of[u.Tool] = &catalogue.Usage{}
		}
		of[u.Tool].Add(&u.Usage)
	}
	return catalogue.Page{NoUsage: o.tooMany, Page: mapPage(page, func(r entryRow) catalogue.Entry {
		e := catalogue.Entry{Name: r.Tool, Audience: fleet.AudienceUser, Definitions: r.Definitions, Waiting: r.Waiting,
			Boards: counts[r.Tool].boards, Versions: counts[r.Tool].versions, Devices: counts[r.Tool].devices}
		if r.ForModels {
			e.Audience = fleet.AudienceModel
		}
		if u := of[r.Tool]; u != nil {
			e.Usage = *u
		}
		return e
	})}, nil
}

// offerCounts counts where a tool is offered now.
type offerCounts struct{ boards, versions, devices int }

// countOffers counts where tools are offered. Tools that the same inventories list share their counts.
func (s *Store) countOffers(ctx context.Context, tools []string, o offers) (map[string]offerCounts, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT tool, array_agg(DISTINCT inventory_id ORDER BY inventory_id) FROM inventory_tools
		WHERE tool = ANY ($1) GROUP BY 1`,
		tools)
	counts, known := map[string]offerCounts{}, map[string]offerCounts{}
	var tool string
	var inventories []string
	_, err := pgx.ForEachRow(rows, []any{&tool, &inventories}, func() error {
		key := strings.Join(inventories, " ")
		n, done := known[key]
		if !done {
			boards, versions := map[string]bool{}, map[string]bool{}
			for _, id := range inventories {
				for _, p := range o.places[id] {
					boards[p.Board], versions[p.Version] = true, true
					n.devices += p.Devices
				}
			}
			n.boards, n.versions = len(boards), len(versions)
			known[key] = n
		}
		counts[tool] = n
		return nil
	})
	return counts, err
}

// A usageRow is the usage of a tool on a version on a day.
type usageRow struct {
	Tool, Version string
	Day           time.Time
	catalogue.Usage
}

// usage returns the usage of tools since the beginning of a day, on one version or, for "", on all. For
// a scope it counts the calls of its devices; if they are too many there is no usage.
func (s *Store) usage(ctx context.Context, o offers, tools []string, version string, since time.Time) (
	[]usageRow, error) {
	if len(tools) == 0 || o.tooMany {
		return nil, nil
	}
	w := where{args: []any{tools, since}}
	sql := `SELECT tool, version, day, succeeded, tool_errors, timed_out, unknown, not_sent, buckets, counts
		FROM tool_usage_days WHERE tool = ANY ($1) AND day >= $2`
	if o.narrow {
		day := `c.tool || E'\x01' || date_trunc('day', c.created_at, 'UTC')`
		calls := strings.Replace(callsOfUsage(`c.device_id = ANY (`+w.arg(o.devices)+`) AND c.tool = ANY ($1)
			AND c.created_at >= $2 AND c.id >= `+w.arg(idFloor(since.Add(-idSlack)))),
			"SELECT c.tool,", "SELECT "+day+" AS tool,", 1)
		sql = `SELECT split_part(tool, E'\x01', 1) AS tool, version, split_part(tool, E'\x01', 2)::timestamptz AS day, succeeded,
			tool_errors, timed_out, unknown, not_sent, buckets, counts FROM (` + usageOf(calls) + `) u WHERE true`
	}
	if version != "" {
		sql += " AND version = " + w.arg(cleanText(version))
	}
	rows, _ := s.db.Query(ctx, sql+" ORDER BY day", w.args...)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (u usageRow, err error) {
		var buckets []int16
		var counts []int64
		err = row.Scan(&u.Tool, &u.Version, &u.Day, &u.Succeeded, &u.ToolErrors, &u.TimedOut, &u.Unknown, &u.NotSent,
			&buckets, &counts)
		for i := range min(len(buckets), len(counts)) {
			u.Latency.AddBucket(int(buckets[i]), counts[i])
		}
		return u, err
	})
	if err != nil {
		return nil, fmt.Errorf("usage of tools: %w", domainError(err))
	}
	return list, nil
}

// VersionUsage returns the usage of a tool on one firmware version.
func (s *Store) VersionUsage(ctx context.Context, tool, version string, since time.Time) (
	sum catalogue.Usage, err error) {
	var o offers
	if _, narrow := fleet.ScopeOf(ctx); narrow {
		if o, err = s.offers(ctx, "", ""); err != nil {
			return sum, err
		}
	}
	list, err := s.usage(ctx, o, []string{cleanText(tool)}, version, since)
	for i := range list {
		if list[i].Version == cleanText(version) {
			sum.Add(&list[i].Usage)
		}
	}
	return sum, err
}

type definitionRow struct {
	Tool        string
	Digest      []byte
	Description string
	InputSchema []byte
	Audience    fleet.Audience
	FirstSeen   time.Time
	LastSeen    *time.Time
	Waiting     catalogue.Waiting
	ReleasedBy  string
	ReleasedAt  *time.Time
}

func (r definitionRow) definition() catalogue.Definition {
	d := catalogue.Definition{Tool: r.Tool, Digest: fleet.ToolDigest(r.Digest), Description: r.Description,
		InputSchema: r.InputSchema, Audience: r.Audience, FirstSeen: r.FirstSeen.UTC(), Waiting: r.Waiting,
		ReleasedBy: r.ReleasedBy, ReleasedAt: r.ReleasedAt}
	if r.LastSeen != nil {
		d.LastSeen = r.LastSeen.UTC()
	}
	return d
}

// WaitingDefinitions returns the first definitions that wait for a person, by tool, and how many there are.
func (s *Store) WaitingDefinitions(ctx context.Context, limit int) (list []catalogue.Definition, total int, err error) {
	rows, _ := s.db.Query(ctx, `
		SELECT tool, digest, description, input_schema, audience, first_seen, NULL::timestamptz AS last_seen, waiting,
			released_by, released_at
		FROM tool_definitions WHERE waiting IS NOT NULL ORDER BY tool, first_seen, digest LIMIT $1`, limit)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[definitionRow])
	if err == nil {
		err = s.db.QueryRow(ctx, `SELECT count(*) FROM tool_definitions WHERE waiting IS NOT NULL`).Scan(&total)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("definitions that wait: %w", domainError(err))
	}
	return collect(found, definitionRow.definition), total, nil
}

// maxDefinitions bounds the definitions that one page shows; the newest are shown.
const maxDefinitions = 200

// CatalogueTool returns one tool, or [fleet.ErrNotFound].
func (s *Store) CatalogueTool(ctx context.Context, name string, since, now time.Time) (t catalogue.Tool, err error) {
	name = cleanText(name)
	t.Name = name
	o, err := s.offers(ctx, "", "")
	if err != nil {
		return t, err
	}
	var w where
	w.and("d.tool = ?", name)
	w.definitions(ctx, o, o.narrow)
	rows, _ := s.db.Query(ctx, `
		SELECT d.tool, d.digest, d.description, d.input_schema, d.audience, d.first_seen,
			(SELECT max(coalesce(i.last_seen, i.created_at)) FROM inventory_tools t JOIN inventories i ON i.id = t.inventory_id
				WHERE t.tool = d.tool AND t.digest = d.digest) AS last_seen,
			coalesce(d.waiting, '') AS waiting, d.released_by, d.released_at
		FROM tool_definitions d`+w.String()+` ORDER BY d.first_seen DESC, d.digest LIMIT `+w.arg(maxDefinitions), w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[definitionRow])
	if err == nil && len(list) == 0 {
		err = fleet.ErrNotFound
	}
	if err != nil {
		return t, fmt.Errorf("tool %.80q: %w", name, domainError(err))
	}
	index := map[fleet.ToolDigest]int{}
	for _, r := range list {
		d := r.definition()
		index[d.Digest] = len(t.Definitions)
		t.Definitions = append(t.Definitions, d)
	}
	if err := s.places(ctx, &t, index, o, now); err != nil {
		return t, fmt.Errorf("places of tool %.80q: %w", name, domainError(err))
	}
	usage, err := s.usage(ctx, o, []string{name}, "", since)
	if err != nil {
		return t, err
	}
	t.NoUsage, t.Usage = o.tooMany, byVersion(usage)
	return t, nil
}

// places adds where definitions are offered now, and, for a reader of the whole fleet, where they were.
func (s *Store) places(ctx context.Context, t *catalogue.Tool, index map[fleet.ToolDigest]int, o offers,
	now time.Time) error {
	type place struct {
		definition     int
		board, version string
	}
	devices := map[place]int{}
	add := func(digest []byte, p catalogue.Place) {
		if i, ok := index[fleet.ToolDigest(digest)]; ok {
			devices[place{i, p.Board, p.Version}] += p.Devices
			t.Definitions[i].Devices += p.Devices
		}
	}
	var digest []byte
	var inventory string
	rows, _ := s.db.Query(ctx, `SELECT digest, inventory_id FROM inventory_tools WHERE tool = $1`, t.Name)
	_, err := pgx.ForEachRow(rows, []any{&digest, &inventory}, func() error {
		for _, p := range o.places[inventory] {
			add(digest, p)
		}
		return nil
	})
	if err == nil && !o.narrow {
		var p catalogue.Place
		rows, _ := s.db.Query(ctx, `
			SELECT DISTINCT t.digest, p.board, p.version FROM inventory_tools t JOIN inventory_places p USING (inventory_id)
			WHERE t.tool = $1 ORDER BY 2, 3, 1 LIMIT $2`, t.Name, maxPlaces)
		_, err = pgx.ForEachRow(rows, []any{&digest, &p.Board, &p.Version}, func() error {
			add(digest, p)
			return nil
		})
	}
	if err != nil {
		return err
	}
	sorted := slices.SortedFunc(maps.Keys(devices), func(a, b place) int {
		return cmp.Or(cmp.Compare(devices[b], devices[a]), cmp.Compare(a.board, b.board), cmp.Compare(a.version, b.version))
	})
	for _, p := range sorted[:min(len(sorted), maxPlaces)] {
		d := &t.Definitions[p.definition]
		d.Places = append(d.Places, catalogue.Place{Board: p.board, Version: p.version, Devices: devices[p]})
	}
	for i := range t.Definitions {
		if d := &t.Definitions[i]; d.Devices > 0 {
			d.LastSeen = now.UTC()
		}
	}
	return nil
}

// byVersion adds up days, which are in order, by version. The most called version comes first.
func byVersion(days []usageRow) []catalogue.VersionUsage {
	var list []catalogue.VersionUsage
	index := map[string]int{}
	for i := range days {
		d := &days[i]
		at, ok := index[d.Version]
		if !ok {
			at = len(list)
			index[d.Version] = at
			list = append(list, catalogue.VersionUsage{Version: d.Version})
		}
		v := &list[at]
		v.Usage.Add(&d.Usage)
		v.Days = append(v.Days, catalogue.DayUsage{Day: d.Day.UTC(), Sent: d.Sent(), Failed: d.Failed()})
	}
	slices.SortStableFunc(list, func(a, b catalogue.VersionUsage) int {
		return cmp.Or(cmp.Compare(b.Sent(), a.Sent()), cmp.Compare(b.Version, a.Version))
	})
	return list
}
