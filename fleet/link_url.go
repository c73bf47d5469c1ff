package fleet

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// LinkPurpose says what a one-time link is for.
type LinkPurpose string

const (
	LinkUpload   LinkPurpose = "upload"    // the device posts a picture: POST /u/{token}
	LinkCoreDump LinkPurpose = "core_dump" // the device posts a core dump: POST /u/{token}
	LinkPreview  LinkPurpose = "preview"   // the device fetches a picture: GET /d/{token}/preview.jpg
)

// A URLLink is a one-time address handed to a device in a url argument, bound to
// the device and the call. Only the hash of its token is stored.
type URLLink struct {
	TokenHash []byte // SHA-256 of the token
	Purpose   LinkPurpose
	Device    DeviceID
	Call      uuid.UUID
	Blob      string // LinkPreview: key of the bytes to serve
	MediaType string
	ExpiresAt time.Time
}

// URLLinkStore keeps one-time links.
type URLLinkStore interface {
	CreateURLLink(ctx context.Context, l URLLink) error
	// UseURLLink marks the link used and returns it. ErrNotFound covers
	// unknown, used and expired links alike.
	UseURLLink(ctx context.Context, tokenHash []byte, purpose LinkPurpose, now time.Time) (URLLink, error)
	DeleteExpiredURLLinks(ctx context.Context, before time.Time) error
}

// A Snapshot is a picture a device uploaded for a call.
type Snapshot struct {
	ID            uuid.UUID
	Device        DeviceID
	Call          uuid.UUID
	Blob          string // SHA-256 of the bytes, hex
	MediaType     string // "image/jpeg" or "image/png", by content
	Width, Height int
	Size          int64
	CreatedAt     time.Time
}

// SnapshotStore keeps what is known of uploaded pictures; the bytes are in the
// blob store.
type SnapshotStore interface {
	CreateSnapshot(ctx context.Context, s Snapshot) error
	Snapshot(ctx context.Context, id uuid.UUID) (Snapshot, error)
	SnapshotOfCall(ctx context.Context, call uuid.UUID) (Snapshot, error)
	Snapshots(ctx context.Context, device DeviceID, limit int) ([]Snapshot, error) // newest first
}

// Blobs keeps bytes by their SHA-256.
type Blobs interface {
	Put(ctx context.Context, data []byte) (key string, err error)
	Get(ctx context.Context, key string) ([]byte, error)
}
