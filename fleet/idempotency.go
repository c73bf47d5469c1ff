package fleet

import "context"

// A SavedResponse is the response to the first request with an idempotency key.
type SavedResponse struct {
	Status int
	Body   []byte
}

// IdempotencyStore records requests that change something, so that a repeated request gets
// the saved response and changes nothing.
type IdempotencyStore interface {
	// BeginIdempotent claims a key for an actor. For the first request with the key it
	// returns nil; the caller must then call SaveIdempotent or, if the request changed
	// nothing, AbandonIdempotent. For a repeated request it returns the saved response. It
	// returns [ErrConflict] while the first request is in progress (request_in_progress), if the
	// process that handled it ended first (request_interrupted), and for another request with the
	// same key (idempotency_key_reused).
	BeginIdempotent(ctx context.Context, actor, key string, requestHash []byte) (*SavedResponse, error)
	SaveIdempotent(ctx context.Context, actor, key string, r SavedResponse) error
	AbandonIdempotent(ctx context.Context, actor, key string) error
}
