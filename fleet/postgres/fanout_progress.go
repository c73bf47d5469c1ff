package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// Limits of the contents of a fan-out's page.
const (
	maxAnswers      = 200
	answerSample    = 5
	maxAnswerBytes  = 300
	maxTargetsAtAll = 5000
)

// notMade is the condition on a call c that the device must be called again: the call was
// canceled because fleetd stopped or its record was missing, or it found its device offline while
// the fan-out ($1) waits for such devices.
const notMade = `(c.state = 'canceled' AND c.error_code IN ('` + fleet.CodeStopped + `', '` + fleet.CodeNotRecorded +
	`', '` + fleet.CodeRecordLate + `')
	OR c.error_code = '` + fleet.CodeOffline + `' AND c.state IN ('offline', 'canceled') AND (
		SELECT state = 'running' AND coalesce(started_at, created_at) + offline_wait_ms * interval '1 millisecond' > now()
			FROM fanouts
			WHERE id = $1))`

// fanOutBegan is before all calls of a fan-out ($1), even if the clock is set back meanwhile. It
// excludes monthly partitions from the search.
const fanOutBegan = `(SELECT created_at - interval '1 day' FROM fanouts WHERE id = $1)`

// fanOutCalls selects the fan-out's ($1) calls that count, at most one for each device.
const fanOutCalls = `
	SELECT DISTINCT ON (c.device_id) c.id, c.device_id, c.state, c.result_hash
	FROM calls c
	WHERE c.fanout_id = $1 AND c.created_at >= ` + fanOutBegan + ` AND NOT ` + notMade + `
	ORDER BY c.device_id, c.id DESC`

// PendingTargets returns devices that the fan-out has yet to call.
func (s *Store) PendingTargets(ctx context.Context, id uuid.UUID, after fleet.DeviceID, limit int) ([]fleet.DeviceID,
	error) {
	rows, _ := s.db.Query(ctx, `
		SELECT t.device_id FROM fanout_targets t
		WHERE t.fanout_id = $1 AND t.reason = '' AND t.device_id > $2
		AND (SELECT state = 'running' FROM fanouts WHERE id = $1)
		AND NOT EXISTS (SELECT FROM calls c WHERE c.fanout_id = $1 AND c.device_id = t.device_id
			AND c.created_at >= `+fanOutBegan+` AND NOT `+notMade+`)
		ORDER BY t.device_id LIMIT $3`, id, string(after), min(max(limit, 1), maxTargetsAtAll))
	list, err := pgx.CollectRows(rows, pgx.RowTo[fleet.DeviceID])
	if err != nil {
		return nil, fmt.Errorf("targets of fan-out %s: %w", id, domainError(err))
	}
	return list, nil
}

// SkippedTargets counts the skipped devices by reason, largest first.
func (s *Store) SkippedTargets(ctx context.Context, id uuid.UUID) ([]fleet.DeviceCount, error) {
	scoped, args := scopedWithinFanOut(ctx, id, maxAnswers)
	rows, _ := s.db.Query(ctx, `
		SELECT reason AS value, count(*) AS count FROM fanout_targets
		WHERE fanout_id = $1 AND reason <> ''`+scoped+` GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $2`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.DeviceCount])
	if err != nil {
		return nil, fmt.Errorf("devices skipped by fan-out %s: %w", id, domainError(err))
	}
	return list, nil
}

// SkipTarget stores why a target cannot be called. A second reason changes nothing.
func (s *Store) SkipTarget(ctx context.Context, id uuid.UUID, t call.FanOutTarget) error {
	_, err := s.db.Exec(ctx, `
		WITH skipped AS (
			UPDATE fanout_targets SET reason = $3 WHERE fanout_id = $1 AND device_id = $2 AND reason = '' RETURNING device_id)
		UPDATE fanouts SET targets = targets - 1, skipped = skipped + 1
		WHERE id = $1 AND EXISTS (SELECT FROM skipped)`, id, string(t.Device), cleanText(t.Reason))
	if err != nil {
		return fmt.Errorf("skip %s in fan-out %s: %w", t.Device, id, domainError(err))
	}
	return nil
}

// LastAlive returns when the presence of the fleet was last sampled.
func (s *Store) LastAlive(ctx context.Context, before time.Time) (time.Time, error) {
	var at *time.Time
	if err := s.db.QueryRow(ctx, `SELECT max(at) FROM presence_samples WHERE at < $1`, before).Scan(&at); err != nil {
		return time.Time{}, fmt.Errorf("last sample of presence: %w", domainError(err))
	}
	if at == nil {
		return time.Time{}, nil
	}
	return *at, nil
}

// Progress counts the fan-out's calls.
func (s *Store) Progress(ctx context.Context, id uuid.UUID) (call.FanOutProgress, error) {
	p := call.FanOutProgress{ByState: map[fleet.CallState]int{}}
	var b pgx.Batch
	scoped, args := scopedWithinFanOut(ctx, id)
	b.Queue(`SELECT targets FROM fanouts WHERE id = $1`+scoped, args...).QueryRow(
		func(row pgx.Row) error { return row.Scan(&p.Waiting) })
	b.Queue(`SELECT state, count(*) FROM (`+fanOutCalls+`) c WHERE true`+scoped+` GROUP BY state`,
		args...).Query(func(rows pgx.Rows) error {
		var state fleet.CallState
		var n int
		_, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error {
			p.ByState[state] = n
			p.Waiting -= n
			return nil
		})
		return err
	})
	if err := s.db.SendBatch(ctx, &b).Close(); err != nil {
		return call.FanOutProgress{}, fmt.Errorf("progress of fan-out %s: %w", id, domainError(err))
	}
	p.Waiting = max(p.Waiting, 0)
	return p, nil
}

type answerRow struct {
	State        fleet.CallState
	Count        int
	Total        int
	Devices      []fleet.DeviceID
	Calls        []uuid.UUID
	Result       []byte
	ErrorCode    *string
	ErrorMessage *string
	ErrorParams  []byte
}

// Answers groups the devices that gave the same answer, largest group first.
func (s *Store) Answers(ctx context.Context, id uuid.UUID, limit int) ([]call.FanOutAnswer, error) {
	answers, _, err := s.AnswerPage(ctx, id, 0, limit)
	return answers, err
}

// AnswerPage returns a range of those groups, and the total number of groups.
func (s *Store) AnswerPage(ctx context.Context, id uuid.UUID, offset, limit int) ([]call.FanOutAnswer, int, error) {
	scoped, args := scopedWithinFanOut(ctx, id, min(max(limit, 1), maxAnswers),
		answerSample, max(offset, 0))
	rows, _ := s.db.Query(ctx, `
		WITH groups AS (
			SELECT state, result_hash, count(*) AS count, count(*) OVER () AS total,
				(array_agg(device_id ORDER BY device_id))[1:$3] AS devices, (array_agg(id ORDER BY device_id))[1:$3] AS calls
			FROM (`+fanOutCalls+`) c
			WHERE state NOT IN ('pending', 'sent')`+scoped+`
			GROUP BY state, result_hash
			ORDER BY count(*) DESC, state, result_hash LIMIT $2 OFFSET $4)
		SELECT g.state, g.count, g.total, g.devices, g.calls, c.result, c.error_code, c.error_message, c.error_params
		FROM groups g JOIN calls c ON c.id = g.calls[1]
			AND c.created_at >= `+fanOutBegan+`
		ORDER BY g.count DESC, g.state, g.result_hash`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[answerRow])
	if err != nil {
		return nil, 0, fmt.Errorf("answers to fan-out %s: %w", id, domainError(err))
	}
	answers, total := make([]call.FanOutAnswer, len(list)), 0
	for i, r := range list {
		total = r.Total
		if answers[i], err = r.answer(); err != nil {
			return nil, 0, fmt.Errorf("answers to fan-out %s: %w", id, err)
		}
	}
	return answers, total, nil
}

// EachOutcome passes each device's answer to each, without storing them in memory.
func (s *Store) EachOutcome(ctx context.Context, id uuid.UUID, each func(call.FanOutOutcome) bool) error {
	scoped, args := scopedWithinFanOut(ctx, id)
	rows, _ := s.db.Query(ctx, `
		SELECT f.device_id, d.name, f.id, f.state, c.result, c.error_code, c.error_message, c.error_params, c.finished_at
		FROM (`+fanOutCalls+`) f JOIN calls c ON c.id = f.id AND c.created_at >= `+fanOutBegan+`
			JOIN devices d ON d.id = f.device_id
		WHERE f.state NOT IN ('pending', 'sent')`+scoped+` ORDER BY f.device_id`, args...)
	defer rows.Close()
	for rows.Next() {
		var o call.FanOutOutcome
		var r answerRow
		err := rows.Scan(&o.Device, &o.Name, &o.Call, &o.State, &r.Result, &r.ErrorCode, &r.ErrorMessage, &r.ErrorParams,
			&o.FinishedAt)
		if err == nil {
			o.Error, err = callErrorOf(r.ErrorCode, r.ErrorMessage, r.ErrorParams)
		}
		if err != nil {
			return fmt.Errorf("outcomes of fan-out %s: %w", id, err)
		}
		o.Text, o.Structured = resultParts(r.Result)
		if !each(o) {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("outcomes of fan-out %s: %w", id, domainError(err))
	}
	return nil
}

func (r answerRow) answer() (call.FanOutAnswer, error) {
	a := call.FanOutAnswer{State: r.State, Count: r.Count, Sample: r.Devices, CallIDs: r.Calls,
		Text: resultText(r.Result)}
	var err error
	if a.Text == "" {
		a.Error, err = callErrorOf(r.ErrorCode, r.ErrorMessage, r.ErrorParams)
	}
	return a, err
}

// resultText returns the first text of an MCP CallToolResult, shortened.
func resultText(result []byte) string {
	text, _ := resultParts(result)
	return shorten(text)
}

// resultParts returns the first text and the structured content of an MCP CallToolResult.
func resultParts(result []byte) (text string, structured json.RawMessage) {
	var r struct {
		Content           []struct{ Type, Text string }
		StructuredContent json.RawMessage
	}
	if json.Unmarshal(result, &r) != nil {
		return "", nil
	}
	if string(r.StructuredContent) == "null" {
		r.StructuredContent = nil
	}
	for _, c := range r.Content {
		if c.Type == "text" && c.Text != "" {
			return c.Text, r.StructuredContent
		}
	}
	return "", r.StructuredContent
}

func shorten(s string) string {
	if len(s) <= maxAnswerBytes {
		return s
	}
	cut := maxAnswerBytes
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strings.TrimSpace(s[:cut]) + "…"
}
