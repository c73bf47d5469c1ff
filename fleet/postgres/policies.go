package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/policy"
)

var _ policy.Store = (*Store)(nil)

type policyRow struct {
	ID            uuid.UUID
	Position      int
	Name          string
	Enabled       bool
	Fixed         bool
	Kinds         []fleet.PrincipalKind
	Roles         []fleet.Role
	Names         []string
	Tools         []string
	Audience      fleet.Audience
	Effects       []fleet.ToolEffect
	Devices       string
	Arguments     json.RawMessage
	WindowCron    *string
	WindowMs      *int64
	WindowZone    *string
	Decision      call.Decision
	Note          string
	ApprovalTTLMs int64 `db:"approval_ttl_ms"`
	RatePerMinute int
	DailyBudget   int
	UpdatedBy     string
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

func (r policyRow) rule() policy.Rule {
	p := policy.Rule{ID: r.ID, Position: r.Position, Name: r.Name, Enabled: r.Enabled, Fixed: r.Fixed, Kinds: r.Kinds,
		Roles: r.Roles, Names: r.Names, Tools: r.Tools, Audience: r.Audience, Effects: r.Effects, Devices: r.Devices,
		Arguments: r.Arguments, Decision: r.Decision, Note: r.Note,
		ApprovalTTL: time.Duration(r.ApprovalTTLMs) * time.Millisecond, RatePerMinute: r.RatePerMinute,
		DailyBudget: r.DailyBudget, UpdatedBy: r.UpdatedBy, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}
	if r.WindowCron != nil {
		p.Window = &fleet.Window{Cron: *r.WindowCron, Duration: time.Duration(*r.WindowMs) * time.Millisecond,
			TimeZone: *r.WindowZone}
	}
	return p
}

// Policies returns the rules in order, and the version of the table, in one snapshot.
func (s *Store) Policies(ctx context.Context) (rules []policy.Rule, version int64, err error) {
	err = pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, `SELECT version FROM policy_version`).Scan(&version); err != nil {
				return err
			}
			rows, _ := tx.Query(ctx, `
				SELECT id, position, name, enabled, fixed, kinds, roles, names, tools, audience, effects, devices, arguments,
					window_cron, window_ms, window_zone, decision, note, approval_ttl_ms, rate_per_minute, daily_budget, updated_by,
					created_at, updated_at
				FROM policies ORDER BY position, id`)
			list, err := pgx.CollectRows(rows, pgx.RowToStructByName[policyRow])
			rules = collect(list, policyRow.rule)
			return err
		})
	if err != nil {
		return nil, 0, fmt.Errorf("policies: %w", domainError(err))
	}
	return rules, version, nil
}

// PolicyVersion returns the version of the table.
func (s *Store) PolicyVersion(ctx context.Context) (version int64, err error) {
	if err := s.db.QueryRow(ctx, `SELECT version FROM policy_version`).Scan(&version); err != nil {
		return 0, fmt.Errorf("version of the policy: %w", domainError(err))
	}
	return version, nil
}

// changePolicy changes the table and increments its version, if the current version is the one
// that the change is based on.
func (s *Store) changePolicy(ctx context.Context, by fleet.Principal, version int64, action string, r policy.Rule,
	change func(pgx.Tx) error) error {
	detail := r.Detail()
	detail["version"] = version + 1
	return s.audited(ctx, by, action, r.ID.String(), detail, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE policy_version SET version = version + 1 WHERE version = $1`, version)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0:
			return fleet.Refuse(fleet.ErrConflict, "policy_changed", "version", version).At("version")
		}
		return change(tx)
	})
}

// CreatePolicy adds a rule at its position.
func (s *Store) CreatePolicy(ctx context.Context, by fleet.Principal, version int64, r policy.Rule) error {
	return s.changePolicy(ctx, by, version, "policy.create", r, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE policies SET position = position + 1 WHERE position >= $1`, r.Position); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO policies (id, name, enabled, kinds, roles, names, tools, audience, effects, devices, arguments,
				window_cron, window_ms, window_zone, decision, note, approval_ttl_ms, rate_per_minute, daily_budget, updated_by,
				updated_at, position, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)`,
			append(policyColumns(r), r.Position, r.CreatedAt)...)
		return err
	})
}

// UpdatePolicy stores a changed rule. Fixed rules are not changed.
func (s *Store) UpdatePolicy(ctx context.Context, by fleet.Principal, version int64, r policy.Rule) error {
	return s.changePolicy(ctx, by, version, "policy.update", r, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `
			UPDATE policies SET name = $2, enabled = $3, kinds = $4, roles = $5, names = $6, tools = $7, audience = $8,
				effects = $9, devices = $10, arguments = $11, window_cron = $12, window_ms = $13, window_zone = $14, decision = $15,
				note = $16, approval_ttl_ms = $17, rate_per_minute = $18, daily_budget = $19, updated_by = $20, updated_at = $21
			WHERE id = $1 AND NOT fixed`, policyColumns(r)...)
	})
}

func policyColumns(r policy.Rule) []any {
	var cron, zone *string
	var ms *int64
	if w := r.Window; w != nil {
		cron, zone, ms = &w.Cron, &w.TimeZone, new(w.Duration.Milliseconds())
	}
	return []any{r.ID, cleanText(r.Name), r.Enabled, texts(r.Kinds), texts(r.Roles), cleanTexts(r.Names),
		cleanTexts(r.Tools), string(r.Audience), texts(r.Effects), cleanText(r.Devices), cleanJSON(r.Arguments), cron, ms,
		zone, string(r.Decision), cleanText(r.Note), r.ApprovalTTL.Milliseconds(), r.RatePerMinute, r.DailyBudget,
		cleanText(r.UpdatedBy), r.UpdatedAt}
}

// DeletePolicy removes a rule. Fixed rules are not removed.
func (s *Store) DeletePolicy(ctx context.Context, by fleet.Principal, version int64, r policy.Rule) error {
	return s.changePolicy(ctx, by, version, "policy.delete", r, func(tx pgx.Tx) error {
		if err := changeOne(ctx, tx, `DELETE FROM policies WHERE id = $1 AND NOT fixed`, r.ID); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE policies SET position = position - 1 WHERE position > $1`, r.Position)
		return err
	})
}

// OrderPolicies stores the positions of the rules.
func (s *Store) OrderPolicies(ctx context.Context, by fleet.Principal, version int64, ids []uuid.UUID,
	moved policy.Rule) error {
	return s.changePolicy(ctx, by, version, "policy.move", moved, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE policies p SET position = u.position - 1
			FROM unnest($1::uuid[]) WITH ORDINALITY AS u (id, position) WHERE p.id = u.id`, ids)
		return err
	})
}

// CallUses counts calls that were not refused, by caller and tool.
func (s *Store) CallUses(ctx context.Context, from, to time.Time) ([]policy.Use, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT actor_kind AS kind, coalesce(nullif(actor_id, ''), actor_name) AS id, tool, count(*) AS calls
		FROM calls
		WHERE id >= $1 AND created_at >= $2 AND created_at < $3 AND state NOT IN ('refused', 'invalid')
		GROUP BY 1, 2, 3`, idFloor(from.Add(-idSlack)), from, to)
	uses, err := pgx.CollectRows(rows, pgx.RowToStructByName[policy.Use])
	if err != nil {
		return nil, fmt.Errorf("uses of tools: %w", domainError(err))
	}
	return uses, nil
}

// maxToolNames limits the list, which hostile devices could otherwise extend.
const maxToolNames = 20_000

// ToolNames lists the tools that any device offers or has offered.
func (s *Store) ToolNames(ctx context.Context) ([]string, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT DISTINCT name FROM inventories, unnest(tool_names) AS name LIMIT $1`, maxToolNames)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("names of tools: %w", domainError(err))
	}
	return names, nil
}
