package redact

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

const uuid = "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10"

func TestClientID(t *testing.T) {
	tests := []struct{ name, text, id, want string }{
		{"as the device writes it", `{"uuid":"` + uuid + `","v":1}`, uuid, `{"uuid":"***","v":1}`},
		{"as JSON in JSON", `{"text":"{\"uuid\":\"` + uuid + `\"}"}`, uuid, `{"text":"{\"uuid\":\"***\"}"}`},
		{"upper case", strings.ToUpper(uuid), uuid, "***"},
		{"mixed case", "5F0C0F4E-6f0a-4C7E-9d0e-2d6f1f7a9b10", uuid, "***"},
		{"without dashes", "id=" + strings.ReplaceAll(uuid, "-", "") + ";", uuid, "id=***;"},
		{"upper case without dashes", strings.ToUpper(strings.ReplaceAll(uuid, "-", "")), uuid, "***"},
		{"escaped dashes", `"` + strings.ReplaceAll(uuid, "-", `\u002D`) + `"`, uuid, `"***"`},
		{"in a URL", "?id=" + strings.ReplaceAll(uuid, "-", "%2D"), uuid, "?id=***"},
		{"twice", uuid + " " + uuid, uuid, "*** ***"},
		{"in an MQTT client id", "GID_default@@@02_00@@@" + uuid, uuid, "GID_default@@@02_00@@@***"},
		{"half of it", uuid[:20], uuid, uuid[:20]},
		{"its last group alone", "2d6f1f7a9b10", uuid, "2d6f1f7a9b10"},
		{"another", strings.Replace(uuid, "5f", "60", 1), uuid, strings.Replace(uuid, "5f", "60", 1)},
		{"no UUID", `{"a":"KITCHEN_unit.7"}`, "kitchen-unit-7", `{"a":"***"}`},
		{"too short to be one", `{"a":"lamp"}`, "lamp", `{"a":"lamp"}`},
		{"a number", `{"a":1234567890}`, "1234567890", `{"a":1234567890}`},
		{"none bound", `{"a":"b"}`, "", `{"a":"b"}`},
		{"unbound", `{"a":"!"}`, "!", `{"a":"!"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := []byte(tt.text)
			if got := string(ClientID(in, tt.id)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if string(in) != tt.text {
				t.Error("the bytes that came in were changed")
			}
			if got := Text(tt.text, tt.id); got != tt.want {
				t.Errorf("as text: %s", got)
			}
		})
	}
}

func FuzzClientID(f *testing.F) {
	f.Add([]byte(`{"uuid":"`+uuid+`"}`), uuid)
	f.Add([]byte(`{"n":12345678}`), "12e45678")
	f.Fuzz(func(t *testing.T, b []byte, id string) {
		out := ClientID(b, id)
		if json.Valid(b) && !json.Valid(out) && plain(id) {
			t.Errorf("%q without %q is no JSON: %q", b, id, out)
		}
		if longestRun(id) != "" && plain(id) && bytes.Contains(out, []byte(id)) {
			t.Errorf("%q still holds %q", out, id)
		}
	})
}

// plain reports whether credentials can be bound to the id.
func plain(id string) bool {
	return len(id) <= 64 && strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == ""
}

func TestAnOrdinaryResultIsNotCopied(t *testing.T) {
	b := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"true"}],"isError":false}}`)
	if n := testing.AllocsPerRun(100, func() { ClientID(b, uuid) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkClientID(b *testing.B) {
	text := bytes.Repeat([]byte(`{"content":[{"type":"text","text":"true"}]}`), 4)
	for b.Loop() {
		ClientID(text, uuid)
	}
}
