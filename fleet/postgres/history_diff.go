package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

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
	var before, after pastSide
	var renamed map[int32]bool
	parts, of := errgroup.WithContext(ctx)
	parts.Go(func() (err error) { before, err = s.side(of, f.From, f.Query); return err })
	parts.Go(func() (err error) { after, err = s.side(of, f.To, f.Query); return err })
	parts.Go(func() (err error) { renamed, err = s.renamed(of, f.From, f.To); return err })
	if err := parts.Wait(); err != nil {
		return d, err
	}
	changed, err := s.compare(ctx, before, after, renamed)
	if err != nil {
		return d, err
	}
	counts := make([]int, len(history.Fields))
	only := newDeviceBits(len(changed))
	wanted := slices.Index(history.Fields, f.Field)
	for n, fields := range changed {
		if fields == 0 {
			continue
		}
		d.Devices++
		for i := range counts {
			if fields.has(i) {
				counts[i]++
			}
		}
		if wanted < 0 || fields.has(wanted) {
			only.add(n)
		}
	}
	for i, n := range counts {
		if n > 0 {
			d.Counts[history.Fields[i]] = n
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
	d.Page.Items = slices.DeleteFunc(d.Page.Items, func(c history.Change) bool {
		return c.Before == nil && c.After == nil // deleted since it was found
	})
	d.Page.Prev = ""
	return d, s.addTools(ctx, d.Page.Items)
}

// side returns all devices of a moment, and which of them match the query and are in service.
func (s *Store) side(ctx context.Context, at time.Time, q fleet.Query) (side pastSide, err error) {
	if side.fleetColumns, err = s.fleetAsOf(ctx, at); err != nil {
		return side, err
	}
	if side.holds, err = s.holdsAsOf(ctx, at); err != nil {
		return side, err
	}
	terms, err := s.pastTerms(ctx, at, append([]fleet.Term{notRetired}, q.Terms...))
	side.hit = side.matching(terms)
	return side, err
}

// compare returns in which fields devices differ, by number.
func (s *Store) compare(ctx context.Context, b, a pastSide, renamed map[int32]bool) ([]fieldBits, error) {
	pairs, ids := map[[2]int32]fieldBits{}, map[int32]bool{}
	for n := range max(len(b.profiles), len(a.profiles)) {
		pair := [2]int32{b.profiles.at(n), a.profiles.at(n)}
		if _, ok := pairs[pair]; !ok {
			pairs[pair], ids[pair[0]], ids[pair[1]] = 0, true, true
		}
	}
	profiles, err := s.profiles(ctx, slices.Collect(maps.Keys(ids)))
	if err != nil {
		return nil, err
	}
	for pair := range pairs {
		pairs[pair] = differing(profiles[pair[0]], profiles[pair[1]])
	}
	sameTags, err := s.sameTags(ctx, b, a)
	if err != nil {
		return nil, err
	}
	changed := make([]fieldBits, max(len(b.profiles), len(a.profiles)))
	for n := range changed {
		if !b.hit.has(n) && !a.hit.has(n) {
			continue
		}
		pair := [2]int32{b.profiles.at(n), a.profiles.at(n)}
		bits := pairs[pair]
		if bits&inBoth != 0 {
			bits &^= inBoth
			if renamed[int32(n)] {
				bits.add(history.FieldName)
			}
			if tags := [2]int32{b.tags.at(n), a.tags.at(n)}; tags[0] != tags[1] && !sameTags[tags] {
				bits.add(history.FieldTags)
			}
			if b.presence.at(n) != a.presence.at(n) {
				bits.add(history.FieldPresence)
			}
			reason, held := b.holds[int32(n)]
			if now, still := a.holds[int32(n)]; held != still || reason != now {
				bits.add(history.FieldHold)
			}
		}
		changed[n] = bits
	}
	return changed, nil
}

// inBoth marks profiles of devices in service at both moments: they may differ in more than their profiles.
const inBoth fieldBits = 1 << 15

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
	bits = inBoth
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
		SELECT a.number FROM device_names a
			JOIN device_names b ON b.number = a.number AND b.begun_at <= $1 AND b.ended_at > $1
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
	if len(ids) == 0 {
		return nil, nil
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
