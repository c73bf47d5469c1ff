package jsonscan

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// FuzzScanner compares the scanner with encoding/json.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0.5e+3,true,false,null,"x\u00e9\ud83d\ude00\n"]}`, ` [ ] `, `{"a" : {} , "b":[[]]}`, `01`, `-`, `1.`, `1e`,
		`"\x"`, `"\u12g4"`, "\"a\nb\"", "\"\xff\"", `"\ud800"`, `tru`, `{"a":1,}`, `[1,]`, `{1:2}`, `"a" "b"`, "", "1e999",
		strings.Repeat("[", 40),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		err := Check(data, MaxDepth)
		if errors.Is(err, ErrDepth) {
			return
		}
		if (err == nil) != json.Valid(data) {
			t.Fatalf("Check(%q) = %v, encoding/json says valid: %t", data, err, err != nil)
		}
	})
}

// FuzzPlainMembers compares what PlainMembers returns with encoding/json.
func FuzzPlainMembers(f *testing.F) {
	for _, seed := range []string{`{}`, ` { "a" : 1 , "b":{"a":[1,"}"]} } `, `{"a":1,"a":2}`, `{"\u0061":1}`, `{"é":1}`,
		`[]`, `{"a":1} x`, `{"a":1,}`, `{"":null,"a":"x\n"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got := map[string]json.RawMessage{}
		if !PlainMembers(data, func(key, value []byte) bool {
			got[string(key)] = value
			if text, ok := PlainString(value); ok {
				var want string
				if json.Unmarshal(value, &want) != nil || want != string(text) {
					t.Errorf("PlainString(%q) = %q, want %q", value, text, want)
				}
			}
			return true
		}) {
			return
		}
		want := map[string]json.RawMessage{}
		if err := json.Unmarshal(data, &want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is read as %q, want %q (%v)", data, got, want, err)
		}
	})
}

func TestPlainMembers(t *testing.T) {
	many := func(n int) string {
		return "{" + strings.TrimSuffix(strings.Repeat(`"x":1,`, n), ",") + "}"
	}
	distinct := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(`,"k` + string(rune('a'+i)) + `":1`)
		}
		return "{" + strings.TrimPrefix(b.String(), ",") + "}"
	}
	for text, want := range map[string]bool{`{}`: true, `{"a":1}`: true, many(2): false, distinct(maxPlain): true,
		distinct(maxPlain + 1): false, `{"\u0061":1}`: false, `{"é":1}`: false, `[]`: false, ``: false, `{"a":1}1`: false,
		`{"a":tru}`: false, `{"refused":1}`: false} {
		if got := PlainMembers([]byte(text), func(key, _ []byte) bool { return string(key) != "refused" }); got != want {
			t.Errorf("PlainMembers(%s) = %t", text, got)
		}
	}
}

func TestDepth(t *testing.T) {
	nested := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	if err := Check(nested(MaxDepth), MaxDepth); err != nil {
		t.Errorf("%d levels: %v", MaxDepth, err)
	}
	for _, n := range []int{MaxDepth + 1, 100_000} {
		if err := Check(nested(n), MaxDepth); !errors.Is(err, ErrDepth) {
			t.Errorf("%d levels: %v, want ErrDepth", n, err)
		}
	}
}
