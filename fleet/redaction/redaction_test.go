package redaction_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/redaction"
)

func digester(t testing.TB) redaction.Digester {
	t.Helper()
	d, err := redaction.NewDigester(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func set(t testing.TB, paths ...string) *redaction.Set {
	t.Helper()
	var rules []redaction.Rule
	for _, p := range paths {
		rules = append(rules, redaction.Rule{Tool: "wifi.*", Path: p})
	}
	s, err := redaction.Compile(digester(t), rules)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRedact(t *testing.T) {
	d := digester(t)
	of := func(value string) string { return `"` + d.Digest(json.RawMessage(value)) + `"` }
	tests := []struct {
		name, path, arguments, want string
	}{
		{"member", "$.key", `{"ssid":"net","key":"s3cret"}`, `{"ssid":"net","key":` + of(`"s3cret"`) + `}`},
		{"spaces and order stay", "$.key", ` { "b" : 1.0, "key" : "x" , "a":[ ] } `,
			` { "b" : 1.0, "key" : ` + of(`"x"`) + ` , "a":[ ] } `},
		{"nothing to replace", "$.key", `{"ssid":"net"}`, `{"ssid":"net"}`},
		{"deeper", "$.a.b", `{"a":{"b":7,"c":8},"b":9}`, `{"a":{"b":` + of(`7`) + `,"c":8},"b":9}`},
		{"object", "$.a", `{"a":{"y":1,"x":[true]}}`, `{"a":` + of(`{"x":[true],"y":1}`) + `}`},
		{"null", "$.a", `{"a":null}`, `{"a":` + of(`null`) + `}`},
		{"other case, as devices read it", "$.key", `{"KEY":"x","Key":"y"}`, `{"KEY":` + of(`"x"`) + `,"Key":` + of(`"y"`) + `}`},
		{"name with escapes", "$.key", `{"k\u0065y":"x"}`, `{"k\u0065y":` + of(`"x"`) + `}`},
		{"twice", "$.key", `{"key":"x","key":"y"}`, `{"key":` + of(`"x"`) + `,"key":` + of(`"y"`) + `}`},
		{"every element", "$.list[*].key", `{"list":[{"key":1},{"key":2},3]}`,
			`{"list":[{"key":` + of(`1`) + `},{"key":` + of(`2`) + `},3]}`},
		{"every member", "$.*", `{"a":1,"b":2}`, `{"a":` + of(`1`) + `,"b":` + of(`2`) + `}`},
		{"one element", "$.list[1]", `{"list":["a","b","c"]}`, `{"list":["a",` + of(`"b"`) + `,"c"]}`},
		{"any depth", "$..key", `{"key":1,"a":[{"key":2},{"b":{"key":{"key":3}}}]}`,
			`{"key":` + of(`1`) + `,"a":[{"key":` + of(`2`) + `},{"b":{"key":` + of(`{"key":3}`) + `}}]}`},
		{"below any depth", "$..a.b", `{"x":{"a":{"a":{"b":1},"b":2}}}`,
			`{"x":{"a":{"a":{"b":` + of(`1`) + `},"b":` + of(`2`) + `}}}`},
		{"quoted name", "$['a.b']", `{"a.b":1,"a":{"b":2}}`, `{"a.b":` + of(`1`) + `,"a":{"b":2}}`},
		{"all", "$", `{"a":1}`, of(`{"a":1}`)},
		{"no JSON", "$.key", `{"key":"x"`, of(`{"key":"x"`)},
		{"nested too deeply", "$.key", strings.Repeat("[", 40) + strings.Repeat("]", 40),
			of(strings.Repeat("[", 40) + strings.Repeat("]", 40))},
		{"too many values", "$[*]", "[" + strings.Repeat("1,", 200) + "1]", of("[" + strings.Repeat("1,", 200) + "1]")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			arguments := []byte(tt.arguments)
			got, digests := set(t, tt.path).Redact("wifi.set", arguments[:len(arguments):len(arguments)])
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if string(arguments) != tt.arguments {
				t.Errorf("the arguments became %s", arguments)
			}
			if changed := tt.want != tt.arguments; changed != (len(digests) > 0) || changed != redaction.Contains(got) {
				t.Errorf("digests %q", digests)
			}
			for _, digest := range digests {
				if _, ok := redaction.ParseDigest(digest); !ok || !strings.Contains(string(got), digest) {
					t.Errorf("digest %q", digest)
				}
			}
			if open, found := set(t, tt.path).Redact("audio.set", arguments); string(open) != tt.arguments || found != nil {
				t.Errorf("another tool: %s, %q", open, found)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	d := digester(t)
	for _, equal := range [][]string{{`"a"`, ` "\u0061" `}, {`1`, `1.0`, `10e-1`}, {`{"a":1,"b":[2]}`, "{\"b\" : [2.0],\n\"a\":1}"},
		{`0`, `-0`, `0.0`}, {`1.5`, `15e-1`}} {
		for _, text := range equal[1:] {
			if d.Digest(json.RawMessage(text)) != d.Digest(json.RawMessage(equal[0])) {
				t.Errorf("%s and %s differ", text, equal[0])
			}
		}
	}
	seen := map[string]string{}
	for _, text := range []string{`"a"`, `"A"`, `1`, `"1"`, `true`, `null`, `[]`, `{}`, `12345678901234567890`, `12345678901234567891`,
		`{"a":1`, `text:null`} {
		digest := d.Digest(json.RawMessage(text))
		if other, has := seen[digest]; has {
			t.Errorf("%s and %s have one digest", text, other)
		}
		seen[digest] = text
	}
	other, err := redaction.NewDigester(bytes.Repeat([]byte{8}, 32))
	if err != nil || other.Digest(json.RawMessage(`"a"`)) == d.Digest(json.RawMessage(`"a"`)) {
		t.Error("the digest does not depend on the secret", err)
	}
}

func TestRestore(t *testing.T) {
	s := set(t, "$.key", "$.other")
	real := json.RawMessage(`{"key":"s3cret","text":"hello"}`)
	shown, _ := s.Redact("wifi.set", real)
	digest := digester(t).Digest(json.RawMessage(`"s3cret"`))
	got, ok := s.Restore("wifi.set", json.RawMessage(`{"text":"bye","key":"`+digest+`"}`), real)
	if !ok || string(got) != `{"key":"s3cret","text":"bye"}` {
		t.Errorf("restored %s, %v", got, ok)
	}
	for _, moved := range []string{`{"text":"` + digest + `"}`, `{"key":"` + digest + `","text":"` + digest + `"}`,
		`{"key":"hmac-sha256:00000000000000000000000000000000"}`, `{"key":["` + digest + `"]}`} {
		if got, ok := s.Restore("wifi.set", json.RawMessage(moved), real); ok {
			t.Errorf("%s became %s", moved, got)
		}
	}
	if got, ok := s.Restore("audio.set", shown, real); ok {
		t.Errorf("another tool gets %s", got)
	}
	if got := redaction.Without(shown); string(got) != `{"text":"hello"}` {
		t.Errorf("without digests: %s", got)
	}
}

func TestParsePath(t *testing.T) {
	for text, want := range map[string]string{"$": "$", "$.a.b": "$.a.b", "$['a']": "$.a", "$['a b'][0][*]": "$['a b'][0][*]",
		"$.*..key": "$[*]..key", "$.密码": "$.密码"} {
		p, err := redaction.ParsePath(text)
		if err != nil || p.String() != want {
			t.Errorf("%s: %s, %v; want %s", text, p, err, want)
		}
	}
	for _, text := range []string{"", "a", ".a", "$a", "$.", "$..", "$[", "$[-1]", "$[01]", "$[10000]", "$[a]", "$['']", "$['a]",
		"$.a b", "$.a\n", "$...a", "$[?(@.a)]", "$.a[1:2]", "$" + strings.Repeat(".a", 17), "$." + strings.Repeat("a", 200)} {
		_, err := redaction.ParsePath(text)
		if e, ok := errors.AsType[*fleet.Error](err); !ok || e.Code != "invalid_redaction_path" || e.Field != "path" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	for _, text := range []string{"$", "$.a..b[3][*]", "$['x y']", "$[", "$.."} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := redaction.ParsePath(text)
		if err != nil {
			return
		}
		again, err := redaction.ParsePath(p.String())
		if err != nil || again.String() != p.String() {
			t.Errorf("%q is written %q, which is read as %v, %v", text, p, again, err)
		}
	})
}

// A value at a path never remains, whatever the arguments are.
func FuzzRedact(f *testing.F) {
	for _, text := range []string{`{"key":"x"}`, `[{"key":{"a":[1]}}]`, `{"a":{"KEY":null}}`, `{`, ` 7 `, `{"k\u0065y":1}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := set(t, "$..key")
		shown, digests := s.Redact("wifi.set", json.RawMessage(text))
		var v any
		if json.Unmarshal([]byte(text), &v) == nil && !json.Valid(shown) {
			t.Fatalf("%q became %q", text, shown)
		}
		if json.Unmarshal(shown, &v) != nil {
			if len(text) > 0 {
				t.Fatalf("%q became %q", text, shown)
			}
			return
		}
		found := 0
		count(t, v, &found)
		if found > 0 && len(digests) == 0 {
			t.Errorf("%q: no digests", text)
		}
	})
}

// count fails the test for an open value under the name key.
func count(t *testing.T, v any, found *int) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			count(t, item, found)
		}
	case map[string]any:
		for name, value := range v {
			if strings.EqualFold(name, "key") {
				*found++
				if _, ok := redaction.ParseDigest(fmt.Sprint(value)); !ok {
					t.Errorf("%s has the value %v", name, value)
				}
				continue
			}
			count(t, value, found)
		}
	}
}
