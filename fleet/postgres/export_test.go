package postgres

import (
	"context"

	"fleetd/fleet"
	"fleetd/fleet/audit"
)

// AuditQuery is the statement that reads the first page of the audit log.
func AuditQuery(ctx context.Context, f audit.Filter) (sql string, args []any, err error) {
	return auditQuery(ctx, f, nil, fleet.DefaultLimit)
}

// TimelineQuery is the statement that reads a timeline.
func TimelineQuery(ctx context.Context, f fleet.TimelineFilter) (sql string, args []any, err error) {
	sql, args, _, err = timelineQuery(ctx, f)
	return sql, args, err
}

var GrownTables = grownTables

// BlobColumns are the columns that name blobs, as table.column.
func BlobColumns() map[string]bool {
	all := make(map[string]bool)
	for _, c := range blobColumns {
		all[c.table+"."+c.column] = true
	}
	return all
}
