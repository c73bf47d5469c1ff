package api

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
)

// pluginRunner is a fake that records what it should run.
type pluginRunner struct {
	mu        sync.Mutex
	wanted    []plugin.Plugin
	restarted []string
	status    map[string]plugin.Status
	lines     []plugin.Line
}

func (r *pluginRunner) Apply(list []plugin.Plugin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = slices.Clone(list)
}

func (r *pluginRunner) Status(name string) (plugin.Status, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, known := r.status[name]
	return st, known
}

func (r *pluginRunner) Lines(string) []plugin.Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines
}

func (r *pluginRunner) Restart(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarted = append(r.restarted, name)
}

// wants returns the definition that the runner has of a plug-in.
func (r *pluginRunner) wants(name string) (plugin.Plugin, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.wanted, func(p plugin.Plugin) bool { return p.Name == name })
	if i < 0 {
		return plugin.Plugin{}, false
	}
	return r.wanted[i], true
}

func (w *world) program(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(w.pluginsDir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestPlugins(t *testing.T) {
	w := newWorld(t)
	w.program(t, "weather")
	made := decode[PluginView](t, w.post(t, "/plugins", `{"name":"weather","command":["./weather"],"args":["-v"],
		"env":{"API_KEY":"hush-1","REGION":"north"},"limits":{"memory":"64MiB","cpu":0.5},"tools":["get_*"],"offer_to_voice":true}`), 201)
	if made.DeviceID != "plugin.weather" || made.Source != "database" || made.Version != 1 || made.UpdatedBy != "admin-script" ||
		!slices.Equal(made.Env, []string{"API_KEY", "REGION"}) || made.Limits.Memory != "64MiB" || made.Limits.CPU != 0.5 ||
		made.Audience != "model" || !made.OfferToVoice || made.State != "starting" || made.UpdatedAt == nil {
		t.Errorf("made %+v", made)
	}
	if p, _ := w.runner.wants("weather"); p.Manifest.Env["API_KEY"] != "hush-1" || p.Manifest.Disabled {
		t.Errorf("the runner got %+v", p)
	}

	// A change merges; null removes a variable.
	path := "/plugins/weather"
	patch := func(body string) reply { return w.as(t, fleet.RoleAdmin, "PATCH", path, body) }
	changed := decode[PluginView](t, patch(`{"env":{"REGION":null,"MODE":"fast"},"limits":{"open_files":64},"args":[],"version":1}`), 200)
	if changed.Version != 2 || !slices.Equal(changed.Env, []string{"API_KEY", "MODE"}) ||
		changed.Limits.Memory != "64MiB" ||
		changed.Limits.OpenFiles != 64 || len(changed.Args) != 0 || changed.Command[0] != "./weather" {
		t.Errorf("changed to %+v", changed)
	}
	if p, _ := w.runner.wants("weather"); p.Manifest.Env["API_KEY"] != "hush-1" || p.Manifest.Env["MODE"] != "fast" {
		t.Errorf("the runner got %+v", p)
	}
	if p := patch(`{"disabled":true,"version":1}`).problem(t); p.Status != 409 || p.Code != "plugin_changed" {
		t.Errorf("an old version: %+v", p)
	}
	for body, want := range map[string][2]string{
		`{"command":["/bin/sh","-c","x"]}`:   {"plugin_field", "command"},
		`{"command":["sh"]}`:                 {"plugin_field", "command"},
		`{"command":["./../weather"]}`:       {"plugin_field", "command"},
		`{"command":[]}`:                     {"plugin_field", "command"},
		`{"url":"https://x.test/mcp"}`:       {"plugin_field", "url"},
		`{"env":{"LD_PRELOAD":"/tmp/x.so"}}`: {"plugin_field", "env"},
		`{"env":{"A B":"x"}}`:                {"plugin_field", "env"},
		`{"env_files":["/etc/environment"]}`: {"plugin_field", "env_files"},
		`{"limits":{"memory":"many"}}`:       {"plugin_field", "limits.memory"},
		`{"limits":{"memory":"1KiB"}}`:       {"plugin_field", "limits.memory"},
		`{"limits":{"cpu":-1}}`:              {"plugin_field", "limits.cpu"},
		`{"tools":["a*b"]}`:                  {"plugin_field", "tools"},
		`{"audience":"user"}`:                {"plugin_field", "offer_to_voice"},
		`{"user":"root"}`:                    {"invalid_request", "body.user"},
	} {
		if p := patch(body).problem(t); p.Status != 422 || p.Code != want[0] || p.Field != want[1] {
			t.Errorf("%s: %+v, want %v", body, p, want)
		}
	}
	if p := w.post(t, "/plugins", `{"name":"weather","command":["./weather"]}`).problem(t); p.Code != "plugin_exists" {
		t.Errorf("the same name again: %+v", p)
	}
	for _, name := range []string{"Weather", "a.b", "-a", "a b", "../x"} {
		data, _ := json.Marshal(map[string]any{"name": name, "command": []string{"./weather"}})
		if p := w.post(t, "/plugins", string(data)).problem(t); p.Code != "plugin_name" || p.Field != "name" {
			t.Errorf("%q: %+v", name, p)
		}
	}

	now := time.Now().UTC()
	w.runner.mu.Lock()
	w.runner.status = map[string]plugin.Status{"weather": {State: plugin.Crashing, Since: now, Next: now.Add(time.Minute),
		Reason: fleet.Because("plugin_memory", "used_bytes", int64(70<<20), "limit_bytes", int64(64<<20)), UID: -1, Starts: 6}}
	w.runner.lines = []plugin.Line{{Number: 7, At: now, Source: plugin.FromStderr, Text: "one"},
		{Number: 8, At: now, Source: plugin.FromFleetd, Text: "two"}}
	w.runner.mu.Unlock()
	got := decode[PluginView](t, w.as(t, fleet.RoleAdmin, "GET", path, ""), 200)
	if got.State != "crashing" || got.ReasonCode != "plugin_memory" || !strings.Contains(got.Reason, "64") || got.NextStart == nil ||
		got.Starts != 6 {
		t.Errorf("%+v", got)
	}
	lines := decode[list[PluginLineView]](t, w.as(t, fleet.RoleAdmin, "GET", path+"/log?after=7", ""), 200).Items
	if len(lines) != 1 || lines[0].Text != "two" || lines[0].Source != "fleetd" {
		t.Errorf("log: %+v", lines)
	}
	decode[PluginView](t, w.post(t, path+"/restart", ``), 200)
	if !slices.Equal(w.runner.restarted, []string{"weather"}) {
		t.Errorf("restarted %v", w.runner.restarted)
	}

	if r := w.as(t, fleet.RoleAdmin, "DELETE", path, ""); r.status != 204 {
		t.Errorf("removal: %d %s", r.status, r.body)
	}
	if _, wanted := w.runner.wants("weather"); wanted {
		t.Error("the runner still has it")
	}
	for _, try := range [][2]string{{"GET", path}, {"PATCH", path}, {"DELETE", path}, {"POST", path + "/restart"}, {"GET", path + "/log"}} {
		body := ""
		if try[0] == "PATCH" {
			body = `{}`
		}
		if p := w.as(t, fleet.RoleAdmin, try[0], try[1], body).problem(t); p.Status != 404 || p.Code != "unknown_plugin" {
			t.Errorf("%v: %+v", try, p)
		}
	}
	audit := string(w.as(t, fleet.RoleAdmin, "GET", "/audit?limit=100", "").body)
	for action, n := range map[string]int{"create": 1, "update": 1, "restart": 1, "delete": 1} {
		if strings.Count(audit, `"plugin.`+action+`"`) != n {
			t.Errorf("not %d entries of plugin.%s: %s", n, action, audit)
		}
	}
	var stored string
	if err := w.db.QueryRow(t.Context(), `SELECT coalesce(string_agg(p::text, ' '), '') FROM plugins p`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if all := audit + stored + w.log.String(); strings.Contains(all, "hush") {
		t.Error("a value of a variable is shown or stored in the clear")
	}
}

// A name that a file has too is listed twice; the database's can be changed and removed by its
// listed name, the file's only in the directory.
func TestPluginsOfFiles(t *testing.T) {
	w := newWorld(t)
	w.program(t, "weather")
	decode[PluginView](t, w.post(t, "/plugins", `{"name":"weather","command":["./weather"],"env":{"A":"hush"}}`), 201)
	manifest := filepath.Join(w.pluginsDir, "weather.yaml")
	if err := os.WriteFile(manifest, []byte("command: ./weather\nenv: {B: hush}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	time.Sleep(150 * time.Millisecond) // it must have been left alone
	decode[PluginView](t, w.post(t, "/plugins/weather/restart", ``), 200)
	all := decode[list[PluginView]](t, w.as(t, fleet.RoleAdmin, "GET", "/plugins", ""), 200).Items
	if len(all) != 2 || all[0].File != "weather.yaml" || all[0].ProblemCode != "" || all[1].Name != "weather (database)" ||
		all[1].ProblemCode != "plugin_duplicate" || !strings.Contains(all[1].Problem, "weather.yaml") {
		t.Fatalf("%+v", all)
	}
	if p, _ := w.runner.wants("weather (database)"); !p.Manifest.Disabled {
		t.Error("the second one may run")
	}
	for method, body := range map[string]string{"PATCH": `{"disabled":true}`, "DELETE": ""} {
		if p := w.as(t, fleet.RoleAdmin, method, "/plugins/weather", body).problem(t); p.Status != 409 || p.Code != "plugin_of_file" {
			t.Errorf("%s: %+v", method, p)
		}
	}
	const second = "/plugins/weather%20(database)"
	if v := decode[PluginView](t, w.as(t, fleet.RoleAdmin, "PATCH", second, `{"args":["x"]}`), 200); v.Version != 2 {
		t.Errorf("%+v", v)
	}
	if r := w.as(t, fleet.RoleAdmin, "DELETE", second, ""); r.status != 204 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if v := decode[PluginView](t, w.as(t, fleet.RoleAdmin, "GET", "/plugins/weather", ""), 200); v.Source != "file" {
		t.Errorf("%+v", v)
	}
	if body := string(w.as(t, fleet.RoleAdmin, "GET", "/plugins", "").body); strings.Contains(body, "hush") {
		t.Error("a value of a variable is shown")
	}
}
