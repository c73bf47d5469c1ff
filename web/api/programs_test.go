package api

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// Acts that only make sense for boards are refused for plug-ins and endpoints, and change nothing.
func TestProgramsAreNoBoards(t *testing.T) {
	w := newWorld(t)
	now := time.Now().UTC()
	kinds := map[fleet.DeviceID]fleet.DeviceKind{"plugin.weather": fleet.DevicePlugin, "endpoint.desk": fleet.DeviceEndpoint}
	for id, kind := range kinds {
		if err := w.store.SaveProgram(t.Context(), id, kind, "1.0", now); err != nil {
			t.Fatal(err)
		}
	}
	rows := func(id fleet.DeviceID) string {
		var row string
		if err := w.db.QueryRow(t.Context(), `SELECT (to_jsonb(d) - 'presence' - 'presence_since')::text FROM devices d
			WHERE id = $1`, string(id)).Scan(&row); err != nil {
			t.Fatal(err)
		}
		return row
	}
	for id := range kinds {
		path, before := "/devices/"+string(id), rows(id)
		for _, try := range []struct{ method, path, body, code string }{
			{"DELETE", path, ``, "program_not_retired"},
			{"POST", path + "/replace", fmt.Sprintf(`{"successor":%q}`, unit), "program_not_replaced"},
			{"POST", "/devices/" + string(unit) + "/replace", fmt.Sprintf(`{"successor":%q}`, id), "program_not_replaced"},
			{"POST", path + "/reject", ``, "not_a_board"},
			{"POST", path + "/core-dumps", `{}`, "not_a_board"},
		} {
			p := w.as(t, fleet.RoleAdmin, try.method, try.path, try.body).problem(t)
			if p.Status != http.StatusConflict || p.Code != try.code {
				t.Errorf("%s %s: %+v, want %s", try.method, try.path, p, try.code)
			}
		}
		ws := fleet.TransportWebSocket
		_, err := w.devices.Update(t.Context(), root, id, fleet.DevicePatch{Transport: &ws})
		for code, err := range map[string]error{"program_transport": err, "not_a_board": w.enrolment.Revoke(t.Context(), root, id)} {
			if e, ok := errors.AsType[*fleet.Error](err); !ok || e.Code != code {
				t.Errorf("%s: %v, want %s", id, err, code)
			}
		}
		if after := rows(id); after != before {
			t.Errorf("%s was %s and is %s", id, before, after)
		}
		if r := w.as(t, fleet.RoleAdmin, "PATCH", path, `{"name":"Weather","tags":["lab"]}`); r.status != 200 {
			t.Errorf("a name and tags: %d %s", r.status, r.body)
		}
	}
	all := fmt.Sprintf(`{"act":"retire","devices":["plugin.weather","endpoint.desk",%q]`, other)
	bulk := decode[bulkView](t, w.post(t, "/devices/bulk", all+`,"dry_run":true}`), 200)
	if bulk.Changed != 1 || bulk.left()["program"] != 2 {
		t.Errorf("a dry run of a bulk act: %+v", bulk)
	}
	bulk = decode[bulkView](t, w.post(t, "/devices/bulk", all+`,"confirm":1}`), 200)
	if n := w.count(t, `SELECT count(*) FROM devices WHERE retired_at IS NOT NULL AND kind IN ('plugin', 'endpoint')`); n != 0 ||
		bulk.left()["program"] != 2 {
		t.Errorf("a bulk act retired %d programs: %+v", n, bulk)
	}
	c := decode[CampaignView](t, w.post(t, "/campaigns", `{"name":"all","release_id":"`+w.release(t).ID+`","devices":["plugin.weather","endpoint.desk",`+
		fmt.Sprintf("%q", unit)+`]}`), 201)
	got := 0
	for _, s := range c.Progress.Skipped {
		if s.Reason == firmware.SkipProgram {
			got = s.Count
		}
	}
	if got != 2 || w.count(t, `SELECT count(*) FROM deployments WHERE device_id LIKE '%.%' AND state <> 'skipped'`) != 0 {
		t.Errorf("a campaign leaves out %+v", c.Progress.Skipped)
	}
}
