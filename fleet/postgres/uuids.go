package postgres

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// idSlack is how far the time in a version 7 id may lie from created_at: the
// two are read from the clock one after the other, and the clock may be set.
const idSlack = time.Hour

// idTime returns the time a version 7 id carries, to the millisecond.
func idTime(id uuid.UUID) (t time.Time, ok bool) {
	if id.Version() != 7 {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16)).UTC(), true
}

// idWindow bounds created_at of the row with a version 7 id, so that only the
// partitions it can be in are looked at.
func idWindow(id uuid.UUID) (from, to time.Time, ok bool) {
	t, ok := idTime(id)
	return t.Add(-idSlack), t.Add(idSlack), ok
}

// idFloor is the least version 7 id of a time.
func idFloor(t time.Time) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(max(0, t.UnixMilli()))<<16)
	return id
}

// idsDown continues a list that runs from the newest id to the oldest, and
// returns its order. The bound on created_at spares partitions.
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
