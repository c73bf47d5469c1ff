package api

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// forModels lists what language models may do, separately from the declarations, so that a change
// of one is noticed. They may do nothing that is not listed.
var forModels = map[string]fleet.ForModels{
	"update-campaign": fleet.ModelsOwn, "discard-campaign": fleet.ModelsOwn, "start-campaign": fleet.ModelsOwn,
	"cancel-fanout": fleet.ModelsOwn, "cancel-call": fleet.ModelsOwn, "withdraw-call": fleet.ModelsOwn,
}

func init() {
	for _, id := range []string{"make-call", "create-fanout", "retry-fanout", "create-campaign", "dry-run-campaign",
		"test-policy",
		"diff-inventories", "export-devices", "export-fanout-answers", "fit-image", "fit-release", "get-alert",
		"get-alert-thresholds", "get-approval", "get-call", "get-campaign", "get-config", "get-conversation",
		"get-core-dump", "get-deployment", "get-device", "get-facts", "get-fanout", "get-image", "get-image-layout",
		"get-outlook", "get-release", "get-snapshot", "get-stats", "get-vitals", "list-alerts", "list-silences", "list-approvals",
		"list-calls", "list-campaigns", "list-conversations", "list-core-dumps", "list-deployments",
		"list-device-calls", "list-device-deployments", "list-devices", "list-fanout-answers", "list-fanouts",
		"list-filters", "list-firmware", "list-images", "list-inventories", "list-jobs", "list-policies",
		"list-quarantines", "list-releases", "list-floors", "list-snapshots", "list-timeline", "list-tool-pins", "list-catalogue", "get-catalogue-tool", "diff-catalogue-tool", "list-tool-quarantines", "list-tools",
		"list-vitals", "stream-events", "get-history", "get-adoption", "count-past-devices", "list-past-devices",
		"list-device-states", "list-places"} {
		forModels[id] = fleet.ModelsMay
	}
}

// Each operation declares whether a language model may use it, in agreement with the table above,
// and even a model with the role admin can use no other.
func TestModelsReachOnlyWhatDeclaresIt(t *testing.T) {
	w := newWorld(t)
	w.api.failures = unlimited()
	token := w.model(t, operator.TokenRequest{Name: "model", Role: fleet.RoleAdmin})
	var ids []string
	for _, op := range w.routes() {
		ids = append(ids, op.id)
		declared := fleet.ForModels(fmt.Sprint(operationsOf(w.api.huma.OpenAPI().Paths[op.path])[op.method].
			Extensions[modelsExtension]))
		want := forModels[op.id]
		if want == "" {
			want = fleet.ModelsNever
		}
		if declared != want {
			t.Errorf("%s declares %q of models, want %q", op.id, declared, want)
		}
		path := pathParam.ReplaceAllString(op.path, "%20")
		if op.id == "stream-events" {
			path += "?device=%20"
		}
		r := w.as(t, "", op.method, path, "", "Authorization", "Bearer "+token)
		refused := r.status == http.StatusForbidden && r.problem(t).Code == "person_needed"
		if refused != (want == fleet.ModelsNever) || r.status == http.StatusUnauthorized || r.status >= 500 {
			t.Errorf("%s: a model is answered %d %s", op.id, r.status, r.body)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(forModels)) {
		if !slices.Contains(ids, id) {
			t.Errorf("there is no operation %s", id)
		}
	}
}

// model creates a token of a language model.
func (w *world) model(t testing.TB, r operator.TokenRequest) string {
	t.Helper()
	r.Kind = fleet.KindModel
	_, secret, err := w.operators.NewToken(t.Context(), root, r)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// docs/mcp.md lists the REST operations for models, in agreement with the declarations.
func TestModelsAreDocumented(t *testing.T) {
	w := newWorld(t)
	const file, begin, end = "../../docs/mcp.md", "<!-- operations for models -->\n", "<!-- end -->\n"
	var b strings.Builder
	b.WriteString("| Operation | A model may |\n|---|---|\n")
	for _, op := range w.routes() {
		switch fleet.ForModels(fmt.Sprint(operationsOf(w.api.huma.OpenAPI().Paths[op.path])[op.method].
			Extensions[modelsExtension])) {
		case fleet.ModelsMay:
			fmt.Fprintf(&b, "| `%s %s` | yes |\n", op.method, op.path)
		case fleet.ModelsOwn:
			fmt.Fprintf(&b, "| `%s %s` | with what it made |\n", op.method, op.path)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	table, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no table between %q and %q", file, begin, end)
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+b.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if table != b.String() {
		t.Errorf("the table of %s is not what the operations declare; write it with -update", file)
	}
}
