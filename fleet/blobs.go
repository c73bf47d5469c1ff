package fleet

import (
	"context"
	"io"
)

// BlobFiles keeps files too large for memory by their SHA-256.
type BlobFiles interface {
	// PutFile stores size bytes of r. The key is the SHA-256 of what it read.
	PutFile(ctx context.Context, r io.Reader, size int64) (key string, err error)
	// OpenRange reads length bytes from offset on; length < 0 reads to the end.
	// [ErrNotFound] if there is no such blob.
	OpenRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	// DeleteFile forgets a blob; one that is not there is no error.
	DeleteFile(ctx context.Context, key string) error
}

// Blobs keeps bytes by their SHA-256.
type Blobs interface {
	Put(ctx context.Context, data []byte) (key string, err error)
	Get(ctx context.Context, key string) ([]byte, error)
}
