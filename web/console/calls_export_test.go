package console_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// The list's filter also selects the lines of the file, however many pages they are; text of a
// device is no formula in it.
func TestCallsAsFile(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233", "a085e3112244")
	c.connect("a085e3112233", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		return fleet.Answer{}, &fleet.ToolError{Message: "=HYPERLINK(1)"}
	})
	c.connect("a085e3112244", says("one"))
	b := c.as(fleet.RoleOperator)
	for _, id := range []string{"a085e3112233", "a085e3112244"} {
		b.post("/devices/"+id+"/tools/self.get_device_status", url.Values{})
	}
	lines := func(query string) [][]string {
		t.Helper()
		p := b.get("/calls.csv?" + query).wantStatus(200)
		rows, err := csv.NewReader(strings.NewReader(p.body)).ReadAll()
		if err != nil || len(rows) == 0 || !slices.Equal(rows[0], call.ExportColumns) ||
			p.header.Get("Content-Type") != "text/csv; charset=utf-8" || p.header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%d rows, %v, %v", len(rows), err, p.header)
		}
		return rows[1:]
	}
	if got := lines("device=a085e3112244"); len(got) != 1 || got[0][4] != "a085e3112244" || got[0][7] != "succeeded" {
		t.Errorf("the calls of one device are %q", got)
	}
	if got := lines("state=tool_error"); len(got) != 1 || got[0][8] != "tool_error" || got[0][9] != "'=HYPERLINK(1)" {
		t.Errorf("the failed call is %q", got)
	}
	if got := lines("actor=bert"); len(got) != 0 {
		t.Errorf("no call of bert is %q", got)
	}
	if got := b.get("/calls?state=tool_error").text("#export"); !strings.Contains(got, "CSV") {
		t.Errorf("the list has the button %q", got)
	}
	if b.get("/calls.csv?since=yesterday").status == http.StatusOK {
		t.Error("a time that cannot be read is left out of the filter")
	}
	c.exec(`INSERT INTO calls SELECT (jsonb_populate_record(c, jsonb_build_object('id', gen_random_uuid()))).*
		FROM calls c, generate_series(1, 450) WHERE c.device_id = 'a085e3112244'`)
	if got := lines("cursor=x"); len(got) != 452 {
		t.Errorf("the file has %d of 452 calls", len(got))
	}
}
