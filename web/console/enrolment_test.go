package console_test

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/ui"
)

// asks sends the request of an unknown device to join.
func (c *site) asks(id fleet.DeviceID, board string) string {
	c.t.Helper()
	a, err := c.enrolments.Poll(enrolment.BootPoll{Device: id, ClientID: "c-" + string(id), Board: board,
		RemoteAddr: "192.0.2.7", At: time.Now().UTC()})
	if err != nil || a.Activation == nil {
		c.t.Fatalf("%s got %+v, %v", id, a, err)
	}
	if err := c.enrolments.Stored(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return a.Activation.Code
}

// postForm sends a form with a file, as a browser does.
func (b *browser) postForm(path string, form url.Values, file string) *page {
	b.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for name, values := range form {
		w.WriteField(name, values[0])
	}
	f, _ := w.CreateFormFile("list", "boards.csv")
	f.Write([]byte(file))
	w.Close()
	return b.do(http.MethodPost, path, w.FormDataContentType(), &body)
}

func TestRulesPage(t *testing.T) {
	c := newConsole(t)
	c.asks("a085e3112233", "bread-compact-wifi")
	c.asks("a085e3112244", "esp-box")
	admin := c.as(fleet.RoleAdmin)
	bad := []struct {
		form url.Values
		file string
		want string
	}{
		{url.Values{"name": {"lab"}, "action": {"accept"}}, "mac\na085e3112233\nnonsense\n",
			`Line 3: "nonsense" is not a MAC address`},
		{url.Values{"name": {"lab"}, "action": {"accept"}}, "", "every device for ever"},
		{url.Values{"name": {"lab"}, "action": {"accept"}, "networks": {"lab"}}, "", `"lab" is not a network`},
		{url.Values{"name": {"lab"}, "action": {"accept"}, "until": {"soon"}}, "", `"soon" is not a time`},
		{url.Values{"name": {"lab"}, "action": {"accept"}, "boards": {"x"}, "max_devices": {"many"}}, "", `"many" is not a number of devices`},
		{url.Values{"name": {""}, "action": {"accept"}}, "", "Give the rule a name"},
	}
	for _, tt := range bad {
		admin.postForm(ui.PathRules, tt.form, tt.file).wantStatus(http.StatusUnprocessableEntity).wantText("#add", tt.want)
	}
	admin.postForm(ui.PathRules, url.Values{"name": {"lab <b>"}, "action": {"accept"}, "enabled": {"1"},
		"tags": {"lab, new"}, "until": {"2099-01-01T10:00"}},
		"mac,where\nA0:85:E3:11:22:33,desk\na085e3112299,shelf\n").wantRedirect(ui.PathRules)
	r := c.rules.Rules()[0]
	if len(r.Devices) != 2 || r.Until == nil || r.Until.Hour() != 10 || len(r.Tags) != 2 {
		t.Errorf("stored %+v", r)
	}
	admin.get(ui.PathRules).wantText("#rules", "lab <b>").wantText("#rules", "1 waiting device matches.")
	page := admin.get(ui.RulePath(r.ID.String())).wantText("#matches", "a0:85:e3:11:22:33")
	if got := page.text("textarea[name=devices]"); got != "a0:85:e3:11:22:33 a0:85:e3:11:22:99" {
		t.Errorf("the form shows %q", got)
	}
	c.signIn("admin-1").get(ui.PathClaim).wantText("#waiting", "The rule lab <b> accepts the device")

	admin.postForm(ui.PathRules, url.Values{"name": {"shut"}, "action": {"refuse"}}, "").wantRedirect(ui.PathRules)
	shut := c.rules.Rules()[1].ID.String()
	admin.post(ui.RulePath(shut, "move"), url.Values{"to": {"0"}}).wantRedirect(ui.PathRules)
	admin.post(ui.RulePath(shut, "move"), url.Values{"to": {"x"}}).wantStatus(http.StatusUnprocessableEntity)
	admin.post(ui.RulePath(shut, "enable"), nil).wantRedirect(ui.PathRules)
	if rules := c.rules.Rules(); rules[0].Name != "shut" || !rules[0].Enabled {
		t.Errorf("rules: %+v", rules)
	}
	admin.postForm(ui.RulePath(shut, "edit"), url.Values{"name": {"shut"}, "action": {"refuse"}, "boards": {"a*b"}},
		"").wantStatus(http.StatusUnprocessableEntity).
		wantText("#main", `"a*b" is not the name of a board`)
	admin.postForm(ui.RulePath(shut, "edit"), url.Values{"name": {"box"}, "action": {"refuse"}, "boards": {"esp-box*"}},
		"").wantRedirect(ui.RulePath(shut))
	admin.post(ui.RulePath(shut, "delete"), nil).wantRedirect(ui.PathRules)
	if rules := c.rules.Rules(); len(rules) != 1 || rules[0].Name != "lab <b>" {
		t.Errorf("rules: %+v", rules)
	}

	viewer := c.as(fleet.RoleViewer)
	if p := viewer.get(ui.PathRules).wantText("#rules", "lab <b>"); len(p.find("#add")) != 0 {
		t.Error("a viewer is shown a form")
	}
	viewer.get(ui.PathRules + "/nonsense").wantStatus(http.StatusNotFound)
}

func TestUnlistedNetworksAreShown(t *testing.T) {
	c := newConsole(t)
	for i := range 520 {
		id := fleet.DeviceID(fmt.Sprintf("c%011x", i))
		c.enrolments.Poll(enrolment.BootPoll{Device: id, ClientID: "x", RemoteAddr: "203.0.113.9", At: time.Now()})
	}
	c.as(fleet.RoleAdmin).get(ui.PathClaim).wantText("#waiting",
		"20 requests from the network 203.0.113.0/24 are not listed").wantText("#waiting", "Refuse this network")
	page := c.signIn("admin-1").get(ui.PathRules + "?action=refuse&networks=203.0.113.0%2F24&name=x")
	page.wantText("textarea[name=networks]", "203.0.113.0/24")
}
