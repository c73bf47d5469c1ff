package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/campaign"
)

// A deployment d is blocked by others of its device: active ones, and queued ones of open
// campaigns unless the campaign ($5) takes devices over.
var openWave = `
	WITH pending AS MATERIALIZED (
		SELECT d.id, d.device_id, d.attempt, (
			SELECT c.name FROM deployments o JOIN campaigns c ON c.id = o.campaign_id
			WHERE o.device_id = d.device_id AND o.campaign_id <> $1
				AND (o.` + isActive + ` OR o.state = 'queued' AND NOT $5 AND c.state = ANY ($4)) LIMIT 1) AS busy
		FROM deployments d WHERE d.campaign_id = $1 AND d.wave = $2 AND d.state = 'pending'),
	opened AS (
		UPDATE deployments d SET revision = revision + 1, updated_at = $3,
			state = CASE WHEN p.busy IS NULL THEN 'queued' ELSE 'skipped' END,
			skip = CASE WHEN p.busy IS NULL THEN '' ELSE 'busy' END,
			reason_code = CASE WHEN p.busy IS NULL THEN '' ELSE 'busy_in_campaign' END,
			reason_params = CASE WHEN p.busy IS NOT NULL THEN jsonb_build_object('name', p.busy) END,
			finished_at = CASE WHEN p.busy IS NULL THEN NULL ELSE $3::timestamptz END
		FROM pending p WHERE d.id = p.id AND d.state = 'pending'
		RETURNING d.*),
	waiting AS MATERIALIZED (
		SELECT o.id, o.state, o.attempt FROM deployments o JOIN campaigns c ON c.id = o.campaign_id AND c.state = ANY ($4)
		WHERE $5 AND o.campaign_id <> $1 AND o.state IN ('pending', 'queued')
			AND o.device_id IN (SELECT device_id FROM pending WHERE busy IS NULL)),
	taken AS (
		UPDATE deployments d SET revision = revision + 1, updated_at = $3, finished_at = $3, state = 'canceled',
			skip = 'superseded',
			reason_code = 'taken_over', reason_params = jsonb_build_object('name', $6::text), not_before = NULL, deadline = NULL
		FROM waiting w WHERE d.id = w.id AND d.state = w.state
		RETURNING d.id, w.state AS was, w.attempt),
	noted AS (
		INSERT INTO deployment_events (deployment_id, id, at, attempt, kind, from_state, to_state, reason_code, reason_params)
		SELECT id, gen_random_uuid(), $3, attempt, CASE state WHEN 'queued' THEN 'wave_opened' ELSE 'unfit' END,
			'pending', state,
			CASE WHEN state <> 'queued' THEN 'skipped' WHEN $7 <> '' THEN 'wave' ELSE '' END,
			CASE WHEN state <> 'queued' THEN jsonb_build_object('skip', skip)
				WHEN $7 <> '' THEN jsonb_build_object('name', $7::text) END FROM opened
		UNION ALL
		SELECT id, gen_random_uuid(), $3, attempt, 'canceled', was, 'canceled', 'skipped',
			'{"skip": "superseded"}' FROM taken
		RETURNING *),
	sealed AS (` + queueRows(stepLeaf, "noted") + `)
	SELECT ` + deploymentColumns + ` FROM opened d WHERE state = 'queued' ORDER BY d.device_id`

// OpenWave changes the pending deployments of a wave to queued, and returns them. Those whose
// device is active or queued in another open campaign become skipped (busy). If the plan
// supersedes, those that wait in other campaigns, queued or pending, become canceled instead
// (superseded).
func (s *Store) OpenWave(ctx context.Context, c *campaign.Campaign, wave int, at time.Time) ([]campaign.Deployment,
	error) {
	name := ""
	if wave >= 0 && wave < len(c.Plan.Waves) {
		name = c.Plan.Waves[wave].Name
	}
	var list []campaign.Deployment
	err := again(func() (err error) {
		rows, _ := s.db.Query(ctx, openWave, c.ID, wave, at, openCampaigns, c.Plan.Supersede, cleanText(c.Plan.Name),
			cleanText(name))
		list, err = pgx.CollectRows(rows, scanDeployment)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open wave %d of campaign %s: %w", wave+1, c.ID, domainError(err))
	}
	return list, nil
}
