package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet/campaign"
)

const linkArgs = 5

// A dispatch needs a running campaign and a device that is active nowhere else. For two
// simultaneous dispatches, the index deployments_one_active enforces the latter.
var dispatchDeployments = saveStart + `
		AND EXISTS (SELECT FROM campaigns c WHERE c.id = d.campaign_id AND c.state = 'running')
		AND NOT EXISTS (SELECT FROM deployments o WHERE o.device_id = d.device_id AND o.id <> d.id AND o.` + isActive + `)` +
	saveEnd + fmt.Sprintf(`,
	linked AS (
		INSERT INTO firmware_links (token_hash, deployment_id, campaign_id, device_id, attempt, image, size, expires_at)
		SELECT l.token_hash, saved.id, saved.campaign_id, saved.device_id, saved.attempt, l.image, l.size, l.expires_at
		FROM unnest($%d::uuid[], $%d::bytea[], $%d::text[], $%d::bigint[], $%d::timestamptz[]) AS l (deployment_id,
			token_hash, image, size, expires_at)
		JOIN saved ON saved.id = l.deployment_id)
	SELECT id FROM saved`, args(len(changeFields)+3+eventArgs, linkArgs)...)

// DispatchDeployments stores dispatches with their events and links. It leaves out, and returns,
// deployments that changed meanwhile, whose campaign is not running, or whose device is active in
// another campaign.
func (s *Store) DispatchDeployments(ctx context.Context, all []campaign.Dispatch) (refused []uuid.UUID, err error) {
	return s.saveAll(ctx, all, saveStatement{sql: dispatchDeployments, args: dispatchArgs, leavesActive: true})
}

func dispatchArgs(chunk []campaign.Dispatch) []any {
	return append(saveArgs(chunk),
		collect(chunk, func(d campaign.Dispatch) uuid.UUID { return d.Deployment.ID }),
		collect(chunk, func(d campaign.Dispatch) []byte { return d.Link.TokenHash }),
		collect(chunk, func(d campaign.Dispatch) string { return cleanText(d.Link.Image) }),
		collect(chunk, func(d campaign.Dispatch) int64 { return d.Link.Size }),
		collect(chunk, func(d campaign.Dispatch) time.Time { return d.Link.ExpiresAt }))
}
