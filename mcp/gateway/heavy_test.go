package gateway_test

import (
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/fleet/operator"
)

// Tools that read every device of a query are limited for each principal, and the wait
// for a fan-out does not count as their work.
func TestHeavyToolsAreBounded(t *testing.T) {
	w := newWorld(t)
	secret := w.token(t, operator.TokenRequest{Name: "m", Kind: fleet.KindModel})
	by, err := w.operators.Authenticate(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	model := w.client(t, secret, "/mcp", nil, "")
	other := w.client(t, w.token(t, operator.TokenRequest{Name: "n", Kind: fleet.KindModel}), "/mcp", nil, "")
	dry := map[string]any{"q": "", "tool": "self.get_device_status", "dry_run": true}
	propose := map[string]any{"name": "x", "release": "9.9", "q": ""}
	for range 8 {
		done, err := w.heavy.Begin(t.Context(), by, heavy.Preview)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(done)
	}
	for name, args := range map[string]map[string]any{"call_devices": dry, "propose_campaign": propose} {
		if r := invoke(t, model, name, args); !r.IsError || !strings.Contains(r.text, "heavy_at_once") {
			t.Errorf("%s beyond the bound: %s", name, r.data)
		}
		if r := invoke(t, other, name, args); strings.Contains(r.text, "heavy_at_once") {
			t.Errorf("%s of another principal: %s", name, r.data)
		}
	}
	if r := invoke(t, model, "find_devices", map[string]any{"q": ""}); r.IsError {
		t.Errorf("a list: %s", r.data)
	}
}
