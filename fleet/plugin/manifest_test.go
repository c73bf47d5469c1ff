package plugin

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"fleetd/fleet"
)

func refusalOf(t *testing.T, err error) (code, field string, params fleet.Params) {
	t.Helper()
	e, ok := errors.AsType[*fleet.Error](err)
	if !ok {
		t.Fatalf("%v is no *fleet.Error", err)
	}
	return e.Code + "." + e.Params.Case(), e.Field, e.Params
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Manifest{
		"command: ./weather": {Command: Words{"./weather"}, Audience: fleet.AudienceModel},
		"command: [node, a.js]\nargs: [-v]\nenv: {A: '1'}\nlimits: {memory: 64MiB, cpu: 0.5, open_files: 64}\ntools: [get_*]\naudience: user\ndisabled: true": {
			Command: Words{"node", "a.js"}, Args: []string{"-v"}, Env: map[string]string{"A": "1"}, Tools: []string{"get_*"},
			Limits: Limits{Memory: 64 << 20, CPU: 0.5, OpenFiles: 64}, Audience: fleet.AudienceUser, Disabled: true},
		"url: https://x.test/mcp\nheaders_file: x.headers\noffer_to_voice: true": {URL: "https://x.test/mcp",
			HeadersFile: "x.headers", OfferToVoice: true, Audience: fleet.AudienceModel},
		"command: x\nlimits: {memory: 8388608}": {Command: Words{"x"}, Limits: Limits{Memory: 8 << 20}, Audience: fleet.AudienceModel},
	} {
		if got, err := Parse([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("a", maxText+1)
	for _, tt := range []struct {
		text, code, field string
		line              int64
	}{
		{"command: x\n  bad: [", "plugin_manifest.yaml_line", "", 2},
		{"command: x\nargs: 7\nfoo: 1", "plugin_manifest.yaml_line", "", 2},
		{"command: x\nfoo: 1", "plugin_manifest.yaml_line", "", 2},
		{"command: x\nlimits:\n  memory: much", "plugin_manifest.yaml_line", "", 3},
		{"command: x\nlimits:\n  disk: 1", "plugin_manifest.yaml_line", "", 3},
		{"command: x\nlimits: {memory: -1}", "plugin_manifest.yaml_line", "", 2},
		{"command: x\ncommand: y", "plugin_manifest.yaml_line", "", 2},
		{"command: x\n---\ncommand: y", "plugin_manifest.documents", "", 0},
		{"command: x\n#" + strings.Repeat("x", maxManifestBytes), "plugin_manifest.large", "", 0},
		{"", "plugin_field.missing", "command", 0},
		{"command: ~", "plugin_field.missing", "command", 0},
		{"command: []", "plugin_field.missing", "command", 0},
		{"command: ''", "plugin_field.empty", "command", 0},
		{"command: x\nurl: https://x.test/", "plugin_field.both", "url", 0},
		{"command: x\nheaders_file: y", "plugin_field.remote", "headers_file", 0},
		{"url: https://x.test/\nargs: [x]", "plugin_field.program", "url", 0},
		{"url: https://x.test/\nlimits: {cpu: 1}", "plugin_field.program", "url", 0},
		{"url: ftp://x.test/", "plugin_field.url", "url", 0},
		{"url: https://ann:pw@x.test/", "plugin_field.url", "url", 0},
		{"url: https://x.test/#a", "plugin_field.url", "url", 0},
		{"url: /mcp", "plugin_field.url", "url", 0},
		{"command: x\nargs: [" + strings.Repeat("a,", maxItems) + "a]", "plugin_field.many", "args", 0},
		{"command: x\nargs: [" + long + "]", "plugin_field.text", "args", 0},
		{`command: "a\0b"`, "plugin_field.text", "command", 0},
		{"command: x\nenv: {A-B: '1'}", "plugin_field.name", "env", 0},
		{"command: x\nlimits: {memory: 1MiB}", "plugin_field.least", "limits.memory", 0},
		{"command: x\nlimits: {cpu: .nan}", "plugin_field.range", "limits.cpu", 0},
		{"command: x\nlimits: {cpu: .inf}", "plugin_field.range", "limits.cpu", 0},
		{"command: x\nlimits: {cpu: 0.001}", "plugin_field.range", "limits.cpu", 0},
		{"command: x\nlimits: {open_files: 3}", "plugin_field.range", "limits.open_files", 0},
		{"command: x\ntools: ['']", "plugin_field.pattern", "tools", 0},
		{"command: x\ntools: ['a*b']", "plugin_field.pattern", "tools", 0},
		{"command: x\naudience: all", "plugin_field.audience", "audience", 0},
		{"command: x\naudience: user\noffer_to_voice: true", "plugin_field.voice", "offer_to_voice", 0},
	} {
		_, err := Parse([]byte(tt.text))
		if err == nil {
			t.Errorf("%.60q: no error", tt.text)
			continue
		}
		code, field, params := refusalOf(t, err)
		line, _ := params["line"].(int64)
		if code != tt.code || field != tt.field || line != tt.line {
			t.Errorf("%.60q: %s in %q, line %d, want %s in %q, line %d (%v)", tt.text, code, field, line, tt.code, tt.field, tt.line, err)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "7": 7, "1KiB": 1 << 10, "1.5 MiB": 3 << 19, "2GiB": 2 << 30,
		"1kB": 1000, "3B": 3} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
		if again, err := ParseBytes(want.String()); err != nil || again != want {
			t.Errorf("%d as text is %q", want, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "NaN", "Inf", "1XiB", "1e300", "9999999999GiB", "1 2"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestOffers(t *testing.T) {
	for _, tt := range []struct {
		patterns, tool string
		want           bool
	}{{"", "any", true}, {"get_*", "get_x", true}, {"get_*", "set_x", false}, {"a b", "b", true}, {"a", "ab", false}, {"*", "x", true}} {
		if got := (Manifest{Tools: strings.Fields(tt.patterns)}).Offers(tt.tool); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
}

// Whatever the text, Parse returns: a manifest that it accepts is accepted again as it was.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"command: ./x", "url: https://x.test/\nheaders_file: a", "a: &a [*a]", "command: [x]\nlimits: {memory: 1e9}",
		"<<: {command: x}", "command: !!binary eA==", "? [a]\n: b", "command: x\n---\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data)
		if err != nil {
			if _, ok := errors.AsType[*fleet.Error](err); !ok {
				t.Errorf("%v is no *fleet.Error", err)
			}
			return
		}
		before := fmt.Sprintf("%+v", m)
		if err := m.Check(); err != nil || fmt.Sprintf("%+v", m) != before {
			t.Errorf("%s became %+v, %v", before, m, err)
		}
	})
}
