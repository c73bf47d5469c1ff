package console_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/web/ui"
)

// The catalogue shows hostile names as text, compares definitions, and lets admins release them.
func TestCatalogueOfTools(t *testing.T) {
	c := newConsole(t)
	const device, hostile = fleet.DeviceID("a085e3112233"), "self.<b>/100%2F? x"
	c.enrol(device)
	list := func(description string) {
		t.Helper()
		tools := []fleet.Tool{{Name: hostile, Description: description, Audience: fleet.AudienceModel,
			InputSchema: []byte(`{"type":"object","properties":{"<img src=x onerror=alert(1)>":{"type":"` + description + `"}}}`)}}
		if err := c.store.SaveListing(context.Background(), fleet.ToolListing{Device: device, Version: "2.4.0", At: time.Now(),
			Inventory: fleet.Inventory{ID: fleet.InventoryID(tools), Tools: tools}}); err != nil {
			t.Fatal(err)
		}
	}
	admin, viewer := c.as(fleet.RoleAdmin), c.as(fleet.RoleViewer)
	at := ui.CatalogueToolPath(hostile)
	viewer.get(ui.PathTools).wantStatus(200)
	list("string")
	admin.post(ui.PathTools, url.Values{"waits": {"new_and_changed"}}).wantRedirect(ui.PathTools)
	list("integer")
	p := viewer.get(ui.PathTools+"?name=%25&waiting=1").wantStatus(200).wantText("#list", "self.<b>")
	if strings.Contains(p.body, "<img src=x") || len(p.find("#waiting")) > 0 {
		t.Error("a viewer gets markup of a device, or a form to release tools")
	}
	p = viewer.get(at).wantStatus(200).wantText("#diff", "onerror")
	if strings.Contains(p.body, "<img src=x") || strings.Contains(p.body, `name="definition"`) {
		t.Error("a viewer gets markup of a device, or a form to release a tool")
	}
	viewer.get(ui.PathTools + "/self.none").wantStatus(404)
	viewer.get(at + "?from=zz").wantStatus(422)
	page := admin.get(at).wantStatus(200).wantText("#definitions", "Changed, waits")
	inputs := page.find(`input[name=definition]`)
	if len(inputs) != 1 {
		t.Fatalf("%d definitions to release", len(inputs))
	}
	definition := ""
	for _, a := range inputs[0].Attr {
		if a.Key == "value" {
			definition = a.Val
		}
	}
	release := url.Values{"definition": {definition}}
	if status := viewer.post(at, release).status; status != 403 {
		t.Errorf("a viewer's release is answered %d", status)
	}
	admin.get(at).wantText("#definitions", "Changed, waits")
	admin.post(at, url.Values{"definition": {"zz"}}).wantStatus(422)
	admin.post(at, release).wantRedirect(at)
	if p := admin.get(at).wantStatus(200); len(p.find(`input[name=definition]`)) != 0 {
		t.Error("a released definition waits")
	}
}
