package api

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
)

var update = flag.Bool("update", false, "write the golden files")

// The list of operations is the contract; every change of it must be intended.
func TestOperationsAreTheContract(t *testing.T) {
	w := newWorld(t)
	var b strings.Builder
	for _, op := range w.routes() {
		o := operationsOf(w.api.huma.OpenAPI().Paths[op.path])[op.method]
		fmt.Fprintf(&b, "%-6s %-42s %-28s %-8s models: %v\n", op.method, op.path, op.id, o.Security[0]["token"][0],
			o.Extensions[modelsExtension])
	}
	const golden = "testdata/operations.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || b.String() != string(want) {
		t.Errorf("the operations are\n%s\nwant (write with -update)\n%s (%v)", b.String(), want, err)
	}
}

func TestDocument(t *testing.T) {
	w := newWorld(t)
	r := w.as(t, "", "GET", "/openapi.json", "")
	doc := decode[map[string]any](t, r, 200)
	if doc["openapi"] != "3.1.0" || doc["info"].(map[string]any)["version"] != "1.2.3" ||
		r.header.Get("Content-Type") != "application/json" {
		t.Errorf("answered %v %.200s", r.header, r.body)
	}
	yaml := w.as(t, "", "GET", "/openapi.yaml", "")
	if yaml.status != 200 || !strings.Contains(string(yaml.body), "openapi: 3.1.0") ||
		yaml.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("answered %d %.200s", yaml.status, yaml.body)
	}
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	for _, ref := range regexp.MustCompile(`"\$ref":"([^"]*)"`).FindAllStringSubmatch(string(r.body), -1) {
		if name, ok := strings.CutPrefix(ref[1], "#/components/schemas/"); !ok || schemas[name] == nil {
			t.Errorf("%s leads nowhere", ref[1])
		}
	}
	for _, name := range []string{"Device", "DeviceList", "Call", "CallList", "FanOut", "FanOutProgress", "Token",
		"Problem", "Event",
		"Image", "ImageList", "Release", "Campaign", "CampaignItemList", "Deployment", "DeploymentList", "DryRun", "Fit"} {
		if schemas[name] == nil {
			t.Errorf("there is no schema %s", name)
		}
	}
	for _, op := range w.routes() {
		checkOperation(t, op, operationsOf(w.api.huma.OpenAPI().Paths[op.path])[op.method])
	}
}

// checkOperation checks an operation against the requirements of OpenAPI.
func checkOperation(t *testing.T, r route, op *huma.Operation) {
	t.Helper()
	if op.OperationID == "" || op.Summary == "" || len(op.Tags) != 1 || len(op.Responses) == 0 ||
		!strings.Contains(op.Description, "Needs the role") {
		t.Errorf("%s %s is not described", r.method, r.path)
	}
	inPath := map[string]bool{}
	for _, p := range op.Parameters {
		if p.In == "path" {
			inPath[p.Name] = p.Required
		}
		if p.Schema == nil {
			t.Errorf("%s: the parameter %s has no schema", r.id, p.Name)
		}
	}
	if strings.Contains(r.path, "{id}") != inPath["id"] {
		t.Errorf("%s %s declares the path parameters %v", r.method, r.path, inPath)
	}
	for status, resp := range op.Responses {
		if resp.Description == "" {
			t.Errorf("%s: the answer %s is not described", r.id, status)
		}
	}
}

// The objects have the names that programs rely on.
func TestNamesOfTheContract(t *testing.T) {
	w := newWorld(t)
	c := w.planned(t, "")
	names := map[string][]string{
		"/images/" + w.release(t).Images[0].SHA256: {"sha256", "size", "board", "chip", "version", "elf_sha256", "notes",
			"not_offerable", "revoked_at"},
		"/releases/" + c.ReleaseID.String(): {"id", "version", "notes", "state", "images"},
		"/campaigns/" + c.ID.String(): {"id", "name", "state", "pause_reason", "reason", "release_id", "q", "mode", "waves",
			"max_in_flight",
			"max_per_minute", "abort_rules", "windows", "start_at", "end_at", "end_behavior", "health_checks",
			"approval_required", "max_attempts",
			"wave", "digest", "approval", "counts", "targets", "skipped", "created_by", "revision", "progress"},
		"/campaigns/" + c.ID.String() + "/deployments/a085e3112233": {"device_id", "state", "wave", "attempts",
			"failure_class", "reason", "skip", "late",
			"image", "from_version", "to_version", "evidence"},
		"/devices/a085e3112233": {"id", "mac", "name", "board", "chip", "version", "elf_sha256", "slot", "presence",
			"presence_since",
			"last_seen", "transport", "enrolment", "tags", "hold", "tools_count", "campaign"},
		"/calls/" + decode[callView](t, w.post(t, callPath, volume50), 200).ID.String(): {"id", "device_id", "tool",
			"arguments", "actor", "state",
			"result", "error", "created_at", "sent_at", "finished_at", "duration_ms", "late"},
		"/devices?limit=1": {"items", "next_cursor"},
	}
	for path, want := range names {
		var got map[string]json.RawMessage
		r := w.as(t, fleet.RoleViewer, "GET", path, "")
		if err := json.Unmarshal(r.body, &got); err != nil {
			t.Fatal(err)
		}
		for _, name := range want {
			if _, ok := got[name]; !ok {
				t.Errorf("%s has no %s: %s", path, name, r.body)
			}
		}
	}
}
