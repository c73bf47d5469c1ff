package postgres

import (
	"encoding/base64"
	"encoding/json"
	"slices"

	"fleetd/fleet"
)

// A cursor marks a position in a list: the row after which (or, going back, before which) the
// page begins. To callers it is opaque text.
type cursor struct {
	Back bool   `json:"b,omitempty"`
	List string `json:"l"`           // the list and its order; a cursor of another list is refused
	Key  string `json:"k,omitempty"` // the row's sort key as text
	ID   string `json:"i"`
}

func (c cursor) String() string {
	b, _ := json.Marshal(c) // strings and a bool marshal
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor parses a cursor of the named list. It returns nil for "", the first page.
func parseCursor(s, list string) (*cursor, error) {
	if s == "" {
		return nil, nil
	}
	var c cursor
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.List != list || cleanText(c.Key) != c.Key || cleanText(c.ID) != c.ID {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
	}
	return &c, nil
}

func (c *cursor) back() bool { return c != nil && c.Back }

// makePage cuts rows to a page of limit rows; the query requested one row more. place returns the
// position of a row in the list.
func makePage[T any](rows []T, limit int, at *cursor, place func(T) cursor) fleet.Page[T] {
	more := len(rows) > limit
	rows = rows[:min(len(rows), limit)]
	if at.back() {
		slices.Reverse(rows)
	}
	p := fleet.Page[T]{Items: rows}
	if len(rows) == 0 {
		return p
	}
	if more || at.back() {
		p.Next = place(rows[len(rows)-1]).String()
	}
	if at != nil && (!at.back() || more) {
		first := place(rows[0])
		first.Back = true
		p.Prev = first.String()
	}
	return p
}

// mapPage converts a page of rows to a page of domain values.
func mapPage[R, T any](p fleet.Page[R], to func(R) T) fleet.Page[T] {
	items := make([]T, len(p.Items))
	for i, r := range p.Items {
		items[i] = to(r)
	}
	return fleet.Page[T]{Items: items, Next: p.Next, Prev: p.Prev}
}
