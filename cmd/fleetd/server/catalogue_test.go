package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/operator"
)

type catalogueTool struct {
	Definitions []struct{ Digest, Waiting string }
	Versions    []struct {
		Version string
		Usage   struct {
			Calls, Succeeded int64
			NotSent          int64 `json:"not_sent"`
		}
	}
}

// New tools of boards wait for a person: models neither see nor call them until one is released, then
// that one alone. People may call them. The calls are counted.
func TestNewToolsWaitForAPerson(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	const status, volume = "self.get_device_status", "self.audio_speaker.set_volume"
	var setting, problem map[string]any
	if code := d.rest("PUT", "/tool-waits", map[string]any{"waits": "new_and_changed"}, &setting); code != http.StatusOK {
		t.Fatalf("PUT /tool-waits: %d", code)
	}
	d.simulate(sim.Options{Devices: 3, Seed: 7, TimeScale: 0.2, BootDelay: 100 * time.Millisecond})
	id := d.listed(3)[0].ID
	_, secret, err := d.Operators.NewToken(t.Context(), testOperator, operator.TokenRequest{Name: "model",
		Kind: fleet.KindModel, Role: fleet.RoleAdmin, Tools: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	model := d.as(secret)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: d.URL() + "/mcp", HTTPClient: &http.Client{Transport: bearerTransport(secret)}},
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	asks := func(tool string, args map[string]any) string {
		t.Helper()
		r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		data, _ := json.Marshal(r)
		return string(data)
	}
	refused := func(tool, arguments string) {
		t.Helper()
		c := model.call(id, tool, arguments)
		if c.State != "refused" || c.Error == nil || !strings.HasPrefix(c.Error.Code, "tool_quarantined") {
			t.Errorf("the model's call of %s: %s %+v", tool, c.State, c.Error)
		}
		if got := asks("call_device", map[string]any{"device": id, "tool": tool, "arguments": json.RawMessage(arguments)}); !strings.Contains(
			got, "tool_quarantined") {
			t.Errorf("through /mcp: %s", got)
		}
	}
	refused(status, `{}`)
	refused(volume, `{"volume":10}`)
	if got := asks("search_tools", map[string]any{}); strings.Contains(got, status) {
		t.Errorf("a model finds a tool that waits: %s", got)
	}
	var page list[struct{ Name string }]
	if model.rest("GET", "/tools", nil, &page); len(page.Items) != 0 {
		t.Errorf("the catalogue of a model has %+v", page.Items)
	}
	if c := d.call(id, status, `{}`); c.State != "succeeded" {
		t.Errorf("a person's call: %s %+v", c.State, c.Error)
	}

	var tool catalogueTool
	d.rest("GET", "/tools/"+status, nil, &tool)
	if len(tool.Definitions) != 1 || tool.Definitions[0].Waiting != "new" {
		t.Fatalf("catalogue: %+v", tool)
	}
	body := map[string]any{"digest": tool.Definitions[0].Digest}
	if code := model.rest("POST", "/tools/"+status+"/release", body, &problem); code != http.StatusForbidden {
		t.Errorf("a model releases a tool: %d", code)
	}
	refused(status, `{}`)
	unknown := map[string]any{"digest": strings.Repeat("0", 64)}
	if code := d.rest("POST", "/tools/"+status+"/release", unknown, &problem); code != http.StatusNotFound {
		t.Errorf("an unknown digest: %d", code)
	}
	var released struct{ Released int }
	for want := 1; want >= 0; want-- { // a second release finds nothing to release
		if d.rest("POST", "/tools/"+status+"/release", body, &released); released.Released != want {
			t.Errorf("released %d, want %d", released.Released, want)
		}
	}
	if c := model.call(id, status, `{}`); c.State != "succeeded" {
		t.Errorf("after the release: %s %+v", c.State, c.Error)
	}
	if got := asks("search_tools", map[string]any{}); !strings.Contains(got, status) || strings.Contains(got, volume) {
		t.Errorf("after the release a model finds %s", got)
	}
	refused(volume, `{"volume":10}`)
	var audit list[struct{ Subject string }]
	d.rest("GET", "/audit?action=tool_definition.release", nil, &audit)
	if len(audit.Items) != 1 || audit.Items[0].Subject != status {
		t.Errorf("entries: %+v", audit.Items)
	}

	d.eventually("the calls are counted", func() bool {
		if _, err := d.store.RollUpUsage(t.Context(), time.Now().UTC()); err != nil {
			t.Fatal(err)
		}
		tool = catalogueTool{}
		d.rest("GET", "/tools/"+status, nil, &tool)
		return len(tool.Versions) == 1 && tool.Versions[0].Version != "" && tool.Versions[0].Usage.Succeeded == 2 &&
			tool.Versions[0].Usage.NotSent == 4
	})
	d.restart() // what waits still does
	d.listed(3)
	if c := model.call(id, volume, `{"volume":10}`); c.State != "refused" {
		t.Errorf("after a restart: %s %+v", c.State, c.Error)
	}
}
