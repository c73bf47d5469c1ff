package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet/campaign"
)

// targetChunk bounds the deployments of one inserting statement.
const targetChunk = 5000

var targetFields = slices.Concat([]deploymentField{idField}, fixedFields, changeFields)

// Each new deployment begins with an event.
var insertDeployments = `
	WITH added AS (
		INSERT INTO deployments (campaign_id, ` + fieldNames(targetFields) + `)
		SELECT $1, ` + fieldNames(targetFields[:len(fixedFields)+3]) + `, baseline::json, ` + fieldNames(changeFields[3:]) + `
		FROM ` + unnest(targetFields, 2) + `
		ON CONFLICT (campaign_id, device_id) DO NOTHING
		RETURNING id, wave, state, skip, created_at),
	noted AS (
		INSERT INTO deployment_events (deployment_id, id, at, attempt, kind, from_state, to_state, reason_code, reason_params)
		SELECT id, gen_random_uuid(), created_at, 0, 'planned', state, state, CASE WHEN skip <> '' THEN 'skipped' ELSE '' END,
			CASE WHEN skip <> '' THEN jsonb_build_object('skip', skip) END
		FROM added)
	SELECT wave, state = 'skipped' AS skipped, count(*) AS count FROM added GROUP BY 1, 2`

// An addedTargets is the number of deployments added to a wave.
type addedTargets struct {
	Wave    int
	Skipped bool
	Count   int
}

// insertTargets adds deployments to a campaign. Devices that already have one in it are left out.
func insertTargets(ctx context.Context, tx pgx.Tx, campaign uuid.UUID, targets []campaign.Deployment) (
	added []addedTargets, total int, err error) {
	images := slices.Compact(slices.Sorted(func(yield func(string) bool) {
		for _, t := range targets {
			if t.Image != "" && !yield(cleanText(t.Image)) {
				return
			}
		}
	}))
	_, err = tx.Exec(ctx, `INSERT INTO campaign_images (campaign_id, image) SELECT $1, unnest($2::text[]) ON CONFLICT DO NOTHING`, campaign, images)
	if err != nil {
		return nil, 0, fmt.Errorf("images of the campaign: %w", err)
	}
	for chunk := range slices.Chunk(targets, targetChunk) {
		rows, _ := tx.Query(ctx, insertDeployments, append([]any{campaign}, fieldValues(targetFields,
			targetRows(chunk))...)...)
		counts, err := pgx.CollectRows(rows, pgx.RowToStructByName[addedTargets])
		if err != nil {
			return nil, 0, fmt.Errorf("deployments: %w", err)
		}
		for _, c := range counts {
			total += c.Count
		}
		added = append(added, counts...)
	}
	return added, total, nil
}

func targetRows(targets []campaign.Deployment) []deploymentRow {
	return collect(targets, func(d campaign.Deployment) deploymentRow {
		if d.ID == uuid.Nil {
			d.ID = uuid.Must(uuid.NewV7())
		}
		if d.UpdatedAt.IsZero() {
			d.UpdatedAt = d.CreatedAt
		}
		return deploymentRow{&d, stepNumber(stepOfState(d.State))}
	})
}

// AddTargets adds deployments to a running continuous campaign; devices that
// have one in it already are left out.
func (s *Store) AddTargets(ctx context.Context, campaign uuid.UUID, targets []campaign.Deployment) (total int,
	err error) {
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		// The row is locked first, so concurrent additions to a campaign wait for each other.
		if err := changeOne(ctx, tx, `UPDATE campaigns SET targets = targets WHERE id = $1`, campaign); err != nil {
			return err
		}
		var added []addedTargets
		if added, total, err = insertTargets(ctx, tx, campaign, targets); err != nil {
			return err
		}
		return countTargets(ctx, tx, campaign, added)
	})
	if err != nil {
		return 0, fmt.Errorf("add %d devices to campaign %s: %w", len(targets), campaign, domainError(err))
	}
	return total, nil
}

// countTargets increases the sizes of a campaign and its waves.
func countTargets(ctx context.Context, tx pgx.Tx, campaign uuid.UUID, added []addedTargets) error {
	for _, a := range added {
		column := "targets"
		if a.Skipped {
			column = "skipped"
		}
		if _, err := tx.Exec(ctx, `UPDATE campaigns SET `+column+` = `+column+` + $2 WHERE id = $1`, campaign,
			a.Count); err != nil {
			return err
		}
		if a.Skipped {
			continue
		}
		if _, err := tx.Exec(ctx, `UPDATE waves SET size = size + $3 WHERE campaign_id = $1 AND number = $2`, campaign,
			a.Wave, a.Count); err != nil {
			return err
		}
	}
	return nil
}
