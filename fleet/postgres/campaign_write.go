package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// orNoUUID converts the zero id to SQL's null.
func orNoUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: id != uuid.Nil} }

// CreateCampaign stores a campaign with its waves and deployments.
func (s *Store) CreateCampaign(ctx context.Context, by fleet.Principal, c *campaign.Campaign, waves []campaign.Wave,
	targets []campaign.Deployment) error {
	err := s.audited(ctx, by, "campaign.create", c.ID.String(), campaignDetail(c), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO campaigns (id, name, release_id, rollback_of, created_by, created_at, plan, state, pause_reason,
				reason_code, reason_params, wave, advance, digest,
				approval, rollback_wanted, rollback_with, edited_by, edited_at, started_by, started_at, finished_at, overruled_at,
				images, planned, taken_over_by, rollback_by, rollback_reason_code, rollback_reason_params, targets, skipped)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
				$23, $24, $25, $26, $27, $28, $29, $30, $31)`,
			slices.Concat([]any{c.ID, cleanText(c.Plan.Name), orNoUUID(c.Plan.Release), orNoUUID(c.RollbackOf),
				storableJSON(c.CreatedBy), c.CreatedAt},
				campaignState(c), []any{c.Targets, c.Skipped})...)
		if err != nil {
			return err
		}
		return plan(ctx, tx, c, waves, targets)
	})
	if err == nil {
		c.Revision = 1
	}
	return err
}

// campaignState returns the values of the columns that change after planning.
func campaignState(c *campaign.Campaign) []any {
	return []any{storableJSON(c.Plan), c.State, c.PauseReason, cleanText(c.Reason.Code), reasonParams(c.Reason), c.Wave,
		c.Advance, cleanText(c.Digest),
		storableJSON(c.Approval), c.RollbackWanted, orNoUUID(c.RollbackWith), storableJSON(c.EditedBy), c.EditedAt,
		storableJSON(c.StartedBy), c.StartedAt, c.FinishedAt, c.OverruledAt, c.Images, plannedPlan(c),
		storableJSON(c.TakenOverBy), storableJSON(c.RollbackBy), cleanText(c.RollbackReason.Code),
		reasonParams(c.RollbackReason)}
}

// plannedPlan returns the plan that the digest covers if it differs from the current plan.
func plannedPlan(c *campaign.Campaign) *string {
	if c.Planned == nil {
		return nil
	}
	return storableJSON(c.Planned)
}

func campaignDetail(c *campaign.Campaign) map[string]any {
	detail := map[string]any{"name": c.Plan.Name, "state": c.State, "digest": c.Digest, "targets": c.Targets,
		"skipped": c.Skipped}
	if c.Plan.Within != "" {
		detail["within"] = c.Plan.Within
	}
	if c.TakenOverBy != nil {
		detail["taken_over_by"] = c.TakenOverBy.Name
	}
	if !c.RollbackReason.Is("") {
		detail["rollback_reason_code"], detail["rollback_reason_params"] = c.RollbackReason.Code, c.RollbackReason.Params
	}
	if !c.Reason.Is("") {
		detail["reason_code"], detail["reason_params"] = c.Reason.Code, c.Reason.Params
	}
	return detail
}

// plan stores waves and deployments of a campaign that has none.
func plan(ctx context.Context, tx pgx.Tx, c *campaign.Campaign, waves []campaign.Wave,
	targets []campaign.Deployment) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO waves (campaign_id, number, plan, size, state, verdict_code, verdict_params, started_at, finished_at)
		SELECT $1, number, plan::json, size, state, verdict_code, verdict_params::jsonb, started_at, finished_at
		FROM unnest($2::int[], $3::text[], $4::int[], $5::text[], $6::text[], $7::text[], $8::timestamptz[],
			$9::timestamptz[])
			AS u (number, plan, size, state, verdict_code, verdict_params, started_at, finished_at)`, c.ID,
		collect(waves, func(w campaign.Wave) int { return w.Number }),
		collect(waves, func(w campaign.Wave) *string { return storableJSON(w.Plan) }),
		collect(waves, func(w campaign.Wave) int { return w.Size }),
		collect(waves, func(w campaign.Wave) string { return string(w.State) }),
		collect(waves, func(w campaign.Wave) string { return cleanText(w.Verdict.Code) }),
		collect(waves, func(w campaign.Wave) *string { return reasonParams(w.Verdict) }),
		collect(waves, func(w campaign.Wave) *time.Time { return w.StartedAt }),
		collect(waves, func(w campaign.Wave) *time.Time { return w.FinishedAt }))
	if err != nil {
		return fmt.Errorf("waves: %w", err)
	}
	_, total, err := insertTargets(ctx, tx, c.ID, targets)
	if err == nil && total != len(targets) {
		err = fleet.Refuse(fleet.ErrInvalid, "device_twice", "n", len(targets)-total)
	}
	return err
}

// ReplanCampaign replaces plan, digest, waves and deployments of a campaign
// that was not started.
func (s *Store) ReplanCampaign(ctx context.Context, by fleet.Principal, c *campaign.Campaign, waves []campaign.Wave,
	targets []campaign.Deployment) error {
	err := s.audited(ctx, by, "campaign.edit", c.ID.String(), campaignDetail(c), func(tx pgx.Tx) error {
		if err := changeCampaign(ctx, tx, c, `, targets = $27, skipped = $28, release_id = $29`,
			`AND state IN ('draft', 'awaiting_approval', 'denied', 'scheduled')`, c.Targets, c.Skipped,
			orNoUUID(c.Plan.Release)); err != nil {
			return err
		}
		for _, sql := range []string{
			`DELETE FROM deployment_events e USING deployments d WHERE d.id = e.deployment_id AND d.campaign_id = $1`,
			`DELETE FROM deployments WHERE campaign_id = $1`,
			`DELETE FROM campaign_images WHERE campaign_id = $1`,
			`DELETE FROM waves WHERE campaign_id = $1`,
		} {
			if _, err := tx.Exec(ctx, sql, c.ID); err != nil {
				return err
			}
		}
		return plan(ctx, tx, c, waves, targets)
	})
	if err == nil {
		c.Revision++
	}
	return err
}

// ChangeCampaign stores everything of c except its targets and their counts, and increments
// c.Revision. Without an action it writes no audit entry.
func (s *Store) ChangeCampaign(ctx context.Context, by fleet.Principal, action string, c *campaign.Campaign) error {
	change := func(tx pgx.Tx) error { return changeCampaign(ctx, tx, c, "", "") }
	var err error
	if action != "" {
		err = s.audited(ctx, by, action, c.ID.String(), campaignDetail(c), change)
	} else if err = pgx.BeginFunc(ctx, s.db, change); err != nil {
		err = fmt.Errorf("campaign %s: %w", c.ID, domainError(err))
	}
	if err == nil {
		c.Revision++
	}
	return err
}

func changeCampaign(ctx context.Context, tx pgx.Tx, c *campaign.Campaign, set, only string, more ...any) error {
	err := changeOne(ctx, tx, `
		UPDATE campaigns SET revision = revision + 1, plan = $3, state = $4, pause_reason = $5, reason_code = $6,
			reason_params = $7, wave = $8, advance = $9, digest = $10,
			approval = $11, rollback_wanted = $12, rollback_with = $13, edited_by = $14, edited_at = $15, started_by = $16,
				started_at = $17,
			finished_at = $18, overruled_at = $19, images = $20, planned = $21, taken_over_by = $22, rollback_by = $23,
			rollback_reason_code = $24, rollback_reason_params = $25, name = $26`+set+`
		WHERE id = $1 AND revision = $2 `+only, slices.Concat([]any{c.ID, c.Revision}, campaignState(c),
		[]any{cleanText(c.Plan.Name)}, more)...)
	if !isNotFound(err) {
		return err
	}
	var now string
	if err := tx.QueryRow(ctx, `SELECT state FROM campaigns WHERE id = $1`, c.ID).Scan(&now); err != nil {
		return err
	}
	return fleet.Refuse(fleet.ErrConflict, "campaign_changed", "state", fleet.Because("state."+string(now)))
}
