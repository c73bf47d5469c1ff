package telemetry

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// buildNote returns the note as ESP-IDF writes it, with the bytes around it.
func buildNote(kind uint32, hash string) []byte {
	b := []byte("\x7fELF memory of a task")
	for _, n := range []uint32{20, 70, kind} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	b = append(b, "ESP_CORE_DUMP_INFO\x00\x00"...)
	b = binary.LittleEndian.AppendUint32(b, 0x90103)
	return append(append(b, hash...), make([]byte, 66-len(hash))...)
}

func TestBuildInDump(t *testing.T) {
	whole := strings.Repeat("9f", 32)
	tests := []struct {
		name string
		dump []byte
		want string
	}{
		{"whole hash", buildNote(8266, whole), whole},
		{"its beginning, as by default", buildNote(8266, "9f2c0a1b7"), "9f2c0a1b7"},
		{"no note", []byte("task main, SIGSEGV at 0x0"), ""},
		{"the name in the program's text", []byte("xESP_CORE_DUMP_INFO\x00 9f2c0a1b7"), ""},
		{"the name first, then the note", append([]byte("ESP_CORE_DUMP_INFO\x00"), buildNote(8266, whole)...), whole},
		{"another note", buildNote(677, whole), ""},
		{"cut off", buildNote(8266, whole)[:48], ""},
		{"no hash", buildNote(8266, "<script>"), ""},
		{"too little of it", buildNote(8266, "9f2c"), ""},
	}
	for _, tt := range tests {
		if got := buildInDump(tt.dump); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func FuzzBuildInDump(f *testing.F) {
	f.Add(buildNote(8266, strings.Repeat("ab", 32)))
	f.Add(bytes.Repeat([]byte(buildNoteName), 9))
	f.Fuzz(func(t *testing.T, dump []byte) {
		if got := buildInDump(dump); got != "" && (len(got) < 8 || len(got) > 64 || !bytes.Contains(dump, []byte(got))) {
			t.Errorf("%q", got)
		}
	})
}
