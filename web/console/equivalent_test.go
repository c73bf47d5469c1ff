package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/forms"
)

// The menu of a form has the values of the page, and follows the fields that are posted. It acts on
// nothing and shows no password.
func TestEquivalentOfAForm(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.connect("a085e3112233", says("done"))
	b := c.as(fleet.RoleOperator)
	at := "/devices/a085e3112233/tools/self.audio_speaker.set_volume"
	b.get(at).wantStatus(200).wantText("details[class=raw equivalent]", `"$FLEETD_URL/api/v1/devices/a085e3112233/calls"`).
		wantText("details[class=raw equivalent]", "fleetd device call a085e3112233 self.audio_speaker.set_volume")
	if p := c.as(fleet.RoleViewer).get(at).wantStatus(200); len(p.find("details[class=raw equivalent]")) > 0 {
		t.Error("a viewer, who cannot call the tool, gets the commands")
	}
	admin := c.as(fleet.RoleAdmin)
	release := c.newRelease(admin)
	for at, want := range map[string]string{
		dev: "/api/v1/devices/a085e3112233", dev + "/configuration": "fleetd device hold", "/settings": "fleetd user add",
		"/settings#": "fleetd token create", "/firmware/releases/new?image=" + release.Images[0].SHA256: "fleetd release create " +
			release.Images[0].SHA256,
		"/bulk?act=tag&tags=lab&all=1&q=":                                              "fleetd devices tag --query= --confirm=1 lab",
		"/fanouts/new?q=&tool=self.audio_speaker.set_volume&arg.volume=7&step=preview": `"arguments":{"volume":7}`,
		"/settings/policies": `"decision":"deny"`, "/enrolment/rules": `"action":"accept"`,
		"/settings/voice": "fleetd upstream add --kind=websocket", "/settings/plugins": "fleetd plugin add",
		"/campaigns/new?f=1&q=board:x&release=" + release.ID.String(): `"q":"board:x"`,
	} {
		shown := ""
		for _, menu := range admin.get(at).wantStatus(200).find("details[class=raw equivalent]") {
			for n := range menu.Descendants() {
				if n.Type == html.TextNode {
					shown += n.Data
				}
			}
		}
		if !strings.Contains(shown, want) {
			t.Errorf("%s does not show %s, but %s", at, want, shown)
		}
	}
	posted := url.Values{forms.EquivalentForm: {"tool"}, forms.EquivalentOf: {"a085e3112233"},
		forms.EquivalentTool: {"self.audio_speaker.set_volume"}, "as.field.volume": {"integer"}, "arg.volume": {"41"}}
	p := b.post("/equivalent", posted).wantStatus(200)
	if !strings.Contains(p.text("body"), `'{"volume":41}'`) {
		t.Errorf("the menu does not follow: %s", p.text("body"))
	}
	if calls, err := c.store.Calls(t.Context(), call.Filter{}); err != nil || len(calls.Items) > 0 {
		t.Errorf("the menu calls the tool: %v, %v", calls.Items, err)
	}
	p = b.post("/equivalent", url.Values{forms.EquivalentForm: {"operator"}, "name": {"<b>"}, "password": {"sesame opens"}}).
		wantStatus(200)
	if strings.Contains(p.body, "sesame") || strings.Contains(p.body, "<b>") {
		t.Errorf("a password or markup is in %s", p.body)
	}
	b.post("/equivalent", url.Values{forms.EquivalentForm: {"nope"}}).wantStatus(http.StatusNotFound)
	b.post("/equivalent", url.Values{forms.EquivalentForm: {"hold"}, "hours": {"x"}}).wantStatus(200)
	b.post("/equivalent", url.Values{forms.EquivalentForm: {"tool"}, "as.field.": {""}, "as.field.x": {"\x00"}}).wantStatus(200)
}
