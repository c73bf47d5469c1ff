package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/alert"
)

var (
	_ alert.Store = (*Store)(nil)
	_ alert.Facts = (*Store)(nil)

	_ alert.MailStore = (*Store)(nil)
)

// Limits of the reads for alert conditions.
const (
	maxAlerting   = 10_000 // devices; an alert names only some of them
	maxOpenAlerts = 500
)

const alertColumns = `id, kind, subject, state, severity, devices, params, query, began_at, quiet_since, ended_at,
	acked_kind, acked_id, acked_name, acked_role, acked_at, acked_count, note,
	(SELECT row_to_json(s) FROM silences s WHERE s.id = silence_id) AS silence`

func toAlert(row pgx.CollectableRow) (alert.Alert, error) {
	r, err := pgx.RowToStructByName[struct {
		ID         uuid.UUID
		Kind       alert.Kind
		Subject    string
		State      alert.Status
		Severity   alert.Severity
		Devices    int
		Params     []byte
		Query      string
		BeganAt    time.Time
		QuietSince *time.Time
		EndedAt    *time.Time
		AckedKind  fleet.PrincipalKind
		AckedID    string
		AckedName  string
		AckedRole  fleet.Role
		AckedAt    *time.Time
		AckedCount int
		Note       string
		Silence    []byte
	}](row)
	a := alert.Alert{ID: r.ID, Kind: r.Kind, Subject: r.Subject, State: r.State, Severity: r.Severity,
		Devices: r.Devices, Query: r.Query, Began: r.BeganAt, QuietSince: r.QuietSince, EndedAt: r.EndedAt,
		AckedBy: fleet.Principal{Kind: r.AckedKind, ID: r.AckedID, Name: r.AckedName, Role: r.AckedRole},
		AckedAt: r.AckedAt, AckedCount: r.AckedCount, Note: r.Note}
	if err == nil && r.Params != nil {
		err = json.Unmarshal(r.Params, &a.Params)
	}
	if err == nil && r.Silence != nil {
		var s silenceRow
		err = json.Unmarshal(r.Silence, &s)
		silence := s.silence()
		a.Silence = &silence
	}
	return a, err
}

// OpenAlerts lists alerts that have not ended: silenced ones last, first those not acknowledged,
// then the most severe, those that concern most devices, and the oldest.
func (s *Store) OpenAlerts(ctx context.Context) ([]alert.Alert, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+alertColumns+` FROM alerts WHERE state <> 'ended'
		ORDER BY silence_id IS NOT NULL, state = 'acknowledged', severity = 'bad' DESC, devices DESC, began_at, id
		LIMIT $1`, maxOpenAlerts)
	list, err := pgx.CollectRows(rows, toAlert)
	if err != nil {
		return nil, fmt.Errorf("open alerts: %w", domainError(err))
	}
	return list, nil
}

// Alerts lists alerts, newest first.
func (s *Store) Alerts(ctx context.Context, f alert.Filter) (fleet.Page[alert.Alert], error) {
	none := fleet.Page[alert.Alert]{}
	at, err := parseCursor(f.Cursor, "alerts")
	if err != nil {
		return none, err
	}
	var w where
	if len(f.States) > 0 {
		w.and("state = ANY (?)", f.States)
	}
	order, err := w.idsDown(at)
	if err != nil {
		return none, err
	}
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `SELECT `+alertColumns+` FROM alerts`+w.String()+order+` LIMIT `+w.arg(limit+1),
		w.args...)
	list, err := pgx.CollectRows(rows, toAlert)
	if err != nil {
		return none, fmt.Errorf("alerts: %w", domainError(err))
	}
	return makePage(list, limit, at, func(a alert.Alert) cursor {
		return cursor{List: "alerts", ID: a.ID.String()}
	}), nil
}

// Alert returns one alert, or [fleet.ErrNotFound].
func (s *Store) Alert(ctx context.Context, id uuid.UUID) (alert.Alert, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+alertColumns+` FROM alerts WHERE id = $1`, id)
	a, err := pgx.CollectExactlyOneRow(rows, toAlert)
	if err != nil {
		return a, fmt.Errorf("alert %s: %w", id, domainError(err))
	}
	return a, nil
}

const alertRecordColumns = `seq, alert_id, at, event, severity, devices, by_kind, by_id, by_name, by_role, note`

func toAlertRecord(row pgx.CollectableRow) (r alert.Record, err error) {
	err = row.Scan(&r.Seq, &r.Alert, &r.At, &r.Event, &r.Severity, &r.Devices, &r.By.Kind, &r.By.ID, &r.By.Name,
		&r.By.Role, &r.Note)
	return r, err
}

// AlertRecords returns the history of an alert, oldest first.
func (s *Store) AlertRecords(ctx context.Context, id uuid.UUID) ([]alert.Record, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+alertRecordColumns+` FROM alert_events WHERE alert_id = $1 ORDER BY seq LIMIT $2`,
		id, maxOpenAlerts)
	list, err := pgx.CollectRows(rows, toAlertRecord)
	if err != nil {
		return nil, fmt.Errorf("history of alert %s: %w", id, domainError(err))
	}
	return list, nil
}

// ChangeAlert stores a change and its event. An acknowledgement does not change the figures, and
// an evaluation does not change the acknowledgement, so neither undoes what the other stored
// meanwhile.
func (s *Store) ChangeAlert(ctx context.Context, c alert.Change) error {
	a := c.Alert
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var err error
		switch {
		case c.From == "":
			_, err = tx.Exec(ctx, `
				INSERT INTO alerts (id, kind, subject, state, severity, devices, params, query, began_at, silence_id)
				VALUES ($1, $2, $3, $4, $5, $6, $7::json, $8, $9, $10)`,
				a.ID, a.Kind, cleanText(a.Subject), a.State, a.Severity, a.Devices, storableJSON(a.Params), a.Query, a.Began,
				silenceID(a.Silence))
		case c.Event == alert.Acked:
			err = changeOne(ctx, tx, `
				UPDATE alerts SET state = $3, acked_kind = $4, acked_id = $5, acked_name = $6, acked_role = $7, acked_at = $8,
					acked_count = devices, note = $9
				WHERE id = $1 AND state = $2`, a.ID, c.From, a.State, a.AckedBy.Kind, cleanText(a.AckedBy.ID),
				cleanText(a.AckedBy.Name), a.AckedBy.Role, a.AckedAt, cleanText(a.Note))
		case c.Event == alert.Unacked:
			err = changeOne(ctx, tx, `UPDATE alerts SET state = $3, note = '' WHERE id = $1 AND state = $2`, a.ID, c.From,
				a.State)
		default:
			err = changeOne(ctx, tx, `
				UPDATE alerts SET state = $3, severity = $4, devices = $5, params = $6::json, query = $7, quiet_since = $8,
					ended_at = $9
				WHERE id = $1 AND state = $2`, a.ID, c.From, a.State, a.Severity, a.Devices, storableJSON(a.Params), a.Query,
				a.QuietSince, a.EndedAt)
		}
		if isNotFound(err) {
			return fmt.Errorf("%w: it is not %s any more", fleet.ErrConflict, c.From)
		}
		if err != nil {
			return err
		}
		if err := s.recordAlert(ctx, tx, c); err != nil {
			return err
		}
		subject := map[string]any{"kind": a.Kind, "subject": a.Subject, "devices": a.Devices}
		switch c.Event {
		case alert.Acked:
			subject["note"] = a.Note
			return writeAudit(ctx, tx, c.By, "alert.acknowledge", a.ID.String(), subject)
		case alert.Unacked:
			return writeAudit(ctx, tx, c.By, "alert.reopen", a.ID.String(), subject)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("alert %s of %s: %w", a.ID, a.Kind, domainError(err))
	}
	return nil
}

// recordAlert stores the event of a change, if it has one, and queues what webhooks get of the change
// unless the alert is silenced.
func (s *Store) recordAlert(ctx context.Context, tx pgx.Tx, c alert.Change) error {
	silenced := c.Alert.Silence != nil
	if c.Event != "" {
		_, err := tx.Exec(ctx, `
			INSERT INTO alert_events (alert_id, at, event, severity, devices, by_kind, by_id, by_name, by_role, note, silenced)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
			c.Alert.ID, c.At, c.Event, c.Alert.Severity, c.Alert.Devices, c.By.Kind, cleanText(c.By.ID), cleanText(c.By.Name),
			c.By.Role, cleanText(c.Note), silenced)
		if err != nil {
			return err
		}
	}
	if silenced {
		return nil
	}
	return s.publishAlert(ctx, tx, c)
}

// AlertDigest lists the events within the route after a number that are older than a time and not
// silenced, with their alerts, oldest first.
func (s *Store) AlertDigest(ctx context.Context, r alert.Route, after int64, before time.Time, limit int) (
	items []alert.DigestItem, more int, last int64, err error) {
	err = s.db.QueryRow(ctx, `SELECT coalesce(max(seq), $1) FROM (SELECT seq FROM alert_events WHERE seq > $1 AND at < $2
		ORDER BY seq LIMIT $3) e`, after, before, maxAlerting).Scan(&last)
	if err != nil || last == after {
		return nil, 0, after, domainError(err)
	}
	rows, _ := s.db.Query(ctx, `SELECT `+alertRecordColumns+` FROM alert_events
		WHERE seq > $1 AND seq <= $2 AND at < $3 AND NOT silenced AND ($4 = 'warning' OR severity = 'bad')
		AND (cardinality($5::text[]) = 0 OR alert_id IN (SELECT id FROM alerts WHERE kind = ANY ($5)))
		ORDER BY seq`, after, last, before, cmp.Or(r.Least, alert.Warning), append([]alert.Kind{}, r.Kinds...))
	records, err := pgx.CollectRows(rows, toAlertRecord)
	if err != nil || len(records) == 0 {
		return nil, 0, last, domainError(err)
	}
	more = max(0, len(records)-limit)
	records = records[more:] // the newest are the most informative
	rows, _ = s.db.Query(ctx, `SELECT `+alertColumns+` FROM alerts WHERE id = ANY ($1)`,
		collect(records, func(r alert.Record) uuid.UUID { return r.Alert }))
	list, err := pgx.CollectRows(rows, toAlert)
	if err != nil {
		return nil, 0, after, fmt.Errorf("alerts to be mailed: %w", domainError(err))
	}
	byID := make(map[uuid.UUID]alert.Alert)
	for _, a := range list {
		byID[a.ID] = a
	}
	for _, r := range records {
		items = append(items, alert.DigestItem{Record: r, Alert: byID[r.Alert]})
	}
	return items, more, last, nil
}

const mailedThrough = "alerts_mailed"

// MailedThrough returns the number of the last mailed event; initially, the number of the newest
// event.
func (s *Store) MailedThrough(ctx context.Context) (seq int64, err error) {
	err = s.Setting(ctx, mailedThrough, &seq)
	if !isNotFound(err) {
		return seq, err
	}
	if err := s.db.QueryRow(ctx, `SELECT coalesce(max(seq), 0) FROM alert_events`).Scan(&seq); err != nil {
		return 0, fmt.Errorf("newest event of alerts: %w", domainError(err))
	}
	return seq, s.InitSetting(ctx, mailedThrough, &seq)
}

// SetMailedThrough stores the number of the last mailed event.
func (s *Store) SetMailedThrough(ctx context.Context, seq int64) error {
	return s.SetSetting(ctx, mailedThrough, seq)
}

const alertSettings = "alerts"

// AlertSettings returns the settings of alerts, the defaults if none were stored.
func (s *Store) AlertSettings(ctx context.Context) (alert.Settings, error) {
	v := alert.DefaultSettings()
	if err := s.Setting(ctx, alertSettings, &v); err != nil && !isNotFound(err) {
		return v, err
	}
	return v, nil
}

// SaveAlertSettings stores the settings of alerts.
func (s *Store) SaveAlertSettings(ctx context.Context, by fleet.Principal, v alert.Settings) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("settings of alerts: %w", err)
	}
	var detail map[string]any
	if err := json.Unmarshal(raw, &detail); err != nil {
		return fmt.Errorf("settings of alerts: %w", err)
	}
	return s.audited(ctx, by, "alert.settings", alertSettings, detail, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO settings (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value`,
			alertSettings, string(raw))
		return err
	})
}

// PresenceSince lists samples, oldest first. Devices at silent edges count as online. With a start, the
// list goes back to span before the last sample before start, if that sample is at most a day older.
func (s *Store) PresenceSince(ctx context.Context, since, start time.Time, span time.Duration) (
	[]fleet.PresenceSample, error) {
	sql, args := `$1`, []any{since, maxSamples}
	if !start.IsZero() {
		sql = `least($1, coalesce((SELECT max(at) FROM presence_samples WHERE at < $3 AND at > $4), $1) - $5::interval)`
		args = append(args, start, start.Add(-24*time.Hour), span)
	}
	rows, _ := s.db.Query(ctx, `
		SELECT at, online + unknown_edge AS online, unresponsive, 0 AS unknown_edge, offline, pending FROM presence_samples
		WHERE at >= `+sql+` ORDER BY at LIMIT $2`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.PresenceSample])
	if err != nil {
		return nil, fmt.Errorf("presence since %s: %w", since, domainError(err))
	}
	return list, nil
}

// Share counts the devices of a group in service that match the query, and all devices of the group
// in service that were ever online.
func (s *Store) Share(ctx context.Context, group, q fleet.Query) (devices, all int, err error) {
	var w where
	found, within := w.all(q), w.all(group)
	err = s.db.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE `+found+`), count(*) FILTER (WHERE presence <> 'pending')
		FROM devices WHERE in_service AND `+within, w.args...).Scan(&devices, &all)
	if err != nil {
		return 0, 0, fmt.Errorf("share of devices with %q: %w", q.Text, domainError(err))
	}
	return devices, all, nil
}

func (s *Store) devicesOf(ctx context.Context, what, sql string, args ...any) ([]fleet.DeviceID, error) {
	rows, _ := s.db.Query(ctx, sql, args...)
	list, err := pgx.CollectRows(rows, pgx.RowTo[fleet.DeviceID])
	if err != nil {
		return nil, fmt.Errorf("devices that %s: %w", what, domainError(err))
	}
	return list, nil
}

// Crashing returns the devices in service that restarted at least restarts times since the given
// time, or are in safe mode.
func (s *Store) Crashing(ctx context.Context, restarts int, since time.Time) ([]fleet.DeviceID, error) {
	return s.devicesOf(ctx, "crash", `
		SELECT id FROM devices
		WHERE in_service AND enrolment = 'enrolled'
		AND id = ANY (ARRAY(SELECT device_id FROM report_changes WHERE code = 'restarted' AND at >= $2
				GROUP BY device_id HAVING count(*) >= $1 LIMIT $3)
			|| ARRAY(SELECT device_id FROM device_vitals WHERE safe_mode LIMIT $3)) LIMIT $3`,
		restarts, since, maxAlerting)
}

// RolledBack returns the devices that rolled back an update since the given time.
func (s *Store) RolledBack(ctx context.Context, since time.Time) ([]fleet.DeviceID, error) {
	return s.devicesOf(ctx, "rolled back", `
		SELECT DISTINCT device_id FROM deployments WHERE state = 'rolled_back' AND finished_at > $1 LIMIT $2`,
		since, maxAlerting)
}

// ToolsChanged returns the devices whose listed tools changed since the given time without a
// change of firmware.
func (s *Store) ToolsChanged(ctx context.Context, since time.Time) ([]fleet.DeviceID, error) {
	return s.devicesOf(ctx, "changed their tools", `
		SELECT DISTINCT device_id FROM device_inventories WHERE unexplained AND first_seen > $1 LIMIT $2`,
		since, maxAlerting)
}

func (s *Store) alertingCampaigns(ctx context.Context, sql string, args ...any) ([]alert.Campaign, error) {
	rows, _ := s.db.Query(ctx, sql, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[alert.Campaign])
	if err != nil {
		return nil, fmt.Errorf("campaigns that need somebody: %w", domainError(err))
	}
	return list, nil
}

// CampaignsStopped returns the campaigns that a rule or fleetd paused, and those that since the
// given time a rule aborted, or that were aborted without the requested rollback.
func (s *Store) CampaignsStopped(ctx context.Context, since time.Time) ([]alert.Campaign, error) {
	return s.alertingCampaigns(ctx, `
		SELECT id, name, 0, CASE WHEN state = 'paused' THEN
				CASE pause_reason WHEN 'threshold' THEN 'paused_by_rule' ELSE 'paused_by_fleetd' END
			WHEN reason_code = 'abort_rule' THEN 'aborted_by_rule' ELSE 'not_rolled_back' END
		FROM campaigns
		WHERE state = 'paused' AND pause_reason IN ('threshold', 'system')
		OR state IN ('stopping', 'aborted') AND (reason_code = 'abort_rule' OR rollback_reason_code <> '')
			AND coalesce(finished_at, now()) > $1
		ORDER BY created_at DESC LIMIT 100`, since)
}

// CampaignsStuck returns the running campaigns without a soaking wave in which no deployment has
// changed since the given time.
func (s *Store) CampaignsStuck(ctx context.Context, since time.Time) ([]alert.Campaign, error) {
	return s.alertingCampaigns(ctx, `
		SELECT id, name, (SELECT count(*) FROM deployments d WHERE d.campaign_id = c.id AND d.finished_at IS NULL), ''
		FROM campaigns c
		WHERE state = 'running' AND started_at < $1
		AND NOT EXISTS (SELECT FROM waves w WHERE w.campaign_id = c.id AND w.state = 'soaking')
		AND NOT EXISTS (SELECT FROM deployments d WHERE d.campaign_id = c.id AND d.updated_at > $1)
		ORDER BY created_at DESC LIMIT 100`, since)
}
