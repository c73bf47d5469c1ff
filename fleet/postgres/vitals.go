package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

var _ telemetry.VitalsStore = (*Store)(nil)

// A report shows a start of the device if its number of boots increased, or is the first one
// known. The report replaces the restart that the boot poll proved for the same start. The
// statement reads device_vitals as it was before it.
const saveVitals = `
	WITH u AS (SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::bool[], $4::bool[], $5::text[], $6::bigint[],
			$7::jsonb[], $8::bigint[]) AS u (id, at, safe_mode, core_dump, vitals, boots, started, up_ms)),
	restarted AS (SELECT u.id, u.at, u.started, u.at - make_interval(secs => u.up_ms / 1000.0 + 2) AS since
		FROM u JOIN devices d ON d.id = u.id
		LEFT JOIN device_vitals v ON v.device_id = u.id
		WHERE u.boots > 0 AND (v.at IS NULL OR v.at <= u.at AND (v.vitals ->> 'boots')::bigint <> u.boots)),
	explained AS (UPDATE report_changes c SET params = r.started
		FROM restarted r
		WHERE c.device_id = r.id AND c.code = 'restarted' AND c.params ? 'proof'
			AND c.at = (SELECT max(at) FROM report_changes p
				WHERE p.device_id = r.id AND p.code = 'restarted' AND p.at BETWEEN r.since AND r.at)
		RETURNING c.device_id),
	added AS (INSERT INTO report_changes (device_id, at, code, params)
		SELECT id, at, 'restarted', started FROM restarted WHERE id NOT IN (SELECT device_id FROM explained)
		ON CONFLICT DO NOTHING)
	INSERT INTO device_vitals (device_id, at, safe_mode, core_dump, vitals)
	SELECT id, at, safe_mode, core_dump, vitals::json FROM u
	ON CONFLICT (device_id) DO UPDATE SET at = excluded.at, safe_mode = excluded.safe_mode,
		core_dump = excluded.core_dump, vitals = excluded.vitals
	WHERE device_vitals.at <= excluded.at`

// SaveVitals stores the newer of the given and the stored vitals.
func (s *Store) SaveVitals(ctx context.Context, latest map[fleet.DeviceID]telemetry.Vitals) error {
	ids := slices.Sorted(maps.Keys(latest)) // statements that lock devices do so in this order
	documents := make([]string, len(ids))
	for i, id := range ids {
		documents[i] = *storableJSON(latest[id])
	}
	_, err := s.db.Exec(ctx, saveVitals, ids,
		collect(ids, func(id fleet.DeviceID) time.Time { return latest[id].At }),
		collect(ids, func(id fleet.DeviceID) bool { return latest[id].SafeMode }),
		collect(ids, func(id fleet.DeviceID) bool { return latest[id].CoreDump }), documents,
		collect(ids, func(id fleet.DeviceID) int64 { return latest[id].Boots }),
		collect(ids, func(id fleet.DeviceID) *string { return startOf(latest[id]) }),
		collect(ids, func(id fleet.DeviceID) int64 { return latest[id].Uptime.Milliseconds() }))
	if err != nil {
		return fmt.Errorf("save vitals of %d devices: %w", len(ids), domainError(err))
	}
	return nil
}

// startOf returns the part of a report about the device's latest start, for its time line.
func startOf(v telemetry.Vitals) *string {
	r := fleet.Because(fleet.TimelineRestarted, "reset_reason", v.ResetReason, "boots", v.Boots, "version", v.Version)
	if v.Crashes > 0 {
		r = r.With("crashes", v.Crashes)
	}
	if v.SafeMode {
		r = r.With("safe_mode", int64(1))
	}
	return reasonParams(r)
}

// Vitals returns the latest vitals of the device, or [fleet.ErrNotFound].
func (s *Store) Vitals(ctx context.Context, id fleet.DeviceID) (v telemetry.Vitals, err error) {
	var document []byte
	scoped, args := scopedTo(ctx, "device_id", cleanText(string(id)))
	err = s.db.QueryRow(ctx, `SELECT vitals FROM device_vitals WHERE device_id = $1`+scoped, args...).Scan(&document)
	if err == nil {
		err = json.Unmarshal(document, &v)
	}
	if err != nil {
		return v, fmt.Errorf("vitals of device %s: %w", id, domainError(err))
	}
	return v, nil
}

const vitalsPointColumns = `at, beats, heap_free, heap_min, heap_largest, uptime, reconnects, boots, temperature, rssi, restarted, device_id`

// mergeVitalsPoints merges two parts of a step, the SQL equivalent of
// [telemetry.VitalsPoint.Merge]; p is the stored row.
const mergeVitalsPoints = `
	ON CONFLICT (at, device_id) DO UPDATE SET
		beats = p.beats + excluded.beats,
		heap_free = coalesce(least(nullif(p.heap_free, 0), nullif(excluded.heap_free, 0)), 0),
		heap_min = coalesce(least(nullif(p.heap_min, 0), nullif(excluded.heap_min, 0)), 0),
		heap_largest = coalesce(least(nullif(p.heap_largest, 0), nullif(excluded.heap_largest, 0)), 0),
		uptime = CASE WHEN p.boots > excluded.boots AND excluded.boots > 0 THEN p.uptime
			WHEN (excluded.boots > p.boots AND p.boots > 0) OR excluded.restarted THEN excluded.uptime
			ELSE greatest(p.uptime, excluded.uptime) END,
		reconnects = greatest(p.reconnects, excluded.reconnects),
		boots = greatest(p.boots, excluded.boots),
		temperature = greatest(p.temperature, excluded.temperature),
		rssi = least(p.rssi, excluded.rssi),
		restarted = p.restarted OR excluded.restarted OR (p.boots > 0 AND excluded.boots > 0 AND p.boots <> excluded.boots)`

const addVitalsPoints = `
	INSERT INTO vitals_points AS p (` + vitalsPointColumns + `)
	SELECT * FROM unnest($1::timestamptz[], $2::int[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[], $8::int[],
		$9::real[], $10::smallint[], $11::bool[], $12::text[])` + mergeVitalsPoints

// AddVitalsPoints stores steps or parts of them. It merges a part with the step that is already
// stored.
func (s *Store) AddVitalsPoints(ctx context.Context, points map[fleet.DeviceID][]telemetry.VitalsPoint) error {
	list := vitalsRows(points)
	_, err := s.db.Exec(ctx, addVitalsPoints,
		collect(list, func(r vitalsRow) time.Time { return r.At }),
		collect(list, func(r vitalsRow) int { return r.Beats }),
		collect(list, func(r vitalsRow) int64 { return r.HeapFree }),
		collect(list, func(r vitalsRow) int64 { return r.HeapMin }),
		collect(list, func(r vitalsRow) int64 { return r.HeapLargest }),
		collect(list, func(r vitalsRow) int64 { return int64(r.Uptime / time.Second) }),
		collect(list, func(r vitalsRow) int64 { return r.Reconnects }),
		collect(list, func(r vitalsRow) int64 { return r.Boots }),
		collect(list, func(r vitalsRow) *float64 { return r.Temperature }),
		collect(list, func(r vitalsRow) *int { return r.RSSI }),
		collect(list, func(r vitalsRow) bool { return r.Restarted }),
		collect(list, func(r vitalsRow) fleet.DeviceID { return r.device }))
	if err != nil {
		return fmt.Errorf("add %d points of vitals: %w", len(list), domainError(err))
	}
	return nil
}

type vitalsRow struct {
	device fleet.DeviceID
	telemetry.VitalsPoint
}

// vitalsRows returns each step of a device once, in the order of the table's key, because an
// upsert cannot merge two rows of the same statement.
func vitalsRows(points map[fleet.DeviceID][]telemetry.VitalsPoint) []vitalsRow {
	var rows []vitalsRow
	for _, id := range slices.Sorted(maps.Keys(points)) {
		steps := make(map[int64]telemetry.VitalsPoint, len(points[id]))
		for _, p := range points[id] {
			if first, ok := steps[p.At.Unix()]; ok {
				p = first.Merge(p)
			}
			steps[p.At.Unix()] = p
		}
		for _, p := range steps {
			rows = append(rows, vitalsRow{id, p})
		}
	}
	slices.SortStableFunc(rows, func(a, b vitalsRow) int { return a.At.Compare(b.At) })
	return rows
}
