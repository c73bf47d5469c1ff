package console_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/operator"
)

// A search finds things by each of their names: printed MAC, id, name, title of a page in either
// language.
func TestFind(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.enrol("a085e3445566")
	b := c.as(fleet.RoleViewer)
	for _, tt := range []struct{ text, want, not string }{
		{"a0:85:E3:11:22:33", "/devices/a085e3112233", "/devices/a085e3445566"},
		{"E3:11:2", "/devices/a085e3112233", "/devices/a085e3445566"},
		{"a085e3", "/devices/a085e3445566", ""},
		{"polic", "/settings/policies", "/devices/a085e3112233"},
		{"批量", "/fanouts", "/settings"},
		{"", "/campaigns", "/devices/a085e3112233"},
		{uuid.NewString(), "", "/calls/"},
		{`name:"half`, "", "/devices/a085e3112233"},
		{"<script>alert(1)</script>", "", "/devices/a085e3112233"},
		{strings.Repeat("ab:", 400), "", "/devices/a085e3112233"},
	} {
		p := b.get("/find?q=" + url.QueryEscape(tt.text)).wantStatus(200)
		hits := p.found()
		if tt.want != "" && !hits[tt.want] {
			t.Errorf("%.40q does not find %s, but %v", tt.text, tt.want, hits)
		}
		if tt.not != "" && hits[tt.not] {
			t.Errorf("%.40q finds %s", tt.text, tt.not)
		}
	}
}

// A search that names an act proposes it to those who may carry it out, and acts on nothing.
func TestFindActs(t *testing.T) {
	b := newScopeBench(t)
	root := b.signIn("root")
	tool := func(id fleet.DeviceID, name string) string { return "/devices/" + string(id) + "/tools/" + name }
	reboot := tool(inside, fleet.ToolReboot)
	for _, tt := range []struct{ text, want string }{
		{"reboot plain", reboot}, {"Restart PLAIN", reboot}, {"plain reboot", reboot}, {"重启 plain", reboot},
		{"重启plain", reboot}, {"reboot a0:85:e3:11:22:33", reboot}, {"reboot tag:in", reboot},
		{"volume 30 plain", tool(inside, fleet.ToolSetVolume) + "?arg.volume=30"},
		{"音量 30% plain", tool(inside, fleet.ToolSetVolume) + "?arg.volume=30"},
		{"volume plain", tool(inside, fleet.ToolSetVolume)},
		{"tag lab plain", "/bulk?act=tag&d=a085e3112233&tags=lab"}, {"hold plain", "/bulk?act=hold&d=a085e3112233"},
		{"reboot a085", "/fanouts/new?q=a085&tool=self.reboot"}, {"tag lab a085", "/bulk?act=tag&all=1&q=a085&tags=lab"},
		{"volume 30 a085", "/fanouts/new?arg.volume=30&q=a085&tool=self.audio_speaker.set_volume"},
	} {
		p := root.get("/find?q=" + url.QueryEscape(tt.text)).wantStatus(200)
		if !p.found()[tt.want] {
			t.Errorf("%q does not propose %s, but %v", tt.text, tt.want, p.found())
		}
		root.get(tt.want).wantStatus(200)
	}
	updates := root.get("/find?q=update+plain").found()
	if len(updates) == 0 {
		t.Error("no update is proposed")
	}
	for at := range updates {
		root.get(at).wantStatus(200)
	}
	for _, text := range []string{"reboot", "reboot nothing", "rebooted plain", `reboot name:"half`, "volume 30"} {
		for at := range root.get("/find?q=" + url.QueryEscape(text)).found() {
			if strings.Contains(at, "/tools/") || strings.Contains(at, "/bulk") || strings.Contains(at, "tool=") {
				t.Errorf("%q proposes %s", text, at)
			}
		}
	}
	if got := root.get(tool(inside, fleet.ToolSetVolume) + "?arg.volume=31").text("main"); !strings.Contains(got, "31") {
		t.Error("the form does not have the volume of the proposal")
	}

	narrow := b.person("narrow", operator.Access{Role: fleet.RoleOperator, Scope: "tag:in", Rest: fleet.RoleViewer})
	hits := narrow.get("/find?q=reboot+a085").found()
	if !hits[reboot] || hits[tool(outside, fleet.ToolReboot)] || hits["/fanouts/new?q=a085&tool=self.reboot"] {
		t.Errorf("an operator of one device gets %v", hits)
	}
	viewer := b.person("reader", operator.Access{Role: fleet.RoleViewer})
	for at := range viewer.get("/find?q=reboot+plain").found() {
		if strings.Contains(at, "/tools/") {
			t.Errorf("a viewer gets %s", at)
		}
	}
	calls, err := b.store.Calls(t.Context(), call.Filter{Tool: fleet.ToolReboot})
	if err != nil || len(calls.Items) > 0 {
		t.Errorf("a search calls %v, %v", calls.Items, err)
	}
}

// found returns the addresses in the results of a search.
func (p *page) found() map[string]bool {
	hits := make(map[string]bool)
	for _, list := range p.find("#found") {
		for n := range list.Descendants() {
			if href := attribute(n, "href"); href != "" {
				hits[href] = true
			}
		}
	}
	return hits
}
