package voice

import (
	"encoding/json"
	"os"
	"testing"
	"time"
)

// Every message of a device in the vectors is understood, except those that are malformed on
// purpose.
func TestMessagesOfTheVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/hello.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Name, Wire string
			Expect     struct {
				Type    string
				Ignores bool `json:"device_ignores"`
			}
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil || len(file.Cases) < 20 {
		t.Fatal(err)
	}
	for _, v := range file.Cases {
		m, ok := parseMessage([]byte(v.Wire))
		if ok == v.Expect.Ignores || v.Expect.Type != "" && m.kind != v.Expect.Type {
			t.Errorf("%s: %+v, %v", v.Name, m, ok)
		}
	}
}

func TestWithSession(t *testing.T) {
	for _, tt := range []struct{ raw, want string }{
		{`{"session_id":"a","type":"x"}`, `{"session_id":"b","type":"x"}`},
		{`{"type":"x", "session_id" : "a" }`, `{"type":"x", "session_id" : "b" }`},
		{`{"session_id":"other","type":"x"}`, `{"session_id":"other","type":"x"}`},
		{`{"text":"\"session_id\":\"a\"","type":"x"}`, `{"text":"\"session_id\":\"a\"","type":"x"}`},
		{`{"type":"x"}`, `{"type":"x"}`},
		{`{"session_id"`, `{"session_id"`},
	} {
		if got := string(withSession([]byte(tt.raw), "a", "b")); got != tt.want {
			t.Errorf("%s: %s", tt.raw, got)
		}
	}
}

// The token matches the description of voice servers, as computed by openssl.
func TestToken(t *testing.T) {
	u := Upstream{Secret: "secret"}
	got := u.token("client", "aa:bb:cc:dd:ee:ff", time.Unix(1786147200, 0))
	const want = "ij6tNkO6TJ-BT8REF_SD8XLze22fjSpgTC99FVp6y-0.1786147200"
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"type":"tts","session_id":"a"}`))
	f.Add([]byte(`{"Type":"mcp","type":"tts"}`))
	f.Add([]byte(`{"type":"hello","features":{"glyph_push":true},"audio_params":{"format":"opus","vad":1},"x":"\""}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if m, ok := parseMessage(raw); ok {
			var o map[string]json.RawMessage
			if json.Unmarshal(raw, &o) != nil || m.kind == "" {
				t.Errorf("%q understood as %+v", raw, m)
			}
		}
		withSession(raw, "a", "b")
		h, err := parseServerHello(raw)
		hello := withMembers([]byte(`{"type":"hello","audio_params":`+string(h.audioParams())+`}`), h.more)
		if _, ok := parseMessage(raw); ok && err == nil && !json.Valid(hello) {
			t.Errorf("%q passes through as %q", raw, hello)
		}
	})
}
