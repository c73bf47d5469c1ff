package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// blobColumns are the columns that name blobs, which are stored once if their bytes are equal. A test
// finds columns that are missing here: a sweep would delete their blobs.
var blobColumns = []struct{ table, column string }{
	{"images", "sha256"}, {"image_parts", "sha256"}, {"snapshots", "blob"}, {"core_dumps", "blob"}, {"url_links", "blob"},
	{"approvals", "picture"}, {"call_waits", "picture"},
}

// blobNamed returns an expression for whether a row names the blob of an expression.
func blobNamed(key string) string {
	named := make([]string, len(blobColumns))
	for i, c := range blobColumns { // the second condition is that of partial indexes
		named[i] = fmt.Sprintf("EXISTS (SELECT FROM %s WHERE %[2]s = %[3]s AND %[2]s <> '')", c.table, c.column, key)
	}
	return "(" + strings.Join(named, " OR ") + ")"
}

// NamedBlobs returns those of the keys that a row names.
func (s *Store) NamedBlobs(ctx context.Context, keys []string) (map[string]bool, error) {
	rows, _ := s.db.Query(ctx, `SELECT key FROM unnest($1::text[]) AS key WHERE `+blobNamed("key"), cleanTexts(keys))
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("names of %d blobs: %w", len(keys), domainError(err))
	}
	named := make(map[string]bool, len(list))
	for _, key := range list {
		named[key] = true
	}
	return named, nil
}
