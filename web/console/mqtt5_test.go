package console_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/console"
	"fleetd/web/ui"
)

// shownCredentials reads the credentials of a page.
func (p *page) shownCredentials(id fleet.DeviceID) enrolment.MQTT5Credentials {
	p.t.Helper()
	p.wantStatus(200)
	var all []string
	for _, b := range p.find("button[class=copy]") {
		all = append(all, attribute(b, "data-copy"))
	}
	if len(all) != 6 || all[0] != "mqtt://broker.test:1883" || all[1] != string(id) {
		p.t.Fatalf("the page shows %q", all)
	}
	if got := p.header.Get("Cache-Control"); got != "no-store" {
		p.t.Errorf("Cache-Control %q", got)
	}
	for _, part := range []string{all[2], all[3], `"mqtt://broker.test:1883"`} {
		if !strings.Contains(p.text("#examples"), part) {
			p.t.Errorf("the examples lack %s", part)
		}
	}
	return enrolment.MQTT5Credentials{Device: id, ClientID: all[1], Username: all[2], Password: all[3]}
}

func newMQTT5Console(t *testing.T) *site {
	return newConsole(t, func(o *console.Options) { o.MQTTEndpoint = "broker.test:1883" })
}

func (c *site) connects(m enrolment.MQTT5Credentials) bool {
	_, err := c.enrolments.Authenticate(m.ClientID, m.Username, []byte(m.Password), "192.0.2.9")
	return err == nil
}

// keeps fails if a secret is stored or logged.
func (c *site) keeps(m enrolment.MQTT5Credentials) {
	c.t.Helper()
	for _, secret := range []string{m.Password, m.Username} {
		if strings.Contains(c.logged.String(), secret) {
			c.t.Error("the log contains credentials")
		}
		var n int
		if err := c.db.QueryRow(c.t.Context(), `SELECT count(*) FROM sessions WHERE position(convert_to($1, 'UTF8') IN data) > 0`,
			secret).Scan(&n); err != nil || n > 0 {
			c.t.Errorf("%d sessions contain credentials, %v", n, err)
		}
	}
}

func TestMQTT5Create(t *testing.T) {
	c := newMQTT5Console(t)
	admin, operator := c.as(fleet.RoleAdmin), c.as(fleet.RoleOperator)
	if n := len(admin.get(ui.PathClaim).find("form[action=" + ui.PathMQTT5 + "]")); n != 1 {
		t.Errorf("an administrator sees %d forms", n)
	}
	if n := len(operator.get(ui.PathClaim).find("#mqtt5")); n != 0 {
		t.Error("an operator sees the form")
	}
	admin.get(ui.PathDevices).wantText("main", "Add a device of MCP over MQTT")
	fold := admin.get(ui.PathClaim + "?add=mqtt5").find("#mqtt5")[0]
	if !slices.ContainsFunc(fold.Attr, func(a html.Attribute) bool { return a.Key == "open" }) {
		t.Error("the link to the form does not open it")
	}
	form := url.Values{"id": {"Lamp-1"}, "name": {`Desk "<b>"`}}
	operator.post(ui.PathMQTT5, form).wantStatus(http.StatusForbidden)
	if _, err := c.store.Device(t.Context(), "lamp-1"); err == nil {
		t.Fatal("an operator created the device")
	}

	// The password is asked for, and the form is kept.
	c.exec(`UPDATE logins SET confirmed_at = now() - interval '1 hour'`)
	p := admin.post(ui.PathMQTT5, form).wantStatus(http.StatusForbidden).wantText("h1", "Confirm your identity")
	if _, err := c.store.Device(t.Context(), "lamp-1"); err == nil {
		t.Fatal("the device was created without the password")
	}
	if got := attribute(p.find("input[name=name]")[0], "value"); got != form.Get("name") {
		t.Errorf("the name became %q", got)
	}
	form.Set(ui.ConfirmField, password)
	p = admin.post(ui.PathMQTT5, form).wantText("[role=status]", "Desk").wantText("#examples", "mcp_server_init")
	m := p.shownCredentials("lamp-1")
	if !c.connects(m) {
		t.Error("the device cannot connect with the credentials")
	}
	c.keeps(m)
	d, err := c.store.Device(t.Context(), "lamp-1")
	if err != nil || d.Kind != fleet.DeviceMQTT5 || d.Name != `Desk "<b>"` {
		t.Errorf("device %+v, %v", d, err)
	}

	// A reload of the page repeats the form: it changes nothing. Bad input is shown with the form.
	again := admin.post(ui.PathMQTT5, form).wantStatus(422).wantText("#mqtt5", "a device lamp-1 already")
	if strings.Contains(again.body, m.Password) || !c.connects(m) {
		t.Error("the form, sent again, shows or ends the credentials")
	}
	if got := attribute(again.find("input[name=id]")[0], "value"); got != "Lamp-1" {
		t.Errorf("the form keeps the id %q", got)
	}
	for _, id := range []string{"", "lamp/1", "plugin.weather", "presence", strings.Repeat("x", 65)} {
		admin.post(ui.PathMQTT5, url.Values{"id": {id}}).wantStatus(422).wantText("#mqtt5", "cannot be the id")
	}
	admin.post(ui.PathMQTT5, url.Values{"id": {"lamp-2"}, "name": {strings.Repeat("x", 200)}}).wantStatus(422)
	if _, err := c.store.Device(t.Context(), "lamp-2"); err == nil {
		t.Error("a device with a bad name was created")
	}
	admin.post(ui.PathMQTT5+"?lang=zh-CN", url.Values{"id": {"lamp-3"}}).wantText("h1", "凭据")
	admin.get(ui.PathMQTT5).wantRedirect(ui.PathClaim)
}

func TestMQTT5Credentials(t *testing.T) {
	c := newMQTT5Console(t)
	c.enrol("a085e3112233")
	m, err := c.enrolments.CreateMQTT5(t.Context(), fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "root",
		Role: fleet.RoleAdmin}, "lamp-1", "Desk")
	if err != nil {
		t.Fatal(err)
	}
	operator, viewer := c.as(fleet.RoleOperator), c.as(fleet.RoleViewer)
	settings, reissue, revoke := ui.DevicePath("lamp-1", "configuration"), ui.DevicePath("lamp-1", "reissue"), ui.DevicePath("lamp-1", "revoke")
	version := func() url.Values {
		return url.Values{"version": {attribute(operator.get(settings).find("input[name=version]")[0], "value")}}
	}
	if n := len(viewer.get(settings).wantStatus(200).find("#credentials")); n != 0 {
		t.Error("a viewer sees the forms")
	}
	first := version()
	viewer.post(reissue, first).wantStatus(http.StatusForbidden)
	viewer.post(revoke, first).wantStatus(http.StatusForbidden)
	for _, bad := range []url.Values{nil, {"version": {"x"}}, {"version": {"0"}}, {"version": {"-1"}}} {
		operator.post(reissue, bad).wantStatus(422)
		operator.post(revoke, bad).wantStatus(422)
	}
	for _, id := range []fleet.DeviceID{"a085e3112233", "lamp-7"} {
		operator.post(ui.DevicePath(id, "reissue"), first).wantStatus(404)
		operator.post(ui.DevicePath(id, "revoke"), first).wantStatus(404)
	}
	c.exec(`UPDATE logins SET confirmed_at = now() - interval '1 hour'`)
	operator.post(reissue, first).wantStatus(http.StatusForbidden).wantText("h1", "Confirm your identity")
	operator.post(revoke, first).wantStatus(http.StatusForbidden).wantText("h1", "Confirm your identity")
	if !c.connects(m) {
		t.Fatal("refused requests ended the credentials")
	}
	c.exec(`UPDATE logins SET confirmed_at = now()`)

	second := operator.post(reissue, first).wantText("[role=status]", "new credentials").shownCredentials("lamp-1")
	if c.connects(m) || !c.connects(second) {
		t.Error("the credentials were not replaced")
	}
	c.keeps(second)
	// A reload of the page, and a page that was read before.
	operator.post(reissue, first).wantRedirect(settings)
	operator.get(settings).wantText("#flash", "were changed meanwhile")
	operator.post(revoke, first).wantRedirect(settings)
	if !c.connects(second) {
		t.Error("a stale form ended the credentials")
	}

	operator.post(revoke, version()).wantRedirect(settings)
	p := operator.get(settings).wantText("#flash", "credentials of Desk are revoked").wantText("#credentials", "revoked")
	if c.connects(second) || len(p.find("form[action="+revoke+"]")) != 0 {
		t.Error("the credentials were not revoked")
	}
	third := operator.post(reissue, version()).shownCredentials("lamp-1")
	if !c.connects(third) {
		t.Error("the new credentials are refused")
	}
}

// The pages of such a device show what it has.
func TestMQTT5DevicePages(t *testing.T) {
	c := newMQTT5Console(t)
	if _, err := c.enrolments.CreateMQTT5(t.Context(), fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "root",
		Role: fleet.RoleAdmin}, "lamp-1", ""); err != nil {
		t.Fatal(err)
	}
	admin := c.as(fleet.RoleAdmin)
	admin.get(ui.PathDevices).wantText("#device-lamp-1", "MQTT 5 device")
	p := admin.get(ui.DevicePath("lamp-1")).wantStatus(200).wantText("#device-head", "MQTT 5 device")
	if got := p.text("#device-acts"); got != "" {
		t.Errorf("it offers %q", got)
	}
	for _, tab := range []string{"health", "screen", "logs"} {
		admin.get(ui.DevicePath("lamp-1", tab)).wantStatus(404)
	}
	for tab, absent := range map[string][]string{"": {"Update"}, "configuration": {"Time zone", "Transport", "Replace this device"},
		"firmware": {"Builds", "Updates"}, "facts": {"Boot poll", "Language", "Chip"}} {
		p := admin.get(ui.DevicePath("lamp-1", strings.Fields(tab)...)).wantStatus(200)
		for _, text := range absent {
			if strings.Contains(p.text("#main"), text) {
				t.Errorf("%q shows %s", tab, text)
			}
		}
	}
	admin.get(ui.DevicePath("lamp-1")).wantText("#main", "Created").wantText("#device-brief", "Created")
	// A form for boards changes neither transport nor time zone.
	admin.post(ui.DevicePath("lamp-1", "edit"), url.Values{"name": {"Desk"}, "transport": {"ws"}, "time_zone": {"Asia/Tokyo"}}).
		wantStatus(http.StatusSeeOther)
	if d, err := c.store.Device(t.Context(), "lamp-1"); err != nil || d.Name != "Desk" || d.TransportChoice == fleet.TransportWebSocket ||
		d.TimeZone != "" {
		t.Errorf("device %+v, %v", d, err)
	}
	admin.post(ui.DevicePath("lamp-1", "retire"), url.Values{"confirm": {"lamp-1"}}).wantStatus(http.StatusSeeOther)
	if n := len(admin.get(ui.DevicePath("lamp-1", "configuration")).find("#credentials")); n != 0 {
		t.Error("a retired device has forms for credentials")
	}
}
