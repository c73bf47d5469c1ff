package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/origin"
	"fleetd/fleet/record"
)

var _ audit.Store = (*Store)(nil)

// audited makes a change and its audit entry in one transaction.
func (s *Store) audited(ctx context.Context, by fleet.Principal, action, subject string, detail map[string]any,
	change func(pgx.Tx) error) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if err := change(tx); err != nil {
			return err
		}
		return writeAudit(ctx, tx, by, action, subject, detail)
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", action, subject, domainError(err))
	}
	return nil
}

// An auditNote is one entry of an act that may have several.
type auditNote struct {
	subject string
	detail  map[string]any
}

// writeAudit adds one entry to the record.
func writeAudit(ctx context.Context, tx pgx.Tx, by fleet.Principal, action, subject string,
	detail map[string]any) error {
	return writeAudits(ctx, tx, by, action, []auditNote{{subject, detail}})
}

// writeAudits adds an entry for each row.
func writeAudits(ctx context.Context, tx pgx.Tx, by fleet.Principal, action string, rows []auditNote) error {
	args, err := auditArgs(by, origin.Of(ctx), action, rows)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, insertAudit("true"), args...)
	return err
}

// insertAudit returns the only statement that adds audit entries, and their leaves; see [auditArgs]. It adds them if
// the condition holds.
func insertAudit(condition string) string {
	return `WITH origin AS (
		INSERT INTO origins (id, address, client, last_seen) SELECT $11::uuid, $12, $13, now() WHERE $11 IS NOT NULL
		` + touchOrigin + `),
	added AS (
		INSERT INTO audit_entries (id, created_at, actor_kind, actor_id, actor_name, actor_role, action, subject, detail,
			origin_id, trace_id)
		SELECT e.id, $1::timestamptz, $2, $3, $4, $5, $6, e.subject, e.detail::jsonb, $11, $14
		FROM unnest($7::uuid[], $8::text[], $9::text[]) AS e (id, subject, detail)
		WHERE ` + condition + ` RETURNING id)
	INSERT INTO record_queue (leaves) SELECT $10::bytea WHERE EXISTS (SELECT FROM added)`
}

// auditArgs returns the arguments of [insertAudit].
func auditArgs(by fleet.Principal, from origin.Origin, action string, rows []auditNote) ([]any, error) {
	ids, subjects, details := make([]uuid.UUID, len(rows)), make([]string, len(rows)), make([]string, len(rows))
	now := time.Now()
	by.ID, by.Name = cleanText(by.ID), cleanText(by.Name)
	var leaves []byte
	for i, r := range rows {
		if r.detail == nil {
			r.detail = map[string]any{}
		}
		text, err := json.Marshal(r.detail)
		if err != nil {
			return nil, fmt.Errorf("audit entry %s: %w", action, err)
		}
		// jsonb accepts no \u0000, and the detail may quote a device.
		ids[i], subjects[i], details[i] = uuid.Must(uuid.NewV7()), cleanText(r.subject), withoutNUL(string(text))
		entry := record.ActionRow{ID: ids[i], CreatedAt: now, Actor: recordWho(by), Action: action, Subject: subjects[i],
			Detail: details[i], Origin: recordOrigin(from)}
		leaves = entry.Leaf().Append(leaves)
	}
	return []any{now, string(by.Kind), by.ID, by.Name, string(by.Role), action, ids, subjects, details, leaves,
		originID(from), from.Address, from.Client, traceID(from)}, nil
}

// withoutNUL removes escaped NULs from marshalled JSON. It considers that the backslash may
// itself be escaped.
func withoutNUL(text string) string {
	if !strings.Contains(text, `\u0000`) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case strings.HasPrefix(text[i:], `\u0000`):
			i += len(`\u0000`) - 1
		case text[i] == '\\' && i+1 < len(text):
			out.WriteString(text[i : i+2])
			i++
		default:
			out.WriteByte(text[i])
		}
	}
	return out.String()
}

// auditScope leaves only entries about devices that exist for the principal and that name no
// other device.
func (w *where) auditScope(ctx context.Context) {
	in := w.devicesInScope(ctx)
	if in == "" {
		return
	}
	w.and("(action LIKE 'device.%' OR action LIKE 'quarantine.%') AND subject IN " + in +
		" AND (detail->>'successor' IS NULL OR detail->>'successor' IN " + in + ")")
}

// nameSubjects adds the names of the subjects. A device has its current name. A subject with a
// UUID has the name in its latest entry that contains one, even after it was deleted. Where
// entries are deleted before their subjects, the name is read from the subject's table.
func (s *Store) nameSubjects(ctx context.Context, entries []audit.Entry) error {
	var ids []string
	var uuids []pgtype.UUID // of ids; null for a device
	for _, e := range entries {
		id, err := uuid.Parse(e.Subject)
		if err == nil || e.Kind != audit.Action || isDeviceAction(e.Action) {
			ids, uuids = append(ids, e.Subject), append(uuids, pgUUID(id))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, _ := s.db.Query(ctx, `
		WITH wanted AS (SELECT DISTINCT * FROM unnest($1::text[], $2::uuid[]) w (subject, id))
		SELECT w.subject, coalesce(d.name, e.name, o.name, t.name, c.name, f.tool, '')
		FROM wanted w
		LEFT JOIN devices d ON w.id IS NULL AND d.id = w.subject
		LEFT JOIN LATERAL (
			SELECT coalesce(detail->>'name', detail->>'version', detail->>'tool', detail->'after'->>'tool',
				detail->'before'->>'tool') AS name FROM audit_entries
			WHERE w.id IS NOT NULL AND subject = w.subject
				AND detail ?| ARRAY['name', 'version', 'tool', 'after', 'before']
			ORDER BY id DESC LIMIT 1) e ON true
		LEFT JOIN operators o ON o.id = w.id
		LEFT JOIN tokens t ON t.id = w.id
		LEFT JOIN campaigns c ON c.id = w.id
		LEFT JOIN fanouts f ON f.id = w.id`, ids, uuids)
	names := make(map[string]string, len(ids))
	var id, name string
	_, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error { names[id] = name; return nil })
	if err != nil {
		return fmt.Errorf("names of audit entries: %w", domainError(err))
	}
	for i := range entries {
		entries[i].Name = names[entries[i].Subject]
	}
	return nil
}

// isDeviceAction reports whether the subject of the action is a device.
func isDeviceAction(action string) bool {
	return strings.HasPrefix(action, "device.") || strings.HasPrefix(action, "quarantine.")
}
