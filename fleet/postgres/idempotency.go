package postgres

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"fleetd/fleet"
)

var _ fleet.IdempotencyStore = (*Store)(nil)

// BeginIdempotent claims a key for an actor. For the first request with the key it returns nil:
// the caller must then call SaveIdempotent or, if nothing was done, AbandonIdempotent. For a
// repetition it returns the saved response. While the first request is running, if its process ended
// before it answered, and for a different request with the same key, it returns [fleet.ErrConflict].
func (s *Store) BeginIdempotent(ctx context.Context, actor, key string, requestHash []byte) (*fleet.SavedResponse,
	error) {
	tag, err := s.db.Exec(ctx, `
		INSERT INTO idempotency_keys (actor, key, request_hash, created_at) VALUES ($1, $2, $3, $4)
		ON CONFLICT DO NOTHING`, cleanText(actor), cleanText(key), requestHash, time.Now())
	if err != nil {
		return nil, fmt.Errorf("idempotency key: %w", domainError(err))
	}
	if tag.RowsAffected() == 1 {
		return nil, nil
	}
	return s.savedResponse(ctx, actor, key, requestHash)
}

func (s *Store) savedResponse(ctx context.Context, actor, key string, requestHash []byte) (*fleet.SavedResponse,
	error) {
	var hash, body []byte
	var status *int
	err := s.db.QueryRow(ctx, `SELECT request_hash, status, body FROM idempotency_keys WHERE actor = $1 AND key = $2`,
		cleanText(actor), cleanText(key)).Scan(&hash, &status, &body)
	switch {
	case isNotFound(domainError(err)):
		return nil, fleet.Refuse(fleet.ErrConflict, "request_in_progress.ended")
	case err != nil:
		return nil, fmt.Errorf("idempotency key: %w", domainError(err))
	case !bytes.Equal(hash, requestHash):
		return nil, fleet.Refuse(fleet.ErrConflict, "idempotency_key_reused")
	case status == nil:
		return nil, fleet.Refuse(fleet.ErrConflict, "request_in_progress.open")
	case *status == interrupted:
		return nil, fleet.Refuse(fleet.ErrConflict, "request_interrupted")
	}
	return &fleet.SavedResponse{Status: *status, Body: body}, nil
}

// interrupted is the status of a request whose process ended before it answered.
const interrupted = 0

// InterruptIdempotent marks the requests that an earlier process did not answer. Its sessions have
// ended ([Leases.Open]), so it cannot answer them any more. The latest one bounds the search, because
// no request takes an hour.
func (s *Store) InterruptIdempotent(ctx context.Context) (n int64, err error) {
	tag, err := s.db.Exec(ctx, `
		UPDATE idempotency_keys SET status = $1
		WHERE status IS NULL AND created_at >= (SELECT max(created_at) FROM idempotency_keys) - interval '1 hour'`,
		interrupted)
	if err != nil {
		return 0, fmt.Errorf("idempotency keys: %w", domainError(err))
	}
	return tag.RowsAffected(), nil
}

// SaveIdempotent stores the response to the first request with a key.
func (s *Store) SaveIdempotent(ctx context.Context, actor, key string, r fleet.SavedResponse) error {
	err := changeOne(ctx, s.db, `UPDATE idempotency_keys SET status = $3, body = $4 WHERE actor = $1 AND key = $2`,
		cleanText(actor), cleanText(key), r.Status, r.Body)
	if err != nil {
		return fmt.Errorf("idempotency key: %w", domainError(err))
	}
	return nil
}

// AbandonIdempotent releases a key whose request had no effect.
func (s *Store) AbandonIdempotent(ctx context.Context, actor, key string) error {
	_, err := s.db.Exec(ctx, `DELETE FROM idempotency_keys WHERE actor = $1 AND key = $2 AND status IS NULL`,
		cleanText(actor), cleanText(key))
	if err != nil {
		return fmt.Errorf("idempotency key: %w", domainError(err))
	}
	return nil
}
