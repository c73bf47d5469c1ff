package postgres

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/compare"
	"fleetd/fleet/telemetry"
)

var _ compare.Store = (*Store)(nil)

// stuckAfter is how long an attempt has not progressed if its device counts as stuck.
const stuckAfter = time.Hour

// Values of facts that are a band: the devices below each of them are counted.
var (
	signalBands = []int{-85, -80, -75, -70}                                                                // dBm
	uptimeBands = []int{int(time.Hour / time.Second), int(24 * time.Hour / time.Second), 7 * 24 * 60 * 60} // s
)

// CampaignFacts implements [compare.Store].
func (s *Store) CampaignFacts(ctx context.Context, id uuid.UUID) (compare.Counts, error) {
	if _, err := s.Campaign(ctx, id); err != nil {
		return compare.Counts{}, err
	}
	w := where{args: []any{failedStates, campaign.DeploymentSucceeded, activeStates, time.Now().Add(-stuckAfter)}}
	w.and("d.campaign_id = ?", id)
	w.scopeOfAll(ctx, deploymentAudience)
	return s.compareFacts(ctx, fmt.Sprintf("facts of campaign %s", id), `
		SELECT d.device_id, d.state = ANY ($1) OR d.state = ANY ($3) AS failed, d.from_version AS version,
			coalesce(d.sent_at, d.get_at, d.updated_at) AS moment
		FROM deployments d`+w.String()+`
			AND (d.state = ANY ($1) OR d.state = $2 OR d.state = ANY ($3) AND d.updated_at < $4)`, w)
}

// comparedFailures are the outcomes of a call that say something about its device.
var comparedFailures = []fleet.CallState{fleet.CallToolError, fleet.CallTimedOut, fleet.CallUnknown, fleet.CallOffline}

// FanOutFacts implements [compare.Store].
func (s *Store) FanOutFacts(ctx context.Context, id uuid.UUID) (compare.Counts, error) {
	w := where{args: []any{comparedFailures, fleet.CallSucceeded}}
	w.and("calls.fanout_id = ?", id)
	w.callScope(ctx, "calls.tool", "calls.device_id")
	if _, err := s.FanOut(ctx, id); err != nil {
		return compare.Counts{}, err
	}
	return s.compareFacts(ctx, fmt.Sprintf("facts of fan-out %s", id), `
		SELECT device_id, state <> $2 AS failed, '' AS version, moment
		FROM (SELECT DISTINCT ON (device_id) device_id, state, created_at AS moment FROM calls`+w.String()+`
			ORDER BY device_id, id DESC) latest
		WHERE state = ANY ($1) OR state = $2`, w)
}

// compareFacts counts the values of facts of both sides. parts selects device_id, failed, version (”: the present
// one) and the moment of the attempt. Signal and uptime are those of the heartbeats before the moment; if there are
// none, the signal is the latest one.
func (s *Store) compareFacts(ctx context.Context, what, parts string, w where) (c compare.Counts, err error) {
	step, side := w.arg(telemetry.VitalsStep), w.arg(compare.MaxSide)
	least, signals, uptimes := w.arg(compare.Least), w.arg(signalBands), w.arg(uptimeBands)
	rows, _ := s.db.Query(ctx, `
		WITH parts AS (`+parts+`),
		chosen AS MATERIALIZED (SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY failed ORDER BY hashtext(device_id))
			AS n FROM parts) numbered WHERE n <= `+side+`),
		f AS MATERIALIZED (
			SELECT c.failed, d.board, d.chip, coalesce(nullif(c.version, ''), d.version) AS version, d.transport, d.tags_key,
				d.remote_addr,
				coalesce(p.rssi, h.rssi, (v.vitals->>'rssi_dbm')::int) AS rssi, coalesce(p.uptime, h.uptime) AS uptime
			FROM chosen c JOIN devices d ON d.id = c.device_id
				LEFT JOIN device_vitals v ON v.device_id = c.device_id
				LEFT JOIN LATERAL (SELECT rssi, uptime FROM vitals_points p
					WHERE p.device_id = c.device_id AND p.at IN (date_bin(`+step+`, c.moment, 'epoch') - `+step+`,
						date_bin(`+step+`, c.moment, 'epoch') - 2 * `+step+`::interval) ORDER BY p.at DESC LIMIT 1) p ON true
				LEFT JOIN LATERAL (SELECT rssi, uptime FROM vitals_hours h WHERE p.uptime IS NULL
					AND h.device_id = c.device_id AND h.at = date_trunc('hour', c.moment, 'UTC') - interval '1 hour') h ON true),
		d AS (SELECT DISTINCT tags_key FROM f WHERE tags_key <> ''), `+placesOf+`,
		values_of AS (
			SELECT 'board' AS fact, board AS value, failed FROM f WHERE board <> ''
			UNION ALL SELECT 'chip', chip, failed FROM f WHERE chip <> ''
			UNION ALL SELECT 'version', version, failed FROM f WHERE version <> ''
			UNION ALL SELECT 'transport', transport, failed FROM f WHERE transport <> ''
			UNION ALL SELECT 'place', n.path, failed FROM f JOIN n ON n.tags_key = f.tags_key
			UNION ALL SELECT 'signal', band::text, failed FROM f, unnest(`+signals+`::int[]) band WHERE rssi < band
			UNION ALL SELECT 'uptime', band::text, failed FROM f, unnest(`+uptimes+`::int[]) band WHERE uptime < band),
		known AS (
			SELECT '' AS fact, failed FROM f
			UNION ALL SELECT 'board', failed FROM f WHERE board <> ''
			UNION ALL SELECT 'chip', failed FROM f WHERE chip <> ''
			UNION ALL SELECT 'version', failed FROM f WHERE version <> ''
			UNION ALL SELECT 'transport', failed FROM f WHERE transport <> ''
			UNION ALL SELECT 'place', failed FROM f
			UNION ALL SELECT 'signal', failed FROM f WHERE rssi IS NOT NULL
			UNION ALL SELECT 'uptime', failed FROM f WHERE uptime IS NOT NULL)
		SELECT fact, NULL::text AS value, count(*) FILTER (WHERE failed)::int, count(*) FILTER (WHERE NOT failed)::int
		FROM known GROUP BY fact
		UNION ALL
		SELECT fact, value, count(*) FILTER (WHERE failed)::int, count(*) FILTER (WHERE NOT failed)::int
		FROM values_of GROUP BY fact, value HAVING count(*) FILTER (WHERE failed) >= `+least+`
		UNION ALL
		SELECT 'address', remote_addr, count(*) FILTER (WHERE failed)::int, count(*) FILTER (WHERE NOT failed)::int
		FROM f GROUP BY remote_addr`, w.args...)
	c.Known = make(map[compare.Fact]compare.Count)
	networks := make(map[string]compare.Count)
	var one compare.Count
	var value *string
	_, err = pgx.ForEachRow(rows, []any{&one.Fact, &value, &one.Failed, &one.Well}, func() error {
		switch {
		case one.Fact == "address":
			addNetwork(networks, *value, one)
		case value != nil:
			one.Value = *value
			c.Values = append(c.Values, one)
		case one.Fact == "":
			c.Failed, c.Well = one.Failed, one.Well
		default:
			one.Value = ""
			c.Known[one.Fact] = one
		}
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("%s: %w", what, domainError(err))
	}
	for network, n := range networks {
		n.Fact, n.Value = compare.Network, network
		c.Values = append(c.Values, n)
		all := c.Known[compare.Network]
		c.Known[compare.Network] = compare.Count{Fact: compare.Network, Failed: all.Failed + n.Failed,
			Well: all.Well + n.Well}
	}
	return c, nil
}

// addNetwork adds the devices with an address to those of its network.
func addNetwork(networks map[string]compare.Count, address string, n compare.Count) {
	at, err := netip.ParseAddr(address)
	if err != nil {
		return
	}
	bits := 24
	if at = at.Unmap().WithZone(""); at.Is6() {
		bits = 48
	}
	network, err := at.Prefix(bits)
	if err != nil {
		return
	}
	all := networks[network.String()]
	networks[network.String()] = compare.Count{Failed: all.Failed + n.Failed, Well: all.Well + n.Well}
}
