package matrix

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fleetd/fleet"
)

// A table describes whose rows a table of the database contains.
type table struct {
	device string   // column with the id of the device that a row belongs to
	noise  []string // columns that change without an action
	silent bool     // rows change without an action, and decide nothing
}

// silent is a table of reports of devices, counts of the server, or its working data.
var silent = table{silent: true}

var tables = map[string]table{
	"alert_events": silent, "alerts": {noise: []string{"devices", "params", "query", "quiet_since", "routed", "severity", "silence_id"}}, "approvals": {device: "device_id"}, "audit_entries": {}, "board_floors": {},
	"call_waits": {}, "calls": {device: "device_id"}, "campaign_images": {}, "campaigns": {noise: []string{"revision"}},
	"connections": silent, "conversations": {device: "device_id"}, "core_dumps": {device: "device_id"},
	"deployment_events": {}, "deployments": {device: "device_id"}, "device_configs": silent,
	"device_facts": silent, "device_firmware": silent, "device_inventories": silent, "device_jobs": silent,
	"device_names": silent, "device_profiles": silent, "device_removals": silent, "device_states": silent,
	"device_tag_sets": silent, "device_vitals": silent, "fleet_frames": silent, "history_start": silent,
	"profile_counts": silent,
	"devices": {device: "id", noise: []string{"last_seen", "last_poll", "remote_addr", "presence", "presence_since",
		"presence_evidence_code", "presence_evidence_params", "inventory_id", "tools_count", "version", "version_key", "slot",
		"elf_sha256", "transport", "board_type", "language", "ota_slot_size", "partition_labels", "chip_rev", "free_heap",
		"flash_bytes", "chip", "transport_given", "serial"}},
	"endpoints": {}, "enrolment_acceptances": silent, "enrolment_rules": {noise: []string{"accepted"}},
	"failed_tries": silent, "fanout_targets": {device: "device_id"},
	"fanouts": {}, "filters": {}, "firmware_links": {device: "device_id"}, "goose_db_version": silent,
	"idempotency_keys": silent, "image_layouts": {}, "image_parts": {}, "images": {}, "inventories": silent,
	"inventory_places": silent, "inventory_tools": silent, "device_versions": silent, "device_offers": silent,
	"tool_catalogue": {}, "tool_definitions": {}, "tool_usage": silent,
	"tool_usage_days": silent, "tool_usage_hours": silent,
	"trend_days": silent, "trend_groups": silent, "trend_hours": silent, "trend_marks": silent,
	"key_rotations": {}, "known_browsers": {}, "lease": silent,
	"redactions": {}, "redaction_version": {}, "call_digests": {}, "record_cosignatures": silent,
	"log_streams": {}, "log_stream_deliveries": silent, "lease_terms": silent, "logins": {noise: []string{"seen_at"}},
	"operators": {}, "plugins": {}, "policies": {}, "policy_version": {}, "presence_changes": silent,
	"origins": silent, "record_batches": silent, "record_checkpoints": silent, "record_keys": silent, "record_queue": silent,
	"record_removals": silent, "record_start": silent, "record_tiles": silent,
	"presence_samples": silent, "quarantines": {device: "device_id"}, "release_images": {}, "releases": {},
	"report_changes": silent, "rotation_devices": silent, "schedule_runs": {},
	"schedules": {noise: []string{"blocked_code", "blocked_params", "next_due_at", "next_planned_at"}}, "serial_keys": {device: "device_id"}, "sessions": {}, "settings": {},
	"signing_keys": {}, "silences": {}, "snapshots": {device: "device_id"}, "tokens": {noise: []string{"last_used_at"}}, "tool_pins": {},
	"tool_quarantines": {device: "device_id"}, "trusted_tools": silent,
	"upstream_accounts": {device: "device_id"}, "upstream_version": {}, "upstreams": {}, "url_links": silent,
	"vitals_hours": silent, "vitals_points": silent, "waves": {noise: []string{"verdict_code", "verdict_params"}}, "webhooks": {noise: []string{"last_at", "last_status"}},
	"webhook_deliveries": silent,
}

// watch makes the database record each change of the tables that are not silent.
func (w *world) watch() {
	w.t.Helper()
	w.exec(`CREATE SCHEMA matrix`)
	w.exec(`CREATE UNLOGGED TABLE matrix.changes (n bigserial, tbl text, op text, old jsonb, new jsonb)`)
	w.exec(`CREATE FUNCTION matrix.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF TG_OP = 'UPDATE' AND to_jsonb(OLD) = to_jsonb(NEW) THEN RETURN NULL; END IF;
		INSERT INTO matrix.changes (tbl, op, old, new) VALUES (TG_ARGV[0], TG_OP,
			CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END, CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END);
		RETURN NULL; END $$`)
	rows, err := w.db.Query(context.Background(), `SELECT relname::text FROM pg_class
		WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'public'::regnamespace`)
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			w.t.Fatal(err)
		}
		names = append(names, name)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "river_") {
			continue
		}
		known, ok := tables[name]
		if !ok {
			w.t.Errorf("the table %s of the database is not listed: say whose its rows are", name)
		}
		if !known.silent {
			w.exec(fmt.Sprintf(`CREATE TRIGGER matrix AFTER INSERT OR UPDATE OR DELETE ON %s
				FOR EACH ROW EXECUTE FUNCTION matrix.note('%s')`, name, name))
		}
	}
}

// A change is the change of one row.
type change struct {
	table, op string
	old, new  obj
}

func (c change) row() obj {
	if c.new != nil {
		return c.new
	}
	return c.old
}

func (c change) get(column string) string {
	v, _ := c.row()[column].(string)
	return v
}

// key names the row.
func (c change) key() string {
	for _, column := range []string{"deployment_id", "id", "sha256", "fanout_id", "campaign_id", "image", "board", "name", "tool", "key",
		"serial", "call_id"} {
		if v := c.get(column); v != "" {
			return v
		}
	}
	return ""
}

// String describes the change; for an update, only the changed columns.
func (c change) String() string {
	text := fmt.Sprintf("%s of %s %s", c.op, c.table, c.key())
	if c.op != "UPDATE" {
		return text
	}
	for _, column := range c.columns() {
		text += fmt.Sprintf(" %s: %.60v -> %.60v;", column, c.old[column], c.new[column])
	}
	return text
}

// unasked reports whether the server or a device makes such a change at any time without
// an action.
func (c change) unasked() bool {
	switch c.table {
	case "devices":
		return c.op == "INSERT" && c.get("kind") != string(fleet.DeviceMQTT5) // a boot poll
	case "alerts":
		return c.op == "INSERT" || c.old["acked_id"] == c.new["acked_id"] // begun or ended after a check of the server
	case "settings":
		return c.key() == "alerts_mailed" // a position in a queue of the server
	}
	return false
}

// columns returns the columns that an update changed, without the noise.
func (c change) columns() (changed []string) {
	for _, column := range slices.Sorted(maps.Keys(c.new)) {
		noise := slices.Contains(tables[c.table].noise, column)
		if column == "serial" && c.get("kind") == string(fleet.DeviceMQTT5) {
			noise = false // only an action changes its credentials
		}
		if fmt.Sprint(c.old[column]) != fmt.Sprint(c.new[column]) && !noise {
			changed = append(changed, column)
		}
	}
	return changed
}

// changes returns the changes since its last call, in order.
func (w *world) changes() (all []change) {
	w.t.Helper()
	rows, err := w.db.Query(context.Background(), `WITH gone AS (DELETE FROM matrix.changes RETURNING *)
		SELECT tbl, op, old, new FROM gone ORDER BY n`)
	if err != nil {
		w.t.Fatal(err)
	}
	for rows.Next() {
		var c change
		if err := rows.Scan(&c.table, &c.op, &c.old, &c.new); err != nil {
			w.t.Fatal(err)
		}
		if c.table == "deployments" {
			w.owner[c.key()] = w.where[c.device()]
		}
		if c.op != "UPDATE" || len(c.columns()) > 0 {
			all = append(all, c)
		}
	}
	if rows.Err() != nil {
		w.t.Fatal(rows.Err())
	}
	return all
}

// device returns the device that a changed row belongs to; "" if none.
func (c change) device() fleet.DeviceID {
	if column := tables[c.table].device; column != "" {
		return fleet.DeviceID(c.get(column))
	}
	return ""
}
