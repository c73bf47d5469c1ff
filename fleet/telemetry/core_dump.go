package telemetry

import (
	"bytes"
	"context"
	"encoding/binary"
	"regexp"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// MaxCoreDumpBytes bounds an upload; the partition of the included firmware has 64 KiB.
const MaxCoreDumpBytes = 1 << 20

// A CoreDump is the core dump that a crash left in a device's flash, uploaded for a call of
// [fleet.ToolCoreDumpUpload]. The bytes are in the blob store. They are a piece of the device's
// memory and may contain keys and passwords.
type CoreDump struct {
	ID          uuid.UUID
	Device      fleet.DeviceID
	Call        uuid.UUID
	Blob        string // SHA-256, hex
	Size        int64
	Summary     string      // text of the device: task, program counter, backtrace
	ELFSHA256   string      // of the crashed build, possibly only a prefix: identifies the symbols to decode it with
	Version     string      // of that build; "" if unknown
	BuildFrom   BuildSource // how the build was determined
	ResetReason string      // of the restart that followed, as the device reported it; "" if it did not
	Boots       int64       // the device's count of starts when the dump was fetched; 0 if unknown
	CreatedAt   time.Time
}

// FileName is the name of the core dump as a file: device and time, both from
// fleetd and not from the upload.
func (c CoreDump) FileName() string {
	return "coredump-" + string(c.Device) + "-" + c.CreatedAt.UTC().Format("20060102T150405Z") + ".bin"
}

// A BuildSource is the way in which the crashed build was determined.
type BuildSource string

const (
	BuildUnknown  BuildSource = ""
	BuildFromDump BuildSource = "core_dump" // the core dump itself names it
	// the build that the device ran at the time of the fetch: another one after a rollback
	BuildFromDevice BuildSource = "device"
)

// CoreDumpStore stores the metadata of core dumps.
type CoreDumpStore interface {
	// CreateCoreDump stores a core dump. It returns [fleet.ErrConflict] if the device has
	// already sent the same bytes since its start.
	CreateCoreDump(ctx context.Context, c CoreDump) error
	CoreDump(ctx context.Context, id uuid.UUID) (CoreDump, error)
	CoreDumps(ctx context.Context, device fleet.DeviceID, limit int) ([]CoreDump, error) // newest first
	// DeleteCoreDump deletes a core dump, with an audit entry. unused reports that no record
	// references its blob any more.
	DeleteCoreDump(ctx context.Context, by fleet.Principal, id uuid.UUID) (unused bool, err error)
	// DeleteCoreDumpsBefore deletes the core dumps from before the given time, and returns the
	// blobs that no record references any more.
	DeleteCoreDumpsBefore(ctx context.Context, before time.Time) (deleted int, unused []string, err error)
	// BuildsOf returns up to limit builds of known images whose hash begins with prefix.
	BuildsOf(ctx context.Context, prefix string, limit int) ([]string, error)
}

// ESP-IDF writes a note with the build into core dumps in the ELF format: size of the name,
// size of the content, type, the name, then a version and the hash of the program as text
// (components/espcoredump). The length of the hash depends on CONFIG_APP_RETRIEVE_LEN_ELF_SHA.
const (
	buildNoteName = "ESP_CORE_DUMP_INFO\x00"
	buildNoteType = 8266
	buildNoteSkip = 20 + 4 // the name, padded, and the version
)

var buildPattern = regexp.MustCompile(`^[0-9a-f]{8,64}`)

// buildInDump returns the hash of the program that left the core dump, or a prefix of the hash;
// "" if the dump contains no build.
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
