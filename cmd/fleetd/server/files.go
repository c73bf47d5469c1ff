package server

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"fleetd/fleet/blobs"
)

// openSweep returns the sweep of the blob store, nil if files stay for ever. The id marks the store as
// that of this database: see [blobs.SweeperOptions].
func (s *Server) openSweep(ctx context.Context, log *slog.Logger) (func(context.Context) error, error) {
	if s.cfg.BlobRetention == 0 {
		return nil, nil
	}
	id := uuid.NewString()
	if err := s.store.InitSetting(ctx, "blob_owner", &id); err != nil {
		return nil, err
	}
	s.files = blobs.NewSweeper(blobs.SweeperOptions{Store: s.blobs, Named: s.store.NamedBlobs, Database: id,
		Age: s.cfg.BlobRetention, Log: log})
	return func(ctx context.Context) error {
		_, err := s.files.Sweep(ctx)
		return err
	}, nil
}
