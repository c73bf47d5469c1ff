package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

var _ campaign.Store = (*Store)(nil)

const noUUID = `'00000000-0000-0000-0000-000000000000'`

var campaignColumns = `id, plan, state, pause_reason, ` + reasonColumn("", "reason") + `, wave, advance, digest, images, planned, targets, skipped, approval,
	coalesce(rollback_of, ` + noUUID + `) AS rollback_of, rollback_wanted, coalesce(rollback_with, ` +
	noUUID + `) AS rollback_with,
	rollback_by, ` + reasonColumn("", "rollback_reason") + `,
	created_by, created_at, edited_by, edited_at, started_by, taken_over_by, started_at, finished_at, overruled_at,
	revision`

var scanCampaign = pgx.RowToStructByName[campaign.Campaign]

// texts converts a list of named strings for PostgreSQL.
func texts[S ~string](list []S) []string {
	return collect(list, func(s S) string { return string(s) })
}

// filtered returns the elements of a list for which fits returns true.
func filtered[S ~string](list []S, fits func(S) bool) (out []string) {
	for _, s := range list {
		if fits(s) {
			out = append(out, string(s))
		}
	}
	return out
}

var openCampaigns = filtered(campaign.States, campaign.State.Open)

// Campaign returns one campaign, or [fleet.ErrNotFound].
func (s *Store) Campaign(ctx context.Context, id uuid.UUID) (campaign.Campaign, error) {
	scoped, args := scopedToAll(ctx, campaignAudience, id)
	rows, _ := s.db.Query(ctx, `SELECT `+campaignColumns+` FROM campaigns WHERE id = $1`+scoped, args...)
	c, err := pgx.CollectExactlyOneRow(rows, scanCampaign)
	if err != nil {
		return campaign.Campaign{}, fmt.Errorf("campaign %s: %w", id, domainError(err))
	}
	return c, nil
}

// Campaigns lists campaigns, newest first.
func (s *Store) Campaigns(ctx context.Context, f campaign.Filter) (fleet.Page[campaign.Campaign], error) {
	none := fleet.Page[campaign.Campaign]{}
	at, err := parseCursor(f.Cursor, "campaigns")
	if err != nil {
		return none, err
	}
	var w where
	if len(f.States) > 0 {
		w.and("state = ANY (?)", texts(f.States))
	}
	if f.Release != uuid.Nil {
		w.and("release_id = ?", f.Release)
	}
	w.scopeOfAll(ctx, campaignAudience)
	order := w.newestFirst(at, "id", "uuid")
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `SELECT `+campaignColumns+` FROM campaigns`+w.String()+order+` LIMIT `+w.arg(limit+1),
		w.args...)
	list, err := pgx.CollectRows(rows, scanCampaign)
	if err != nil {
		return none, cursorError(at, fmt.Errorf("campaigns: %w", domainError(err)))
	}
	return makePage(list, limit, at, func(c campaign.Campaign) cursor {
		return newestPlace("campaigns", c.CreatedAt,
			c.ID.String())
	}), nil
}

// OpenCampaigns lists the campaigns that the engine must process, oldest first.
func (s *Store) OpenCampaigns(ctx context.Context) ([]campaign.Campaign, error) {
	scoped, args := scopedToAll(ctx, campaignAudience)
	rows, _ := s.db.Query(ctx, `
		SELECT `+campaignColumns+` FROM campaigns
		WHERE state IN ('scheduled', 'running', 'paused', 'stopping')`+scoped+` ORDER BY created_at, id`, args...)
	list, err := pgx.CollectRows(rows, scanCampaign)
	if err != nil {
		return nil, fmt.Errorf("open campaigns: %w", domainError(err))
	}
	return list, nil
}

// PlannedTargets returns the deployments that a campaign's digest covers, and those that joined
// the campaign later.
func (s *Store) PlannedTargets(ctx context.Context, campaignID uuid.UUID) ([]campaign.PlannedTarget, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT device_id AS device, wave, coalesce(image, '') AS image, board, joined, finished_at IS NULL AS open
		FROM deployments WHERE campaign_id = $1 AND wave >= 0`, campaignID)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[campaign.PlannedTarget])
	if err != nil {
		return nil, fmt.Errorf("targets of campaign %s: %w", campaignID, domainError(err))
	}
	return all, nil
}

// Waves lists a campaign's waves in order.
func (s *Store) Waves(ctx context.Context, campaignID uuid.UUID) ([]campaign.Wave, error) {
	scoped, args := scopedToAll(ctx, audience{"deployments", "campaign_id", "waves.campaign_id"}, campaignID)
	rows, _ := s.db.Query(ctx, `
		SELECT campaign_id AS campaign, number, plan, size, state, `+reasonColumn("", "verdict")+`, started_at,
			finished_at
		FROM waves WHERE campaign_id = $1`+scoped+` ORDER BY number`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[campaign.Wave])
	if err != nil {
		return nil, fmt.Errorf("waves of campaign %s: %w", campaignID, domainError(err))
	}
	return list, nil
}

// SaveWave stores a wave's state and plan. Only AddTargets changes its size.
func (s *Store) SaveWave(ctx context.Context, w campaign.Wave) error {
	err := changeOne(ctx, s.db, `
		UPDATE waves SET plan = $3, state = $4, verdict_code = $5, verdict_params = $6, started_at = $7, finished_at = $8
		WHERE campaign_id = $1 AND number = $2`,
		w.Campaign, w.Number, storableJSON(w.Plan), w.State, cleanText(w.Verdict.Code), reasonParams(w.Verdict),
		w.StartedAt, w.FinishedAt)
	if err != nil {
		return fmt.Errorf("wave %d of campaign %s: %w", w.Number+1, w.Campaign, domainError(err))
	}
	return nil
}
