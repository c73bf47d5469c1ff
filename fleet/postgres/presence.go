package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

var _ fleet.PresenceStore = (*Store)(nil)

// Bounds of presence.
const (
	maxOrphans = 20_000
	maxSamples = 50_000
	clockSlack = time.Minute     // a time further ahead comes from a wrong clock
	returnTime = 5 * time.Minute // a device that connects this soon after a start was connected while fleetd was away
)

// A connection's epoch keeps older connections out.
const upsertConnections = `
	INSERT INTO connections (device_id, node, epoch, client_id, transport, remote_addr, at)
	SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::timestamptz[])
	ON CONFLICT (device_id) DO UPDATE SET node = excluded.node, epoch = excluded.epoch, client_id = excluded.client_id,
		transport = excluded.transport, remote_addr = excluded.remote_addr, at = excluded.at
	WHERE connections.epoch <= excluded.epoch`

// A change with a connection counts if that connection is the newest. A change without one counts
// if it is not older than the stored change. A stored change with a time in the future ($9)
// counts as older, since the clock was set back.
//
// Effective changes become part of the device's time line. A change that is stored again, because
// its answer was lost, has no effect.
//
// A stop of fleetd is not a change of a device. A device that connects again before $11 has one
// entry, which states that fleetd was away. A device that connects later was away too, and also
// gets the entry about its absence.
//
// Nor is the silence of an edge. A device that the edge still held afterwards has the time again from
// before it.
var updatePresence = `
	WITH changed AS (UPDATE devices d
	SET presence = CASE WHEN fresh THEN u.presence ELSE d.presence END,
		presence_since = CASE WHEN fresh THEN u.since ELSE d.presence_since END,
		presence_evidence_code = CASE WHEN fresh THEN u.evidence ELSE d.presence_evidence_code END,
		presence_evidence_params = CASE WHEN fresh THEN u.params ELSE d.presence_evidence_params END,
		transport = CASE WHEN fresh AND u.epoch IS NOT NULL THEN u.transport ELSE d.transport END,
		remote_addr = CASE WHEN fresh AND u.epoch IS NOT NULL THEN u.remote_addr ELSE d.remote_addr END,
		last_seen = greatest(d.last_seen, u.last_seen)
	FROM (SELECT u.*, (d.presence, d.presence_since) IS DISTINCT FROM (u.presence, u.since) AS moved,
			CASE WHEN u.epoch IS NULL THEN u.since >= d.presence_since OR d.presence_since > $9
			ELSE c.epoch = u.epoch END AS fresh,
			d.presence = 'offline' AND (d.presence_evidence_code = 'fleetd_started'
				OR d.presence_evidence_params->'detail'->>'code' = 'fleetd_stopping') AS unwatched,
			d.presence = 'unknown_edge' AND u.since < d.presence_since AS held,
			d.presence_since AS was_since, d.presence_evidence_code AS was_code, d.presence_evidence_params AS was_params
		FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::timestamptz[], $6::bigint[], $7::text[],
			$8::text[], $10::jsonb[])
			AS u (id, presence, since, evidence, last_seen, epoch, transport, remote_addr, params)
		JOIN devices d ON d.id = u.id
		LEFT JOIN connections c ON c.device_id = u.id) u
	WHERE d.id = u.id
	RETURNING d.id, d.presence_since, d.presence, d.presence_evidence_code, d.presence_evidence_params, d.transport,
		u.fresh AND u.moved AND NOT u.held AND d.presence <> 'unknown_edge' AS moved,
		coalesce(u.unwatched, false) AS unwatched, u.since < $11 AS soon,
		coalesce(u.params->'detail'->>'code' = 'fleetd_stopping', false) AS stopping, u.was_since, u.was_code, u.was_params),
	kept AS (INSERT INTO presence_changes (device_id, at, presence, evidence_code, evidence_params, transport)
		SELECT id, presence_since, presence, presence_evidence_code, presence_evidence_params, transport FROM changed
		WHERE moved AND NOT stopping AND NOT (unwatched AND soon)
		UNION ALL SELECT id, presence_since, presence, 'fleetd_was_away', coalesce(presence_evidence_params, '{}')
			|| jsonb_build_object('since_at', to_char(was_since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')), transport
		FROM changed WHERE moved AND unwatched AND soon
		UNION ALL SELECT id, was_since, 'offline', was_code, was_params, transport FROM changed
		WHERE moved AND unwatched AND NOT soon
		ON CONFLICT DO NOTHING RETURNING *),
	queued AS (` + queueRows(connectionLeaf, "kept") + `)
	SELECT id FROM changed`

// LatestEpoch returns the greatest epoch of a connection on record; 0 without one.
func (s *Store) LatestEpoch(ctx context.Context) (epoch int64, err error) {
	if err = s.db.QueryRow(ctx, `SELECT coalesce(max(epoch), 0) FROM connections`).Scan(&epoch); err != nil {
		return 0, fmt.Errorf("latest connection: %w", domainError(err))
	}
	return epoch, nil
}

// SavePresence stores changes of presence; of several changes of one device the last in the list
// counts. A change of a device that is not stored yet, because its first poll is still in
// transit, waits for SavePolls.
func (s *Store) SavePresence(ctx context.Context, changes []fleet.PresenceChange) error {
	changes = lastChanges(changes)
	for chunk := range slices.Chunk(changes, pollChunk) {
		stored, err := s.savePresence(ctx, chunk)
		if err != nil {
			return fmt.Errorf("save presence of %d devices: %w", len(chunk), domainError(err))
		}
		if err := s.keepOrphans(ctx, chunk, stored); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) savePresence(ctx context.Context, changes []fleet.PresenceChange) (stored map[fleet.DeviceID]bool,
	err error) {
	var b pgx.Batch
	var connected []fleet.Connection
	for _, c := range changes {
		if c.Connection != nil {
			connected = append(connected, *c.Connection)
			connected[len(connected)-1].Device = c.Device
		}
	}
	if len(connected) > 0 {
		b.Queue(upsertConnections, connectionArgs(connected)...)
	}
	stored = make(map[fleet.DeviceID]bool, len(changes))
	b.Queue(updatePresence, s.presenceArgs(changes)...).Query(func(rows pgx.Rows) error {
		ids, err := pgx.CollectRows(rows, pgx.RowTo[fleet.DeviceID])
		for _, id := range ids {
			stored[id] = true
		}
		return err
	})
	return stored, s.db.SendBatch(ctx, &b).Close()
}

func lastChanges(changes []fleet.PresenceChange) []fleet.PresenceChange {
	sorted := slices.Clone(changes)
	slices.Reverse(sorted)
	slices.SortStableFunc(sorted, func(a, b fleet.PresenceChange) int {
		return strings.Compare(string(a.Device),
			string(b.Device))
	})
	return slices.CompactFunc(sorted, func(a, b fleet.PresenceChange) bool { return a.Device == b.Device })
}

func connectionArgs(list []fleet.Connection) []any {
	text := func(of func(fleet.Connection) string) []string {
		return collect(list, func(c fleet.Connection) string { return cleanText(of(c)) })
	}
	return []any{
		text(func(c fleet.Connection) string { return string(c.Device) }),
		text(func(c fleet.Connection) string { return c.Node }),
		collect(list, func(c fleet.Connection) int64 { return c.Epoch }),
		text(func(c fleet.Connection) string { return c.ClientID }),
		text(func(c fleet.Connection) string { return c.Transport }),
		text(func(c fleet.Connection) string { return c.RemoteAddr }),
		collect(list, func(c fleet.Connection) time.Time { return c.At }),
	}
}

func (s *Store) presenceArgs(list []fleet.PresenceChange) []any {
	type change = fleet.PresenceChange
	connection := func(of func(*fleet.Connection) string) []string {
		return collect(list, func(c change) string {
			if c.Connection == nil {
				return ""
			}
			return cleanText(of(c.Connection))
		})
	}
	return []any{
		collect(list, func(c change) string { return string(c.Device) }),
		collect(list, func(c change) string { return string(c.Presence) }),
		collect(list, func(c change) time.Time { return c.Since }),
		collect(list, func(c change) string { return cleanText(c.Evidence.Code) }),
		collect(list, func(c change) *time.Time { return orNull(c.LastSeen) }),
		collect(list, func(c change) *int64 {
			if c.Connection == nil {
				return nil
			}
			return &c.Connection.Epoch
		}),
		connection(func(c *fleet.Connection) string { return c.Transport }),
		connection(func(c *fleet.Connection) string { return c.RemoteAddr }),
		time.Now().Add(clockSlack),
		collect(list, func(c change) *string { return reasonParams(c.Evidence) }),
		s.started.Add(returnTime),
	}
}

func collect[S, T any](list []S, of func(S) T) []T {
	out := make([]T, len(list))
	for i, v := range list {
		out[i] = of(v)
	}
	return out
}

// keepOrphans remembers changes whose device is not stored, and drops those that are outdated. It
// then tries once more: the device may have been stored just before the change was remembered,
// and then no later call would store the change.
func (s *Store) keepOrphans(ctx context.Context, changes []fleet.PresenceChange, stored map[fleet.DeviceID]bool) error {
	orphans := s.sortOut(changes, stored)
	if len(orphans) == 0 {
		return nil
	}
	stored, err := s.savePresence(ctx, orphans)
	if err != nil {
		return fmt.Errorf("save presence of %d new devices: %w", len(orphans), domainError(err))
	}
	s.sortOut(orphans, stored)
	return nil
}

// sortOut records which changes are stored and which wait, and returns the latter.
func (s *Store) sortOut(changes []fleet.PresenceChange, stored map[fleet.DeviceID]bool) (
	orphans []fleet.PresenceChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		switch {
		case stored[c.Device]:
			delete(s.orphaned, c.Device)
		case len(s.orphaned) < maxOrphans:
			s.orphaned[c.Device] = c
			orphans = append(orphans, c)
		}
	}
	return orphans
}

// adoptOrphans stores changes of presence that arrived before their device was stored.
func (s *Store) adoptOrphans(ctx context.Context, polls []enrolment.PollRecord) error {
	var changes []fleet.PresenceChange
	s.mu.Lock()
	for i := range polls {
		if c, ok := s.orphaned[polls[i].Poll.Device]; ok {
			changes = append(changes, c)
		}
	}
	s.mu.Unlock()
	if len(changes) == 0 {
		return nil
	}
	return s.SavePresence(ctx, changes)
}

// ResetPresence implements [fleet.PresenceStore]. The time lines show it when the devices connect
// again.
func (s *Store) ResetPresence(ctx context.Context, except []fleet.DeviceID, silent []string, evidence fleet.Reason,
	at time.Time) (int64, error) {
	var n int64
	err := s.db.QueryRow(ctx, `
		WITH ahead AS (UPDATE connections SET epoch = 0 WHERE epoch > $4
			AND NOT EXISTS (SELECT FROM unnest($1::text[]) adopted(id) WHERE adopted.id = device_id)),
		lost AS (SELECT d.id,
				coalesce((SELECT c.node FROM connections c WHERE c.device_id = d.id AND c.node = ANY ($6)), '') AS edge
			FROM devices d WHERE d.presence IN ('online', 'unresponsive', 'unknown_edge')
			AND NOT EXISTS (SELECT FROM unnest($1::text[]) adopted(id) WHERE adopted.id = d.id)),
		changed AS (UPDATE devices d SET presence_since = $3,
			presence = CASE WHEN edge = '' THEN 'offline' ELSE 'unknown_edge' END,
			presence_evidence_code = CASE WHEN edge = '' THEN $2 ELSE '`+fleet.PresenceEdgeSilent+`' END,
			presence_evidence_params = CASE WHEN edge = '' THEN $5 ELSE jsonb_build_object('edge', edge) END
		FROM lost WHERE d.id = lost.id
		RETURNING d.presence)
		SELECT count(*) FILTER (WHERE presence = 'offline') FROM changed`,
		except, cleanText(evidence.Code), at, at.UnixMicro(), reasonParams(evidence), silent).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("reset presence: %w", domainError(err))
	}
	return n, nil
}

// LoseEdge implements [fleet.PresenceStore].
func (s *Store) LoseEdge(ctx context.Context, edge string, except []fleet.DeviceID, evidence fleet.Reason,
	at time.Time) ([]fleet.DeviceID, error) {
	rows, _ := s.db.Query(ctx, `
		WITH changed AS (UPDATE devices d SET presence = 'offline', presence_since = $3, presence_evidence_code = $4,
			presence_evidence_params = $5
		FROM connections c WHERE c.device_id = d.id AND c.node = $1 AND d.presence = 'unknown_edge'
		AND NOT EXISTS (SELECT FROM unnest($2::text[]) held(id) WHERE held.id = d.id)
		RETURNING d.id, d.presence_since, d.transport),
		kept AS (INSERT INTO presence_changes (device_id, at, presence, evidence_code, evidence_params, transport)
			SELECT id, presence_since, 'offline', $4, $5, transport FROM changed ON CONFLICT DO NOTHING RETURNING *),
		queued AS (`+queueRows(connectionLeaf, "kept")+`)
		SELECT id FROM changed`, edge, except, at, cleanText(evidence.Code), reasonParams(evidence))
	gone, err := pgx.CollectRows(rows, pgx.RowTo[fleet.DeviceID])
	if err != nil {
		return nil, fmt.Errorf("devices of edge %s: %w", edge, domainError(err))
	}
	return gone, nil
}

// SavePresenceSample counts the devices in service by presence. Devices that connect only for
// conversations count while they are connected.
func (s *Store) SavePresenceSample(ctx context.Context, at time.Time) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO presence_samples (at, online, unresponsive, unknown_edge, offline, pending)
		SELECT $1, count(*) FILTER (WHERE presence = 'online'), count(*) FILTER (WHERE presence = 'unresponsive'),
			count(*) FILTER (WHERE presence = 'unknown_edge'),
			count(*) FILTER (WHERE presence = 'offline' AND transport_given <> 'ws'),
			count(*) FILTER (WHERE presence = 'pending')
		FROM devices WHERE in_service
		ON CONFLICT (at) DO NOTHING`, at)
	if err != nil {
		return fmt.Errorf("presence sample: %w", domainError(err))
	}
	return nil
}

// PresenceSamples lists samples, oldest first. They count the whole fleet: for a
// principal with a narrower scope there are none.
func (s *Store) PresenceSamples(ctx context.Context, since time.Time) ([]fleet.PresenceSample, error) {
	if _, narrow := fleet.ScopeOf(ctx); narrow {
		return nil, nil // they count the whole fleet
	}
	rows, _ := s.db.Query(ctx, `
		SELECT at, online, unresponsive, unknown_edge, offline, pending FROM presence_samples
		WHERE at >= $1 ORDER BY at DESC LIMIT $2`, since, maxSamples)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.PresenceSample])
	if err != nil {
		return nil, fmt.Errorf("presence samples: %w", domainError(err))
	}
	slices.Reverse(list)
	return list, nil
}
