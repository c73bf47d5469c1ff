package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"fleetd/fleet/webhook"
)

// webhookQueue is separate from the upkeep, which slow receivers must not delay.
const webhookQueue = "webhooks"

// deliveryAttempts last some two and a half hours: the pause after attempt n is n^4 seconds.
const deliveryAttempts = 8

// deliveryLasts is how long a delivery is put off for a receiver that gets too many requests; after
// that, each further one is an attempt.
const deliveryLasts = 3 * time.Hour

// A Deliverer posts to a webhook. An error requests another attempt, a
// [webhook.RetryLater] one after a time.
type Deliverer interface {
	Deliver(ctx context.Context, j webhook.Job) error
}

// delivery is one event for one webhook.
type delivery struct{ webhook.Job }

func (delivery) Kind() string { return "webhook" }

type deliveryWorker struct {
	river.WorkerDefaults[delivery]
	to Deliverer
}

// Timeout is longer than the deliverer's own.
func (w *deliveryWorker) Timeout(*river.Job[delivery]) time.Duration { return 30 * time.Second }

func (w *deliveryWorker) Work(ctx context.Context, j *river.Job[delivery]) error {
	err := w.to.Deliver(ctx, j.Args.Job)
	var later *webhook.RetryLater
	if errors.As(err, &later) && time.Since(j.CreatedAt) < deliveryLasts {
		return river.JobSnooze(later.After) // is not an attempt
	}
	return err
}

// enqueue adds deliveries in the transaction of the change that they report.
func (j *Jobs) enqueue(ctx context.Context, tx pgx.Tx, jobs []webhook.Job) error {
	var all []river.InsertManyParams
	for _, job := range jobs {
		all = append(all, river.InsertManyParams{Args: delivery{job},
			InsertOpts: &river.InsertOpts{Queue: webhookQueue, MaxAttempts: deliveryAttempts}})
	}
	_, err := j.client.InsertManyFastTx(ctx, tx, all)
	return err
}
