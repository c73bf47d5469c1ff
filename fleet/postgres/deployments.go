package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

var deploymentColumns = `d.id, d.campaign_id AS campaign, d.device_id AS device, d.board, d.wave, d.state, d.skip, d.late, d.joined,
	coalesce(d.image, '') AS image, d.image_size, d.target_elf, d.to_version, d.from_elf, d.from_version, d.force,
		d.attempt, d.failures, d.offers,
	d.class, ` + reasonColumn("d.", "reason") + `, d.not_before, d.deadline, d.bytes_sent, d.percent, coalesce(d.baseline, '{}') AS baseline,
		d.reconnects, d.away, d.checked,
	d.probed, d.booted, d.created_at, d.updated_at, d.sent_at, d.get_at, d.dispatched_at, d.finished_at, d.revision`

var scanDeployment = pgx.RowToStructByName[campaign.Deployment]

// Sets of states for the SQL of this package.
var (
	activeStates  = filtered(campaign.DeploymentStates, campaign.DeploymentState.Active)
	failedStates  = filtered(campaign.DeploymentStates, campaign.DeploymentState.Failed)
	verdictStates = filtered(campaign.DeploymentStates, campaign.DeploymentState.Verdict)
	waitingStates = filtered(campaign.DeploymentStates, campaign.DeploymentState.Waiting)
)

// isActive repeats the predicate of the index deployments_one_active, so the index can be used.
// Its column belongs to the deployment whose alias precedes it.
const isActive = `state IN ('offered', 'dispatching', 'sent', 'ambiguous', 'downloading', 'downloaded', 'rebooting', 'booted', 'verifying')`

// deploymentAudience makes a deployment d exist if its whole campaign does.
var deploymentAudience = audience{"deployments", "campaign_id", "d.campaign_id"}

// collectDeployments runs a query about deployments d.
func (s *Store) collectDeployments(ctx context.Context, what, rest string, args ...any) ([]campaign.Deployment, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+deploymentColumns+` FROM deployments d `+rest, args...)
	list, err := pgx.CollectRows(rows, scanDeployment)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, domainError(err))
	}
	for i := range list {
		unnamed(ctx, &list[i].Reason)
	}
	return list, nil
}

func (s *Store) oneDeployment(ctx context.Context, what, rest string, args ...any) (campaign.Deployment, error) {
	list, err := s.collectDeployments(ctx, what, rest, args...)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s: %w", what, fleet.ErrNotFound)
	}
	if err != nil {
		return campaign.Deployment{}, err
	}
	return list[0], nil
}

// Deployment returns a device's part in a campaign, or [fleet.ErrNotFound].
func (s *Store) Deployment(ctx context.Context, campaignID uuid.UUID, device fleet.DeviceID) (campaign.Deployment,
	error) {
	scoped, args := scopedToAll(ctx, deploymentAudience, campaignID, cleanText(string(device)))
	return s.oneDeployment(ctx, fmt.Sprintf("deployment of device %s in campaign %s", device, campaignID),
		`WHERE d.campaign_id = $1 AND d.device_id = $2`+scoped, args...)
}

// DeploymentByID returns one deployment, or [fleet.ErrNotFound].
func (s *Store) DeploymentByID(ctx context.Context, id uuid.UUID) (campaign.Deployment, error) {
	scoped, args := scopedToAll(ctx, deploymentAudience, id)
	return s.oneDeployment(ctx, "deployment "+id.String(), `WHERE d.id = $1`+scoped, args...)
}

// DeviceDeployments lists a device's deployments, newest first.
func (s *Store) DeviceDeployments(ctx context.Context, device fleet.DeviceID, limit int) ([]campaign.Deployment,
	error) {
	scoped, args := scopedToAll(ctx, deploymentAudience, cleanText(string(device)), fleet.ClampLimit(limit))
	return s.collectDeployments(ctx, "deployments of device "+string(device),
		`WHERE d.device_id = $1`+scoped+` ORDER BY d.created_at DESC, d.id DESC LIMIT $2`, args...)
}

// RolledBackBuilds implements the query of [firmware.Options]: for each device, the builds that
// it installed and did not keep, by its latest verdict on them.
func (s *Store) RolledBackBuilds(ctx context.Context, devices []fleet.DeviceID, builds []string) (
	map[fleet.DeviceID][]string, error) {
	of := map[fleet.DeviceID][]string{}
	if len(builds) == 0 {
		return of, nil
	}
	scoped, args := scopedToAll(ctx, deploymentAudience, texts(devices), texts(builds), verdictStates)
	rows, _ := s.db.Query(ctx, `
		SELECT device_id, target_elf FROM (
			SELECT DISTINCT ON (d.device_id, d.target_elf) d.device_id, d.target_elf, d.state FROM deployments d
			WHERE d.device_id = ANY ($1) AND d.target_elf = ANY ($2) AND d.state = ANY ($3)`+scoped+`
			ORDER BY d.device_id, d.target_elf, d.created_at DESC, d.id DESC) AS latest
		WHERE state = 'rolled_back'`, args...)
	var device fleet.DeviceID
	var build string
	_, err := pgx.ForEachRow(rows, []any{&device, &build}, func() error {
		of[device] = append(of[device], build)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("builds that devices rolled back: %w", domainError(err))
	}
	return of, nil
}

// Deployments lists the deployments of a campaign in device order.
func (s *Store) Deployments(ctx context.Context, f campaign.DeploymentFilter) (fleet.Page[campaign.Deployment], error) {
	none := fleet.Page[campaign.Deployment]{}
	at, err := parseCursor(f.Cursor, "deployments")
	if err != nil {
		return none, err
	}
	w := deploymentsWhere(f)
	w.scopeOfAll(ctx, deploymentAudience)
	direction, compare := "", ">"
	if at.back() {
		direction, compare = " DESC", "<"
	}
	if at != nil {
		w.and("(d.device_id, d.id) "+compare+" (?, ?::text::uuid)", at.Key, at.ID)
	}
	limit := fleet.ClampLimit(f.Limit)
	list, err := s.collectDeployments(ctx, "deployments",
		w.String()+` ORDER BY d.device_id`+direction+`, d.id`+direction+` LIMIT `+w.arg(limit+1), w.args...)
	if err != nil {
		return none, cursorError(at, err)
	}
	return makePage(list, limit, at, func(d campaign.Deployment) cursor {
		return cursor{List: "deployments", Key: string(d.Device), ID: d.ID.String()}
	}), nil
}

func deploymentsWhere(f campaign.DeploymentFilter) where {
	var w where
	if f.Campaign != uuid.Nil {
		w.and("d.campaign_id = ?", f.Campaign)
	}
	if len(f.States) > 0 {
		w.and("d.state = ANY (?)", texts(f.States))
	}
	w.andText("d.class = ?", string(f.Class))
	w.andText("d.skip = ?", string(f.Skip))
	w.andText("d.board = ?", f.Board)
	w.andText("d.device_id = ?", string(f.Device))
	if f.Wave != nil {
		w.and("d.wave = ?", *f.Wave)
	}
	return w
}

// scopedToDeployments is scopedTo for rows that belong to a deployment.
func scopedToDeployments(ctx context.Context, column string, args ...any) (string, []any) {
	return scopedBy(args, func(w *where) {
		var of where
		of.args = w.args
		if of.scopeOfAll(ctx, deploymentAudience); len(of.conds) > 0 {
			w.args = of.args
			w.conds = append(w.conds, column+" IN (SELECT d.id FROM deployments d"+of.String()+")")
		}
	})
}

// DeploymentEvents lists the events of a deployment in the order they were stored, at most the
// latest [maxHistory].
func (s *Store) DeploymentEvents(ctx context.Context, deployment uuid.UUID) ([]campaign.DeploymentEvent, error) {
	scoped, args := scopedToDeployments(ctx, "deployment_id", deployment, maxHistory)
	rows, _ := s.db.Query(ctx, `
		SELECT id, deployment_id AS deployment, at, attempt, kind, `+reasonColumn("", "reason")+`,
			from_state AS "from", to_state AS "to"
		FROM deployment_events WHERE deployment_id = $1`+scoped+` ORDER BY seq DESC LIMIT $2`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[campaign.DeploymentEvent])
	if err != nil {
		return nil, fmt.Errorf("events of deployment %s: %w", deployment, domainError(err))
	}
	slices.Reverse(list)
	for i := range list {
		unnamed(ctx, &list[i].Reason)
	}
	return list, nil
}

// shownHistory bounds the events of each deployment in a list of many.
const shownHistory = 100

// EventsOf returns the latest events of several deployments, oldest first.
func (s *Store) EventsOf(ctx context.Context, deployments []uuid.UUID) (map[uuid.UUID][]campaign.DeploymentEvent,
	error) {
	scoped, args := scopedToDeployments(ctx, "e.deployment_id", deployments, shownHistory)
	rows, _ := s.db.Query(ctx, `
		SELECT e.id, e.deployment_id AS deployment, e.at, e.attempt, e.kind, `+reasonColumn("e.", "reason")+`, e.from_state AS "from",
			e.to_state AS "to"
		FROM unnest($1::uuid[]) AS d (id)
		CROSS JOIN LATERAL (SELECT * FROM deployment_events WHERE deployment_id = d.id ORDER BY seq DESC LIMIT $2) e
		WHERE true`+scoped+`
		ORDER BY e.seq`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[campaign.DeploymentEvent])
	if err != nil {
		return nil, fmt.Errorf("events of %d deployments: %w", len(deployments), domainError(err))
	}
	of := make(map[uuid.UUID][]campaign.DeploymentEvent, len(deployments))
	for _, e := range list {
		unnamed(ctx, &e.Reason)
		of[e.Deployment] = append(of[e.Deployment], e)
	}
	return of, nil
}

// LiveDeployments returns the queued or active deployments of open campaigns.
func (s *Store) LiveDeployments(ctx context.Context) ([]campaign.Deployment, error) {
	return s.collectDeployments(ctx, "live deployments", `
		JOIN campaigns c ON c.id = d.campaign_id AND c.state IN ('scheduled', 'running', 'paused', 'stopping')
		WHERE d.state = 'queued' OR d.`+isActive+` ORDER BY d.campaign_id, d.wave, d.device_id`)
}

// Conflicts returns the devices that have an active deployment, or one that waits in an open
// campaign, other than the given campaign. A campaign that does not exist for the principal is
// left unnamed.
func (s *Store) Conflicts(ctx context.Context, except uuid.UUID, devices []fleet.DeviceID) (
	[]campaign.DeploymentConflict, error) {
	w := where{args: []any{texts(devices), except, waitingStates, openCampaigns}}
	of, name := "d.campaign_id", "c.name"
	if w.scopeOfAll(ctx, deploymentAudience); len(w.conds) > 0 {
		exists := "CASE WHEN " + w.conds[0] + " THEN "
		of, name = exists+"d.campaign_id ELSE "+noUUID+" END", exists+"c.name ELSE '"+unnamedCampaign+"' END"
	}
	rows, _ := s.db.Query(ctx, `
		SELECT d.device_id AS device, `+of+` AS campaign, `+name+` AS name, d.state
		FROM deployments d JOIN campaigns c ON c.id = d.campaign_id
		WHERE d.device_id = ANY ($1) AND d.campaign_id <> $2
			AND (d.`+isActive+` OR d.state = ANY ($3) AND c.state = ANY ($4))
		ORDER BY d.device_id, c.created_at, c.id`, w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[campaign.DeploymentConflict])
	if err != nil {
		return nil, fmt.Errorf("conflicts of %d devices: %w", len(devices), domainError(err))
	}
	return list, nil
}

// Rollbacks returns the deployments of a campaign that succeeded: the device booted the image,
// and did not roll back.
func (s *Store) Rollbacks(ctx context.Context, campaignID uuid.UUID) ([]campaign.Deployment, error) {
	return s.collectDeployments(ctx, "devices updated by campaign "+campaignID.String(), `
		WHERE d.campaign_id = $1 AND (d.booted OR d.reached >= $2) AND d.state NOT IN ('rolled_back',
			'wrong_build') ORDER BY d.device_id`,
		campaignID, stepNumber(campaign.FunnelBootPoll))
}
