package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/picture"
	"fleetd/web/ui"
)

const dev = "/devices/a085e3112233"

// The values of a form are sent with the types of the tool's schema.
func TestFormToArguments(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	sent := make(chan string, 1)
	c.connect("a085e3112233", func(_ context.Context, _ string, args json.RawMessage) (fleet.Answer, error) {
		sent <- string(args)
		return fleettest.Text("true"), nil
	})
	schema := `{"type":"object","properties":{"n":{"type":"integer"},"on":{"type":"boolean"},"s":{"type":"string"},"x":{"type":"number"},"list":{"type":"array"}},"required":["n","s"]}`
	now := time.Now().UTC()
	if err := c.devices.Listed(t.Context(), fleet.ToolListing{Device: "a085e3112233", At: now,
		Inventory: fleet.Inventory{ID: strings.Repeat("cd", 32), CreatedAt: now,
			Tools: []fleet.Tool{{Name: "self.all/kinds", Audience: fleet.AudienceModel, InputSchema: json.RawMessage(
				schema)}}}}); err != nil {
		t.Fatal(err)
	}
	b := c.as(fleet.RoleOperator)
	tool := ui.ToolPath("a085e3112233", "self.all/kinds")
	b.get(tool).wantStatus(200)
	tests := []struct {
		name string
		form url.Values
		want string // "" if the form is refused
	}{
		{"all", url.Values{"arg.n": {"7"}, "arg.on": {"on"}, "arg.s": {"hi"}, "arg.x": {"1.5"}, "arg.list": {`[1,"a"]`}},
			`{"list":[1,"a"],"n":7,"on":true,"s":"hi","x":1.5}`},
		{"left out", url.Values{"arg.n": {"-1"}, "arg.s": {""}}, `{"n":-1,"on":false,"s":""}`},
		{"numbers stay strings in strings", url.Values{"arg.n": {"0"}, "arg.s": {"12"}}, `{"n":0,"on":false,"s":"12"}`},
		{"no number", url.Values{"arg.n": {"many"}, "arg.s": {"x"}}, ""},
		{"required", url.Values{"arg.s": {"x"}}, ""},
		{"broken JSON", url.Values{"arg.n": {"1"}, "arg.s": {"x"}, "arg.list": {"[1"}}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := b.post(tool, tt.form)
			if tt.want == "" {
				p.wantStatus(http.StatusUnprocessableEntity).wantText("#main", "Nothing was called")
				if p.header.Get("HX-Retarget") != "" {
					t.Error("a page without script got a header of htmx")
				}
				return
			}
			p.wantRedirect(tool + "?call=")
			if got := <-sent; got != tt.want {
				t.Errorf("sent %s, want %s", got, tt.want)
			}
		})
	}
	b.headers["HX-Request"] = "true"
	p := b.post(tool, url.Values{"arg.n": {"many"}}).wantStatus(422)
	if p.header.Get("HX-Reselect") != "#main" {
		t.Error("a form that is not accepted does not replace the page that asked with htmx")
	}
}

func TestRebootNeedsTheTypedWord(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleOperator)
	tool := ui.ToolPath("a085e3112233", fleet.ToolReboot)
	for _, typed := range []string{"", "yes", "a085e3112244"} {
		b.post(tool, url.Values{"confirm": {typed}}).wantStatus(422)
	}
	if got, err := c.store.Calls(t.Context(), call.Filter{Device: "a085e3112233"}); err != nil ||
		len(got.Items) != 0 {
		t.Fatalf("calls on record: %v, %v; want none", got.Items, err)
	}
	b.post(tool, url.Values{"confirm": {"reboot"}}).wantRedirect(tool + "?call=")
	b.post(tool, url.Values{"confirm": {"A0:85:E3:11:22:33"}}).wantRedirect(tool + "?call=")
}

// The boards offer it to language models, but the device can only be reached again by hand.
func TestReconfigureWiFiNeedsTheTypedWord(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233", "a085e3112244")
	b := c.as(fleet.RoleOperator)
	tool := ui.ToolPath("a085e3112233", fleet.ToolReconfigureWiFi)
	b.get(tool).wantStatus(200).wantText("#main", "stays away until somebody")
	for _, typed := range []string{"", "reboot", "a085e3112244"} {
		b.post(tool, url.Values{"confirm": {typed}}).wantStatus(422)
	}
	many := url.Values{"q": {""}, "tool": {fleet.ToolReconfigureWiFi}}
	b.get("/fanouts/new?step=preview&"+many.Encode()).wantStatus(200).wantText("#main", "2 devices leave the network")
	for _, typed := range []string{"", "leave", "3"} {
		many.Set("confirm", typed)
		b.post("/fanouts", many).wantStatus(422)
	}
	if got, err := c.store.Calls(t.Context(), call.Filter{}); err != nil || len(got.Items) != 0 {
		t.Fatalf("calls on record: %v, %v; want none", got.Items, err)
	}
	b.post(tool, url.Values{"confirm": {"leave"}}).wantRedirect(tool + "?call=")
	many.Set("confirm", "2")
	b.post("/fanouts", many).wantRedirect("/fanouts/")
}

func TestPreviewImageTakesAPicture(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.connect("a085e3112233", says("true"))
	b := c.as(fleet.RoleOperator)
	tool := ui.ToolPath("a085e3112233", fleet.ToolPreviewImage)
	post := func(picture []byte) *page {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		if picture != nil {
			part, _ := w.CreateFormFile("picture", "a.png")
			part.Write(picture)
		}
		w.Close()
		return b.do(http.MethodPost, tool, w.FormDataContentType(), &body)
	}
	post(nil).wantStatus(422).wantText("#main", "Choose the picture")
	post([]byte("<svg/onload=alert(1)>")).wantStatus(422)
	location := post(testPNG(t)).wantRedirect(tool + "?call=")
	b.get(location).wantText("#result", "true")
	post(make([]byte, picture.MaxSnapshotBytes+128<<10)).wantStatus(http.StatusRequestEntityTooLarge)
}

func TestDeviceActs(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleAdmin)
	device := func() fleet.Device {
		d, err := c.store.Device(t.Context(), "a085e3112233")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	b.post(dev+"/edit", url.Values{"name": {"Front <b>door</b>"}, "tags": {"lab, Hall  lab"},
		"notes": {"line\r\nline"}}).wantRedirect(dev)
	if d := device(); d.Name != "Front <b>door</b>" || strings.Join(d.Tags, " ") != "hall lab" || d.Notes != "line\nline" {
		t.Errorf("stored %q %q %q", d.Name, d.Tags, d.Notes)
	}
	p := b.get(dev).wantText("#flash", "Saved").wantText("h1", "Front <b>door</b>")
	if len(p.find("b")) != 0 {
		t.Error("a name is shown as markup")
	}
	if b.get(dev).text("#flash") != "" {
		t.Error("the outcome is shown twice")
	}
	b.post(dev+"/edit", url.Values{"time_zone": {"Asia/Shanghai"}}).wantRedirect(dev)
	if d := device(); d.TimeZone != "Asia/Shanghai" || d.Name == "" {
		t.Errorf("stored the zone %q and the name %q", d.TimeZone, d.Name)
	}
	b.post(dev+"/edit", url.Values{"time_zone": {"Mars/Olympus"}}).wantStatus(422).wantText("#main", "Unknown time zone")
	p = b.post(dev+"/edit", url.Values{"name": {"x"}, "tags": {"a:b"}, "notes": {"kept"}}).wantStatus(422)
	p.wantText("textarea", "kept")

	b.post(dev+"/hold", url.Values{"reason": {"on my desk"}, "hours": {"8"}}).wantRedirect(dev)
	if h := device().Hold; h == nil || h.Reason != "on my desk" || h.Until == nil || h.Until.Sub(h.Since).Round(
		time.Hour) != 8*time.Hour {
		t.Errorf("hold %+v", h)
	}
	b.post(dev+"/hold", url.Values{"reason": {""}, "hours": {"8"}}).wantRedirect(dev)
	b.get(dev).wantText("#flash", "Give a reason")
	b.post(dev+"/hold", url.Values{"reason": {"x"}, "hours": {"-3"}}).wantStatus(422)
	b.post(dev+"/release", nil).wantRedirect(dev)
	if device().Hold != nil {
		t.Error("still held")
	}
	b.post(dev+"/retire", url.Values{"confirm": {"a085e3112244"}}).wantStatus(422)
	if device().RetiredAt != nil {
		t.Fatal("retired by the id of another")
	}
	b.post(dev+"/retire", url.Values{"confirm": {"a0:85:e3:11:22:33"}}).wantRedirect(dev)
	if device().RetiredAt == nil {
		t.Error("not retired")
	}
	b.get(dev).wantStatus(200)
}

func TestClaimAndApprove(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	code := func(id fleet.DeviceID) string {
		a, err := c.enrolments.Poll(enrolment.BootPoll{Device: id, ClientID: uuid.NewString(), Board: "esp-box-3",
			At: time.Now().UTC()})
		if err != nil || a.Activation == nil {
			t.Fatalf("poll: %+v, %v", a, err)
		}
		return a.Activation.Code
	}
	first := code("a085e3112233")
	code("a085e3112244")
	b.get("/claim").wantText("#main", "esp-box-3")
	b.post("/claim", url.Values{"code": {"12"}}).wantStatus(422).wantText("form", "six digits")
	wrong := "000000"
	if first == wrong {
		wrong = "000001"
	}
	if p := b.post("/claim", url.Values{"code": {wrong}}); p.status != 404 || len(p.find("input[name=code]")) == 0 {
		t.Errorf("an unknown code: %d, want the form again with 404", p.status)
	}
	b.post("/claim", url.Values{"code": {first}}).wantRedirect(dev + "/name")
	b.get(dev+"/name").wantText("#flash", "claimed")
	b.post("/devices/a085e3112244/approve", url.Values{"next": {"/claim"}}).wantRedirect("/claim")
	b.post("/devices/a085e3112244/approve", url.Values{"next": {"/claim"}}).wantRedirect("/claim")
	b.get("/claim").wantText("#flash", "already")
	code("a085e3112255")
	b.post("/devices/a085e3112255/reject", nil).wantRedirect("/devices/a085e3112255")
	if c.enrolments.Known("a085e3112255") || !c.enrolments.Known("a085e3112244") {
		t.Error("decisions did not come to pass")
	}
}

func TestSettings(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleAdmin)
	b.post("/settings/operators", url.Values{"name": {"grace"}, "role": {"operator"}, "password": {"short"}}).wantStatus(
		422).wantText("#main", "at least 10")
	b.post("/settings/operators", url.Values{"name": {"grace"}, "role": {"king"}, "password": {password}}).wantStatus(422)
	b.post("/settings/operators", url.Values{"name": {"grace"}, "role": {"operator"},
		"password": {password}}).wantRedirect("/settings")
	b.post("/settings/operators", url.Values{"name": {"GRACE"}, "role": {"operator"}, "password": {password}}).wantStatus(
		409)
	grace := c.signIn("grace")
	o, err := c.store.OperatorByName(t.Context(), "grace")
	if err != nil {
		t.Fatal(err)
	}
	b.post("/settings/operators/"+o.ID.String()+"/password", url.Values{"password": {"another password"}}).wantRedirect(
		"/settings/operators/" + o.ID.String())
	grace.get("/").wantRedirect("/sign-in")
	me, err := c.store.OperatorByName(t.Context(), "admin-1")
	if err != nil {
		t.Fatal(err)
	}
	b.post("/settings/operators/"+me.ID.String()+"/disable", nil).wantStatus(409).wantText("#main", "yourself")

	b.post("/settings/tokens", url.Values{"name": {"ci"}, "role": {"operator"}, "days": {"a week"}}).wantStatus(422)
	p := b.post("/settings/tokens", url.Values{"name": {"ci"}, "role": {"operator"}, "days": {"30"}}).wantStatus(200)
	at := strings.Index(p.body, "flt_")
	if at < 0 {
		t.Fatal("the new token's secret is not shown")
	}
	secret := p.body[at : at+47]
	if a, err := c.operators.Authenticate(t.Context(), secret); err != nil || a.Name != "ci" {
		t.Errorf("the token shown is not good: %v, %v", a, err)
	}
	if strings.Contains(b.get("/settings").body, secret) || strings.Contains(c.logged.String(), secret) {
		t.Error("the secret is shown again, or logged")
	}
	if len(p.find("#clients")) > 0 {
		t.Error("the token of a program has configurations for models")
	}
	tokens, err := c.store.Tokens(t.Context())
	if err != nil || len(tokens) != 1 {
		t.Fatal(tokens, err)
	}
	b.post("/settings/tokens/"+tokens[0].ID.String()+"/revoke", nil).wantRedirect("/settings")
	if _, err := c.operators.Authenticate(t.Context(), secret); err == nil {
		t.Error("a revoked token is still good")
	}

	// The token of a model is shown once, in the configuration of each client.
	p = b.post("/settings/tokens", url.Values{"name": {"claude"}, "kind": {"model"}, "tools": {"*"}, "role": {"operator"},
		"days": {"30"}}).wantStatus(200).wantText("#clients", "claude mcp add --transport http fleetd").
		wantText("#clients", ".cursor/mcp.json").wantText("#clients", ".vscode/mcp.json")
	secret = p.body[strings.Index(p.body, "flt_"):][:47]
	if n := strings.Count(p.text("#clients"), secret); n != 4 {
		t.Errorf("%d configurations contain the token", n)
	}
	if p.header.Get("Cache-Control") != "no-store" {
		t.Error("the page with the token may be stored")
	}
	if again := b.get("/settings"); strings.Contains(again.body, secret) || len(again.find("#clients")) > 0 ||
		strings.Contains(c.logged.String(), secret) {
		t.Error("the token of the model is shown again, or logged")
	}
}

func TestFanOut(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233", "a085e3112244", "a085e3112255")
	c.connect("a085e3112233", says("one"))
	c.connect("a085e3112244", says("two"))
	b := c.as(fleet.RoleOperator)
	b.post("/devices/a085e3112255/hold", url.Values{"reason": {"x"}, "hours": {"0"}}).wantStatus(303)

	b.get("/devices?q=board:bread*").wantStatus(200)
	b.get("/fanouts/new?q=nope:x").wantStatus(422)
	b.get("/fanouts/new?q=&tool=self.nope").wantStatus(422).wantText("#main", "self.nope")
	b.get("/fanouts/new?q=&tool=self.get_device_status").wantStatus(200)
	b.get("/fanouts/new?q=&tool=self.get_device_status&step=preview").wantStatus(200).wantText("#main", "2 devices")
	b.get("/fanouts/new?q=&tool=self.audio_speaker.set_volume&step=preview&arg.volume=900").wantStatus(422)
	for _, wait := range []string{"-1", "1441", "soon", "99999999999999999999"} {
		b.get("/fanouts/new?q=&tool=self.get_device_status&step=preview&offline_wait="+wait).wantStatus(422).
			wantText("#main", "0 to 1,440 minutes").wantText("#main", "3 devices")
		b.post("/fanouts", url.Values{"q": {""}, "tool": {"self.get_device_status"}, "offline_wait": {wait}}).wantStatus(
			422).wantText("#main", "0 to 1,440 minutes")
	}
	c.enrol("a085e3112266")
	b.get("/fanouts/new?q=&tool=self.get_device_status&offline_wait=90").wantStatus(200).wantText("#main",
		"within 1 h 30 min")
	b.get("/fanouts/new?q=&tool=self.get_device_status&step=preview&offline_wait=60").wantText("#main",
		"will be called if it comes online")
	waiting := b.post("/fanouts", url.Values{"q": {"id:a085e3112266"}, "tool": {"self.get_device_status"},
		"offline_wait": {"60"}}).wantRedirect("/fanouts/")
	live := b.stream("/events?view=fanout&id=" + strings.TrimPrefix(waiting, "/fanouts/"))
	live.want("patch", "1 is offline and will be called when it comes online")
	c.connect("a085e3112266", says("three"))
	live.want("patch", "completed", "three")
	b.get(waiting).wantText("#main", "Wait for offline devices until")
	b.post("/devices/a085e3112266/hold", url.Values{"reason": {"x"}, "hours": {"0"}}).wantStatus(303)

	location := b.post("/fanouts", url.Values{"q": {""}, "tool": {"self.get_device_status"}}).wantRedirect("/fanouts/")
	s := b.stream("/events?view=fanout&id=" + strings.TrimPrefix(location, "/fanouts/"))
	s.want("patch", `id="progress-`, "completed")
	p := b.get(location).wantStatus(200).wantText("#main", "one").wantText("#main", "two")
	if strings.Contains(p.body, "⟦") {
		t.Error("a message is missing")
	}
	b.get("/fanouts").wantText("#main", "2 of 2")
	b.get("/calls?fanout="+strings.TrimPrefix(location, "/fanouts/")).wantStatus(200).wantText("#main",
		"self.get_device_status")
	b.post(location+"/cancel", nil).wantRedirect(location)
	b.get(location).wantText("#flash", "is already completed")

	reboot := url.Values{"d": {"a085e3112233", "a085e3112244"}, "tool": {fleet.ToolReboot}}
	b.post("/fanouts", reboot).wantStatus(422)
	reboot.Set("confirm", "3")
	b.post("/fanouts", reboot).wantStatus(422).wantText("#main", "does not match")
	reboot.Set("confirm", "2")
	location = b.post("/fanouts", reboot).wantRedirect("/fanouts/")
	b.post(location+"/cancel", nil).wantRedirect(location)
}

func TestBadInput(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleAdmin)
	unknown := uuid.NewString()
	for _, tt := range []struct {
		path   string
		status int
	}{
		{"/devices?q=nope:x", 200}, {"/devices?q=" + strings.Repeat("x", 2000), 200}, {"/devices?q=%22", 200},
		{"/devices?q=%00", 200},
		{"/devices?limit=-5&sort=nope", 200}, {"/devices?cursor=nonsense", 303}, {"/devices?q=%FF%FE", 200},
		{"/devices/%20", 404}, {"/devices/ffffffffffff", 404}, {"/devices/..%2f..%2fetc", 404},
		{"/devices/ffffffffffff/tools", 404},
		{dev + "/tools/self.nope", 404}, {dev + "/firmware?from=x&to=y", 404}, {dev + "/tools/self.reboot?call=x", 200},
		{"/calls?device=%21", 200}, {"/calls?state=nope", 200}, {"/calls?since=yesterday", 200}, {"/calls?cursor=x", 303},
		{"/calls?fanout=x", 200},
		{"/calls?tool=%00", 200}, {"/calls/x", 404}, {"/calls/" + unknown, 404}, {"/calls/" + unknown + "/images/0", 404},
		{"/snapshots/x", 404}, {"/snapshots/" + unknown, 404}, {"/fanouts/x", 404}, {"/fanouts/" + unknown, 404},
		{"/fanouts?cursor=x", 303},
	} {
		p := b.get(tt.path)
		if p.status != tt.status {
			t.Errorf("GET %s: %d, want %d: %s", tt.path, p.status, tt.status, p.text("#main"))
		}
	}
	b.get("/devices?q=nope:x").wantText("#list", "unknown field")
	for path, form := range map[string]url.Values{
		dev + "/edit":                             {"name": {strings.Repeat("x", 500)}},
		dev + "/edit?":                            {"name": {"a\x00b"}},
		dev + "/hold":                             {},
		dev + "/retire":                           {},
		"/claim":                                  {},
		"/fanouts":                                {},
		"/fanouts?":                               {"tool": {"self.reboot"}, "q": {"nope:x"}},
		"/settings/operators":                     {},
		"/settings/tokens":                        {},
		"/settings/password":                      {},
		"/devices/ffffffffffff/release":           {},
		"/settings/tokens/x/revoke":               {},
		"/settings/operators/x/disable":           {},
		"/fanouts/" + unknown + "/cancel":         {},
		dev + "/tools/self.nope":                  {},
		"/settings/tokens/" + unknown + "/revoke": {},
	} {
		if p := b.post(path, form); p.status < 400 || p.status >= 500 {
			t.Errorf("POST %s: %d, want an error of the asker's", path, p.status)
		}
	}
	b.post(dev+"/edit", url.Values{"notes": {strings.Repeat("x", 70<<10)}}).wantStatus(http.StatusRequestEntityTooLarge)
	b.do(http.MethodDelete, dev, "", nil).wantStatus(http.StatusMethodNotAllowed)
	if d, err := c.store.Device(t.Context(), "a085e3112233"); err != nil || d.Name != "" || d.Hold != nil ||
		d.RetiredAt != nil {
		t.Errorf("bad input changed the device: %+v, %v", d, err)
	}
	b.do(http.MethodPost, "/api/v1/nope", "application/json", strings.NewReader("{}")).wantStatus(404)
}

// An unreadable body is not treated as a form without arguments.
func TestBrokenFormCallsNothing(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.connect("a085e3112233", func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		t.Error("a call was made")
		return fleettest.Text("true"), nil
	})
	b := c.as(fleet.RoleOperator)
	b.do(http.MethodPost, dev+"/tools/self.get_device_status", "application/x-www-form-urlencoded",
		strings.NewReader("arg.x=%zz")).wantStatus(http.StatusUnprocessableEntity)
}
