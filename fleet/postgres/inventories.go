package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

var _ fleet.InventoryStore = (*Store)(nil)

// SaveListing stores the inventory if it is new, adds it to the device's history and makes it the
// device's current one.
func (s *Store) SaveListing(ctx context.Context, l fleet.ToolListing) error {
	tools, err := toolsJSON(l.Inventory.Tools)
	if err != nil {
		return fmt.Errorf("tools of device %s: %w", l.Device, err)
	}
	names := collect(l.Inventory.Tools, func(t fleet.Tool) string { return cleanText(t.Name) })
	defined := false
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		added, err := tx.Exec(ctx, `INSERT INTO inventories (id, tools, tool_names, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
			l.Inventory.ID, tools, names, l.At)
		if err != nil {
			return err
		}
		if added.RowsAffected() > 0 {
			if defined, err = catalogueInventory(ctx, tx, l.Inventory.ID, string(l.Device), l.At); err != nil {
				return err
			}
		}
		if err := changeOne(ctx, tx, `
			UPDATE devices SET inventory_id = $2, inventory_elf = $3, inventory_at = $4, tools_count = $5 WHERE id = $1`,
			l.Device, l.Inventory.ID, cleanText(l.ELFSHA256), l.At, len(names)); err != nil {
			return err
		}
		if err := noteInventory(ctx, tx, l); err != nil {
			return err
		}
		return noteListing(ctx, tx, l)
	})
	if err != nil {
		return fmt.Errorf("tools of device %s: %w", l.Device, domainError(err))
	}
	if defined && s.defined != nil {
		s.defined(ctx)
	}
	return nil
}

// noteListing updates the history: it extends the current period, or ends it and begins another.
func noteListing(ctx context.Context, tx pgx.Tx, l fleet.ToolListing) error {
	_, err := tx.Exec(ctx, `
		UPDATE device_inventories SET current = false
		WHERE device_id = $1 AND current AND (inventory_id <> $2 OR partial <> $3)`, l.Device, l.Inventory.ID, l.Partial)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO device_inventories (device_id, inventory_id, version, elf_sha256, server_name, server_version,
			tools_count, partial,
			first_seen, last_seen, current, unexplained)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, true, NOT $8 AND coalesce((
			SELECT p.inventory_id <> $2 AND p.version = $3 AND p.elf_sha256 = $4 FROM device_inventories p
			WHERE p.device_id = $1 AND NOT p.partial ORDER BY p.id DESC LIMIT 1), false))
		ON CONFLICT (device_id) WHERE current DO UPDATE SET last_seen = greatest(device_inventories.last_seen,
			excluded.last_seen)`,
		l.Device, l.Inventory.ID, cleanText(l.Version), cleanText(l.ELFSHA256), cleanText(l.ServerName),
		cleanText(l.ServerVersion),
		len(l.Inventory.Tools), l.Partial, l.At)
	return err
}

// toolsJSON encodes tools for a jsonb column, which accepts no NUL. An invalid schema becomes a
// JSON string, so the listing does not fail.
func toolsJSON(tools []fleet.Tool) (string, error) {
	clean := slices.Clone(tools)
	for i := range clean {
		if schema := cleanJSON(clean[i].InputSchema); schema != nil {
			clean[i].InputSchema = json.RawMessage(*schema)
		} else {
			clean[i].InputSchema = nil
		}
	}
	if clean == nil {
		clean = []fleet.Tool{}
	}
	b, err := json.Marshal(clean)
	return withoutNUL(string(b)), err
}

// Inventory returns one inventory, or [fleet.ErrNotFound].
func (s *Store) Inventory(ctx context.Context, id string) (*fleet.Inventory, error) {
	inv := &fleet.Inventory{ID: id}
	var tools []byte
	var w where
	w.and("id = ?", cleanText(id))
	if in := w.devicesInScope(ctx); in != "" { // an inventory exists if a device that lists it does
		w.and("EXISTS (SELECT FROM device_inventories d WHERE d.inventory_id = inventories.id AND d.device_id IN " + in + ")")
	}
	err := s.db.QueryRow(ctx, `SELECT tools, created_at FROM inventories`+w.String(), w.args...).Scan(&tools,
		&inv.CreatedAt)
	if err == nil {
		err = json.Unmarshal(tools, &inv.Tools)
	}
	if err != nil {
		return nil, fmt.Errorf("inventory %.64q: %w", id, domainError(err))
	}
	return inv, nil
}

// InventoriesInUse counts the devices that match a query by their inventory.
func (s *Store) InventoriesInUse(ctx context.Context, q fleet.Query) ([]fleet.InventoryUse, error) {
	var w where
	w.query(q, time.Now())
	w.scope(ctx)
	w.and("inventory_id IS NOT NULL")
	rows, _ := s.db.Query(ctx, `SELECT inventory_id, board, count(*) AS devices FROM devices`+w.String()+
		` GROUP BY 1, 2`, w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.InventoryUse])
	if err != nil {
		return nil, fmt.Errorf("inventories in use: %w", domainError(err))
	}
	return list, nil
}

// InventoryChanges counts the devices whose inventory changed while their firmware did not. Tools
// missing in an incomplete listing do not count as changes.
func (s *Store) InventoryChanges(ctx context.Context) ([]fleet.InventoryChange, error) {
	scope, args := scopedTo(ctx, "a.device_id")
	rows, _ := s.db.Query(ctx, `
		SELECT b.inventory_id AS before, a.inventory_id AS after, count(DISTINCT a.device_id) AS devices
		FROM device_inventories a JOIN device_inventories b USING (device_id)
		WHERE a.current AND NOT b.current AND a.inventory_id <> b.inventory_id AND NOT a.partial AND NOT b.partial
			AND a.version = b.version AND a.elf_sha256 = b.elf_sha256 AND a.version <> ''`+scope+`
		GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 1000`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.InventoryChange])
	if err != nil {
		return nil, fmt.Errorf("inventory changes: %w", domainError(err))
	}
	return list, nil
}

// DeviceInventories lists the device's inventories, newest first.
func (s *Store) DeviceInventories(ctx context.Context, id fleet.DeviceID) ([]fleet.InventoryRecord, error) {
	scoped, args := scopedTo(ctx, "device_id", cleanText(string(id)), maxHistory)
	rows, _ := s.db.Query(ctx, `
		SELECT inventory_id, version, elf_sha256, tools_count, partial, first_seen, last_seen
		FROM device_inventories WHERE device_id = $1`+scoped+` ORDER BY id DESC LIMIT $2`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.InventoryRecord])
	if err != nil {
		return nil, fmt.Errorf("inventories of device %s: %w", id, domainError(err))
	}
	return list, nil
}
