package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/migrations"
)

// Records from before devices' texts were redacted lose the Client-Id.
func TestStoredClientIDsAreTakenOut(t *testing.T) {
	db := upTo(t, 37)
	const bound, asks, earlier = "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10", "77777777-6f0a-4c7e-9d0e-2d6f1f7a9b11",
		"88888888-6f0a-4c7e-9d0e-2d6f1f7a9b12"
	exec(t, db, `INSERT INTO devices (id, created_at, presence_since, client_id, new_client_id, enrolment)
		VALUES ('02f1ee000001', now(), now(), $1, $2, 'enrolled'),
			('02f1ee000002', now(), now(), '1234567890', '', 'enrolled')`,
		bound, asks)
	call := func(device, tool, result string) uuid.UUID {
		id := uuid.New()
		exec(t, db, `INSERT INTO calls (id, created_at, device_id, tool, actor_kind, actor_id, actor_name, actor_role, state,
				result, finished_at)
			VALUES ($1, now(), $2, $3, 'operator', '1', 'ana', 'admin', 'succeeded', $4, now())`, id, device, tool, result)
		return id
	}
	info := func(id string) string { return fmt.Sprintf(`{"content":[{"text":"{\"uuid\":\"%s\",\"v\":2}"}]}`, id) }
	own := call("02f1ee000001", "self.get_system_info", info(bound))
	before := call("02f1ee000001", "self.get_system_info", info(earlier))
	other := call("02f1ee000001", "self.custom", `{"a":"`+strings.ToUpper(strings.ReplaceAll(bound, "-", ""))+` and `+asks+`"}`)
	plain := call("02f1ee000002", "self.custom", `{"a": 1234567890}`)
	exec(t, db, `INSERT INTO device_facts (device_id, polled_at, body) VALUES ('02f1ee000001', now(), $1)`,
		`{"uuid": "`+earlier+`", "board": {"ssid": "`+bound+`"}}`)
	exec(t, db, `INSERT INTO audit_entries (id, created_at, actor_kind, actor_id, actor_name, actor_role, action, subject, detail)
		VALUES (gen_random_uuid(), now(), 'operator', '1', 'ana', 'admin', 'device.approve', '02f1ee000001',
			jsonb_build_object('enrolment', 'enrolled', 'client_id', $1::text))`, earlier)
	if err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		id     uuid.UUID
		result string
	}{{own, info("***")}, {before, info("***")}, {other, `{"a":"*** and ***"}`}, {plain, `{"a": 1234567890}`}} {
		if got := text(t, db, `SELECT result::text FROM calls WHERE id = $1`, want.id); got != want.result {
			t.Errorf("a result is now %s, want %s", got, want.result)
		}
	}
	if got := text(t, db, `SELECT body::text FROM device_facts`); got != `{"uuid": "***", "board": {"ssid": "***"}}` {
		t.Errorf("facts are now %s", got)
	}
	if got := text(t, db, `SELECT detail::text FROM audit_entries WHERE action = 'device.approve'`); got !=
		`{"client": "`+fleet.ClientTag(earlier)+`", "enrolment": "enrolled"}` {
		t.Errorf("the audit entry is now %s", got)
	}
}

func text(t *testing.T, db *pgxpool.Pool, sql string, args ...any) (s string) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}
