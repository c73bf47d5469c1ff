package fleet

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// MaxCoreDumpBytes bounds an upload; the partition of the included firmware has 64 KiB.
const MaxCoreDumpBytes = 1 << 20

// A CoreDump is what a crash left in a device's flash, uploaded for a call of
// [ToolCoreDumpUpload]. The bytes are in the blob store.
type CoreDump struct {
	ID        uuid.UUID
	Device    DeviceID
	Call      uuid.UUID
	Blob      string // SHA-256, hex
	Size      int64
	Summary   string // the device's own words: task, program counter, backtrace
	ELFSHA256 string // of the build that crashed, as far as known: what to decode it with
	Version   string
	CreatedAt time.Time
}

// CoreDumpStore keeps what is known of core dumps.
type CoreDumpStore interface {
	CreateCoreDump(ctx context.Context, c CoreDump) error
	CoreDump(ctx context.Context, id uuid.UUID) (CoreDump, error)
	CoreDumps(ctx context.Context, device DeviceID, limit int) ([]CoreDump, error) // newest first
}
