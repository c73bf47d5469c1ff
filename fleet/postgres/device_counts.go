package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

const isPictured = "EXISTS (SELECT FROM snapshots WHERE snapshots.device_id = devices.id)"

// CountEach counts the devices that match each query, in one pass over the devices.
func (s *Store) CountEach(ctx context.Context, queries []fleet.Query) ([]int, error) {
	var w where
	w.scope(ctx)
	now, columns := time.Now(), make([]string, len(queries))
	for i, q := range queries {
		one := where{args: w.args}
		one.query(q, now)
		w.args = one.args
		columns[i] = "count(*)"
		if len(one.conds) > 0 {
			columns[i] += " FILTER (WHERE " + strings.Join(one.conds, " AND ") + ")"
		}
	}
	counts := make([]int, len(queries))
	into := make([]any, len(queries))
	for i := range counts {
		into[i] = &counts[i]
	}
	err := s.db.QueryRow(ctx, `SELECT `+strings.Join(columns, ", ")+` FROM devices`+w.String(), w.args...).Scan(into...)
	if err != nil {
		return nil, fmt.Errorf("count devices of %d queries: %w", len(queries), domainError(err))
	}
	return counts, nil
}

// CountPictured counts the devices that match a query and have a stored picture.
func (s *Store) CountPictured(ctx context.Context, q fleet.Query) (n int, err error) {
	var w where
	w.query(q, time.Now())
	w.scope(ctx)
	w.and(isPictured)
	if err := s.db.QueryRow(ctx, `SELECT count(*) FROM devices`+w.String(), w.args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count devices with a picture: %w", domainError(err))
	}
	return n, nil
}

// countedFields are the fields of the query language whose values are counted.
var countedFields = map[string]string{
	"board": "board", "chip": "chip", "kind": "kind", "version": "version", "presence": "presence", "enrolment": "enrolment",
	"slot": "slot", "transport": "transport", "tag": "tags",
	"tool": "(SELECT tool_names FROM inventories i WHERE i.id = inventory_id)",
}

// CountValues counts matching devices by a field of the query language, for values that contain
// the text, largest first.
func (s *Store) CountValues(ctx context.Context, q fleet.Query, field, text string, limit int) ([]fleet.DeviceCount,
	error) {
	column, ok := countedFields[field]
	if !ok {
		return nil, nil
	}
	var w where
	w.query(q, time.Now())
	w.scope(ctx)
	of := `SELECT ` + column + ` AS value, count(*) AS n FROM devices` + w.String() + ` GROUP BY 1`
	if field == "tag" || field == "tool" { // a device has many of these; distinct sets are fewer than devices
		of = `SELECT v.value, sum(n) AS n FROM (` + of + `) sets, unnest(sets.value) AS v (value) GROUP BY 1`
	}
	rows, _ := s.db.Query(ctx, `SELECT value, n::int AS count FROM (`+of+`) counted WHERE value <> '' AND strpos(lower(value), `+
		w.arg(strings.ToLower(cleanText(text)))+`) > 0 ORDER BY n DESC, value LIMIT `+w.arg(limit), w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.DeviceCount])
	if err != nil {
		return nil, fmt.Errorf("count devices by %s: %w", field, domainError(err))
	}
	return list, nil
}
