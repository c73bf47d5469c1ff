package forms

import (
	"encoding/json"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A form that is not valid has an equivalent that the server refuses: what narrows a rule stays in it.
func TestEquivalentsOfHalfFilledForms(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		form, member string
		v            url.Values
		want         any
	}{
		{"policy", "name", nil, ""},
		{"policy", "enabled", nil, false},
		{"policy", "arguments", url.Values{"arguments": {`{"a":`}}, `{"a":`},
		{"policy", "arguments", url.Values{"arguments": {"\x00\xff"}}, "\x00\ufffd"},
		{"policy", "arguments", url.Values{"arguments": {"null"}}, nil},
		{"policy", "rate_per_minute", url.Values{"rate": {"x"}}, "x"},
		{"policy", "window", url.Values{"cron": {"0 2"}, "minutes": {"x"}}, map[string]any{"cron": "0 2",
			"duration_ms": "x", "time_zone": ""}},
		{"rule", "networks", url.Values{"networks": {"10.1."}}, []any{"10.1."}},
		{"rule", "devices", url.Values{"devices": {"a0:85:e3:11:22:33"}, "max_devices": {"x"}}, []any{"a0:85:e3:11:22:33"}},
		{"rule", "max_devices", url.Values{"max_devices": {"x"}}, "x"},
		{"rule", "devices", url.Values{"list": {"list.csv"}}, []any{"list.csv"}},
		{"rule", "until", url.Values{"until": {"soon"}}, "soon"},
		{"rule", "until", url.Values{"until": {"2026-12-01 12:00"}}, "2026-12-01T11:00:00Z"},
		{"rule", "clear_from", url.Values{EquivalentOf: {"x"}}, true},
		{"upstream", "auth", url.Values{"kind": {"ota"}, "auth": {"token"}}, "none"},
		{"upstream", "secret", url.Values{"kind": {"websocket"}, "secret": {"sesame"}}, nil},
		{"plugin", "url", url.Values{EquivalentOf: {"x"}, "runs": {"url"}}, ""},
		{"plugin", "limits", url.Values{"cpu": {"inf"}, "memory": {"x"}, "open_files": {"1e3"}}, map[string]any{"cpu": "inf",
			"memory": "x", "open_files": "1e3"}},
		{"plugin", "limits", url.Values{EquivalentOf: {"x"}, "runs": {"url"}, "cpu": {"1"}}, map[string]any{"cpu": 0.0,
			"memory": "0", "open_files": 0.0}},
		{"plugin", "env", url.Values{"env": {"KEY=sesame"}}, nil},
		{"plugin", "env", url.Values{EquivalentOf: {"x"}, "env": {"KEY=sesame"}, "drop": {"OLD"}}, map[string]any{"OLD": nil}},
	} {
		e := Equivalents[c.form](c.v, time.Date(2026, 11, 30, 12, 0, 0, 0, berlin))
		var body map[string]any
		if err := json.Unmarshal([]byte(text(e.Body)), &body); err != nil {
			t.Errorf("%s of %v: %v", c.form, c.v, err)
		}
		if got := body[c.member]; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s of %v has %s %#v, want %#v", c.form, c.v, c.member, got, c.want)
		}
		if all := e.Curl() + e.Command(); strings.Contains(all, "sesame") {
			t.Errorf("a secret is in %s", all)
		}
	}
}
