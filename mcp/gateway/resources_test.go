package gateway_test

import (
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// The list contains, in pages, the status of each device that is online and in the scope,
// up to the number that a client can show.
func TestListOfResources(t *testing.T) {
	w := newWorld(t)
	name := "Kitchen\u202e lamp"
	if _, err := w.devices.Update(t.Context(), root, unit, fleet.DevicePatch{Name: &name}); err != nil {
		t.Fatal(err)
	}
	token := w.token(t, operator.TokenRequest{Name: "lab", Kind: fleet.KindModel, Scope: "tag:lab"})
	lab := w.client(t, token, "/mcp", nil, "")
	list, err := lab.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 1 || list.NextCursor != "" {
		t.Fatalf("with the scope tag:lab: %+v, %v", list, err)
	}
	if r := list.Resources[0]; r.URI != "device://"+string(unit)+"/status" || r.Title != "Kitchen lamp: status" {
		t.Errorf("listed as %+v", r)
	}
	if r, err := lab.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: list.Resources[0].URI}); err != nil ||
		!strings.Contains(r.Contents[0].Text, `"presence":"online"`) {
		t.Errorf("read as %+v, %v", r, err)
	}
	all := w.token(t, operator.TokenRequest{Name: "all"})
	resp := w.post(t, all, "/mcp", `{"jsonrpc":"2.0","id":2,"method":"resources/list","params":{`+statelessMeta+`}}`,
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "resources/list")
	if body, _ := io.ReadAll(resp.Body); !strings.Contains(string(body), `"cacheScope":"private"`) ||
		!strings.Contains(string(body), string(unit)) || !strings.Contains(string(body), string(other)) ||
		strings.Contains(string(body), string(away)) {
		t.Errorf("without a scope: %s", body)
	}
	if _, err := w.pool.Exec(t.Context(), `
		INSERT INTO devices (id, board, board_key, chip, version, enrolment, enrolled_at, presence, presence_since,
			created_at)
		SELECT 'more' || n, 'b', 'b', 'esp32s3', '2.0.3', 'enrolled', now(), 'online', now(), now()
		FROM generate_series(1, 1100) AS n`); err != nil {
		t.Fatal(err)
	}
	s := w.client(t, all, "/mcp", nil, "2025-11-25")
	seen, cursor := map[string]bool{}, ""
	for page := 0; page == 0 || cursor != ""; page++ {
		list, err := s.ListResources(t.Context(), &mcp.ListResourcesParams{Cursor: cursor})
		if err != nil || len(list.Resources) != 100 || page == 10 {
			t.Fatalf("page %d: %d resources, %v", page, len(list.Resources), err)
		}
		for _, r := range list.Resources {
			seen[r.URI] = true
		}
		cursor = list.NextCursor
	}
	if len(seen) != 1000 {
		t.Errorf("%d resources in all pages, want 1000", len(seen))
	}
	for _, cursor := range []string{"x", "-1.x", "5", "5.", "100.nonsense"} {
		if _, err := s.ListResources(t.Context(), &mcp.ListResourcesParams{Cursor: cursor}); err == nil ||
			!strings.Contains(err.Error(), "cursor") {
			t.Errorf("the cursor %q: %v", cursor, err)
		}
	}
}
