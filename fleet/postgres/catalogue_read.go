package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/catalogue"
)

// offered returns the query for where inventories are listed now, by devices that exist for the reader.
func (w *where) offered(ctx context.Context, board, version string) string {
	of := where{args: w.args}
	of.and("in_service AND inventory_id IS NOT NULL")
	of.andText("board = ?", board)
	of.andText("version = ?", version)
	of.scope(ctx)
	w.args = of.args
	return `SELECT inventory_id, board, version, count(*) AS devices FROM devices` + of.String() + ` GROUP BY 1, 2, 3`
}

// held is the condition that the setting keeps models from a definition d.
const held = `(d.waiting IS NOT NULL AND EXISTS (SELECT FROM tool_catalogue c
	WHERE c.waits = 'new_and_changed' OR c.waits = 'new' AND d.waiting = 'new'))`

// definitions narrows a statement about definitions d to those that exist for the reader: for a
// scope, those that one of its devices offers; for a model, those that it may call.
func (w *where) definitions(ctx context.Context, offeredOnly bool) {
	listed := `SELECT FROM inventory_tools t JOIN offered USING (inventory_id) WHERE t.tool = d.tool AND t.digest = d.digest`
	if fleet.ToolScopeOf(ctx) != nil {
		w.conds = append(w.conds, w.namedTool(ctx, "d.tool"), "d.audience = 'model'", "NOT "+held)
		listed += " AND t.audience = 'model'"
	}
	if offeredOnly {
		w.conds = append(w.conds, "EXISTS ("+listed+")")
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
	_, narrow := fleet.ScopeOf(ctx)
	var w where
	offered := w.offered(ctx, f.Board, f.Version)
	w.definitions(ctx, narrow || f.Board != "" || f.Version != "")
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
		WITH offered AS MATERIALIZED (`+offered+`),
		names AS MATERIALIZED (
			SELECT d.tool, bool_or(d.audience = 'model') AS for_models, count(*) AS definitions,
				count(*) FILTER (WHERE d.waiting IS NOT NULL) AS waiting
			FROM tool_definitions d`+w.String()+` GROUP BY 1`+having+` ORDER BY 1 `+order+` LIMIT `+w.arg(limit+1)+`
		)
		SELECT tool, for_models, definitions, waiting FROM names ORDER BY tool `+order, w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[entryRow])
	if err != nil {
		return none, fmt.Errorf("catalogue of tools: %w", domainError(err))
	}
	page := makePage(list, limit, at, func(r entryRow) cursor { return cursor{List: "catalogue", ID: r.Tool} })
	names := make([]string, len(page.Items))
	for i, r := range page.Items {
		names[i] = r.Tool
	}
	counts, err := s.countOffers(ctx, names, f)
	if err != nil {
		return none, fmt.Errorf("where tools are offered: %w", domainError(err))
	}
	usage, noUsage, err := s.usage(ctx, names, f.Version, catalogue.Since(now))
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
	return catalogue.Page{NoUsage: noUsage, Page: mapPage(page, func(r entryRow) catalogue.Entry {
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

// offers counts where a tool is offered now.
type offers struct{ boards, versions, devices int }

// countOffers counts where tools are offered. Devices are counted once by inventory, board and version;
// tools that the same inventories list share their counts.
func (s *Store) countOffers(ctx context.Context, tools []string, f catalogue.Filter) (map[string]offers, error) {
	var w where
	offered := w.offered(ctx, f.Board, f.Version)
	rows, _ := s.db.Query(ctx, offered, w.args...)
	type place struct {
		board, version string
		devices        int
	}
	places := map[string][]place{}
	var inventory string
	var p place
	if _, err := pgx.ForEachRow(rows, []any{&inventory, &p.board, &p.version, &p.devices}, func() error {
		places[inventory] = append(places[inventory], p)
		return nil
	}); err != nil {
		return nil, err
	}
	rows, _ = s.db.Query(ctx, `
		SELECT tool, array_agg(DISTINCT inventory_id ORDER BY inventory_id) FROM inventory_tools
		WHERE tool = ANY ($1) GROUP BY 1`,
		tools)
	counts, known := map[string]offers{}, map[string]offers{}
	var tool string
	var inventories []string
	_, err := pgx.ForEachRow(rows, []any{&tool, &inventories}, func() error {
		key := strings.Join(inventories, " ")
		n, done := known[key]
		if !done {
			boards, versions := map[string]bool{}, map[string]bool{}
			for _, id := range inventories {
				for _, p := range places[id] {
					boards[p.board], versions[p.version] = true, true
					n.devices += p.devices
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
// a scope it counts the calls of its devices, unless it has too many.
func (s *Store) usage(ctx context.Context, tools []string, version string, since time.Time) (
	list []usageRow, tooMany bool, err error) {
	if len(tools) == 0 {
		return nil, false, nil
	}
	w := where{args: []any{tools, since}}
	sql := `SELECT tool, version, day, succeeded, tool_errors, timed_out, unknown, not_sent, buckets, counts
		FROM tool_usage_days WHERE tool = ANY ($1) AND day >= $2`
	if in := w.devicesInScope(ctx); in != "" {
		counted := where{}
		few := counted.devicesInScope(ctx)
		if err := s.db.QueryRow(ctx, `SELECT count(*) > `+counted.arg(catalogue.MaxScopeDevices)+` FROM (`+
			few+` LIMIT `+counted.arg(catalogue.MaxScopeDevices+1)+`) d`, counted.args...).Scan(&tooMany); err != nil || tooMany {
			return nil, tooMany, domainError(err)
		}
		day := `c.tool || E'\x01' || date_trunc('day', c.created_at, 'UTC')`
		calls := strings.Replace(callsOfUsage(`c.device_id IN `+in+` AND c.tool = ANY ($1) AND c.created_at >= $2 AND c.id >= `+
			w.arg(idFloor(since.Add(-idSlack)))), "SELECT c.tool,", "SELECT "+day+" AS tool,", 1)
		sql = `SELECT split_part(tool, E'\x01', 1) AS tool, version, split_part(tool, E'\x01', 2)::timestamptz AS day, succeeded,
			tool_errors, timed_out, unknown, not_sent, buckets, counts FROM (` + usageOf(calls) + `) u WHERE true`
	}
	if version != "" {
		sql += " AND version = " + w.arg(cleanText(version))
	}
	rows, _ := s.db.Query(ctx, sql+" ORDER BY day", w.args...)
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (u usageRow, err error) {
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
		return nil, false, fmt.Errorf("usage of tools: %w", domainError(err))
	}
	return list, false, nil
}

// VersionUsage returns the usage of a tool on one firmware version.
func (s *Store) VersionUsage(ctx context.Context, tool, version string, since time.Time) (
	sum catalogue.Usage, err error) {
	list, _, err := s.usage(ctx, []string{cleanText(tool)}, version, since)
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
	_, narrow := fleet.ScopeOf(ctx)
	var w where
	offered := w.offered(ctx, "", "")
	w.and("d.tool = ?", name)
	w.definitions(ctx, narrow)
	rows, _ := s.db.Query(ctx, `
		WITH offered AS MATERIALIZED (`+offered+`)
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
	if err := s.places(ctx, &t, index, now); err != nil {
		return t, fmt.Errorf("places of tool %.80q: %w", name, domainError(err))
	}
	usage, tooMany, err := s.usage(ctx, []string{name}, "", since)
	if err != nil {
		return t, err
	}
	t.NoUsage, t.Usage = tooMany, byVersion(usage)
	return t, nil
}

// places adds where definitions are offered now, and, for a reader of the whole fleet, where they were.
func (s *Store) places(ctx context.Context, t *catalogue.Tool, index map[fleet.ToolDigest]int, now time.Time) error {
	_, narrow := fleet.ScopeOf(ctx)
	var w where
	offered := w.offered(ctx, "", "")
	past := ""
	if !narrow {
		past = `UNION ALL SELECT t.digest, p.board, p.version, 0 FROM inventory_tools t JOIN inventory_places p USING (inventory_id)
			WHERE t.tool = ` + w.arg(t.Name)
	}
	rows, _ := s.db.Query(ctx, `
		WITH offered AS MATERIALIZED (`+offered+`)
		SELECT digest, board, version, sum(devices)::bigint AS devices FROM (
			SELECT t.digest, o.board, o.version, o.devices FROM inventory_tools t JOIN offered o USING (inventory_id)
			WHERE t.tool = `+w.arg(t.Name)+` `+past+`) p
		GROUP BY 1, 2, 3 ORDER BY 4 DESC, 2, 3 LIMIT `+w.arg(maxPlaces), w.args...)
	var digest []byte
	var p catalogue.Place
	_, err := pgx.ForEachRow(rows, []any{&digest, &p.Board, &p.Version, &p.Devices}, func() error {
		if i, ok := index[fleet.ToolDigest(digest)]; ok {
			d := &t.Definitions[i]
			d.Places = append(d.Places, p)
			if d.Devices += p.Devices; d.Devices > 0 {
				d.LastSeen = now.UTC()
			}
		}
		return nil
	})
	return err
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
