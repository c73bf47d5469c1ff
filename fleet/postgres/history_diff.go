package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/history"
)

// A pastSide is one of the two moments that are compared.
type pastSide struct {
	*fleetColumns
	hit   deviceBits // match the query
	holds map[int32]string
}

// fieldBits are fields of a change: bit i is history.Fields[i].
type fieldBits uint16

func (b *fieldBits) add(f history.Field) { *b |= 1 << slices.Index(history.Fields, f) }

func (b fieldBits) has(i int) bool { return b&(1<<i) != 0 }

func (b fieldBits) fields() (fields []history.Field) {
	for i, f := range history.Fields {
		if b.has(i) {
			fields = append(fields, f)
		}
	}
	return fields
}

// DiffStates lists the devices in service that differ between two moments by id, and counts them.
func (s *Store) DiffStates(ctx context.Context, f history.DiffFilter) (history.Diff, error) {
	d := history.Diff{Counts: map[history.Field]int{}}
	from, err := parseCursor(f.Cursor, "past_changes")
	if err == nil && from.back() {
		err = fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
	}
	if err != nil {
		return d, err
	}
	before, err := s.side(ctx, f.From, f.Query)
	if err != nil {
		return d, err
	}
	after, err := s.side(ctx, f.To, f.Query)
	if err != nil {
		return d, err
	}
	changed, err := s.compare(ctx, before, after)
	if err != nil {
		return d, err
	}
	only := newDeviceBits(max(len(before.profiles), len(after.profiles)))
	for n, fields := range changed {
		d.Devices++
		for i, field := range history.Fields {
			if fields.has(i) {
				d.Counts[field]++
			}
		}
		if f.Field == "" || fields.has(slices.Index(history.Fields, f.Field)) {
			only.add(int(n))
		}
	}
	limit := fleet.ClampLimit(f.Limit)
	found, err := s.pastPlaces(ctx, f.To, only, byID, from, limit)
	if err != nil {
		return d, fmt.Errorf("changes from %s to %s: %w", f.From, f.To, domainError(err))
	}
	page := makePage(found, limit, from, func(p pastPlace) cursor { return cursor{List: "past_changes", ID: string(p.ID)} })
	then, err := s.statesAsOf(ctx, before.fleetColumns, numbersOf(page.Items))
	if err != nil {
		return d, err
	}
	now, err := s.statesAsOf(ctx, after.fleetColumns, numbersOf(page.Items))
	if err != nil {
		return d, err
	}
	d.Page = mapPage(page, func(p pastPlace) history.Change {
		c := history.Change{Device: p.ID, Fields: changed[p.Number].fields()}
		if state, ok := then[p.Number]; ok && !state.Retired {
			c.Before = &state
		}
		if state, ok := now[p.Number]; ok && !state.Retired {
			c.After = &state
		}
		return c
	})
	d.Page.Prev = ""
	return d, s.addTools(ctx, d.Page.Items)
}

// side returns all devices in service at a moment.
func (s *Store) side(ctx context.Context, at time.Time, q fleet.Query) (side pastSide, err error) {
	if side.fleetColumns, err = s.fleetAsOf(ctx, at); err != nil {
		return side, err
	}
	if side.holds, err = s.holdsAsOf(ctx, at); err != nil {
		return side, err
	}
	side.hit, err = s.match(ctx, side.fleetColumns, q.Terms)
	return side, err
}

// compare returns in which fields devices differ.
func (s *Store) compare(ctx context.Context, b, a pastSide) (map[int32]fieldBits, error) {
	renamed, err := s.renamed(ctx, b.at, a.at)
	if err != nil {
		return nil, err
	}
	ids := map[int32]bool{}
	for _, profiles := range [][]int32{b.profiles, a.profiles} {
		for _, id := range profiles {
			ids[id] = true
		}
	}
	profiles, err := s.profiles(ctx, slices.Collect(maps.Keys(ids)))
	if err != nil {
		return nil, err
	}
	sameTags, err := s.sameTags(ctx, b, a)
	if err != nil {
		return nil, err
	}
	pairs := map[[2]int32]fieldBits{}
	ofPair := func(pair [2]int32) fieldBits {
		bits, ok := pairs[pair]
		if !ok {
			bits = differing(profiles[pair[0]], profiles[pair[1]])
			pairs[pair] = bits
		}
		return bits
	}
	changed := map[int32]fieldBits{}
	for n := range max(len(b.profiles), len(a.profiles)) {
		if !b.hit.has(n) && !a.hit.has(n) {
			continue
		}
		number := int32(n)
		pair := [2]int32{b.profiles.at(n), a.profiles.at(n)}
		bits := ofPair(pair)
		if profiles[pair[0]].InService && profiles[pair[1]].InService {
			if renamed[number] {
				bits.add(history.FieldName)
			}
			if tags := [2]int32{b.tags.at(n), a.tags.at(n)}; tags[0] != tags[1] && !sameTags[tags] {
				bits.add(history.FieldTags)
			}
			if b.presence.at(n) != a.presence.at(n) {
				bits.add(history.FieldPresence)
			}
			reason, held := b.holds[number]
			if now, still := a.holds[number]; held != still || reason != now {
				bits.add(history.FieldHold)
			}
		}
		if bits != 0 {
			changed[number] = bits
		}
	}
	return changed, nil
}

// differing returns the fields in which profiles differ; the zero profile is that of no device.
func differing(b, a deviceProfile) (bits fieldBits) {
	switch {
	case !b.InService && !a.InService:
		return 0
	case !b.InService:
		bits.add(history.FieldAdded)
		return bits
	case !a.InService:
		bits.add(history.FieldRemoved)
		return bits
	}
	for field, differs := range map[history.Field]bool{history.FieldVersion: b.Version != a.Version,
		history.FieldBoard: b.Board != a.Board, history.FieldEnrolment: b.Enrolment != a.Enrolment,
		history.FieldTools: b.Inventory != a.Inventory} {
		if differs {
			bits.add(field)
		}
	}
	return bits
}

// renamed returns the devices whose names differ between two moments.
func (s *Store) renamed(ctx context.Context, from, to time.Time) (map[int32]bool, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT a.number FROM device_names a JOIN device_names b ON b.number = a.number AND b.begun_at <= $1 AND b.ended_at > $1
		WHERE a.begun_at > $1 AND a.begun_at <= $2 AND a.ended_at > $2 AND a.name <> b.name`, from, to)
	numbers := map[int32]bool{}
	var number int32
	_, err := pgx.ForEachRow(rows, []any{&number}, func() error {
		numbers[number] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("names that changed from %s to %s: %w", from, to, domainError(err))
	}
	return numbers, nil
}

// sameTags returns the pairs of sets of tags that are equal although their ids differ.
func (s *Store) sameTags(ctx context.Context, b, a pastSide) (map[[2]int32]bool, error) {
	pairs, ids := map[[2]int32]bool{}, map[int32]bool{}
	for n, id := range b.tags {
		if now := a.tags.at(n); now != id && now != 0 && id != 0 {
			pairs[[2]int32{id, now}], ids[id], ids[now] = false, true, true
		}
	}
	sets, err := s.tagSets(ctx, slices.Collect(maps.Keys(ids)))
	if err != nil {
		return nil, err
	}
	for pair := range pairs {
		pairs[pair] = slices.Equal(sets[pair[0]], sets[pair[1]])
	}
	return pairs, nil
}

// addTools adds the names of the tools that were added and removed.
func (s *Store) addTools(ctx context.Context, changes []history.Change) error {
	wanted := map[string]bool{}
	for _, c := range changes {
		if slices.Contains(c.Fields, history.FieldTools) {
			wanted[c.Before.Inventory], wanted[c.After.Inventory] = true, true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	rows, _ := s.db.Query(ctx, `SELECT id, tool_names FROM inventories WHERE id = ANY ($1)`,
		slices.Collect(maps.Keys(wanted)))
	tools := map[string][]string{}
	var id string
	var names []string
	_, err := pgx.ForEachRow(rows, []any{&id, &names}, func() error {
		tools[id] = slices.Clone(names)
		return nil
	})
	if err != nil {
		return fmt.Errorf("tools of %d inventories: %w", len(wanted), domainError(err))
	}
	without := func(all, out []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(out, name) })
	}
	for i := range changes {
		if c := &changes[i]; slices.Contains(c.Fields, history.FieldTools) {
			before, after := tools[c.Before.Inventory], tools[c.After.Inventory]
			c.ToolsAdded, c.ToolsRemoved = without(after, before), without(before, after)
		}
	}
	return nil
}
