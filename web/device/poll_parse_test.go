package device

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// stockBodies are the bodies of the protocol's polls that parse and contain a network name.
func stockBodies(t testing.TB) (bodies []string) {
	t.Helper()
	var file struct{ Requests []struct{ Body string } }
	text, err := os.ReadFile("testdata/ota_check.json")
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	for _, r := range file.Requests {
		if json.Valid([]byte(r.Body)) && strings.Contains(r.Body, `"ssid":"lab"`) &&
			strings.Contains(r.Body, "partition_table") {
			bodies = append(bodies, r.Body)
		}
	}
	if err != nil || len(bodies) < 3 {
		t.Fatalf("%d bodies: %v", len(bodies), err)
	}
	return bodies
}

// hostileSSIDs are at most 32 bytes, the limit of Wi-Fi.
var hostileSSIDs = []struct {
	name, ssid string
	whole      bool // the body parses nevertheless
}{
	{"quote", `Bob"s net`, false},
	{"two quotes", `"`, false},
	{"only quotes", strings.Repeat(`"`, 32), false},
	{"backslash at the end", `net\`, false},
	{"backslash", `a\b`, true},
	{"bad escape", `a\x`, false},
	{"escaped quote", `a\"b`, true},
	{"NUL", "a\x00b", false},
	{"line feed", "a\nb", false},
	{"broken UTF-8", "a\xff\xfe\xc0b", true},
	{"half a character", "\xe5\xae", true},
	{"another version", `"},"application":{"version":"9`, false},
	{"another chip", `"},"chip_model_name":"esp32","x`, false},
	{"another chip, broken", `"},"chip_model_name":"esp32"`, false},
	{"another build type", `","type":"evil`, false},
	{"another board name", `","name":"evil","x":"`, false},
	{"another table", `"},"partition_table":[],"b":{"`, false},
	{"another slot", `"},"ota":{"label":"ota_9`, false},
	{"another mac", `"},"mac_address":"evil`, false},
	{"the end", `"}}`, false},
	{"the end and more", `"}}{"chip_model_name":"esp32"}`, false},
	{"a member of its own", `","rssi2":"0`, true},
}

func TestHostileNetworkNames(t *testing.T) {
	type known struct {
		Chip, Version, ELF, Slot, Board, BoardType, MAC, IDF string
		Layout                                               *fleet.FlashLayout
	}
	read := func(body string) (enrolment.BootPoll, known) {
		r := &http.Request{Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
		p := readPoll(r, "a085e3112233", "192.0.2.1", time.Now())
		return p, known{p.Chip, p.Version, p.ELFSHA256, p.Slot, p.Board, p.BoardType, p.BodyMAC, p.IDFVersion, p.Layout}
	}
	for _, body := range stockBodies(t) {
		_, want := read(body)
		for _, tt := range hostileSSIDs {
			if len(tt.ssid) > 32 {
				t.Fatalf("%s: %d bytes are no network's name", tt.name, len(tt.ssid))
			}
			p, got := read(strings.Replace(body, `"ssid":"lab"`, `"ssid":"`+tt.ssid+`"`, 1))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
			if p.Broken == tt.whole {
				t.Errorf("%s: broken is %v", tt.name, p.Broken)
			}
			if strings.Contains(string(p.Facts), "ssid") != tt.whole || strings.Contains(string(p.Facts), "evil") {
				t.Errorf("%s: kept %s", tt.name, p.Facts)
			}
			if all := len(p.Salvaged) == 6; all == tt.whole {
				t.Errorf("%s: salvaged %v", tt.name, p.Salvaged)
			}
		}
	}
}

func TestSalvage(t *testing.T) {
	const build = `"application":{"version":"2.4.2","elf_sha256":"9f2c4d6b"}`
	tests := []struct {
		name, body string
		want       facts
	}{
		{"nothing", ``, nil},
		{"no object", `["a"`, nil},
		{"cut in the first member", `{"a":`, nil},
		{"cut in a number", `{"a":1,"flash_size":167`, facts{"a": json.Number("1")}},
		{"cut behind a number", `{"flash_size":167}x`, facts{"flash_size": json.Number("167")}},
		{"cut in an object", `{"a":1,"application":{"version":"2.4.2","elf_`, facts{"a": json.Number("1")}},
		{"cut in the table", `{"a":true,"partition_table":[{"label":"ota_0"},{"la`, facts{"a": true}},
		{"text followed by text", `{"a":"x"y","b":1}`, nil},
		{"repeated member", `{"a":1,"a":2,"b":3}`, facts{"a": json.Number("1")}},
		{"repeated inside", `{"a":1,"b":{"x":1,"x":2},"c":3}`, facts{"a": json.Number("1")}},
		{"behind the board", `{"board":{"type":"t","name":"n","ssid":"a"b"},` + build + `}`,
			facts{"board": map[string]any{"type": "t", "name": "n"}}},
		{"board that begins with the network", `{"a":1,"board":{"ssid":"x","type":"evil"y"}}`, facts{"a": json.Number("1")}},
		{"board that repeats a name", `{"a":1,"board":{"type":"t","type":"evil"}}`,
			facts{"a": json.Number("1"), "board": map[string]any{"type": "t"}}},
		{"board that is text", `{"a":1,"board":"x"y"}`, facts{"a": json.Number("1")}},
	}
	for _, tt := range tests {
		got, ok := parseBody([]byte(tt.body))
		if ok {
			t.Errorf("%s: was read in full", tt.name)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// A body that parses gives the same result as encoding/json. The members salvaged from a text are a
// part of every text with the same beginning.
func FuzzParseBody(f *testing.F) {
	for _, body := range stockBodies(f) {
		f.Add([]byte(body), 0)
		for _, tt := range hostileSSIDs {
			f.Add([]byte(strings.Replace(body, `"ssid":"lab"`, `"ssid":"`+tt.ssid+`"`, 1)), len(body)/2)
		}
	}
	for _, text := range []string{`{"a":-0.5e+10,"b":[],"c":[[{}]],"d":null}`, `{"a":01}`,
		`{"a":"\ud800"}`, `{} x`, `{"a":1,"A":2}`} {
		f.Add([]byte(text), 3)
	}
	f.Fuzz(func(t *testing.T, raw []byte, cut int) {
		got, ok := parseBody(raw)
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		var want map[string]any
		valid := json.Valid(raw) && d.Decode(&want) == nil && want != nil
		if ok && (!valid || !reflect.DeepEqual(jsonOf(t, got), jsonOf(t, want))) {
			t.Fatalf("read %s as %v, encoding/json as %v", raw, got, want)
		}
		if !ok && valid && !repeats(raw) {
			t.Fatalf("did not read %s", raw)
		}
		if !ok || len(raw) == 0 {
			return
		}
		part, whole := parseBody(raw[:max(0, min(cut, len(raw)-1))])
		for key, v := range part {
			if key == "board" {
				board, _ := got[key].(map[string]any)
				for k, name := range v.(map[string]any) {
					if board[k] != name {
						t.Fatalf("salvaged board %v of %s", v, raw)
					}
				}
				continue
			}
			if !whole && !reflect.DeepEqual(jsonOf(t, v), jsonOf(t, got[key])) {
				t.Fatalf("salvaged %s = %v of %s cut at %d", key, v, raw, cut)
			}
		}
	})
}

// jsonOf removes the difference between nil and empty arrays.
func jsonOf(t *testing.T, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "null", "[]")
}

// repeats reports whether an object in valid JSON repeats a member, or nests too deeply to be read.
func repeats(raw []byte) bool {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var walk func(depth int) bool
	walk = func(depth int) bool {
		tok, err := d.Token()
		if err != nil || depth > maxNesting {
			return true // not valid JSON, or too deep
		}
		delim, _ := tok.(json.Delim)
		if delim != '{' && delim != '[' {
			return false
		}
		seen := make(map[any]bool)
		for d.More() {
			if delim == '{' {
				key, err := d.Token()
				if err != nil || seen[key] {
					return true
				}
				seen[key] = true
			}
			if walk(depth + 1) {
				return true
			}
		}
		_, _ = d.Token()
		return false
	}
	return walk(0)
}

func BenchmarkReadFacts(b *testing.B) {
	body := stockBodies(b)[0]
	for b.Loop() {
		if _, _, whole := readFacts(strings.NewReader(body)); !whole {
			b.Fatal("not read")
		}
	}
}
