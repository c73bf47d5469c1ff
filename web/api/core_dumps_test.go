package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/telemetry"
)

func TestCoreDumps(t *testing.T) {
	w := newWorld(t)
	w.listing(t, unit, append(tools[:3:3], fleet.Tool{Name: fleet.ToolCoreDumpUpload, Audience: fleet.AudienceUser,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"url":{"type":"string"},"erase":{"type":"boolean"}},"required":["url"]}`)},
		fleet.Tool{Name: fleet.ToolCoreDumpInfo, Audience: fleet.AudienceUser, InputSchema: json.RawMessage(
			`{"type":"object","properties":{}}`)}))
	held := []byte("dump")
	w.link.Connect(unit, func(ctx context.Context, tool string, arguments json.RawMessage) (fleet.Answer, error) {
		if tool == fleet.ToolCoreDumpInfo {
			return fleettest.Text(map[bool]string{true: `{"present":true,"size":4,"summary":"task main"}`,
				false: `{"present":false}`}[held != nil]), nil
		}
		var args struct {
			URL   string
			Erase bool
		}
		if err := json.Unmarshal(arguments, &args); err != nil {
			return fleet.Answer{}, err
		}
		_, err := w.coreDumps.Receive(ctx, args.URL[strings.LastIndex(args.URL, "/")+1:],
			func() (io.Reader, error) { return bytes.NewReader(held), nil })
		if args.Erase {
			held = nil
		}
		return fleettest.Text("true"), err
	})
	at := "/devices/" + string(unit) + "/core-dumps"
	refused := func(role fleet.Role, method, path, body string, status int, code string) {
		t.Helper()
		if p := w.as(t, role, method, path, body).problem(t); p.Status != status || p.Code != code {
			t.Errorf("%s %s as %s: %d %s, want %d %s", method, path, role, p.Status, p.Code, status, code)
		}
	}
	refused(fleet.RoleViewer, "POST", at, `{}`, 403, "forbidden")
	made := decode[callView](t, w.as(t, fleet.RoleOperator, "POST", at, `{}`), 200)
	if made.Tool != fleet.ToolCoreDumpUpload || made.State != fleet.CallSucceeded {
		t.Fatalf("call %+v", made)
	}
	refused(fleet.RoleOperator, "POST", at, `{"erase":false}`, 409, "no_core_dump")

	found := decode[list[coreDumpView]](t, w.get(t, at), 200)
	if len(found.Items) != 1 {
		t.Fatalf("core dumps %+v", found.Items)
	}
	c := found.Items[0]
	if c.DeviceID != unit || c.Summary != "task main" || c.Bytes != 4 || c.BuildFrom != telemetry.BuildFromDevice ||
		c.ELFSHA256 != strings.Repeat("ab", 32) || c.Version != "2.0.3" {
		t.Errorf("core dump %+v", c)
	}
	if one := decode[coreDumpView](t, w.get(t, "/core-dumps/"+c.ID.String()), 200); one != c {
		t.Errorf("alone %+v", one)
	}
	content := strings.TrimPrefix(c.URL, prefix)
	refused(fleet.RoleViewer, "GET", content, "", 403, "forbidden")
	file := w.as(t, fleet.RoleOperator, "GET", content, "")
	if file.status != 200 || string(file.body) != "dump" ||
		file.header.Get("Content-Type") != "application/octet-stream" ||
		!strings.HasPrefix(file.header.Get("Content-Disposition"), `attachment; filename="coredump-`) {
		t.Errorf("%d %q %v", file.status, file.body, file.header)
	}
	refused(fleet.RoleViewer, "DELETE", "/core-dumps/"+c.ID.String(), "", 403, "forbidden")
	if r := w.as(t, fleet.RoleOperator, "DELETE", "/core-dumps/"+c.ID.String(), ""); r.status != http.StatusNoContent {
		t.Errorf("deleting: %d %s", r.status, r.body)
	}
	refused(fleet.RoleOperator, "GET", content, "", 404, "unknown_core_dump")
	refused(fleet.RoleViewer, "GET", "/devices/ffffffffffff/core-dumps", "", 404, "unknown_device")
}
