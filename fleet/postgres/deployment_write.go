package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

var _ campaign.RolloutStore = (*Store)(nil)

// changeChunk limits the changes in one statement.
const changeChunk = 1000

// The table u contains the changes of a batch: each identifies the row that it is based on by id
// and revision. A new attempt restarts the funnel; within an attempt, reached only rises. An
// unchanged baseline is not rewritten, because it may be stored outside the row.
var saveStart = `
	WITH u AS (SELECT * FROM ` + unnest(append([]deploymentField{revisionField, idField}, changeFields...), 1) + `),
	saved AS (
		UPDATE deployments d SET revision = d.revision + 1, attempt = u.attempt,
			reached = CASE WHEN u.attempt > d.attempt THEN u.reached ELSE greatest(d.reached, u.reached) END,
			baseline = CASE WHEN d.baseline::text = u.baseline THEN d.baseline ELSE u.baseline::json END` +
	setChanged(changeFields[3:]) + `
		FROM u WHERE d.id = u.id AND d.revision = u.revision`

var revisionField = field("revision", "bigint", func(d deploymentRow) int64 { return d.Revision })

func setChanged(fields []deploymentField) string {
	var set strings.Builder
	for _, f := range fields {
		set.WriteString(", " + f.name + " = u." + f.name)
	}
	return set.String()
}

// Only stored changes get events.
var saveEnd = fmt.Sprintf(`
		RETURNING d.id, d.campaign_id, d.device_id, d.attempt),
	noted AS (
		INSERT INTO deployment_events (deployment_id, id, at, attempt, kind, from_state, to_state, reason_code, reason_params)
		SELECT e.deployment_id, e.id, e.at, e.attempt, e.kind, e.from_state, e.to_state,
			e.reason_code, e.reason_params
		FROM unnest($%d::uuid[], $%d::uuid[], $%d::timestamptz[], $%d::int[], $%d::text[], $%d::text[], $%d::text[],
			$%d::text[], $%d::jsonb[]) WITH ORDINALITY
			AS e (deployment_id, id, at, attempt, kind, from_state, to_state, reason_code, reason_params, ordinal)
		WHERE e.deployment_id IN (SELECT id FROM saved)
		ORDER BY e.ordinal
		RETURNING *),
	sealed AS (`+queueRows(stepLeaf, "noted")+`)`, args(len(changeFields)+3, eventArgs)...)

const eventArgs = 9

// args returns n placeholders, starting at the given number, for Sprintf.
func args(from, n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = from + i
	}
	return list
}

var saveDeployments = saveStart + saveEnd + ` SELECT id FROM saved`

// SaveDeployments stores changes; each change and its events are stored together. It returns the
// ids of deployments that changed meanwhile and were not stored. A refused row does not affect
// the others; the error concerns only that row. If a deployment would become active while its
// device is active in another campaign, the error is [fleet.ErrConflict] (device_active).
func (s *Store) SaveDeployments(ctx context.Context, changes []campaign.DeploymentChange) (stale []uuid.UUID,
	err error) {
	all := collect(changes, func(c campaign.DeploymentChange) campaign.Dispatch {
		return campaign.Dispatch{DeploymentChange: c}
	})
	return s.saveAll(ctx, all, saveStatement{sql: saveDeployments, args: saveArgs})
}

// A saveStatement is a statement that stores changes.
type saveStatement struct {
	sql  string
	args func([]campaign.Dispatch) []any
	// leavesActive means that a device that is active elsewhere is not an error.
	leavesActive bool
}

// saveAll stores changes chunk by chunk. After a change of a deployment was not stored, none of
// its later changes is stored.
func (s *Store) saveAll(ctx context.Context, all []campaign.Dispatch, statement saveStatement) (left []uuid.UUID,
	err error) {
	var bad []error
	for _, chunk := range distinctChunks(all) {
		chunk = slices.DeleteFunc(chunk, func(c campaign.Dispatch) bool { return slices.Contains(left, c.Deployment.ID) })
		out, err := s.saveChunk(ctx, chunk, statement)
		left = append(left, out...)
		if err != nil {
			bad = append(bad, err)
		}
	}
	return left, errors.Join(bad...)
}

// distinctChunks splits changes into chunks without repeated deployments, and preserves the order
// of each deployment's changes. A chunk is sorted by id: statements that lock many deployments do
// so in this order.
func distinctChunks(all []campaign.Dispatch) (chunks [][]campaign.Dispatch) {
	next := make(map[uuid.UUID]int, len(all)) // the first chunk that may get another change of it
	open := 0                                 // chunks before this one are full
	for _, c := range all {
		n := max(next[c.Deployment.ID], open)
		for n < len(chunks) && len(chunks[n]) >= changeChunk {
			n++
		}
		if n == len(chunks) {
			chunks = append(chunks, nil)
		}
		chunks[n] = append(chunks[n], c)
		next[c.Deployment.ID] = n + 1
		for open < len(chunks) && len(chunks[open]) >= changeChunk {
			open++
		}
	}
	for _, chunk := range chunks {
		slices.SortFunc(chunk, func(a, b campaign.Dispatch) int {
			return bytes.Compare(a.Deployment.ID[:],
				b.Deployment.ID[:])
		})
	}
	return chunks
}

// saveChunk stores changes in one statement. If the database refuses one of them, it stores each
// in a separate statement.
func (s *Store) saveChunk(ctx context.Context, chunk []campaign.Dispatch, statement saveStatement) (left []uuid.UUID,
	err error) {
	if len(chunk) == 0 {
		return nil, nil
	}
	stored, err := s.runSave(ctx, chunk, statement)
	taken := violates(err, "deployments_one_active")
	switch {
	case err == nil:
		return notStored(chunk, stored), nil
	case len(chunk) == 1 && taken && statement.leavesActive:
		return []uuid.UUID{chunk[0].Deployment.ID}, nil
	case len(chunk) == 1 && taken:
		return nil, fleet.Refuse(fleet.ErrConflict, "device_active", "device", chunk[0].Deployment.Device,
			"state", fleet.Because("state."+string(chunk[0].Deployment.State)), "campaign", chunk[0].Deployment.Campaign)
	case len(chunk) > 1 && (taken || rowIsBad(err)):
		var bad []error
		for i := range chunk {
			out, err := s.saveChunk(ctx, chunk[i:i+1], statement)
			left = append(left, out...)
			if err != nil {
				bad = append(bad, err)
			}
		}
		return left, errors.Join(bad...)
	}
	first := chunk[0].Deployment
	return nil, fmt.Errorf("store %d deployments, the first of device %s: %w", len(chunk), first.Device, domainError(err))
}

func notStored(chunk []campaign.Dispatch, stored []uuid.UUID) (left []uuid.UUID) {
	if len(stored) == len(chunk) {
		return nil
	}
	is := make(map[uuid.UUID]bool, len(stored))
	for _, id := range stored {
		is[id] = true
	}
	for _, c := range chunk {
		if !is[c.Deployment.ID] {
			left = append(left, c.Deployment.ID)
		}
	}
	return left
}

func (s *Store) runSave(ctx context.Context, chunk []campaign.Dispatch, statement saveStatement) (stored []uuid.UUID,
	err error) {
	values := statement.args(chunk)
	err = again(func() (err error) {
		rows, _ := s.db.Query(ctx, statement.sql, values...)
		stored, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		return err
	})
	return stored, err
}

// saveArgs returns the arguments of saveStart and saveEnd.
func saveArgs(chunk []campaign.Dispatch) []any {
	rows := make([]deploymentRow, len(chunk))
	var events []campaign.DeploymentEvent
	for i, c := range chunk {
		d := c.Deployment
		for _, e := range c.Events {
			e.Deployment = d.ID
			if e.ID == uuid.Nil {
				e.ID = uuid.Must(uuid.NewV7())
			}
			if e.At.After(d.UpdatedAt) {
				d.UpdatedAt = e.At // queries about late events use it
			}
			events = append(events, e)
		}
		rows[i] = deploymentRow{&d, reached(c.DeploymentChange)}
	}
	return slices.Concat(fieldValues([]deploymentField{revisionField, idField}, rows), fieldValues(changeFields, rows),
		eventValues(events))
}

func eventValues(events []campaign.DeploymentEvent) []any {
	return []any{
		collect(events, func(e campaign.DeploymentEvent) uuid.UUID { return e.Deployment }),
		collect(events, func(e campaign.DeploymentEvent) uuid.UUID { return e.ID }),
		collect(events, func(e campaign.DeploymentEvent) time.Time { return e.At }),
		collect(events, func(e campaign.DeploymentEvent) int { return e.Attempt }),
		collect(events, func(e campaign.DeploymentEvent) string { return cleanText(string(e.Kind)) }),
		collect(events, func(e campaign.DeploymentEvent) string { return string(e.From) }),
		collect(events, func(e campaign.DeploymentEvent) string { return string(e.To) }),
		collect(events, func(e campaign.DeploymentEvent) string { return cleanText(e.Reason.Code) }),
		collect(events, func(e campaign.DeploymentEvent) *string { return reasonParams(e.Reason) }),
	}
}
