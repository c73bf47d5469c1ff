package postgres

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// idSlack is how much the time in a version 7 id may differ from created_at: the clock is read
// once for each, and may be set in between.
const idSlack = time.Hour

// idTime returns the time in a version 7 id, to the millisecond.
func idTime(id uuid.UUID) (t time.Time, ok bool) {
	if id.Version() != 7 {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16)).UTC(), true
}

// idWindow returns bounds on created_at of the row with a version 7 id, so that only the
// partitions that may contain it are searched.
func idWindow(id uuid.UUID) (from, to time.Time, ok bool) {
	t, ok := idTime(id)
	return t.Add(-idSlack), t.Add(idSlack), ok
}

// idFloor returns the least version 7 id of a time.
func idFloor(t time.Time) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(max(0, t.UnixMilli()))<<16)
	return id
}

// idsDown restricts a list, ordered from the newest id to the oldest, to the rows from the cursor
// on, and returns its order. The bound on created_at excludes partitions from the search.
func (w *where) idsDown(at *cursor) (order string, err error) {
	if at == nil {
		return " ORDER BY id DESC", nil
	}
	id, err := uuid.Parse(at.ID)
	from, to, ok := idWindow(id)
	if err != nil || !ok {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
	}
	if at.Back {
		w.and("id > ?", id)
		w.and("created_at >= ?", from)
		return " ORDER BY id", nil
	}
	w.and("id < ?", id)
	w.and("created_at < ?", to)
	return " ORDER BY id DESC", nil
}
