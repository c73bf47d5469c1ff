package jobs

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/riverqueue/river"

	"fleetd/fleet/postgres"
)

// upkeep is the hourly job. It has no arguments: its work follows from the time and the options.
type upkeep struct{}

func (upkeep) Kind() string { return "upkeep" }

// An upkeeper does the hourly job.
type upkeeper struct {
	river.WorkerDefaults[upkeep]
	store     *postgres.Store
	retention postgres.Retention
	begun     time.Time
	log       *slog.Logger
}

// settled is how long after its start fleetd knows which devices are still there.
const settled = 10 * time.Minute

// Timeout allows for the removal of millions of rows.
func (u *upkeeper) Timeout(*river.Job[upkeep]) time.Duration { return 30 * time.Minute }

// Work creates partitions first: a month without a partition is worse than one kept too long.
func (u *upkeeper) Work(ctx context.Context, _ *river.Job[upkeep]) error {
	now := time.Now().UTC()
	made, err := u.store.EnsurePartitions(ctx, now)
	if err != nil {
		return fmt.Errorf("upkeep: %w", err)
	}
	if now.Sub(u.begun) >= settled {
		if err := u.store.FrameFleet(ctx, now); err != nil {
			return fmt.Errorf("upkeep: %w", err)
		}
	}
	removed, err := u.store.Retain(ctx, u.retention, now)
	if err != nil {
		return fmt.Errorf("upkeep: %w", err)
	}
	days, err := u.store.RollUpVitals(ctx, now)
	if err != nil {
		return fmt.Errorf("upkeep: %w", err)
	}
	if err := u.store.DeleteExpired(ctx, now); err != nil {
		return fmt.Errorf("upkeep: %w", err)
	}
	if made > 0 || removed > 0 || days > 0 {
		u.log.Info("database tidied", "partitions_made", made, "removed", removed, "vitals_days_rolled_up", days)
	}
	return nil
}
