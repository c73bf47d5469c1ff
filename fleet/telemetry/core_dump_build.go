package telemetry

import (
	"bytes"
	"encoding/binary"
	"regexp"
)

// ESP-IDF writes a note into core dumps in the ELF format that names the build:
// size of the name, size of the content, type, the name, then a version and the
// hash of the program as text (components/espcoredump). How much of the hash
// there is depends on CONFIG_APP_RETRIEVE_LEN_ELF_SHA.
const (
	buildNoteName = "ESP_CORE_DUMP_INFO\x00"
	buildNoteType = 8266
	buildNoteSkip = 20 + 4 // the name, padded, and the version
)

var buildPattern = regexp.MustCompile(`^[0-9a-f]{8,64}`)

// buildInDump returns the hash of the program that left the core dump, or the
// beginning of it; "" if the dump names none.
func buildInDump(data []byte) string {
	for at := 0; ; at++ {
		i := bytes.Index(data[at:], []byte(buildNoteName))
		if i < 0 {
			return ""
		}
		at += i
		if at < 4 || binary.LittleEndian.Uint32(data[at-4:]) != buildNoteType || len(data) < at+buildNoteSkip {
			continue // the name alone is in every program that can write it
		}
		if sum := buildPattern.Find(data[at+buildNoteSkip:]); sum != nil {
			return string(sum)
		}
	}
}
