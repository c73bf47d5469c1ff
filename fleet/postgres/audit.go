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
	args, err := auditArgs(by, action, rows)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, insertAudit("true"), args...)
	return err
}

// insertAudit returns the only statement that adds audit entries, and their leaves; see [auditArgs]. It adds them if
// the condition holds.
func insertAudit(condition string) string {
	return `WITH added AS (
		INSERT INTO audit_entries (id, created_at, actor_kind, actor_id, actor_name, actor_role, action, subject, detail)
		SELECT e.id, $1::timestamptz, $2, $3, $4, $5, $6, e.subject, e.detail::jsonb
		FROM unnest($7::uuid[], $8::text[], $9::text[]) AS e (id, subject, detail)
		WHERE ` + condition + ` RETURNING id)
	INSERT INTO record_queue (leaves) SELECT $10::bytea WHERE EXISTS (SELECT FROM added)`
}

// auditArgs returns the arguments of [insertAudit].
func auditArgs(by fleet.Principal, action string, rows []auditNote) ([]any, error) {
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
			Detail: details[i]}
		leaves = entry.Leaf().Append(leaves)
	}
	return []any{now, string(by.Kind), by.ID, by.Name, string(by.Role), action, ids, subjects, details, leaves}, nil
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

type auditRow struct {
	ID        uuid.UUID
	CreatedAt time.Time
	ActorKind fleet.PrincipalKind
	ActorID   string
	ActorName string
	ActorRole fleet.Role
	Action    string
	Subject   string
	Detail    map[string]any
}

func (r auditRow) entry() audit.Entry {
	return audit.Entry{ID: r.ID, At: r.CreatedAt, Action: r.Action, Subject: r.Subject, Detail: r.Detail,
		Actor: fleet.Principal{Kind: r.ActorKind, ID: r.ActorID, Name: r.ActorName, Role: r.ActorRole}}
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

// AuditEntries lists audit entries, newest first.
func (s *Store) AuditEntries(ctx context.Context, f audit.Filter) (fleet.Page[audit.Entry], error) {
	none := fleet.Page[audit.Entry]{}
	at, err := parseCursor(f.Cursor, "audit")
	if err != nil {
		return none, err
	}
	var w where
	w.andText("subject = ?", f.Subject)
	w.andText("action = ?", f.Action)
	w.andText("actor_name = ?", f.Actor)
	if !f.Since.IsZero() {
		w.and("created_at >= ?", f.Since)
		w.and("id >= ?", idFloor(f.Since.Add(-idSlack)))
	}
	if !f.Until.IsZero() {
		w.and("created_at < ?", f.Until)
		w.and("id < ?", idFloor(f.Until.Add(idSlack)))
	}
	w.auditScope(ctx)
	order, err := w.idsDown(at)
	if err != nil {
		return none, err
	}
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `
		SELECT id, created_at, actor_kind, actor_id, actor_name, actor_role, action, subject, detail
		FROM audit_entries`+w.String()+order+` LIMIT `+w.arg(limit+1), w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[auditRow])
	if err != nil {
		return none, fmt.Errorf("audit entries: %w", domainError(err))
	}
	page := mapPage(makePage(list, limit, at, func(r auditRow) cursor {
		return cursor{List: "audit", ID: r.ID.String()}
	}), auditRow.entry)
	return page, s.nameSubjects(ctx, page.Items)
}

// nameSubjects adds the names of the subjects. A device has its current name. A subject with a
// UUID has the name in its latest entry that contains one, even after it was deleted. Where
// entries are deleted before their subjects, the name is read from the subject's table.
func (s *Store) nameSubjects(ctx context.Context, entries []audit.Entry) error {
	var ids []string
	var uuids []pgtype.UUID // of ids; null for a device
	for _, e := range entries {
		id, err := uuid.Parse(e.Subject)
		if err == nil || isDeviceAction(e.Action) {
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
			SELECT coalesce(detail->>'name', detail->>'version', detail->>'tool') AS name FROM audit_entries
			WHERE w.id IS NOT NULL AND subject = w.subject AND detail ?| ARRAY['name', 'version', 'tool']
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
