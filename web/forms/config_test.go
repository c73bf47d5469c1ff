package forms

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/web/i18n"
)

func TestConfigFieldsFollowTheValues(t *testing.T) {
	got := ConfigFields(json.RawMessage(
		`{"zeta":-3,"allow_http":true,"note":"a\nb","heartbeat_s":60,"telemetry":"yes","list":[1],"ratio":1.5,"none":null,"zeta":4}`))
	want := []ConfigField{
		{Key: "heartbeat_s", Kind: "integer", Value: "60"}, {Key: "allow_http", Kind: "boolean", Value: "true"},
		{Key: "zeta", Kind: "integer", Value: "4"}, {Key: "note", Kind: "string", Value: "ab"},
		{Key: "telemetry", Kind: "string", Value: "yes"},
		{Key: "list", Kind: "other", Value: "[1]"}, {Key: "ratio", Kind: "other", Value: "1.5"}, {Key: "none", Kind: "other"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{``, `null`, `[]`, `"x"`, `{`, `{"a":1`} {
		if got := ConfigFields(json.RawMessage(bad)); len(got) != 0 {
			t.Errorf("%q gives %v", bad, got)
		}
	}
}

func TestConfigFormSendsOnlyWhatChanged(t *testing.T) {
	const values = `{"heartbeat_s":60,"telemetry":true,"log_level":"info","url_hosts":"a.example","allow_http":false,"zeta":5,"name":"x"}`
	unchanged := url.Values{"v.heartbeat_s": {"60"}, "v.telemetry": {"on"}, "has.telemetry": {"1"},
		"v.log_level": {"info"}, "v.url_hosts": {"a.example"},
		"has.allow_http": {"1"}, "v.zeta": {"5"}, "v.name": {"x"}}
	tests := []struct {
		name   string
		change url.Values // nil value: the form lacks the field
		want   map[string]any
		bad    string // field with a problem
	}{
		{"nothing", nil, map[string]any{}, ""},
		{"a number", url.Values{"v.heartbeat_s": {" 30 "}}, map[string]any{"heartbeat_s": int64(30)}, ""},
		{"a box unticked", url.Values{"v.telemetry": nil}, map[string]any{"telemetry": false}, ""},
		{"a box ticked", url.Values{"v.allow_http": {"on"}}, map[string]any{"allow_http": true}, ""},
		{"a box that was not there", url.Values{"v.telemetry": nil, "has.telemetry": nil}, map[string]any{}, ""},
		{"a choice", url.Values{"v.log_level": {"debug"}}, map[string]any{"log_level": "debug"}, ""},
		{"an empty text", url.Values{"v.url_hosts": {""}}, map[string]any{"url_hosts": ""}, ""},
		{"unknown keys", url.Values{"v.zeta": {"-9"}, "v.name": {"y"}}, map[string]any{"zeta": int64(-9), "name": "y"}, ""},
		{"a key that the device does not have", url.Values{"v.evil": {"1"}}, map[string]any{}, ""},
		{"below the range", url.Values{"v.heartbeat_s": {"9"}}, nil, "heartbeat_s"},
		{"above the range", url.Values{"v.heartbeat_s": {"3601"}}, nil, "heartbeat_s"},
		{"no number", url.Values{"v.heartbeat_s": {"1e3"}}, nil, "heartbeat_s"},
		{"too large a number", url.Values{"v.zeta": {"99999999999999999999"}}, nil, "zeta"},
		{"no choice", url.Values{"v.log_level": {"loud"}}, nil, "log_level"},
		{"too long a text", url.Values{"v.url_hosts": {strings.Repeat("a", 257)}}, nil, "url_hosts"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			form := url.Values{}
			for k, v := range unchanged {
				form[k] = v
			}
			for k, v := range tt.change {
				if form[k] = v; v == nil {
					delete(form, k)
				}
			}
			changed, typed, ok := ReadConfig(ConfigFields(json.RawMessage(values)), form)
			if ok != (tt.bad == "") {
				t.Fatalf("ok = %v", ok)
			}
			if tt.bad == "" {
				if diff := cmp.Diff(tt.want, changed); diff != "" {
					t.Error(diff)
				}
				return
			}
			for _, f := range typed {
				if (f.Problem != "") != (f.Key == tt.bad) {
					t.Errorf("%s: problem %q", f.Key, f.Problem)
				}
				if f.Problem != "" && (!i18n.Has(f.Problem) || f.Value != form.Get("v."+f.Key)) {
					t.Errorf("%s: %q with the value %q, want a message and what was typed", f.Key, f.Problem, f.Value)
				}
			}
		})
	}
}
