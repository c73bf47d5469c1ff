package ui_test

import (
	"encoding/json"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"fleetd/web/ui"
)

// TestMCPClients parses each configuration as its client does.
func TestMCPClients(t *testing.T) {
	type object = map[string]any
	const url, token = "https://fleet.example.org:8443", "flt_a-B_9"
	headers := object{"Authorization": "Bearer " + token}
	want := map[string]object{
		"claude_desktop": {"mcpServers": object{"fleetd": object{"command": "/usr/local/bin/fleetd", "args": []any{"mcp"},
			"env": object{"FLEETD_URL": url, "FLEETD_TOKEN": token}}}},
		"cursor": {"mcpServers": object{"fleetd": object{"url": url + "/mcp", "headers": headers}}},
		"vscode": {"servers": object{"fleetd": object{"type": "http", "url": url + "/mcp", "headers": headers}}},
	}
	for _, c := range ui.MCPClients(url, token) {
		if c.Key == "claude_code" {
			out, err := exec.Command("sh", "-c", `claude() { printf '%s\n' "$@"; }; `+c.Text).Output()
			if got := strings.TrimSpace(string(out)); err != nil || got !=
				"mcp\nadd\n--transport\nhttp\nfleetd\n"+url+"/mcp\n--header\nAuthorization: Bearer "+token {
				t.Errorf("the shell passes %q, %v", got, err)
			}
			continue
		}
		var got object
		if err := json.Unmarshal([]byte(c.Text), &got); err != nil || !reflect.DeepEqual(got, want[c.Key]) {
			t.Errorf("%s: %v, %v; want %v", c.Key, got, err, want[c.Key])
		}
		delete(want, c.Key)
	}
	if len(want) > 0 {
		t.Errorf("no configuration for %v", want)
	}
}
