package migrations_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/history"
	"fleetd/fleet/postgres"
	"fleetd/migrations"
)

// Devices that exist before the history begins have their present state from then on, and of the time before the
// versions that they ran.
func TestStatesOfEarlierDevices(t *testing.T) {
	db := upTo(t, 95)
	exec(t, db, `INSERT INTO inventories (id, tools, tool_names, created_at) VALUES ('inv1', '[]', '{self.x,self.y}', now())`)
	exec(t, db, `INSERT INTO devices (id, kind, name, name_key, board, board_key, chip, version, version_key, tags, tags_key,
			inventory_id, enrolment, enrolled_at, presence, presence_since, created_at, retired_at, hold_reason, hold_kind,
			hold_id, hold_name, hold_role, hold_since)
		VALUES ('a', 'esp32', 'Hall', 'hall', 'B', 'b', 'esp32s3', '1.2', '{1,2}', '{Lab}', E'\x01lab\x01', 'inv1',
				'enrolled', now(), 'online', now(), now() - interval '3 days', NULL, 'r', 'operator', '1', 'ada', 'admin', now()),
			('b', 'mqtt5', '', '', '', '', '', '1.1', NULL, '{}', '', NULL, 'enrolled', now(), 'offline', now(),
				now() - interval '2 days', now() - interval '1 day', NULL, NULL, NULL, NULL, NULL, NULL),
			('c', 'esp32', '', '', '', '', '', '1.1', '{1,1}', '{}', '', NULL, 'waiting', NULL, 'pending', now(), now(), NULL,
				NULL, NULL, NULL, NULL, NULL, NULL)`)
	exec(t, db, `INSERT INTO device_firmware (device_id, version, slot, elf_sha256, idf_version, first_seen, last_seen, current)
		SELECT id, version, '', '', '', now() - interval '1 hour' * first, now(), current
		FROM (VALUES ('a', '1.0', 72, false), ('a', '1.1', 48, false), ('a', '1.2', 24, true), ('b', '1.1', 48, true),
			('c', '1.1', 2, true)) f (id, version, first, current)`)
	if err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	s := postgres.New(db, postgres.Options{})
	begin, err := s.HistoryBegin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	page, err := s.PastDevices(t.Context(), history.Filter{At: begin.States, Query: fleet.Query{}})
	if err != nil {
		t.Fatal(err)
	}
	want := []history.Device{{ID: "c", Kind: "esp32", Version: "1.1", Enrolment: "waiting", Presence: "pending"},
		{ID: "a", Kind: "esp32", Name: "Hall", Board: "B", Chip: "esp32s3", Version: "1.2", Tags: []string{"Lab"},
			Enrolment: "enrolled", HoldReason: "r", Inventory: "inv1", ToolsCount: 2, Presence: "online"}}
	for i := range want {
		want[i].Since = begin.States
		if want[i].Tags == nil {
			want[i].Tags = []string{}
		}
	}
	if len(page.Items) == 2 {
		want[1].HoldSince = page.Items[1].HoldSince
	}
	if diff := cmp.Diff(want, page.Items); diff != "" {
		t.Errorf("devices at the beginning of the history (-want +got):\n%s", diff)
	}
	before := func(hours int) time.Time { return begin.States.Add(-time.Duration(hours) * time.Hour) }
	series, err := s.VersionSeries(t.Context(), []time.Time{before(71), before(47), before(23), before(0)}, fleet.Query{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int{}
	for _, v := range series {
		got[v.Version] = v.Counts
	}
	if diff := cmp.Diff(map[string][]int{"1.0": {1, 0, 0, 0}, "1.1": {0, 2, 0, 0}, "1.2": {0, 0, 1, 1}}, got); diff != "" {
		t.Errorf("versions before the history (-want +got):\n%s", diff)
	}
	exec(t, db, `UPDATE devices SET name = 'x', name_key = 'x' WHERE id = 'c'`)
	if n := text(t, db, `SELECT count(*)::text FROM device_states s JOIN device_names n USING (number)
		WHERE n.device_id = 'c' AND n.ended_at = 'infinity'`); n != "2" {
		t.Errorf("%s states after a change", n)
	}
}
