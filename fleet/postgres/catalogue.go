package postgres

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/catalogue"
)

var _ catalogue.Store = (*Store)(nil)

// catalogueInventory adds the tools of a stored inventory to the catalogue. The digests are those of
// the stored text: jsonb keeps the value of a schema, and not its spelling. It returns whether a
// definition is new or is for models now.
//
// Transactions that add definitions do so in the order of their keys, and change the row of
// tool_catalogue last.
func catalogueInventory(ctx context.Context, tx pgx.Tx, id, device string, at time.Time) (changed bool, err error) {
	var text []byte
	err = tx.QueryRow(ctx, `UPDATE inventories SET catalogued = true WHERE id = $1 AND NOT catalogued RETURNING tools`,
		id).Scan(&text)
	if err != nil {
		return false, err
	}
	var tools []fleet.Tool
	if err := json.Unmarshal(text, &tools); err != nil {
		return false, err
	}
	var inventories int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM (SELECT FROM device_inventories WHERE device_id = $1 LIMIT $2) d`,
		device, catalogue.MaxInventoriesDevice).Scan(&inventories); err != nil {
		return false, err
	}
	if inventories >= catalogue.MaxInventoriesDevice {
		return false, nil
	}
	type definition struct {
		tool     fleet.Tool
		digest   fleet.ToolDigest
		audience fleet.Audience
	}
	var list []definition
	seen := map[string]bool{}
	for _, t := range tools {
		if seen[t.Name] || t.Name == "" { // the first of a name is the one that is called
			continue
		}
		seen[t.Name] = true
		d := definition{t, t.Digest(), fleet.AudienceModel}
		if t.UserOnly() {
			d.audience = fleet.AudienceUser
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b definition) int {
		return cmp.Or(cmp.Compare(a.tool.Name, b.tool.Name), bytes.Compare(a.digest[:], b.digest[:]))
	})
	var names, descriptions, schemas, audiences []string
	var digests [][]byte
	for _, d := range list {
		schema := d.tool.InputSchema
		if len(schema) == 0 {
			schema = json.RawMessage("null")
		}
		names, descriptions = append(names, d.tool.Name), append(descriptions, d.tool.Description)
		schemas, audiences = append(schemas, string(schema)), append(audiences, string(d.audience))
		digests = append(digests, d.digest[:])
	}
	var added, widened int64
	if err := tx.QueryRow(ctx, `
		WITH listed AS (
			SELECT * FROM unnest($1::text[], $2::bytea[], $3::text[], $4::text[], $5::text[])
				AS u (tool, digest, description, input_schema, audience)
		), missing AS (
			SELECT l.* FROM listed l LEFT JOIN tool_definitions d USING (tool, digest) WHERE d.tool IS NULL
			ORDER BY l.tool, l.digest
			LIMIT greatest(0, least($8 - (SELECT count(*) FROM tool_definitions WHERE device_id = $6),
				$9 - (SELECT count(*) FROM tool_definitions)))
		), widened AS (
			UPDATE tool_definitions d SET audience = 'model', waiting = `+waitingOf("d.tool")+`
			FROM listed l WHERE d.tool = l.tool AND d.digest = l.digest AND d.audience = 'user' AND l.audience = 'model'
			RETURNING 1
		), added AS (
			INSERT INTO tool_definitions (tool, digest, description, input_schema, audience, device_id, first_seen, waiting)
			SELECT tool, digest, description, input_schema::jsonb, audience, $6, $7::timestamptz,
				CASE WHEN audience = 'model' THEN `+waitingOf("missing.tool")+` END
			FROM missing ON CONFLICT DO NOTHING RETURNING 1
		)
		SELECT (SELECT count(*) FROM added), (SELECT count(*) FROM widened)`,
		names, digests, descriptions, schemas, audiences, device, at, catalogue.MaxDefinitionsDevice,
		catalogue.MaxDefinitions).Scan(&added, &widened); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO inventory_tools (tool, digest, inventory_id, audience)
		SELECT tool, digest, $4, u.audience FROM unnest($1::text[], $2::bytea[], $3::text[]) AS u (tool, digest, audience)
			JOIN tool_definitions d USING (tool, digest)
		ON CONFLICT DO NOTHING`, names, digests, audiences, id); err != nil {
		return false, err
	}
	if added+widened == 0 {
		return false, nil
	}
	_, err = tx.Exec(ctx, `UPDATE tool_catalogue SET version = version + 1`)
	return true, err
}

// waitingOf returns the expression for the state of a definition that appears: it waits as the setting
// says. A tool is new as long as no definition of it is offered to models.
func waitingOf(tool string) string {
	return `(SELECT CASE WHEN c.waits = 'off' THEN NULL
		WHEN NOT EXISTS (SELECT FROM tool_definitions o WHERE o.tool = ` + tool + ` AND o.audience = 'model' AND o.waiting IS NULL) THEN 'new'
		WHEN c.waits = 'new_and_changed' THEN 'changed' END FROM tool_catalogue c)`
}

// maxPlaces bounds the places of one inventory; hostile devices report many versions.
const maxPlaces = 1000

// noteInventory notes where and when an inventory is listed. Shared rows change at most once an hour.
func noteInventory(ctx context.Context, tx pgx.Tx, l fleet.ToolListing) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO inventory_places (inventory_id, board, version, first_seen)
		SELECT $2, board, $3, $4 FROM devices WHERE id = $1
			AND NOT EXISTS (SELECT FROM inventory_places p
				WHERE p.inventory_id = $2 AND p.board = devices.board AND p.version = $3)
			AND (SELECT count(*) FROM inventory_places WHERE inventory_id = $2) < $5
		ON CONFLICT DO NOTHING`, l.Device, l.Inventory.ID, cleanText(l.Version), l.At, maxPlaces)
	if err == nil {
		_, err = tx.Exec(ctx, `
			UPDATE inventories SET last_seen = $2
			WHERE id = $1 AND (last_seen IS NULL OR last_seen < $2::timestamptz - interval '1 hour')`, l.Inventory.ID, l.At)
	}
	return err
}

// OnDefinitions calls f after a listing that added definitions to the catalogue.
func (s *Store) OnDefinitions(f func(context.Context)) { s.defined = f }

// CatalogueInventories adds the tools of inventories that are not in the catalogue yet: those that
// an earlier version of fleetd stored. It returns how many there were.
func (s *Store) CatalogueInventories(ctx context.Context) (added int, err error) {
	for {
		rows, _ := s.db.Query(ctx, `
			SELECT i.id, coalesce((SELECT d.device_id FROM device_inventories d WHERE d.inventory_id = i.id
				ORDER BY d.id LIMIT 1), ''), i.created_at
			FROM inventories i WHERE NOT catalogued ORDER BY i.created_at, i.id LIMIT 200`)
		type inventory struct {
			ID, Device string
			At         time.Time
		}
		list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[inventory])
		if err != nil {
			return added, fmt.Errorf("inventories to catalogue: %w", domainError(err))
		}
		for _, i := range list {
			err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
				_, err := catalogueInventory(ctx, tx, i.ID, i.Device, i.At)
				return err
			})
			if err = domainError(err); err != nil && !isNotFound(err) {
				return added, fmt.Errorf("catalogue inventory %.64q: %w", i.ID, err)
			}
			added++
		}
		if len(list) < 200 {
			return added, nil
		}
	}
}

// CatalogueState reads the setting, and the definitions unless none waits.
func (s *Store) CatalogueState(ctx context.Context, before *catalogue.State) (*catalogue.State, error) {
	now := &catalogue.State{}
	err := s.db.QueryRow(ctx, `SELECT version, waits FROM tool_catalogue`).Scan(&now.Version, &now.Waits)
	if err != nil {
		return nil, fmt.Errorf("state of the catalogue: %w", domainError(err))
	}
	if before != nil && before.Version == now.Version {
		return before, nil
	}
	if now.Waits == catalogue.WaitsOff {
		return now, nil
	}
	now.Waiting = map[catalogue.Key]catalogue.Waiting{}
	rows, _ := s.db.Query(ctx, `SELECT tool, digest, coalesce(waiting, '') FROM tool_definitions WHERE audience = 'model'`)
	var tool string
	var digest []byte
	var waiting catalogue.Waiting
	if _, err := pgx.ForEachRow(rows, []any{&tool, &digest, &waiting}, func() error {
		now.Waiting[catalogue.Key{Tool: tool, Digest: fleet.ToolDigest(digest)}] = waiting
		return nil
	}); err != nil {
		return nil, fmt.Errorf("definitions of the catalogue: %w", domainError(err))
	}
	return now, nil
}

// SetWaits stores which definitions wait for a person.
func (s *Store) SetWaits(ctx context.Context, by fleet.Principal, w catalogue.Waits) error {
	return s.audited(ctx, by, "tool_definition.waits", string(w), nil, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE tool_catalogue SET waits = $1, version = version + 1`, string(w))
		return err
	})
}

// ReleaseDefinitions releases the definitions that wait, each with an audit entry.
func (s *Store) ReleaseDefinitions(ctx context.Context, by fleet.Principal, keys []catalogue.Key) (
	released []catalogue.Key, err error) {
	tools, digests := make([]string, len(keys)), make([][]byte, len(keys))
	for i, k := range keys {
		tools[i], digests[i] = cleanText(k.Tool), k.Digest[:]
	}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var unknown bool
		if err := tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM unnest($1::text[], $2::bytea[]) AS u (tool, digest)
				WHERE NOT EXISTS (SELECT FROM tool_definitions d WHERE d.tool = u.tool AND d.digest = u.digest))`,
			tools, digests).Scan(&unknown); err != nil {
			return err
		}
		if unknown {
			return fleet.ErrNotFound
		}
		if released, err = releaseDefinitions(ctx, tx, by, tools, digests); err != nil || len(released) == 0 {
			return err
		}
		notes := make([]auditNote, len(released))
		for i, k := range released {
			digest := hex.EncodeToString(k.Digest[:])
			notes[i] = auditNote{k.Tool, map[string]any{"digest": digest}}
			if err := trustReleased(ctx, tx, k.Tool, k.Digest); err != nil {
				return err
			}
		}
		return writeAudits(ctx, tx, by, "tool_definition.release", notes)
	})
	if err != nil {
		return nil, fmt.Errorf("release definitions of tools: %w", domainError(err))
	}
	return released, nil
}

// releaseDefinitions ends the waiting of definitions; of two transactions with the same one, the second
// finds it released.
func releaseDefinitions(ctx context.Context, tx pgx.Tx, by fleet.Principal, tools []string, digests [][]byte) (
	released []catalogue.Key, err error) {
	rows, _ := tx.Query(ctx, `
		UPDATE tool_definitions d SET waiting = NULL, released_by = $3, released_at = now()
		FROM (SELECT tool, digest FROM tool_definitions JOIN (SELECT DISTINCT * FROM unnest($1::text[], $2::bytea[])
				AS u (tool, digest)) u USING (tool, digest)
			WHERE waiting IS NOT NULL ORDER BY tool, digest FOR UPDATE OF tool_definitions) w
		WHERE d.tool = w.tool AND d.digest = w.digest AND d.waiting IS NOT NULL RETURNING d.tool, d.digest`,
		tools, digests, cleanText(by.Name))
	var tool string
	var digest []byte
	if _, err = pgx.ForEachRow(rows, []any{&tool, &digest}, func() error {
		released = append(released, catalogue.Key{Tool: tool, Digest: fleet.ToolDigest(digest)})
		return nil
	}); err != nil || len(released) == 0 {
		return nil, err
	}
	_, err = tx.Exec(ctx, `UPDATE tool_catalogue SET version = version + 1`)
	return released, err
}

// trustReleased ends the quarantines of programs' tools with a digest that a person released.
func trustReleased(ctx context.Context, tx pgx.Tx, tool string, digest fleet.ToolDigest) error {
	_, err := tx.Exec(ctx, `
		WITH released AS (DELETE FROM tool_quarantines WHERE tool = $1 AND digest = $2 RETURNING device_id)
		UPDATE trusted_tools SET tools = tools || jsonb_build_object($1::text, $3::text)
		WHERE device_id IN (SELECT device_id FROM released)`, tool, digest[:], hex.EncodeToString(digest[:]))
	return err
}
