package large

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// States gives each device of a fleet that was written five earlier states and ten changes of presence, over the
// days before now.
func States(ctx context.Context, db *pgxpool.Pool, days int) error {
	span := fmt.Sprintf(`interval '%d days'`, days)
	return run(ctx, db,
		`UPDATE history_start SET at = now() - `+span+`, versions_at = now() - `+span,
		`DELETE FROM fleet_frames`,
		`UPDATE device_names SET begun_at = now() - `+span,
		`UPDATE device_states SET begun_at = now() - `+span+` * (30 - abs(hashint4(number)) % 30) / 90`,
		`INSERT INTO device_profiles (in_service, kind, enrolment, chip, board, board_key, version, version_key, inventory_id)
			SELECT DISTINCT in_service, kind, enrolment, chip, board, board_key, '1.' || n || '.' || v, ARRAY[1, n, v],
				inventory_id
			FROM device_profiles, generate_series(0, 4) n, generate_series(0, 2) v`,
		`INSERT INTO device_states (begun_at, ended_at, number, profile_id, tags_id, hold_since, hold_reason)
			SELECT begin + (begun_at - begin) * n / 5, begin + (begun_at - begin) * (n + 1) / 5, number, p.id, tags_id,
				hold_since, hold_reason
			FROM device_states s JOIN device_profiles d ON d.id = s.profile_id, generate_series(0, 4) n, device_profiles p,
				(SELECT now() - `+span+` AS begin) b
			WHERE p.version = '1.' || n || '.' || number % 3
				AND (p.board, p.inventory_id, p.chip, p.enrolment) = (d.board, d.inventory_id, d.chip, d.enrolment) ORDER BY 2`,
		`INSERT INTO presence_changes (device_id, at, presence, evidence_code, transport)
			SELECT id, now() - `+span+` / 10 * (n + (abs(hashtext(id)) % 1000) / 1000.0), CASE n % 2 WHEN 0 THEN 'online'
				ELSE 'offline' END, '', 'mqtt' FROM devices, generate_series(0, 9) n ORDER BY 2`,
		`VACUUM ANALYZE device_states`, `VACUUM ANALYZE device_names`, `VACUUM FULL ANALYZE devices`,
		`VACUUM ANALYZE presence_changes`)
}

// SealPresence passes the leaves of all changes of presence to seal.
func SealPresence(ctx context.Context, db *pgxpool.Pool, seal func(leaves []byte)) error {
	rows, _ := db.Query(ctx, `
		SELECT string_agg(record_leaf(4, convert_to(device_id, 'UTF8'), at, record_connection(device_id, at, presence,
			evidence_code, evidence_params, transport)), '')
		FROM (SELECT *, row_number() OVER (ORDER BY at) / $1 AS part FROM presence_changes) p
		GROUP BY part ORDER BY part`, flush)
	var b []byte
	_, err := pgx.ForEachRow(rows, []any{&b}, func() error { seal(b); return nil })
	return err
}

// RecordStart says that the record began at the time. It has no effect after the first start of fleetd.
func RecordStart(ctx context.Context, db *pgxpool.Pool, at time.Time) error {
	_, err := db.Exec(ctx, `UPDATE record_start SET at = $1`, at)
	return err
}
