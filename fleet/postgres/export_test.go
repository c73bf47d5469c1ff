package postgres

import (
	"context"

	"fleetd/fleet"
)

// TimelineQuery is the statement that reads a timeline.
func TimelineQuery(ctx context.Context, f fleet.TimelineFilter) (sql string, args []any, err error) {
	sql, args, _, err = timelineQuery(ctx, f)
	return sql, args, err
}

var GrownTables = grownTables
