package postgres

import (
	"fmt"
	"time"
)

// newestFirst restricts a list, ordered from the newest row to the oldest, to the rows from the
// cursor on, and returns its order. id is the column that distinguishes rows with the same
// created_at, typ its type.
func (w *where) newestFirst(at *cursor, id, typ string) (order string) {
	direction, compare := " DESC", "<"
	if at.back() {
		direction, compare = " ASC", ">"
	}
	if at != nil {
		w.and(fmt.Sprintf("(created_at, %s) %s (?::text::timestamptz, ?::text::%s)", id, compare, typ), at.Key, at.ID)
	}
	return " ORDER BY created_at" + direction + ", " + id + direction
}

// newestPlace returns the position of a row in such a list.
func newestPlace(list string, created time.Time, id string) cursor {
	return cursor{List: list, Key: created.Format(time.RFC3339Nano), ID: id}
}
