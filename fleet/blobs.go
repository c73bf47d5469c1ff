package fleet

import (
	"context"
	"io"
	"time"
)

// BlobFiles stores files that are too large for memory, by their SHA-256.
type BlobFiles interface {
	// PutFile stores size bytes of r and returns their SHA-256 as the key.
	PutFile(ctx context.Context, r io.Reader, size int64) (key string, err error)
	// OpenRange reads length bytes from offset on; length < 0 reads to the end. It returns
	// [ErrNotFound] if there is no such blob.
	OpenRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	// DeleteFile deletes a blob. Deleting a missing blob is not an error.
	DeleteFile(ctx context.Context, key string) error
}

// Blobs stores bytes by their SHA-256.
type Blobs interface {
	Put(ctx context.Context, data []byte) (key string, err error)
	Get(ctx context.Context, key string) ([]byte, error)
}

// A BlobAddress lets another process read a blob without credentials, for a limited time. It is a
// secret.
type BlobAddress struct {
	URL  string // "" if blobs have no addresses
	ETag string // of the object that was found intact, without quotes: the reader must refuse another one
}

// BlobAddresses makes addresses of blobs.
type BlobAddresses interface {
	// Address returns an address of a blob, or [ErrNotFound] if there is no such blob.
	Address(ctx context.Context, key string, life time.Duration) (BlobAddress, error)
}
