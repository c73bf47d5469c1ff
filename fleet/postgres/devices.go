package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

var _ fleet.DeviceStore = (*Store)(nil)

// maxHistory bounds the history lists of one device.
const maxHistory = 1000

var ownColumns = `id, kind, name, board, board_type, chip, version, elf_sha256, slot, client_id, language,
	presence, presence_since, ` + reasonColumn("", "presence_evidence") + `, last_seen, last_poll, transport, transport_choice, transport_given,
	remote_addr,
	CASE WHEN presence IN ('online', 'unresponsive', 'unknown_edge')
		THEN coalesce((SELECT c.node FROM connections c WHERE c.device_id = devices.id), '') ELSE '' END AS edge,
	enrolment, claim_code, new_client_id, enrolled_at, tags, notes,
	hold_reason, hold_kind, hold_id, hold_name, hold_role, hold_since, hold_until,
	coalesce(inventory_id, '') AS inventory_id, inventory_elf, inventory_at, tools_count,
	time_zone, ota_slot_size, partition_labels, chip_rev, free_heap, flash_bytes,
	EXISTS (SELECT FROM device_vitals v WHERE v.device_id = devices.id AND v.safe_mode) AS safe_mode,
	EXISTS (SELECT FROM device_vitals v WHERE v.device_id = devices.id AND v.core_dump) AS core_dump,
	(SELECT c.at FROM report_changes c WHERE c.device_id = devices.id AND ` + isCrash + `
		ORDER BY c.at DESC LIMIT 1) AS crashed_at,
	conflict_code, conflict_first, conflict_last, conflict_evidence, conflict_sides,
	claimed_board, claimed_board_type, claimed_chip, claimed_at,
	created_at, retired_at`

const relatedColumns = `, coalesce(replaced_by, '') AS replaced_by,
	coalesce((SELECT o.id FROM devices o WHERE o.replaced_by = devices.id LIMIT 1), '') AS replaces`

// deviceColumns returns the columns of a device. The ids of other devices that do not exist for
// the principal are left out.
func (w *where) deviceColumns(ctx context.Context) string {
	in := w.devicesInScope(ctx)
	if in == "" {
		return ownColumns + relatedColumns
	}
	return ownColumns + `,
		coalesce((SELECT o.id FROM devices o WHERE o.id = devices.replaced_by AND o.id IN ` + in + `), '') AS replaced_by,
		coalesce((SELECT o.id FROM devices o WHERE o.replaced_by = devices.id AND o.id IN ` + in + ` LIMIT 1), '')
			AS replaces`
}

// A deviceRow is a device as stored: its hold and its layout are columns.
type deviceRow struct {
	fleet.Device
	HoldReason, HoldKind, HoldID, HoldName, HoldRole *string
	HoldSince, HoldUntil                             *time.Time
	OTASlotSize, FreeHeap, FlashBytes                *int64
	PartitionLabels                                  []string
	ChipRev                                          *int
	ConflictCode                                     *string
	ConflictFirst, ConflictLast                      *time.Time
	ConflictEvidence                                 []string
	ConflictSides                                    []byte
	ClaimedBoard, ClaimedBoardType, ClaimedChip      *string
	ClaimedAt                                        *time.Time
	SortKey                                          string
}

func (r deviceRow) device() fleet.Device {
	d := r.Device
	if r.HoldSince != nil {
		d.Hold = &fleet.Hold{Reason: *r.HoldReason, Since: *r.HoldSince, Until: r.HoldUntil,
			By: fleet.Principal{Kind: fleet.PrincipalKind(*r.HoldKind), ID: *r.HoldID, Name: *r.HoldName,
				Role: fleet.Role(*r.HoldRole)}}
	}
	d.Conflict = r.conflict()
	if r.ClaimedAt != nil {
		d.Claimed = &fleet.ClaimedHardware{Board: *r.ClaimedBoard, BoardType: *r.ClaimedBoardType, Chip: *r.ClaimedChip,
			At: *r.ClaimedAt}
	}
	if r.OTASlotSize != nil {
		d.Layout = &fleet.FlashLayout{SlotSize: *r.OTASlotSize, Labels: r.PartitionLabels, ChipRev: *r.ChipRev,
			FreeHeap: *r.FreeHeap, FlashBytes: *r.FlashBytes}
	}
	return d
}

// scanDevice is lax because Hold, Conflict, Claimed and Layout are no columns, and SortKey one of lists only.
var scanDevice = pgx.RowToStructByNameLax[deviceRow]

func scanPlainDevice(row pgx.CollectableRow) (fleet.Device, error) {
	r, err := scanDevice(row)
	return r.device(), err
}

// Device returns the device with the given id, or [fleet.ErrNotFound].
func (s *Store) Device(ctx context.Context, id fleet.DeviceID) (fleet.Device, error) {
	var w where
	w.and("id = ?", cleanText(string(id)))
	w.scope(ctx)
	rows, _ := s.db.Query(ctx, `SELECT `+w.deviceColumns(ctx)+` FROM devices`+w.String(), w.args...)
	d, err := pgx.CollectExactlyOneRow(rows, scanPlainDevice)
	if err != nil {
		return fleet.Device{}, fmt.Errorf("device %s: %w", id, domainError(err))
	}
	return d, nil
}

// DevicesByID returns the devices with the ids, as far as they exist, by id.
func (s *Store) DevicesByID(ctx context.Context, ids []fleet.DeviceID) ([]fleet.Device, error) {
	var w where
	w.and("id = ANY (?)", ids)
	w.scope(ctx)
	rows, _ := s.db.Query(ctx, `SELECT `+w.deviceColumns(ctx)+` FROM devices`+w.String()+` ORDER BY id`, w.args...)
	list, err := pgx.CollectRows(rows, scanPlainDevice)
	if err != nil {
		return nil, fmt.Errorf("devices by id: %w", domainError(err))
	}
	return list, nil
}

// deviceOrders are the sort keys of device lists and their types.
var deviceOrders = map[fleet.DeviceSort]struct{ expr, typ string }{
	fleet.SortName:    {"title_key", "text"},
	fleet.SortBoard:   {"board_key", "text"},
	fleet.SortVersion: {"coalesce(version_key, '{}')", "bigint[]"},
	fleet.SortPresence: {"CASE presence WHEN 'online' THEN 0 WHEN 'unresponsive' THEN 1 WHEN 'unknown_edge' THEN 2 WHEN 'offline' THEN 3 ELSE 4 END",
		"int"},
	fleet.SortLastSeen: {"coalesce(last_seen, '-infinity')", "timestamptz"},
	fleet.SortCreated:  {"created_at", "timestamptz"},
}

// Devices lists the devices that match a query.
func (s *Store) Devices(ctx context.Context, f fleet.DeviceFilter) (fleet.Page[fleet.Device], error) {
	none := fleet.Page[fleet.Device]{}
	if f.Sort == "" {
		f.Sort = fleet.SortName
	}
	key, ok := deviceOrders[f.Sort]
	if !ok {
		return none, fleet.Refuse(fleet.ErrInvalid, "invalid_sort", "value", string(f.Sort))
	}
	if f.Sort == fleet.SortName && !f.Query.Empty() {
		// Walking the index by name until enough rows match takes very long if few do. The
		// planner cannot know that; this expression prevents it from trying.
		key.expr = "(title_key || '')"
	}
	list := fmt.Sprintf("devices/%s/%t", f.Sort, f.Desc)
	at, err := parseCursor(f.Cursor, list)
	if err != nil {
		return none, err
	}
	direction, compare := " ASC", ">"
	if f.Desc != at.back() {
		direction, compare = " DESC", "<"
	}
	var w where
	w.query(f.Query, time.Now())
	w.scope(ctx)
	if f.Pictured {
		w.and(isPictured)
	}
	if at != nil {
		w.and("("+key.expr+", id) "+compare+" (?::"+key.typ+", ?)", at.Key, at.ID)
	}
	limit := fleet.ClampLimit(f.Limit)
	order := ` ORDER BY ` + key.expr + direction + `, id` + direction
	// The rows of the page are fetched after their ids are known: reading every column of every
	// matching row would cost more than the rest.
	rows, _ := s.db.Query(ctx, `
		SELECT `+w.deviceColumns(ctx)+`, (`+key.expr+`)::text AS sort_key FROM devices
		WHERE id = ANY (ARRAY(SELECT id FROM devices`+w.String()+order+` LIMIT `+w.arg(limit+1)+`))`+order, w.args...)
	found, err := pgx.CollectRows(rows, scanDevice)
	if err != nil {
		return none, cursorError(at, fmt.Errorf("devices: %w", domainError(err)))
	}
	page := makePage(found, limit, at, func(r deviceRow) cursor {
		return cursor{List: list, Key: r.SortKey,
			ID: string(r.ID)}
	})
	return mapPage(page, deviceRow.device), nil
}

// cursorError attributes a key that cannot be parsed as its type to the cursor, the only part of
// a list's statement that callers could have altered.
func cursorError(at *cursor, err error) error {
	if at != nil && hasClass22(err) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
	}
	return err
}

// CountDevices counts the devices that match a query.
func (s *Store) CountDevices(ctx context.Context, q fleet.Query) (int, error) {
	var w where
	w.query(q, time.Now())
	w.scope(ctx)
	var n int
	if err := s.db.QueryRow(ctx, `SELECT count(*) FROM devices`+w.String(), w.args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count devices: %w", domainError(err))
	}
	return n, nil
}

// DeviceIDs returns the ids of all devices that match a query, in order.
func (s *Store) DeviceIDs(ctx context.Context, q fleet.Query) ([]fleet.DeviceID, error) {
	var w where
	w.query(q, time.Now())
	w.scope(ctx)
	rows, _ := s.db.Query(ctx, `SELECT id FROM devices`+w.String()+` ORDER BY id`, w.args...)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[fleet.DeviceID])
	if err != nil {
		return nil, fmt.Errorf("device ids: %w", domainError(err))
	}
	return ids, nil
}

// fieldExpressions are the expressions of the fields that devices are counted by.
var fieldExpressions = map[string]string{"board": "board", "version": "version", "chip": "chip", "kind": "kind",
	// A device that connects only for conversations is not lost.
	"presence": `CASE WHEN presence = 'offline' AND transport_given = 'ws' THEN '` + string(fleet.CountedBetween) +
		`' ELSE presence END`}

// maxCounted bounds the values of one field.
const maxCounted = 1000

// CountBy counts matching devices by each of the fields, in one pass over the devices, largest first.
func (s *Store) CountBy(ctx context.Context, q fleet.Query, fields ...string) ([][]fleet.DeviceCount, error) {
	var columns, names, absent []string
	for i, field := range fields {
		expression, known := fieldExpressions[field]
		if !known {
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_field", "value", field)
		}
		name := fmt.Sprintf("f%d", i)
		columns = append(columns, expression+" AS "+name)
		names, absent = append(names, name), append(absent, "GROUPING("+name+")")
	}
	var w where
	w.query(q, time.Now())
	w.scope(ctx)
	rows, _ := s.db.Query(ctx, `
		SELECT array_position(ARRAY[`+strings.Join(absent, ", ")+`], 0) - 1, coalesce(`+strings.Join(names, ", ")+`), count(*)
		FROM (SELECT `+strings.Join(columns, ", ")+` FROM devices`+w.String()+`) d
		GROUP BY GROUPING SETS (`+strings.Join(names, ", ")+`) ORDER BY 3 DESC, 2`, w.args...)
	counts := make([][]fleet.DeviceCount, len(fields))
	var field int
	var c fleet.DeviceCount
	_, err := pgx.ForEachRow(rows, []any{&field, &c.Value, &c.Count}, func() error {
		if len(counts[field]) < maxCounted {
			counts[field] = append(counts[field], c)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count devices by %s: %w", strings.Join(fields, ", "), domainError(err))
	}
	return counts, nil
}

// Facts returns the contents of the device's latest boot poll.
func (s *Store) Facts(ctx context.Context, id fleet.DeviceID) (fleet.Facts, error) {
	f := fleet.Facts{Device: id}
	var body []byte
	scoped, args := scopedTo(ctx, "device_id", cleanText(string(id)))
	err := s.db.QueryRow(ctx, `SELECT polled_at, body, broken, salvaged FROM device_facts WHERE device_id = $1`+scoped,
		args...).
		Scan(&f.PolledAt, &body, &f.Broken, &f.Salvaged)
	if err != nil {
		return fleet.Facts{}, fmt.Errorf("facts of device %s: %w", id, domainError(err))
	}
	f.Body = json.RawMessage(body)
	return f, nil
}

// FirmwareHistory lists the firmware that the device ran, newest first.
func (s *Store) FirmwareHistory(ctx context.Context, id fleet.DeviceID) ([]fleet.FirmwareRecord, error) {
	scoped, args := scopedTo(ctx, "device_id", cleanText(string(id)), maxHistory)
	rows, _ := s.db.Query(ctx, `
		SELECT version, slot, elf_sha256, idf_version, first_seen, last_seen
		FROM device_firmware WHERE device_id = $1`+scoped+` ORDER BY id DESC LIMIT $2`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.FirmwareRecord])
	if err != nil {
		return nil, fmt.Errorf("firmware history of device %s: %w", id, domainError(err))
	}
	return list, nil
}
