package api

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/operator"
)

// The catalogue survives hostile names and schemas, and names of tools that need escaping in an address.
func TestCatalogue(t *testing.T) {
	w := newWorld(t)
	const hostile = "self.<b>/100%2F? \u202ex"
	schema := `{"type":"object","properties":{"<img src=x>":{"type":"string"},"a\u202eb":{},"n":` +
		strings.Repeat(`{"properties":{"n":`, 200) + `{}` + strings.Repeat(`}}`, 200) + `}}`
	listed := func(tools ...fleet.Tool) { w.listing(t, unit, tools) }
	listed(fleet.Tool{Name: hostile, Audience: fleet.AudienceModel, InputSchema: json.RawMessage(`{"type":"object"}`)})
	listed(fleet.Tool{Name: hostile, Audience: fleet.AudienceModel, Description: strings.Repeat("x", 64<<10),
		InputSchema: json.RawMessage(schema)}, fleet.Tool{Name: "self.other", Audience: fleet.AudienceModel})
	at := "/tools/" + url.PathEscape(hostile)

	all := decode[list[catalogueEntryView]](t, w.as(t, fleet.RoleViewer, "GET", "/tools?name=%25", ""), 200)
	if len(all.Items) != 1 || all.Items[0].Name != hostile || all.Items[0].Definitions != 2 || all.Items[0].Devices != 1 {
		t.Fatalf("list: %+v", all.Items)
	}
	tool := decode[catalogueToolView](t, w.as(t, fleet.RoleViewer, "GET", at, ""), 200)
	if len(tool.Definitions) != 2 || tool.Definitions[0].Devices != 1 || tool.Definitions[1].Devices != 0 {
		t.Fatalf("tool: %d definitions", len(tool.Definitions))
	}
	diff := decode[definitionDiffView](t, w.as(t, fleet.RoleViewer, "GET", at+"/diff", ""), 200)
	if !diff.Description || len(diff.Properties) < 2 || diff.From.Digest != tool.Definitions[1].Digest {
		t.Errorf("difference: %v, %d properties", diff.Description, len(diff.Properties))
	}
	for _, p := range diff.Properties {
		if strings.Contains(p.Path, "\u202e") {
			t.Errorf("a path changes the direction of text: %q", p.Path)
		}
	}
	digest := tool.Definitions[0].Digest
	release := `{"digest":"` + digest + `"}`
	for _, tt := range []struct {
		role               fleet.Role
		method, path, body string
		status             int
		code               string
	}{
		{fleet.RoleViewer, "GET", "/tools/self.none", "", 404, "unknown_catalogue_tool"},
		{fleet.RoleViewer, "GET", at + "/diff?from=xx", "", 422, "invalid_digest"},
		{fleet.RoleViewer, "GET", at + "/diff?from=" + strings.Repeat("0", 64), "", 404, "unknown_tool_definition"},
		{fleet.RoleViewer, "GET", "/tools?cursor=x", "", 422, "invalid_cursor"},
		{fleet.RoleViewer, "GET", "/tools?audience=x", "", 422, "invalid_request"},
		{fleet.RoleViewer, "POST", at + "/release", release, 403, "forbidden"},
		{fleet.RoleOperator, "POST", at + "/release", release, 403, "forbidden"},
		{fleet.RoleAdmin, "POST", at + "/release", `{"digest":"zz"}`, 422, "invalid_request"},
		{fleet.RoleAdmin, "POST", at + "/release", `{"digest":"` + strings.Repeat("0", 64) + `"}`, 404, "unknown_tool_definition"},
		{fleet.RoleAdmin, "POST", "/tools/self.none/release", release, 404, "unknown_tool_definition"},
		{fleet.RoleAdmin, "POST", "/tools/release", `{"definitions":[]}`, 422, "invalid_request"},
		{fleet.RoleOperator, "PUT", "/tool-waits", `{"waits":"new"}`, 403, "forbidden"},
		{fleet.RoleAdmin, "PUT", "/tool-waits", `{"waits":"all"}`, 422, "invalid_request"},
	} {
		if p := w.as(t, tt.role, tt.method, tt.path, tt.body).problem(t); p.Status != tt.status || p.Code != tt.code {
			t.Errorf("%s %s by %s: %d %s, want %d %s", tt.method, tt.path, tt.role, p.Status, p.Code, tt.status, tt.code)
		}
	}
}

// Principals who may not release do not; what they tried stays as it was.
func TestWhoReleasesDefinitions(t *testing.T) {
	w := newWorld(t)
	decode[toolWaitsView](t, w.as(t, fleet.RoleAdmin, "PUT", "/tool-waits", `{"waits":"new_and_changed"}`), 200)
	w.listing(t, unit, []fleet.Tool{{Name: "self.say", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object"}`)}})
	definition := func() definitionView {
		return decode[catalogueToolView](t, w.as(t, fleet.RoleViewer, "GET", "/tools/self.say", ""), 200).Definitions[0]
	}
	if d := definition(); d.Waiting != "new" {
		t.Fatalf("a new definition: %+v", d)
	}
	body := `{"digest":"` + definition().Digest + `"}`
	for name, r := range map[string]operator.TokenRequest{
		"model":  {Name: "model", Kind: fleet.KindModel, Role: fleet.RoleAdmin, Tools: []string{"*"}},
		"scoped": {Name: "scoped", Kind: fleet.KindProgram, Role: fleet.RoleAdmin, Scope: "id:" + string(unit)},
	} {
		_, secret, err := w.operators.NewToken(t.Context(), root, r)
		if err != nil {
			t.Fatal(err)
		}
		if status := w.as(t, "", "POST", "/tools/self.say/release", body, "Authorization", "Bearer "+secret).status; status != 403 {
			t.Errorf("%s is answered %d", name, status)
		}
	}
	if d := definition(); d.Waiting != "new" {
		t.Errorf("after refused releases: %+v", d)
	}
	if got := decode[releasedView](t, w.as(t, fleet.RoleAdmin, "POST", "/tools/self.say/release", body), 200); got.Released != 1 {
		t.Errorf("released %d", got.Released)
	}
	if d := definition(); d.Waiting != "" || d.ReleasedBy == "" || d.ReleasedAt == nil {
		t.Errorf("after the release: %+v", d)
	}
	if w.catalogue.Waits() != catalogue.WaitsNewAndChanged {
		t.Errorf("the setting is %s", w.catalogue.Waits())
	}
}
