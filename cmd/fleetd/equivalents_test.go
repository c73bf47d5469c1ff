package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/api"
	"fleetd/web/forms"
)

// hostile is text that a shell, JSON or a command line could misread.
const hostile = "-it's \"all\" $HOME `id` $(id) \\ %s 50% ! 中文\nsecond 'line'\t\\n"

// TestEquivalentsOfForms checks that each form's request is one of the OpenAPI document, that its
// command is one of the program, and that a shell passes both on unchanged.
func TestEquivalentsOfForms(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("picture.jpg", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	id, now := uuid.NewString(), time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	plan := campaign.Plan{Name: hostile, Release: uuid.New(), Query: "tag:lab", Mode: "pull", PullNow: true,
		Waves: []campaign.WavePlan{{Name: "one", Devices: []fleet.DeviceID{"a085e3112233"}, Gate: "auto"},
			{Name: "two", Count: 5, Gate: "auto"},
			{Name: "rest", Percent: 100, SuccessPercent: 80, MinSample: 3, Soak: time.Minute, Gate: campaign.GateManual}},
		Supersede: true, AllowDowngrade: true, Continuous: true, MaxDevices: 7, MaxInFlight: 3, MaxPerMinute: 9,
		AbortRules: []campaign.AbortRule{{Class: "failed", Scope: "wave", Action: "pause", Percent: 2}},
		Windows:    []campaign.Window{{Cron: "0 2 * * *", Duration: time.Hour, TimeZone: "UTC"}}, Jitter: time.Second,
		StartAt: &now, EndAt: &now, EndBehavior: "cancel_queued",
		HealthChecks: []campaign.HealthCheck{{Tool: "self.x", Arguments: json.RawMessage(`{"a":1}`),
			Assert: []campaign.Assertion{{Path: "$.a", Op: "eq", Value: json.RawMessage("1")}}}},
		ForbidRemoved: []string{"*"}, MinHeapPercent: 1, MaxReconnects: 1, ApprovalRequired: true, MaxAttempts: 1}
	other := plan
	other.Query, other.Devices = "", []fleet.DeviceID{"a085e3112233"}
	type sample struct {
		name  string
		e     forms.Equivalent
		whole bool // the body has every member that the operation knows, of those with a default
	}
	ids := []string{"a085e3112233", "a085e3112244"}
	samples := []sample{
		{"tag", forms.BulkEquivalent("tag", hostile, nil, []string{"lab", "room/1"}, "", "", 3, now), false},
		{"untag", forms.BulkEquivalent("untag", "", ids, []string{"lab"}, "", "", 2, now), false},
		{"bulk hold", forms.BulkEquivalent("hold", "", ids, nil, hostile, "4", 2, now), false},
		{"bulk release", forms.BulkEquivalent("release", "tag:x", nil, nil, "", "", 2, now), false},
		{"retire", forms.BulkEquivalent("retire", "", nil, nil, "", "", 2, now), false},
		{"fan-out", forms.FanOutEquivalent(hostile, nil, "self.x", json.RawMessage(`{"text":"it's"}`), 5, time.Hour,
			true, 9), false},
		{"fan-out to devices", forms.FanOutEquivalent("", ids, "self.x", nil, 5, 0, false, 0), false},
		{"campaign", forms.PlanEquivalent(plan, true), true},
		{"campaign over devices", forms.PlanEquivalent(other, false), false},
	}
	fields := map[string]url.Values{
		"tool": {forms.EquivalentOf: {"plugin.a$b"}, forms.EquivalentTool: {hostile}, "as.field.text": {"string"},
			"as.field.volume": {"integer"}, "as.field.on": {"boolean"}, "as.field.more": {"object"},
			"as.field.bad": {"integer"}, "arg.text": {hostile}, "arg.volume": {"50"}, "arg.more": {`{"a": [1]}`},
			"arg.bad": {"x"}, "arg.unknown": {"y"}, "offline": {"wait"}},
		"tags":        {forms.EquivalentOf: ids[:1], "tags": {"lab, room/1，家"}},
		"hold":        {forms.EquivalentOf: ids[:1], "reason": {hostile}, "hours": {"4"}},
		"acknowledge": {forms.EquivalentOf: {id}, "note": {hostile}},
		"release": {"image": {strings.Repeat("ab", 32)}, "version": {"1.2.3"}, "notes": {hostile},
			forms.EquivalentOf: {id}},
		"operator": {"name": {hostile}, "role": {"operator"}, "scope": {hostile}, "rest": {"viewer"},
			"password": {"sesame opens"}},
		"token": {"name": {hostile}, "role": {"operator"}, "kind": {"model"}, "scope": {"tag:lab"},
			"tools": {"self.get_*, self.x"}, "per_minute": {"60"}, "days": {"30"}},
		"policy": {"name": {hostile}, "enabled": {"1"}, "decision": {"require_approval"}, "kind": {"model", "voice"},
			"role": {"operator"}, "effect": {"restarts"}, "names": {"bot-*\r\nan agent"}, "tools": {"self.screen.*"},
			"audience": {"user"}, "devices": {hostile}, "arguments": {` {"properties": {"a": {"const": "it's"}}} `},
			"cron": {"0 22 * * *"}, "minutes": {"30"}, "zone": {"Europe/Berlin"}, "note": {hostile}, "wait": {"5"},
			"rate": {"6"}, "budget": {"7"}},
		"rule": {"name": {hostile}, "action": {"refuse"}, "boards": {"esp-box*, x"}, "networks": {"10.1.0.0/16\n10.2.3.4"},
			"devices": {"a0:85:e3:11:22:33"}, "from": {"2026-11-30 14:05"}, "until": {"2026-12-01"}, "max_devices": {"9"},
			"tags": {"lab"}, "transport": {"ws"}},
		"upstream": {"name": {hostile}, "kind": {"websocket"}, "url": {"ws://voice.example.org/?a=b&c=d"}, "auth": {"secret"},
			"secret": {"sesame opens"}, "devices": {hostile}},
		"plugin": {"name": {"weather"}, "runs": {"command"}, "command": {"./weather\n--it's=$HOME\n"}, "tools": {"get_*, x"},
			"audience": {"user"}, "offer_to_voice": {"1"}, "memory": {"128MiB"}, "cpu": {"0.5"}, "open_files": {"64"},
			"env": {"KEY=sesame opens"}, "env_files": {"./weather.env\n./it's.env"}, "url": {"https://not.used"}},
	}
	for name, v := range map[string]url.Values{
		"silence":   {"alert": {id}, "for": {"until"}, "until": {"2026-12-24 18:00"}, "reason": {hostile}},
		"redaction": {"tool": {hostile}, "path": {"$..password"}, "note": {hostile}},
		"endpoint": {"name": {hostile}, "tools": {"get_*, set_x"}, "audience": {"user"}, "second_connection": {"refuse"},
			"offer_to_voice": {"1"}},
		"filter": {forms.EquivalentOf: {hostile}, "name": {"lab"}, "title": {hostile}},
		"webhook": {"name": {hostile}, "shape": {"telegram"}, "chat": {"@lab"}, "language": {"zh-CN"},
			"events": {"alert.opened"}, "query": {"tag:lab"}, "severity": {"bad"}, "kinds": {"crash_loop"},
			"url": {"https://example.org/sesame"}},
	} {
		fields[name] = v
	}
	shanghai := time.FixedZone("UTC+8", 8*3600)
	if until := forms.Equivalents["silence"](fields["silence"], now.In(shanghai)).Body["until"]; until != "2026-12-24T10:00:00Z" {
		t.Errorf("18:00 in Shanghai is %v", until)
	}
	for name, equivalent := range forms.Equivalents {
		if curl := equivalent(url.Values{}, now).Curl(); !strings.HasPrefix(curl, "curl -sS") { // nothing is typed yet
			t.Errorf("the empty form %s is %q", name, curl)
		}
		if fields[name] == nil {
			t.Errorf("no sample of the form %s", name)
			continue
		}
		samples = append(samples, sample{name, equivalent(fields[name], now), false})
	}
	picture := forms.Equivalents["tool"](url.Values{forms.EquivalentOf: ids[:1],
		forms.EquivalentTool: {"self.screen.preview_image"}, "picture": {""}}, now)
	samples = append(samples, sample{"picture", picture, false})
	interrupt := forms.Equivalents["tool"](url.Values{forms.EquivalentOf: ids[:1], forms.EquivalentTool: {"self.x"},
		"interrupt": {"on"}}, now)
	samples = append(samples, sample{"interrupt", interrupt, false})
	for name, changed := range map[string]url.Values{
		"policy":   {"name": {"x"}, "decision": {"deny"}, "version": {"7"}},
		"rule":     {"name": {"x"}, "action": {"accept"}},
		"upstream": {"name": {hostile}, "kind": {"none"}, "auth": {"secret"}, "secret": {"sesame opens"}, "version": {"7"}},
		"plugin": {"runs": {"url"}, "url": {"https://mcp.example.org/?a=it's"}, "headers_file": {"./mcp.headers"},
			"audience": {"model"}, "env": {"KEY=sesame opens"}, "version": {"7"}, forms.EquivalentVariable: {"KEY"}},
	} {
		changed.Set(forms.EquivalentOf, id)
		e := forms.Equivalents[name](changed, now)
		if body := asSent(e.Body); name != "rule" && body["version"] != 7.0 {
			t.Errorf("the change of a %s is of the version %v", name, body["version"])
		}
		samples = append(samples, sample{name + " changed", e, false})
	}
	for _, s := range samples {
		if s.e.Operation == "create-fanout" && !slices.Equal(s.e.Args[:2], []string{"devices", "call"}) ||
			s.name == "interrupt" && (!slices.Contains(s.e.Args, "--interrupt") || s.e.Body["interrupt"] != true) {
			t.Errorf("%s is the command %q", s.name, s.e.Args)
		}
	}

	document, err := api.Document("")
	if err != nil {
		t.Fatal(err)
	}
	var doc openAPI
	if err := json.Unmarshal(document, &doc); err != nil {
		t.Fatal(err)
	}
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			doc.wantRequest(t, s.e, s.whole)
			wantCommand(t, s.e.Args)
			wantThroughShell(t, s.e)
		})
	}
}

// wantCommand parses the arguments as the program does.
func wantCommand(t *testing.T, args []string) {
	t.Helper()
	if args == nil {
		return
	}
	parser, err := kong.New(new(cli), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(slices.Concat(args, []string{})); err != nil {
		t.Errorf("fleetd %q: %v", args, err)
	}
}

// wantThroughShell runs both commands in a shell that prints what it would start.
func wantThroughShell(t *testing.T, e forms.Equivalent) {
	t.Helper()
	run := func(script string) []string {
		t.Helper()
		cmd := exec.Command("sh", "-c", `curl() { printf '%s\0' "$@"; }
			fleetd() { printf '%s\0' "$@"; if [ "$piped" ]; then cat; fi; }
			`+script)
		cmd.Env = append(os.Environ(), "FLEETD_URL=http://fleet", "FLEETD_TOKEN=flt_x", "FLEETD_USER_PASSWORD=sesame opens",
			"WEBHOOK_URL=sesame opens")
		if e.Stdin != "" {
			cmd.Env = append(cmd.Env, "piped=1")
		}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		return strings.Split(string(out), "\x00")
	}
	args := run(e.Curl())
	wanted := []string{"http://fleet/api/v1" + e.Path, "Authorization: Bearer flt_x"}
	if e.Method != "POST" {
		wanted = append(wanted, "-X", e.Method)
	}
	for _, want := range wanted {
		if !slices.Contains(args, want) {
			t.Errorf("curl %q lacks %q", args, want)
		}
	}
	var got, want any
	for i, a := range args {
		if body, ok := strings.CutPrefix(a, "call="); ok || i > 0 && args[i-1] == "-d" {
			if !ok {
				body = a
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Errorf("the body %q: %v", body, err)
			}
		}
	}
	body := map[string]any{}
	for name, value := range e.Body {
		body[name] = value
	}
	if e.Secret != "" {
		body[e.SecretMember] = "sesame opens"
	}
	text, _ := json.Marshal(body)
	_ = json.Unmarshal(text, &want)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the shell sends %v, want %v", got, want)
	}
	if strings.Contains(e.Curl()+e.Command(), "sesame") {
		t.Errorf("a secret is in %s\n%s", e.Curl(), e.Command())
	}
	if command := e.Command(); command != "" {
		if got, want := run(command), append(slices.Clone(e.Args), e.Stdin); !slices.Equal(got, want) {
			t.Errorf("the shell starts fleetd %q, want %q", got, want)
		}
	}
}

// openAPI is the part of the document that describes requests.
type openAPI struct {
	Paths      map[string]map[string]openOperation
	Components struct{ Schemas map[string]openSchema }
}

type openOperation struct {
	OperationID string
	RequestBody struct {
		Content map[string]struct{ Schema openSchema }
	}
}

type openSchema struct {
	Ref        string `json:"$ref"`
	Type       any    // a name or a list of names
	Properties map[string]openSchema
	Required   []string
	Items      *openSchema
	Enum       []any
	Additional any `json:"additionalProperties"`
}

// wantRequest checks a request against the operation that it names.
func (d openAPI) wantRequest(t *testing.T, e forms.Equivalent, whole bool) {
	t.Helper()
	for path, methods := range d.Paths {
		op := methods[strings.ToLower(e.Method)]
		if op.OperationID != e.Operation {
			continue
		}
		template, parts := strings.Split(path, "/"), strings.Split(e.Path, "/")
		same := func(a, b string) bool { return a == b || strings.HasPrefix(a, "{") && b != "" }
		if !slices.EqualFunc(template, parts, same) {
			t.Errorf("%s is at %s, not at %s", e.Operation, path, e.Path)
		}
		body := asSent(e.Body)
		if e.Secret != "" {
			body[e.SecretMember] = "x"
		}
		schema := d.resolve(op.RequestBody.Content["application/json"].Schema)
		d.wantValue(t, e.Operation, schema, body)
		for name := range schema.Properties {
			if _, ok := body[name]; whole && !ok && name != "devices" {
				t.Errorf("%s: the form cannot set %s", e.Operation, name)
			}
		}
		return
	}
	t.Errorf("no operation %s %s", e.Method, e.Operation)
}

// asSent returns a body as a client decodes it.
func asSent(body map[string]any) (decoded map[string]any) {
	text, _ := json.Marshal(body)
	d := json.NewDecoder(bytes.NewReader(text))
	_ = d.Decode(&decoded)
	return decoded
}

func (d openAPI) resolve(s openSchema) openSchema {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		return d.resolve(d.Components.Schemas[name])
	}
	return s
}

func (d openAPI) wantValue(t *testing.T, at string, s openSchema, v any) {
	t.Helper()
	s = d.resolve(s)
	kind := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "number",
		reflect.Slice: "array", reflect.Map: "object", reflect.Invalid: "null"}[reflect.ValueOf(v).Kind()]
	named, _ := json.Marshal(s.Type)
	if s.Type != nil && !bytes.Contains(named, []byte(`"`+kind+`"`)) &&
		!(kind == "number" && bytes.Contains(named, []byte(`"integer"`))) {
		t.Errorf("%s is %s, want %s", at, kind, named)
	}
	if s.Enum != nil && !slices.Contains(s.Enum, v) {
		t.Errorf("%s is %v, want one of %v", at, v, s.Enum)
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if s.Items != nil {
				d.wantValue(t, at+"[]", *s.Items, item)
			}
		}
	case map[string]any:
		for _, name := range s.Required {
			if _, ok := v[name]; !ok {
				t.Errorf("%s lacks %s", at, name)
			}
		}
		for name, value := range v {
			if p, ok := s.Properties[name]; ok {
				d.wantValue(t, at+"."+name, p, value)
			} else if s.Properties != nil {
				t.Errorf("%s has no %s", at, name)
			}
		}
	}
}
