package server

import (
	"net/http"
	"strings"
	"testing"
)

type pinnedView struct {
	Board, Chip string
	Claimed     *struct{ Board, Chip string }
}

// claims polls as a device that reports this board and chip.
func (d *testServer) claims(board, chip string) {
	d.t.Helper()
	req, _ := http.NewRequest("POST", "http://"+d.http+"/xiaozhi/ota/", strings.NewReader(`{"version":2,"chip_model_name":"`+
		chip+`","application":{"name":"unit","version":"1.0.0"},"board":{"type":"own","name":"`+board+`"}}`))
	req.Header.Set("Device-Id", "02:00:00:00:00:01")
	req.Header.Set("Client-Id", "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10")
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		d.t.Fatal(resp, err)
	}
	resp.Body.Close()
	if err := d.Enrolments.Stored(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
}

// An enrolled device cannot leave a rule, a scope or an image by reporting another board:
// the reported values of its enrolment count until an operator accepts new ones.
func TestADeviceDoesNotChooseItsBoard(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	const path = "/devices/020000000001"
	look := func() (v pinnedView) {
		d.rest("GET", path, nil, &v)
		return v
	}
	matches := func(q string) bool {
		var devices list[deviceView]
		d.rest("GET", "/devices?q="+q, nil, &devices)
		return len(devices.Items) == 1
	}
	d.claims("lock-board", "esp32s3")
	if v := look(); v.Board != "lock-board" || v.Chip != "esp32s3" || v.Claimed != nil {
		t.Fatalf("after it joined: %+v", v)
	}
	d.claims("toaster", "esp32s3")
	v := look()
	if v.Board != "lock-board" || v.Chip != "esp32s3" || v.Claimed == nil || v.Claimed.Board != "toaster" {
		t.Errorf("after it claimed another board: %+v", v)
	}
	if !matches("board:lock-board") || matches("board:toaster") || !matches("conflict") {
		t.Error("filters go by what it claims")
	}
	if device, err := d.targets.Device(t.Context(), "020000000001"); err != nil || device.Board != "lock-board" {
		t.Errorf("calls are judged by the board %s, %v", device.Board, err)
	}
	d.claims("", "") // a body without board and chip
	if v := look(); v.Claimed == nil {
		t.Error("the claim is forgotten")
	}
	resolve := func(act string, want int) {
		t.Helper()
		var answer map[string]any
		if status := d.rest("POST", path+"/resolve-conflict", map[string]string{"act": act}, &answer); status != want {
			t.Fatalf("%s: %d %v", act, status, answer)
		}
	}
	resolve("keep_hardware", 200)
	if v := look(); v.Board != "lock-board" || v.Claimed != nil {
		t.Errorf("after the claim was refused: %+v", v)
	}
	resolve("accept_hardware", 409)
	d.claims("toaster", "esp32c3")
	resolve("accept_hardware", 200)
	if v := look(); v.Board != "toaster" || v.Chip != "esp32c3" || v.Claimed != nil || !matches("board:toaster") {
		t.Errorf("after the claim was accepted: %+v", v)
	}
	var audit list[struct {
		Action string
		Detail struct {
			Act     string
			Claimed struct{ Board string }
		}
	}]
	d.rest("GET", "/audit?action=device.resolve_conflict", nil, &audit)
	if len(audit.Items) != 2 || audit.Items[0].Detail.Act != "accept_hardware" ||
		audit.Items[0].Detail.Claimed.Board != "toaster" {
		t.Errorf("the audit has %+v", audit.Items)
	}
}

// Rules and scopes that depend on values that devices report carry a warning.
func TestWarningsOfClaims(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	var p struct {
		Warnings []struct {
			Code   string
			Params map[string]any
		}
	}
	for devices, want := range map[string]string{"board:lock-board version>=2": "board, version", "tag:critical": ""} {
		d.rest("POST", "/policies", map[string]any{"name": devices, "devices": devices, "decision": "deny",
			"tools": []string{"self.reboot"}, "enabled": true}, &p)
		found := ""
		for _, w := range p.Warnings {
			if w.Code == "rests_on_claims" {
				found, _ = w.Params["fields"].(string)
			}
		}
		if found != want {
			t.Errorf("a rule over %s warns of %q: %+v", devices, found, p)
		}
		var token struct {
			ScopeClaims []string `json:"scope_claims"`
		}
		scope, _, _ := strings.Cut(devices, " ")
		if status := d.rest("POST", "/tokens", map[string]any{"name": "x", "scope": scope}, &token); status != 201 ||
			(len(token.ScopeClaims) > 0) != (want != "") {
			t.Errorf("a token with the scope %s: %d %+v", scope, status, token)
		}
	}
}
