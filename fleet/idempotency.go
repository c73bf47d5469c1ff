package fleet

import "context"

// A SavedResponse is what the first request with an idempotency key was
// answered.
type SavedResponse struct {
	Status int
	Body   []byte
}

// IdempotencyStore remembers which requests that act were made, so that a
// repetition is answered and not acted on.
type IdempotencyStore interface {
	// BeginIdempotent claims a key for an actor. It returns nil for the first
	// request with the key, whose owner then owes SaveIdempotent or, if nothing
	// was done, AbandonIdempotent; and the saved response for a repetition. It
	// returns [ErrConflict] while the first is at work (request_in_progress), and
	// for another request under the same key (idempotency_key_reused).
	BeginIdempotent(ctx context.Context, actor, key string, requestHash []byte) (*SavedResponse, error)
	SaveIdempotent(ctx context.Context, actor, key string, r SavedResponse) error
	AbandonIdempotent(ctx context.Context, actor, key string) error
}
