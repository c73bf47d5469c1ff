package mcp

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"fleetd/internal/jsonscan"
)

// FuzzClean compares the cleaning of text with what PostgreSQL accepts.
func FuzzClean(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0.5e+3,true,false,null,"x\u00e9\ud83d\ude00\n"]}`, ` [ ] `, `{"a" : {} , "b":[[]]}`, `01`, `-`, `1.`, `1e`,
		`"\x"`, `"\u12g4"`, "\"a\nb\"", "\"\xff\"", `"\ud800"`, `tru`, `{"a":1,}`, `[1,]`, `{1:2}`, `"a" "b"`, "", "1e999",
		strings.Repeat("[", 40),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if jsonscan.Check(data, jsonscan.MaxDepth) == nil {
			checkCleaned(t, data)
		}
	})
}

func checkCleaned(t *testing.T, data []byte) {
	t.Helper()
	out, ok := appendClean(nil, data)
	if !ok {
		return
	}
	if !json.Valid(out) || !utf8.Valid(out) || strings.Contains(string(out), `\u0000`) {
		t.Errorf("appendClean(%q) = %q", data, out)
	}
	again, ok := appendClean(nil, out)
	if !ok || string(again) != string(out) {
		t.Errorf("appendClean(%q) = %q, cleaned again %q", data, out, again)
	}
}

func TestCleanText(t *testing.T) {
	tests := []struct {
		name, lit  string
		limit      int
		text, line string
	}{
		{"plain", `"self.a"`, 100, "self.a", "self.a"},
		{"escapes", `"a\"\\\/\u00e9\ud83d\ude00"`, 100, `a"\/é😀`, `a"\/é😀`},
		{"lines", `"a\n\tb\r"`, 100, "a\n\tb\r", "ab"},
		{"controls", `"a\u0000\u001b[31m\u007f\u0085\bb"`, 100, "a[31mb", "a[31mb"},
		{"direction", `"a\u202eb\u2066c\u2028"`, 100, "a\u202eb\u2066c\u2028", "abc"},
		{"lone surrogate", `"\ud800x\udc00"`, 100, "\ufffdx\ufffd", "\ufffdx\ufffd"},
		{"broken UTF-8", "\"a\xffb\xe7\"", 100, "a\ufffdb\ufffd", "a\ufffdb\ufffd"},
		{"cut between characters", `"灯光"`, 4, "灯", "灯"},
		{"cut", `"abcdef"`, 3, "abc", "abc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := cleanText([]byte(tt.lit), tt.limit); got != tt.text {
				t.Errorf("cleanText = %q, want %q", got, tt.text)
			}
			if got := cleanLine([]byte(tt.lit), tt.limit); got != tt.line {
				t.Errorf("cleanLine = %q, want %q", got, tt.line)
			}
		})
	}
}

// Encoding and decoding are inverse, except for the characters that cleaning
// drops.
func FuzzString(f *testing.F) {
	f.Add("a\"\\\n\x00\xff<>&灯\u2028")
	f.Fuzz(func(t *testing.T, s string) {
		lit := appendString(nil, s)
		var decoded string
		if err := json.Unmarshal(lit, &decoded); err != nil || decoded != strings.ToValidUTF8(decoded, "") {
			t.Fatalf("appendString(%q) = %s: %v", s, lit, err)
		}
		if all := clean(lit[1:len(lit)-1], unlimited, func(rune) bool { return true }); all != decoded {
			t.Errorf("clean(%s) = %q, encoding/json reads %q", lit, all, decoded)
		}
		if text := cleanText(lit, unlimited); strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			t.Errorf("cleanText(%s) = %q", lit, text)
		}
	})
}
