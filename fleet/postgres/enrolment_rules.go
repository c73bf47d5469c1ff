package postgres

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/origin"
)

var _ enrolment.RuleStore = (*Store)(nil)

// EnrolmentRules returns the rules by position, each with the number of devices that it accepted.
func (s *Store) EnrolmentRules(ctx context.Context) ([]enrolment.Rule, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT r.id, r.position, r.name, r.enabled, r.action, r.boards, r.networks, r.devices, r.from_at AS "from",
			r.until_at AS until,
			r.max_devices, r.tags, r.transport, r.created_by, r.created_at, r.updated_at,
			(SELECT count(*) FROM enrolment_acceptances a WHERE a.rule_id = r.id) AS accepted
		FROM enrolment_rules r ORDER BY r.position, r.id`)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[enrolment.Rule])
	if err != nil {
		return nil, fmt.Errorf("enrolment rules: %w", domainError(err))
	}
	return list, nil
}

// CreateEnrolmentRule stores a new rule.
func (s *Store) CreateEnrolmentRule(ctx context.Context, by fleet.Principal, r enrolment.Rule) error {
	return s.audited(ctx, by, "enrolment_rule.create", r.ID.String(), r.Detail(), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO enrolment_rules (id, name, enabled, action, boards, networks, devices, from_at, until_at, max_devices,
				tags, transport, updated_at, position, created_by, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
			append(ruleColumns(r), r.Position, cleanText(r.CreatedBy), r.CreatedAt)...)
		return err
	})
}

// UpdateEnrolmentRule stores a changed rule.
func (s *Store) UpdateEnrolmentRule(ctx context.Context, by fleet.Principal, r enrolment.Rule) error {
	return s.audited(ctx, by, "enrolment_rule.update", r.ID.String(), r.Detail(), func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `
			UPDATE enrolment_rules SET name = $2, enabled = $3, action = $4, boards = $5, networks = $6, devices = $7,
				from_at = $8,
				until_at = $9, max_devices = $10, tags = $11, transport = $12, updated_at = $13
			WHERE id = $1`, ruleColumns(r)...)
	})
}

func ruleColumns(r enrolment.Rule) []any {
	networks := r.Networks
	if networks == nil {
		networks = []netip.Prefix{}
	}
	return []any{r.ID, cleanText(r.Name), r.Enabled, string(r.Action), cleanTexts(r.Boards), networks, texts(r.Devices),
		r.From, r.Until, r.MaxDevices, cleanTexts(r.Tags), string(r.Transport), r.UpdatedAt}
}

// DeleteEnrolmentRule removes a rule.
func (s *Store) DeleteEnrolmentRule(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	return s.audited(ctx, by, "enrolment_rule.delete", id.String(), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM enrolment_rules WHERE id = $1`, id)
	})
}

// OrderEnrolmentRules stores the positions of the rules.
func (s *Store) OrderEnrolmentRules(ctx context.Context, by fleet.Principal, ids []uuid.UUID, moved uuid.UUID) error {
	at := 0
	for i, id := range ids {
		if id == moved {
			at = i
		}
	}
	return s.audited(ctx, by, "enrolment_rule.move", moved.String(), map[string]any{"position": at},
		func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
			UPDATE enrolment_rules r SET position = u.position - 1
			FROM unnest($1::uuid[]) WITH ORDINALITY AS u (id, position) WHERE r.id = u.id`, ids)
			return err
		})
}

// queueAcceptances adds the results of rules to a batch of polls: the device's tags, and the
// audit entry. It does not change an acceptance that is already stored, because a batch whose
// outcome was lost is sent again.
func queueAcceptances(b *pgx.Batch, polls []enrolment.PollRecord) {
	for _, p := range polls {
		a := p.Accepted
		if a == nil {
			continue
		}
		by := enrolment.RuleActor(*a)
		tags := cleanTexts(a.Tags)
		args, _ := auditArgs(by, origin.Origin{}, "device.accept", []auditNote{{string(p.Poll.Device), // strings only: marshalling cannot fail
			map[string]any{"rule": by.ID, "rule_name": cleanText(a.Name), "tags": tags}}})
		b.Queue(insertAudit(`NOT EXISTS (SELECT FROM enrolment_acceptances a WHERE a.id = $15)`),
			append(args, a.ID)...)
		b.Queue(`
			WITH new AS (
				INSERT INTO enrolment_acceptances (id, rule_id, device_id, at) VALUES ($1, $2, $3, $4)
				ON CONFLICT (id) DO NOTHING RETURNING device_id
			)
			UPDATE devices d SET tags = t.tags, transport_choice = coalesce(nullif($7::text, ''), d.transport_choice),
				tags_key = CASE WHEN t.tags = '{}' THEN '' ELSE $6::text || lower(array_to_string(t.tags,
					$6::text)) || $6::text END
			FROM new, LATERAL (SELECT ARRAY(SELECT DISTINCT tag COLLATE "C" FROM unnest(
				(SELECT o.tags FROM devices o WHERE o.id = new.device_id) || $5::text[]) AS tag ORDER BY 1) AS tags) t
			WHERE d.id = new.device_id`,
			a.ID, a.Rule, cleanText(string(p.Poll.Device)), a.At, tags, tagMark, string(a.Transport))
	}
}
