package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// unit is a device with the included firmware.
const unit = fleet.DeviceID("a085e3112233")

// enrolUnit adds the unit, with the tools of its configuration.
func (c *site) enrolUnit() {
	c.t.Helper()
	c.enrol(unit)
	document := json.RawMessage(`{"type":"object","properties":{"document":{"type":"string"}},"required":["document"]}`)
	all := append([]fleet.Tool{
		{Name: fleet.ToolConfigGet, Audience: fleet.AudienceUser, InputSchema: json.RawMessage(
			`{"type":"object","properties":{}}`)},
		{Name: fleet.ToolConfigSet, Audience: fleet.AudienceUser, InputSchema: document},
	}, tools...)
	listing := fleet.ToolListing{Device: unit, Inventory: fleet.Inventory{ID: strings.Repeat("cd", 32), Tools: all,
		CreatedAt: time.Now().UTC()}, Version: "1.0.0", At: time.Now().UTC()}
	if err := c.devices.Listed(c.t.Context(), listing); err != nil {
		c.t.Fatal(err)
	}
}

// heartbeat returns a heartbeat of the unit, with some fields changed.
func heartbeat(change string) string {
	return `{"uptime_s":7260,"version":"1.0.0","reset_reason":"power_on","boots":12,"crashes":0,"reconnects":2,"config_version":4,
		"heap":{"free":151552,"min":98304,"largest":112640},"queue":{"waiting":1,"dropped":5},
		"network":{"ip":"192.0.2.7","ssid":"workshop","rssi_dbm":-66,"channel":6},"slot":{"label":"ota_0","state":"valid"},"temperature_dc":415` + change + `}`
}

const usualConfig = `{"config":{"version":4,"on_trial":false,"reverted":0,"values":{"heartbeat_s":60,"telemetry":true,"log_level":"info","url_hosts":"","allow_http":false}}}`

// notify sends a report of the unit, and waits until it can be read.
func (c *site) notify(method, params string) {
	c.t.Helper()
	kind := map[string]fleet.EventKind{"telemetry": fleet.EventVitals, "job": fleet.EventJob, "config": fleet.EventConfig}[method]
	reports := c.events.Subscribe(16, func(e *fleet.Event) bool { return e.Device == unit && e.Kind == kind })
	defer reports.Close()
	c.reports.Notified(unit, "notifications/"+method, json.RawMessage(params))
	select {
	case <-reports.C:
	case <-time.After(time.Minute):
		c.t.Fatalf("the report is not kept: %s", params)
	}
}

func TestHealthOfStockDevice(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	b := c.as(fleet.RoleOperator)
	p := b.get("/devices/a085e3112233/health").wantStatus(200).wantText("#vitals", "does not report its health")
	for _, absent := range []string{"#config", "#jobs", "#trends"} {
		if got := p.text(absent); got != "" {
			t.Errorf("%s of a stock device reads %q", absent, got)
		}
	}
	if got := b.get("/devices/a085e3112233").text("#vitals-line"); got != "" {
		t.Errorf("the overview of a stock device has the line %q", got)
	}
	b.get("/devices/ffffffffffff/health").wantStatus(404)
}

func TestHealthShowsWhatTheDeviceReported(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	b := c.as(fleet.RoleViewer)
	b.get("/devices/a085e3112233/health").wantStatus(200).wantText("#vitals", "has not reported its health yet")

	c.notify("telemetry", heartbeat(""))
	p := b.get("/devices/a085e3112233/health").wantStatus(200)
	for _, want := range []string{"2 h 1 min", "ota_0 confirmed", "powered on", "148 KiB", "96.0 KiB", "110 KiB",
		"41.5 °C", "−66 dBm", "fair", "workshop channel 6", "1 waiting, 5 dropped"} {
		p.wantText("#vitals", want)
	}
	p.wantText("#trends", "Memory").wantText("#trends", "Total")
	b.get("/devices/a085e3112233").wantText("#vitals-line", "41.5")
	if got := b.get("/devices").text("#device-a085e3112233"); strings.Contains(got, "crash") {
		t.Errorf("a device that is well has a sign: %s", got)
	}

	c.notify("telemetry", heartbeat(`,"safe_mode":true,"crashes":3,"core_dump":true,"uptime_s":9,"reset_reason":"panic"`))
	p = b.get("/devices/a085e3112233/health").wantText("#vitals",
		"Safe mode: the device has crashed 3 times in a row.").wantText("#vitals", "one waiting on the device")
	if len(p.find("a[href=/devices/a085e3112233/logs]")) == 0 {
		t.Error("nothing leads to the logs and the core dump")
	}
	b.get("/devices").wantText("#device-a085e3112233", "safe mode")
	b.get("/devices/a085e3112233").wantText("#vitals-line", "safe mode")
}

func TestHealthLooksBack(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	c.notify("telemetry", heartbeat(""))
	b := c.as(fleet.RoleViewer)
	for asked, want := range map[string]string{"": "1 h", "1h": "1 h", "24h": "24 h", "7d": "7 days", "30d": "30 days",
		"9999d": "1 h", "'": "1 h"} {
		p := b.get("/devices/a085e3112233/health?" + url.Values{"range": {asked}}.Encode()).wantStatus(200)
		shown := ""
		for _, a := range p.find("a[aria-current=true]") {
			if attribute(a, "class") == "filter" {
				shown = a.FirstChild.Data
			}
		}
		if shown != want {
			t.Errorf("range %q shows %q, want %q", asked, shown, want)
		}
	}
}

// The address has two times: the charts show what was then, in the zone of the viewer.
func TestHealthBetweenTimes(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	c.notify("telemetry", heartbeat(""))
	b := c.as(fleet.RoleViewer)
	get := func(from, to string) *page {
		return b.get("/devices/a085e3112233/health?" + url.Values{"from": {from}, "to": {to}, "range": {"7d"}}.Encode())
	}
	now := time.Now().UTC()
	at := func(back time.Duration) string { return now.Add(-back).Format(time.RFC3339) }
	span := func(p *page) time.Duration {
		charts := p.wantStatus(200).find("svg[data-zoom=/devices/a085e3112233/health]")
		if len(charts) == 0 {
			return 0
		}
		from, err1 := strconv.ParseInt(attribute(charts[0], "data-from"), 10, 64)
		to, err2 := strconv.ParseInt(attribute(charts[0], "data-to"), 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("the chart has the times %q and %q", attribute(charts[0], "data-from"), attribute(charts[0], "data-to"))
		}
		return time.Duration(to-from) * time.Millisecond
	}
	if got := span(get(at(2*time.Hour), at(-time.Hour))); got.Round(time.Minute) != 2*time.Hour {
		t.Errorf("two hours until later show %v, want until now", got)
	}
	if got := span(get(at(time.Minute), at(0))); got.Round(time.Minute) != 20*time.Minute {
		t.Errorf("a minute shows %v, want 20 minutes", got)
	}
	get(at(50*time.Hour), at(48*time.Hour)).wantStatus(200).wantText("#trends", "The device reported nothing in this period")
	for _, tt := range []struct{ from, to string }{
		{"soon", at(0)}, {at(time.Hour), "'"}, {at(time.Hour), at(3 * time.Hour)}, {at(1000 * 24 * time.Hour), at(0)},
		{"9999-12-31T23:59:59Z", ""}, {"0001-01-01T00:00:00Z", "0001-01-02T00:00:00Z"},
	} {
		if p := get(tt.from, tt.to); p.status != 422 && p.status != 200 {
			t.Errorf("from %q to %q has the status %d", tt.from, tt.to, p.status)
		} else if p.status == 200 && !strings.HasPrefix(tt.from, "0001") && span(p) > 0 {
			t.Errorf("from %q to %q shows charts", tt.from, tt.to)
		}
	}
}

func TestHealthIsLive(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	b := c.as(fleet.RoleViewer)
	const device = "/events?view=device&id=a085e3112233"
	health, head, first, facts := b.stream(device+"&tab=health"), b.stream(device+"&tab=health"), b.stream(device),
		b.stream(device+"&tab=facts")
	config := b.stream(device + "&tab=configuration")
	config.want("patch", `id="device-head"`)
	health.want("patch", `id="vitals"`, "has not reported")
	first.want("patch", `id="vitals-line"`)

	// A report during the connection does not delay its presence.
	c.connect(unit, says("true"))
	c.reports.Notified(unit, "notifications/telemetry", json.RawMessage(heartbeat(`,"birth":true`)))
	head.want("patch", `id="device-head"`, "is-online")
	health.want("patch", `id="vitals"`, "148 KiB")
	first.want("patch", `id="vitals-line"`)
	c.notify("config", strings.Replace(usualConfig, `"on_trial":false`, `"on_trial":true`, 1))
	config.want("patch", `id="config"`, "On trial.")
	c.notify("job", `{"job":"j1","kind":"upgrade","state":"progress","percent":45}`)
	health.want("patch", `id="jobs"`, `aria-valuenow="45"`)
	for len(facts.events) > 0 {
		if e := <-facts.events; strings.Contains(e.data, `id="vitals`) || strings.Contains(e.data, `id="config`) ||
			strings.Contains(e.data, `id="jobs`) {
			t.Errorf("a tab that does not show it is sent %s", e.data)
		}
	}
}

func TestJobsOfADevice(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	c.notify("job", `{"job":"4711","kind":"upgrade","state":"failed","code":"wrong_target","reason":"the image is for <b>esp32s3</b>"}`)
	b := c.as(fleet.RoleViewer)
	for _, tab := range []string{"health", "firmware"} {
		p := b.get("/devices/a085e3112233/" + tab).wantStatus(200)
		p.wantText("#jobs", "failed").wantText("#jobs", "Upgrade").wantText("#jobs", "for another chip").wantText("#jobs",
			"<b>esp32s3</b>")
	}
}

// A configurable is a scripted device that accepts a configuration, and keeps it on trial.
type configurable struct {
	mu       sync.Mutex
	got      []string
	version  int
	reverted int
	refuse   string
}

func (d *configurable) answer(_ context.Context, tool string, args json.RawMessage) (fleet.Answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.got = append(d.got, tool+" "+string(args))
	if d.refuse != "" {
		a := fleettest.Text(d.refuse)
		a.IsError = true
		return a, nil
	}
	set := tool == fleet.ToolConfigSet
	if set {
		d.version++
	}
	return fleettest.Text(fmt.Sprintf(
		`{"version":%d,"on_trial":%t,"reverted":%d,"values":{"heartbeat_s":60,"telemetry":true,"log_level":"info","url_hosts":"","allow_http":false}}`,
		d.version, set, d.reverted)), nil
}

func (d *configurable) asked() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.got, "\n")
}

// unchangedForm returns the form of the usual configuration as a browser sends it.
func unchangedForm() url.Values {
	return url.Values{"base": {"4"}, "v.heartbeat_s": {"60"}, "v.telemetry": {"on"}, "has.telemetry": {"1"},
		"v.log_level": {"info"}, "v.url_hosts": {""}, "has.allow_http": {"1"}}
}

func TestConfigurationIsAppliedByACallOnRecord(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	device := &configurable{version: 4}
	c.connect(unit, device.answer)
	b := c.as(fleet.RoleOperator)

	read := b.post("/devices/a085e3112233/config/read", nil).wantRedirect("/devices/a085e3112233/configuration?call=")
	b.get(read).wantText("#configuration", "Read from the device.").wantText("#config", "version 4")

	form := unchangedForm()
	form.Set("v.heartbeat_s", "30")
	form.Del("v.telemetry")
	applied := b.post("/devices/a085e3112233/config", form).wantRedirect("/devices/a085e3112233/configuration?call=")
	b.get(applied).wantText("#configuration", "Applied.").wantText("#config", "version 5").wantText("#config", "On trial.")
	const want = fleet.ToolConfigGet + " {}\n" + fleet.ToolConfigSet +
		` {"document":"{\"version\":5,\"values\":{\"heartbeat_s\":30,\"telemetry\":false}}"}`
	if got := device.asked(); got != want {
		t.Errorf("the device was asked\n%s\nwant\n%s", got, want)
	}
	b.get("/calls?device=a085e3112233&tool="+fleet.ToolConfigSet).wantText("#main", "operator-1")

	// A version that the device reverted is not used again.
	c.notify("config", strings.Replace(usualConfig, `"reverted":0`, `"reverted":5`, 1))
	b.get("/devices/a085e3112233/configuration").wantText("#config", "reverted version 5 automatically")
	b.post("/devices/a085e3112233/config", form).wantStatus(303)
	if got := device.asked(); !strings.Contains(got, `\"version\":6`) {
		t.Errorf("after a reverted version the device was asked %s", got)
	}
}

func TestConfigurationRefusedByTheDevice(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	c.notify("config", usualConfig)
	c.connect(unit, (&configurable{refuse: `Unknown setting: <script>alert(1)</script>`}).answer)
	b := c.as(fleet.RoleOperator)
	form := unchangedForm()
	form.Set("v.log_level", "debug")
	p := b.get(b.post("/devices/a085e3112233/config", form).wantRedirect("/devices/a085e3112233/configuration?call="))
	p.wantText("#configuration", "The device refused the configuration; nothing changed.").wantText("#configuration",
		"Unknown setting: <script>alert(1)</script>")
	if strings.Contains(p.body, "<script>alert") {
		t.Error("the device's words became markup")
	}

	c.link.Disconnect(unit)
	b.get(b.post("/devices/a085e3112233/config", form).wantRedirect("/devices/a085e3112233/configuration?call=")).wantText(
		"#configuration", "not connected; nothing was sent")
}

func TestConfigurationFormThatCannotBeSent(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	device := new(configurable)
	c.connect(unit, device.answer)
	b := c.as(fleet.RoleOperator)
	const config = "/devices/a085e3112233/config"
	b.post(config, unchangedForm()).wantStatus(422) // it has not reported its configuration
	c.notify("config", usualConfig)
	tests := []struct{ name, field, value, want string }{
		{"nothing changed", "base", "4", "Nothing was changed"},
		{"of another version", "base", "3", "has reported version 4 in the meantime"},
		{"without a version", "base", "", "has reported version 4 in the meantime"},
		{"out of range", "v.heartbeat_s", "5", "some values are invalid"},
		{"no choice", "v.log_level", "<script>", "some values are invalid"},
		{"a key that the device does not have", "v.nope", "1", "Nothing was changed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			form := unchangedForm()
			form.Set(tt.field, tt.value)
			b.post(config, form).wantStatus(422).wantText("#configuration", tt.want)
		})
	}
	form := unchangedForm()
	form.Set("v.heartbeat_s", "5")
	if got := attribute(b.post(config, form).find("input[name=v.heartbeat_s]")[0], "value"); got != "5" {
		t.Errorf("the form comes back with %q, want what was typed", got)
	}
	if got := device.asked(); got != "" {
		t.Errorf("the device was asked %s", got)
	}
}

// A device that restarts on trial reverts the configuration without a notification: its heartbeats
// contain the version.
func TestConfigurationThatTheDeviceHasNoMore(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	device := new(configurable)
	c.connect(unit, device.answer)
	c.notify("config", strings.Replace(usualConfig, `"version":4,"on_trial":false`, `"version":5,"on_trial":true`, 1))
	b := c.as(fleet.RoleOperator)
	live := b.stream("/events?view=device&id=a085e3112233&tab=configuration")
	live.want("patch", `id="device-head"`)
	c.notify("telemetry", heartbeat(""))
	live.want("patch", `id="config"`, "now runs version 4")
	form := unchangedForm()
	form.Set("base", "5")
	form.Set("v.heartbeat_s", "30")
	b.post("/devices/a085e3112233/config", form).wantStatus(422).wantText("#configuration", "now runs version 4")
	if got := device.asked(); got != "" {
		t.Errorf("the device was asked %s", got)
	}
}

func TestViewersLookAtTheConfigurationOnly(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	device := new(configurable)
	c.connect(unit, device.answer)
	c.notify("config", usualConfig)
	b := c.as(fleet.RoleViewer)
	p := b.get("/devices/a085e3112233/configuration").wantStatus(200).wantText("#config",
		"Viewers cannot change the configuration.")
	for _, button := range p.find("button") {
		if attribute(button, "form") == "config-form" {
			t.Error("a viewer is offered to apply")
		}
	}
	form := unchangedForm()
	form.Set("v.heartbeat_s", "30")
	b.post("/devices/a085e3112233/config", form).wantStatus(403)
	b.post("/devices/a085e3112233/config/read", nil).wantStatus(403)
	if got := device.asked(); got != "" {
		t.Errorf("the device was asked %s", got)
	}
}

// The address may contain any call: only calls of this configuration are shown.
func TestHealthShowsItsOwnCallsOnly(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	c.enrol("a085e3112244")
	c.connect("a085e3112244", says("true"))
	c.connect(unit, says("true"))
	b := c.as(fleet.RoleOperator)
	c.notify("config", usualConfig)
	id := func(device string) string {
		at := b.post(fmt.Sprintf("/devices/%s/tools/self.get_device_status", device), nil).wantRedirect("/devices/" + device)
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		return u.Query().Get("call")
	}
	for _, call := range []string{id("a085e3112244"), id(string(unit)), uuid.NewString(), "x"} {
		p := b.get("/devices/a085e3112233/configuration?call=" + call).wantStatus(200)
		if got := p.text("#configuration"); strings.Contains(got, "record") {
			t.Errorf("call %s is shown: %s", call, got)
		}
	}
}
