package forms

import (
	"encoding/json"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
)

func TestFormRoundTrip(t *testing.T) {
	tool := fleet.Tool{Name: "self.demo", Description: "The mode can be `a` or `b`.", InputSchema: json.RawMessage(
		`{"type":"object","properties":{"level":{"type":"integer","default":10,"minimum":0,"maximum":255},
		"on":{"type":"boolean","default":true},"mode":{"type":"string"},"label":{"type":"string","default":"x"}},"required":["mode"]}`)}
	fields := NewFields(tool, json.RawMessage(`{"level":33,"mode":7}`))
	var got []string
	for _, f := range fields {
		got = append(got, f.Name+"="+f.Value)
	}
	if diff := cmp.Diff([]string{"level=33", "on=true", "mode=", "label=x"}, got); diff != "" {
		t.Fatalf("fields in the device's order, with what was used last: %s", diff)
	}

	tests := []struct {
		name, form, want string
		problems         map[string]string
	}{
		{"all given", "arg.level=40&arg.on=on&arg.mode=a&arg.label=z", `{"label":"z","level":40,"mode":"a","on":true}`, nil},
		{"switch off, label left empty", "arg.level=40&arg.mode=b&arg.label=", `{"level":40,"mode":"b","on":false}`, nil},
		{"something else", "arg.level=1&arg.mode=" + url.QueryEscape(OtherChoice) + "&arg.mode.other=c",
			`{"level":1,"mode":"c","on":false}`, nil},
		{"above the range", "arg.level=256&arg.mode=a", "", map[string]string{"level": "field.out_of_range"}},
		{"no number", "arg.level=ten&arg.mode=a", "", map[string]string{"level": "field.not_whole"}},
		{"required text may be empty", "arg.level=1&arg.mode=", `{"level":1,"mode":"","on":false}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			form, err := url.ParseQuery(tt.form)
			if err != nil {
				t.Fatal(err)
			}
			args, shown, ok := Arguments(fields, form)
			if ok != (tt.problems == nil) {
				t.Errorf("ok = %v", ok)
			}
			for _, f := range shown {
				if f.Problem != tt.problems[f.Name] {
					t.Errorf("%s: problem %q, want %q", f.Name, f.Problem, tt.problems[f.Name])
				}
			}
			if ok && string(args) != tt.want {
				t.Errorf("arguments = %s, want %s", args, tt.want)
			}
			again, _, ok := Arguments(fields, Values(shown))
			if ok != (tt.problems == nil) || string(again) != string(args) {
				t.Errorf("from the form of the fields: %s, %v, want %s", again, ok, args)
			}
		})
	}
}

func TestOwnURLIsNotAsked(t *testing.T) {
	fields := NewFields(fleet.Tool{Name: fleet.ToolSnapshot, InputSchema: json.RawMessage(
		`{"type":"object","properties":{"url":{"type":"string"},"quality":{"type":"integer","default":80,"minimum":1,"maximum":100}},"required":["url"]}`)}, nil)
	if !fields[0].Ours {
		t.Error("url is asked of the operator")
	}
	args, _, ok := Arguments(fields, url.Values{"arg.url": {"http://evil.example/"}, "arg.quality": {"80"}})
	if !ok || string(args) != `{"quality":80}` {
		t.Errorf("Arguments = %s, %v: a typed url must never be used", args, ok)
	}
}

func TestChoices(t *testing.T) {
	tests := []struct {
		name, description, argument string
		want                        []string
	}{
		{"stock theme", "Set the theme of the screen. The theme can be `light` or `dark`.", "theme",
			[]string{"light", "dark"}},
		{"list", "Mode: one of `a`, `b`, or `c`", "mode", []string{"a", "b", "c"}},
		{"Chinese", "设置灯效，effect 可为 `rainbow`、`breath` 或 `off`。", "effect", []string{"rainbow", "breath", "off"}},
		{"argument names only", "Take a photo.\nArgs:\n  `question`: what to ask.", "question", nil},
		{"a sentence about something else", "The unit is `c` or `f`. Give a city.", "city", nil},
		{"one word is no choice", "Set theme, such as `dark`.", "theme", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, choices(tt.description, tt.argument)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
