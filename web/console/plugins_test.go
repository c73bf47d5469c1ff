package console_test

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/operator"
	"fleetd/fleet/plugin"
	"fleetd/web/console"
	"fleetd/web/ui"
)

// A scriptedRunner runs no program: tests set the states.
type scriptedRunner struct {
	mu       sync.Mutex
	applied  []plugin.Plugin
	status   map[string]plugin.Status
	lines    []plugin.Line
	restarts []string
}

func (r *scriptedRunner) Apply(list []plugin.Plugin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = list
}

func (r *scriptedRunner) Status(name string) (plugin.Status, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, ok := r.status[name]
	return st, ok
}

func (r *scriptedRunner) Lines(string) []plugin.Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

func (r *scriptedRunner) Restart(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarts = append(r.restarts, name)
}

func (r *scriptedRunner) set(name string, st plugin.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status[name] = st
}

// names returns the plug-ins that run.
func (r *scriptedRunner) names() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.applied {
		all = append(all, p.Name)
	}
	return all
}

// newPlugins returns the service of a directory; the runner runs nothing.
func newPlugins(t testing.TB, store plugin.Store, dir string, runner *scriptedRunner) *plugin.Service {
	t.Helper()
	sealer, err := enrolment.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	plugins := plugin.New(plugin.Options{Directory: dir, Store: store, Sealer: sealer, Runner: runner})
	if err := plugins.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return plugins
}

// withPlugins returns a site with the plug-in of a file, "lamp", and a program for others.
func withPlugins(t *testing.T) (*site, *scriptedRunner, *plugin.Service) {
	return withPluginsIn(t, t.TempDir())
}

func withPluginsIn(t *testing.T, dir string) (*site, *scriptedRunner, *plugin.Service) {
	for name, text := range map[string]string{"lamp.yaml": "command: [./program]\nenv: {TOKEN: hush-file}\n",
		"program": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	runner := &scriptedRunner{status: map[string]plugin.Status{}}
	var plugins *plugin.Service
	c := newConsole(t, func(o *console.Options) {
		plugins = newPlugins(t, o.Pictures.(plugin.Store), dir, runner)
		o.Plugins, o.PluginsDir = plugins, dir
		o.Program = func(fleet.DeviceID) (ui.ProgramServer, bool) {
			return ui.ProgramServer{Name: "lamp <server>", Version: "3.1", Protocol: "2025-06-18"}, true
		}
	})
	return c, runner, plugins
}

func TestPluginPages(t *testing.T) {
	c, runner, _ := withPlugins(t)
	admin := c.as(fleet.RoleAdmin)
	runner.set("lamp", plugin.Status{State: plugin.Crashing, Since: time.Now(), Next: time.Now().Add(time.Minute),
		Reason: fleet.Because("plugin_ended", "detail", "exit <b>3</b>"), UID: -1})
	runner.lines = []plugin.Line{{At: time.Now(), Source: plugin.FromStderr, Text: "<script>alert(1)</script>"}}
	admin.get(ui.PathPlugins).wantStatus(200).wantText("#plugin-lamp", "crashing").wantText("#plugin-lamp", "lamp.yaml").
		wantText("#plugin-lamp", "Next start")
	p := admin.get(ui.PluginPath("lamp")).wantStatus(200).wantText("#plugin-lines", "<script>alert(1)</script>").
		wantText("#plugin-lines", "stderr").wantText("#plugin-definition", "TOKEN").
		wantText("#plugin-definition", "Edit this file")
	for _, secret := range []string{"hush-file", "<script>alert", "exit <b>"} {
		if strings.Contains(p.body, secret) {
			t.Errorf("the page contains %s", secret)
		}
	}
	if len(p.find("#delete"))+len(p.find("#edit")) > 0 {
		t.Error("a plug-in of a file has forms that change it")
	}
	admin.post(ui.PluginPath("lamp", "reload"), nil).wantRedirect(ui.PluginPath("lamp"))
	if !slices.Equal(runner.restarts, []string{"lamp"}) {
		t.Errorf("restarted %v", runner.restarts)
	}
	for _, act := range []string{"edit", "delete", "disable"} {
		admin.post(ui.PluginPath("lamp", act), url.Values{"confirm": {"lamp"}, "command": {"./program"}, "audience": {"model"}})
	}
	if !slices.Equal(runner.names(), []string{"lamp"}) {
		t.Errorf("%v run after changes of the plug-in of a file", runner.names())
	}
	admin.get(ui.PluginPath("nothing")).wantStatus(http.StatusNotFound)
}

func TestPluginForm(t *testing.T) {
	c, runner, plugins := withPlugins(t)
	admin := c.as(fleet.RoleAdmin)
	form := url.Values{"name": {"weather"}, "runs": {"command"}, "command": {"./program\r\n--city\r\nNew York\r\n"},
		"tools": {"get_*, set_it"}, "audience": {"model"}, "offer_to_voice": {"1"}, "memory": {"64MiB"}, "cpu": {"0.5"},
		"env": {"KEY=hush-hush\r\nPLACE=home"}}
	with := func(field, value string) url.Values {
		f := url.Values{}
		for k, v := range form {
			f[k] = v
		}
		f.Set(field, value)
		return f
	}
	for field, value := range map[string]string{"name": "No Name", "memory": "much", "cpu": "-3", "open_files": "x",
		"command": "/bin/sh", "env": "KEY", "tools": "a*b"} {
		p := admin.post(ui.PathPlugins, with(field, value)).wantStatus(http.StatusUnprocessableEntity)
		if len(p.find("p[class=problem]")) == 0 {
			t.Errorf("%s=%q: no error beside a field: %s", field, value, p.text("#add"))
		}
		if strings.Contains(p.body, "hush-hush") {
			t.Errorf("%s=%q: a value is shown again", field, value)
		}
	}
	if !slices.Equal(runner.names(), []string{"lamp"}) {
		t.Fatalf("%v run after refused forms", runner.names())
	}
	admin.post(ui.PathPlugins, form).wantRedirect(ui.PluginPath("weather"))
	by := fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin}
	got := func() plugin.Manifest {
		t.Helper()
		for _, p := range runner.applied {
			if p.Name == "weather" {
				return p.Manifest
			}
		}
		t.Fatal("weather does not run")
		return plugin.Manifest{}
	}
	if m := got(); !slices.Equal(m.Args, []string{"--city", "New York"}) || m.Env["KEY"] != "hush-hush" ||
		!m.OfferToVoice || m.Limits.Memory != 64<<20 || len(m.Tools) != 2 {
		t.Errorf("added %+v", m)
	}
	page := admin.get(ui.PluginPath("weather")).wantText("#plugin-definition", "KEY").wantText("#edit", "PLACE")
	if strings.Contains(page.body, "hush-hush") {
		t.Error("the page shows a value")
	}
	edit := with("env", "PLACE=away")
	edit.Set("drop", "KEY")
	edit.Set("version", "1")
	admin.post(ui.PluginPath("weather", "edit"), edit).wantRedirect(ui.PluginPath("weather"))
	if m := got(); m.Env["PLACE"] != "away" || len(m.Env) != 1 {
		t.Errorf("variables %v after an edit", m.Env)
	}
	admin.post(ui.PluginPath("weather", "edit"), edit).wantStatus(http.StatusUnprocessableEntity) // version 1 is old
	admin.post(ui.PluginPath("weather", "disable"), url.Values{"version": {"2"}}).wantRedirect(ui.PluginPath("weather"))
	if m := got(); !m.Disabled || m.Env["PLACE"] != "away" {
		t.Errorf("disabled: %+v", m)
	}
	admin.post(ui.PluginPath("weather", "delete"), url.Values{"confirm": {"weathe"}}).wantStatus(http.StatusUnprocessableEntity)
	if _, err := plugins.Plugin(by, "weather"); err != nil {
		t.Errorf("deleted without its name: %v", err)
	}
	admin.post(ui.PluginPath("weather", "delete"), url.Values{"confirm": {"weather"}}).wantRedirect(ui.PathPlugins)
	if !slices.Equal(runner.names(), []string{"lamp"}) {
		t.Errorf("%v run after the deletion", runner.names())
	}
}

// A stored plug-in with the same name as a file can be deleted; the plug-in of the file keeps running.
func TestShadowedPlugin(t *testing.T) {
	dir := t.TempDir()
	c, runner, plugins := withPluginsIn(t, dir)
	admin := c.as(fleet.RoleAdmin)
	form := url.Values{"name": {"weather"}, "runs": {"command"}, "command": {"./program"}, "audience": {"model"}}
	admin.post(ui.PathPlugins, form).wantRedirect(ui.PluginPath("weather"))
	by := fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin}
	if _, err := plugins.Plugin(by, "weather"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "weather.yaml"), []byte("command: [./program]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "weather.yaml")
	if err := os.Chtimes(file, time.Time{}, time.Now().Add(-time.Minute)); err != nil { // else it is read later
		t.Fatal(err)
	}
	if _, err := plugins.Restart(t.Context(), by, "lamp"); err != nil { // reads the directory
		t.Fatal(err)
	}
	const name = "weather (database)"
	admin.get(ui.PathPlugins).wantText("main", "The file weather.yaml defines a plug-in with the same name")
	p := admin.get(ui.PluginPath(name)).wantStatus(200).wantText("#delete", "The plug-in of the file goes on")
	if len(p.find("#edit")) > 0 {
		t.Error("the plug-in has a form that changes it")
	}
	admin.post(ui.PluginPath(name, "delete"), url.Values{"confirm": {"weather"}}).wantStatus(422)
	admin.post(ui.PluginPath("weather", "delete"), url.Values{"confirm": {"weather"}}).wantRedirect(ui.PluginPath("weather"))
	if stored, err := c.store.Plugins(t.Context()); err != nil || len(stored) != 1 {
		t.Errorf("%d plug-ins in the database after refused forms, %v", len(stored), err)
	}
	admin.post(ui.PluginPath(name, "delete"), url.Values{"confirm": {name}}).wantRedirect(ui.PathPlugins)
	if stored, err := c.store.Plugins(t.Context()); err != nil || len(stored) > 0 {
		t.Errorf("%d plug-ins in the database after the deletion, %v", len(stored), err)
	}
	if !slices.Equal(runner.names(), []string{"lamp", "weather"}) {
		t.Errorf("%v run after the deletion", runner.names())
	}
}

// Only an administrator of the whole fleet sees or changes plug-ins.
func TestPluginRights(t *testing.T) {
	c, runner, _ := withPlugins(t)
	c.operator("other", fleet.RoleAdmin)
	scoped := c.operator("scoped", fleet.RoleAdmin)
	if err := c.operators.SetAccess(t.Context(), fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin}, scoped.ID,
		operator.Access{Role: fleet.RoleAdmin, Scope: "tag:lab"}); err != nil {
		t.Fatal(err)
	}
	form := url.Values{"name": {"weather"}, "runs": {"command"}, "command": {"./program"}, "audience": {"model"},
		"confirm": {"lamp"}}
	for name, b := range map[string]*browser{"viewer": c.as(fleet.RoleViewer), "operator": c.as(fleet.RoleOperator),
		"scoped": c.signIn("scoped")} {
		for _, path := range []string{ui.PathPlugins, ui.PluginPath("lamp"),
			ui.EventsURL(ui.ViewPlugins, nil), ui.EventsURL(ui.ViewPlugin, url.Values{"name": {"lamp"}})} {
			p := b.get(path).wantStatus(http.StatusForbidden)
			if strings.Contains(p.body, "lamp.yaml") || strings.Contains(p.body, "TOKEN") {
				t.Errorf("%s sees %s", name, path)
			}
		}
		for _, path := range []string{ui.PathPlugins, ui.PluginPath("lamp", "reload"), ui.PluginPath("lamp", "edit"),
			ui.PluginPath("lamp", "enable"), ui.PluginPath("lamp", "disable"), ui.PluginPath("lamp", "delete")} {
			b.post(path, form).wantStatus(http.StatusForbidden)
		}
		if strings.Contains(b.get("/settings").body, `href="`+ui.PathPlugins+`"`) {
			t.Errorf("%s has a link to plug-ins", name)
		}
	}
	if len(runner.restarts) > 0 || !slices.Equal(runner.names(), []string{"lamp"}) {
		t.Errorf("restarted %v, %v run", runner.restarts, runner.names())
	}
}

// The page of a plug-in's device has what the kind has.
func TestProgramPages(t *testing.T) {
	c, _, _ := withPlugins(t)
	id := plugin.DeviceOf("lamp")
	if err := c.store.SaveProgram(t.Context(), id, fleet.DevicePlugin, "3.1", time.Now()); err != nil {
		t.Fatal(err)
	}
	c.enrol("a085e3112233")
	hostile := append(slices.Clone(tools), fleet.Tool{Name: "say", Description: "Say", Audience: fleet.AudienceModel,
		InputSchema: []byte(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`)})
	if err := c.devices.Listed(t.Context(), fleet.ToolListing{Device: id,
		Inventory: fleet.Inventory{ID: strings.Repeat("cd", 32),
			Tools: hostile, CreatedAt: time.Now()}, Version: "3.1", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	admin, operator := c.as(fleet.RoleAdmin), c.as(fleet.RoleOperator)
	p := admin.get(ui.DevicePath(id)).wantText("#device-brief", "lamp <server>").wantText("#device-brief", "2025-06-18").
		wantText("#device-brief", "Settings of the plug-in")
	for _, tab := range []string{"health", "screen", "logs"} {
		if len(p.find("a[href="+ui.DevicePath(id, tab)+"]")) > 0 {
			t.Errorf("the page has the tab %s", tab)
		}
		admin.get(ui.DevicePath(id, tab)).wantStatus(http.StatusNotFound)
	}
	if len(p.find("a[href="+ui.DevicePath(id, "replace")+"]")) > 0 || strings.Contains(p.body, "/tools/self.reboot\"") {
		t.Error("the page has acts of a board, because its tools have their names")
	}
	if strings.Contains(operator.get(ui.DevicePath(id)).body, ui.PluginPath("lamp")) {
		t.Error("an operator has a link to the settings of the plug-in")
	}
	for _, act := range []string{"replace", "approve", "reject", "quarantine", "config", "core-dumps"} {
		admin.post(ui.DevicePath(id, act), url.Values{}).wantStatus(http.StatusNotFound)
	}
	settings := admin.get(ui.DevicePath(id, "configuration")).wantStatus(200)
	if n := len(settings.find("select[name=transport]")) + len(settings.find("input[name=time_zone]")); n > 0 {
		t.Error("the page offers a transport or a time zone")
	}
	admin.post(ui.DevicePath(id, "edit"), url.Values{"name": {"Lamp"},
		"transport": {string(fleet.TransportWebSocket)}, "time_zone": {"Asia/Shanghai"}}).
		wantRedirect(ui.DevicePath(id))
	if d, err := c.devices.Device(t.Context(), id); err != nil || d.Name != "Lamp" || d.TimeZone != "" || d.TransportChoice == fleet.TransportWebSocket {
		t.Errorf("edited: %+v, %v", d, err)
	}
	admin.get(ui.DevicePath(id, "firmware")).wantStatus(200).wantText("main", "Inventory")
	if n := len(admin.get(ui.ToolPath(id, "say")).find("textarea[name=arg.text]")); n != 1 {
		t.Errorf("%d fields for long text", n)
	}
	list := admin.get("/devices").wantText("#device-plugin.lamp", "Plug-in")
	for _, kind := range []string{"esp32", "plugin"} {
		if len(list.find("a[href=/devices?q=kind%3A"+kind+"]")) != 1 {
			t.Errorf("no filter for the kind %s", kind)
		}
	}
	only := admin.get("/devices?q=kind:plugin").wantText("tbody", "Lamp")
	if len(only.find("#device-a085e3112233")) > 0 {
		t.Error("the filter for plug-ins shows a board")
	}
}
