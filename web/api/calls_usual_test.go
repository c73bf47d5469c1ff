package api

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
)

// usualBodies maps bodies to whether they take the short path.
var usualBodies = map[string]bool{
	volume50: true,
	` { "arguments" : {"volume": 50, "a":[{"}":"\"{"}]} ,"tool":"self.audio_speaker.set_volume", "timeout_ms" : 300000 } `: true,
	`{"tool":"self.get_device_status"}`:                                                             true,
	`{"tool":"self.get_device_status","arguments":{}}`:                                              true,
	`{"tool":"<&>","timeout_ms":0}`:                                                                 true,
	`{"tool":"self.audio_speaker.set_volume","arguments":{"volume":50,"volume":51}}`:                true,
	`{"tool":"self.audio_speaker.set_volume","arguments":{"volume":"\u0000\ud800é` + "\xff" + `"}}`: true,

	``: false, `{}`: false, `[]`: false, `null`: false, `"tool"`: false, `{"tool":""}`: false, `{"tool":7}`: false,
	`{"tool":null}`: false, `{"tool":"x"`: false, `{"tool":"x",}`: false, `{"tool":"x"} x`: false,
	`{"tool":"x","tool":"self.get_device_status"}`:                       false,
	`{"tool":"self.get_device_statu\u0073"}`:                             false,
	`{"t\u006fol":"self.get_device_status"}`:                             false,
	`{"Tool":"self.get_device_status"}`:                                  false,
	`{"tool":"x","TOOL":"self.get_device_status"}`:                       false,
	`{"tool":"` + strings.Repeat("x", 200) + `"}`:                        true,
	`{"tool":"` + strings.Repeat("x", 201) + `"}`:                        false,
	`{"tool":"` + strings.Repeat("é", 200) + `"}`:                        false,
	"{\"tool\":\"\xff\"}":                                                false,
	`{"tool":"x","arguments":null}`:                                      false,
	`{"tool":"x","arguments":[]}`:                                        false,
	`{"tool":"x","arguments":"{}"}`:                                      false,
	`{"tool":"x","arguments":{},"arguments":{"a":1}}`:                    false,
	`{"tool":"x","args":{}}`:                                             false,
	`{"tool":"x","picture":null}`:                                        false,
	`{"tool":"x","picture":{"snapshot_id":"7"}}`:                         false,
	`{"tool":"x","timeout_ms":300001}`:                                   false,
	`{"tool":"x","timeout_ms":99999999999999999999}`:                     false,
	`{"tool":"x","timeout_ms":-0}`:                                       false,
	`{"tool":"x","timeout_ms":-1}`:                                       false,
	`{"tool":"x","timeout_ms":1.0}`:                                      false,
	`{"tool":"x","timeout_ms":1e3}`:                                      false,
	`{"tool":"x","timeout_ms":"1"}`:                                      false,
	`{"tool":"x","timeout_ms":1,"timeout_ms":2}`:                         false,
	`{"tool":"x","arguments":{"a":"` + strings.Repeat("x", 4000) + `"}}`: true,
}

var changing = regexp.MustCompile(`"(id|[a-z]+_at|at|duration_ms)":("[^"]*"|\d+)`)

// Both paths respond in the same way as huma. The header Prefer sends a call to huma.
func TestUsualCallsAreAnsweredAsHumaDoes(t *testing.T) {
	w := newWorld(t)
	w.link.Connect(unit, func(_ context.Context, tool string, _ json.RawMessage) (fleet.Answer, error) {
		if tool == "self.get_device_status" {
			return fleet.Answer{}, &fleet.ToolError{Tool: tool, Message: "<b>no</b> \u2028"}
		}
		return fleet.Answer{Result: json.RawMessage(`{ "content": [{"type":"text","text":"<&> \u2028"}] }`)}, nil
	})
	both := func(name, path, body string, header ...string) {
		t.Helper()
		short := w.as(t, fleet.RoleOperator, http.MethodPost, path, body, header...)
		long := w.as(t, fleet.RoleOperator, http.MethodPost, path, body, append(header, "Prefer", "wait=1")...)
		for _, r := range []reply{short, long} {
			r.header.Del("Date")
			r.header.Del("Content-Length")
		}
		a, b := changing.ReplaceAllString(string(short.body), `"$1"`), changing.ReplaceAllString(string(long.body), `"$1"`)
		if short.status != long.status || a != b || !maps.EqualFunc(short.header, long.header, func(a, b []string) bool {
			return reflect.DeepEqual(a, b)
		}) {
			t.Errorf("%.200s\nanswered %d %v %s\nby huma  %d %v %s", name, short.status, short.header, a, long.status, long.header, b)
		}
	}
	for body := range usualBodies {
		both(body, callPath, body)
	}
	for _, id := range []string{"0123456789ab", "not%20one", "A0:85:E3:11:22:33", "a0%3A85%3Ae3%3A11%3A22%3A33", "%20", "%2F",
		"%2e", "é", string(other), string(waiting), strings.Repeat("a", 80), strings.Repeat("a", 81)} {
		both(id, "/devices/"+id+"/calls", volume50)
		both(id, "/devices/"+id+"/calls?tool=x", volume50)
	}
	for _, accept := range []string{"", "*/*", "application/json", "text/html", "application/json, text/plain, */*"} {
		both(accept, callPath, volume50, "Accept", accept)
	}
	for _, ct := range []string{"", "application/json", "application/json; charset=utf-8", "text/json", "json"} {
		both(ct, callPath, volume50, "Content-Type", ct)
	}
}

func TestUsualBodies(t *testing.T) {
	for body, want := range usualBodies {
		if got := new(makeCallInput).readUsualBody([]byte(body)); got != want {
			t.Errorf("%.200s takes the short way: %t", body, got)
		}
	}
}

// FuzzUsualBody: a body on the short path fits the document, and is read in the same way as by
// encoding/json.
func FuzzUsualBody(f *testing.F) {
	for body := range usualBodies {
		f.Add(body)
	}
	doc := newAPI(Options{}).huma.OpenAPI()
	schema := doc.Paths["/devices/{id}/calls"].Post.RequestBody.Content["application/json"].Schema
	f.Fuzz(func(t *testing.T, body string) {
		var in, want makeCallInput
		if !in.readUsualBody([]byte(body)) {
			return
		}
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		res := &huma.ValidateResult{}
		huma.Validate(doc.Components.Schemas, schema, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, v, res)
		if len(res.Errors) > 0 {
			t.Errorf("%q does not fit the document: %v", body, res.Errors)
		}
		if err := json.Unmarshal([]byte(body), &want.Body); err != nil || !reflect.DeepEqual(in.Body, want.Body) {
			t.Errorf("%q is read as %+v, want %+v (%v)", body, in.Body, want.Body, err)
		}
	})
}
