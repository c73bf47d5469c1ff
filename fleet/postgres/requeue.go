package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// EndWaiting changes all pending and queued deployments of a campaign to a final state, with one
// event each, and returns their number. untriedOnly excludes deployments that were dispatched
// before and wait for another attempt.
func (s *Store) EndWaiting(ctx context.Context, campaign uuid.UUID, to campaign.DeploymentState,
	kind fleet.EvidenceKind, reason fleet.Reason, at time.Time, untriedOnly bool) (int, error) {
	var n int
	err := again(func() error {
		return s.db.QueryRow(ctx, endWaiting, campaign, string(to), string(kind), cleanText(reason.Code), at, untriedOnly,
			reasonParams(reason)).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("end the waiting deployments of campaign %s: %w", campaign, domainError(err))
	}
	return n, nil
}

var endWaiting = `
	WITH waiting AS MATERIALIZED (
		SELECT id, state FROM deployments
		WHERE campaign_id = $1 AND state IN ('pending', 'queued') AND (attempt = 0 OR NOT $6) ORDER BY id FOR UPDATE),
	ended AS (
		UPDATE deployments d SET revision = revision + 1, state = $2, reason_code = $4, reason_params = $7::jsonb,
			updated_at = $5, finished_at = $5,
			not_before = NULL, deadline = NULL
		FROM waiting w WHERE d.id = w.id
		RETURNING d.id, d.attempt, w.state AS was),
	noted AS (
		INSERT INTO deployment_events (deployment_id, id, at, attempt, kind, from_state, to_state, reason_code, reason_params)
		SELECT id, gen_random_uuid(), $5, attempt, $3, was, $2, $4, $7::jsonb FROM ended
		RETURNING *),
	sealed AS (` + queueRows(stepLeaf, "noted") + `)
	SELECT count(*) FROM ended`

// Requeue sets final deployments of a campaign back to queued, for a retry. Without states it
// covers all failures, without devices all devices. Attempts keep their numbers, failures are
// counted from zero. Deployments that succeeded or were skipped at planning are not changed.
func (s *Store) Requeue(ctx context.Context, by fleet.Principal, campaign uuid.UUID, states []campaign.DeploymentState,
	devices []fleet.DeviceID, at time.Time) (n int, err error) {
	from := texts(states)
	if len(from) == 0 {
		from = failedStates
	}
	change := func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, requeue, campaign, from, texts(devices), at, cleanText(by.Name)).Scan(&n)
		if err != nil || n == 0 {
			return err
		}
		return writeAudit(ctx, tx, by, "campaign.retry", campaign.String(), map[string]any{"states": from, "devices": n})
	}
	err = again(func() error { return pgx.BeginFunc(ctx, s.db, change) })
	if err != nil {
		return 0, fmt.Errorf("retry deployments of campaign %s: %w", campaign, domainError(err))
	}
	return n, nil
}

var requeue = `
	WITH final AS MATERIALIZED (
		SELECT id, state FROM deployments
		WHERE campaign_id = $1 AND state = ANY ($2) AND finished_at IS NOT NULL AND state <> 'succeeded'
			AND wave >= 0 AND image IS NOT NULL
			AND (cardinality($3::text[]) = 0 OR device_id = ANY ($3)) ORDER BY id FOR UPDATE),
	queued AS (
		UPDATE deployments d SET revision = revision + 1, state = 'queued', skip = '', class = '', reason_code = '',
			reason_params = NULL,
			late = false, failures = 0,
			bytes_sent = 0, reconnects = 0, away = false, checked = false, probed = false, booted = false,
				not_before = NULL, deadline = NULL,
			sent_at = NULL, get_at = NULL, finished_at = NULL, updated_at = $4
		FROM final f WHERE d.id = f.id
		RETURNING d.id, d.attempt, f.state AS was),
	noted AS (
		INSERT INTO deployment_events (deployment_id, id, at, attempt, kind, from_state, to_state, reason_code, reason_params)
		SELECT id, gen_random_uuid(), $4, attempt, 'retry', was, 'queued', 'retry_asked', jsonb_build_object('name', $5::text)
		FROM queued
		RETURNING *),
	sealed AS (` + queueRows(stepLeaf, "noted") + `)
	SELECT count(*) FROM queued`
