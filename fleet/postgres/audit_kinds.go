package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/origin"
)

// An auditSource reads the entries of one kind from its table, along an index in the order of time. Entries of all
// kinds are ordered by keys, as those of time lines; see [keyed].
type auditSource struct {
	kind    audit.Kind
	columns string // key, id, at, actor_kind, actor_id, actor_name, actor_role, action, subject, outcome, detail, origin
	from    string
	at      string // column with the time
	key     string
	ids     bool // the key is the id, and the table's order is by id
	where   string
	scope   func(*where, context.Context)

	// Conditions of a filter. A kind without one has no entries for that filter.
	subject func(w *where, subject string)
	action  string // as a condition; "": the action is the kind
	actor   string
	outcome func(w *where, outcome string)
	request bool // a request with an origin and a trace can have asked for it
}

const (
	noAuditActor = `'' AS actor_kind, '' AS actor_id, '' AS actor_name, '' AS actor_role`
	noOrigin     = `'' AS address, '' AS client, NULL::uuid AS trace_id`
)

// auditKey returns a key that has the order of at also within a millisecond.
func auditKey(at, source, text string) string {
	return keyed(at, source, `(extract(microseconds FROM `+at+`)::bigint % 1000 << 38) |
		(hashtextextended(`+text+`, 0) & 274877906943)`)
}

// byState finds failed calls along an index of their own.
func byState(w *where, state string) {
	if fleet.CallState(state).Failed() {
		w.and("failure = ?", cleanText(state))
	} else {
		w.and("state = ?", cleanText(state))
	}
}

func byText(cond string) func(*where, string) {
	return func(w *where, text string) { w.andText(cond, text) }
}

var auditSources = []auditSource{
	{kind: audit.Action, from: "audit_entries", at: "created_at", key: "id", ids: true, where: "true",
		columns: `id, created_at, actor_kind, actor_id, actor_name, actor_role, action, subject, '' AS outcome,
			detail::json AS detail, ` + originOf,
		scope: (*where).auditScope, subject: byText("subject = ?"), action: "action = ?", actor: "actor_name = ?",
		request: true},

	// A result can be large, and stays with its call. An entry with large arguments has their length.
	{kind: audit.Call, from: "calls", at: "created_at", key: "id", ids: true, where: "true",
		columns: `id, created_at, actor_kind, actor_id, {name}, actor_role, tool, device_id, state,
			json_build_object(
				'arguments', CASE WHEN octet_length(arguments::text) <= 4096 THEN arguments END,
				'arguments_bytes', CASE WHEN octet_length(arguments::text) > 4096 THEN octet_length(arguments::text) END,
				'sent_at', sent_at, 'finished_at', finished_at, 'error', error_code, 'error_message', left(error_message, 1000),
				'fanout_id', fanout_id, 'approval_id', approval_id), ` + originOf,
		scope:   func(w *where, ctx context.Context) { w.callScope(ctx, "calls.tool", "calls.device_id") },
		subject: byText("device_id = ?"), action: "tool = ?", actor: "actor_name = ?", outcome: byState, request: true},

	{kind: audit.Connection, from: "presence_changes", at: "at", key: auditKey("at", "1", "device_id"), where: "true",
		columns: `NULL::uuid, at, ` + noAuditActor + `, 'connection', device_id, presence,
			json_build_object('evidence', json_build_object('code', evidence_code, 'params', evidence_params),
				'transport', transport), ` + noOrigin,
		scope:   func(w *where, ctx context.Context) { w.scopeOf(ctx, "device_id") },
		subject: byText("device_id = ?"), outcome: byText("presence = ?")},

	{kind: audit.Step, from: "deployment_events e JOIN deployments d ON d.id = e.deployment_id", at: "e.at",
		key: auditKey("e.at", "5", "e.id::text"), where: "e.kind <> 'planned'",
		columns: `e.id, e.at, ` + noAuditActor + `, 'campaign_step', d.device_id, e.to_state,
			json_build_object('campaign_id', d.campaign_id, 'deployment_id', d.id, 'attempt', e.attempt,
				'step', e.kind, 'from', nullif(e.from_state, ''), 'to', e.to_state,
				'reason_code', nullif(e.reason_code, ''), 'reason_params', e.reason_params), ` + noOrigin,
		scope: func(w *where, ctx context.Context) { w.scopeOfAll(ctx, deploymentAudience) },
		subject: func(w *where, subject string) {
			if id, err := uuid.Parse(subject); err == nil {
				w.and("d.campaign_id = ?", id)
			} else {
				w.and("d.device_id = ?", cleanText(subject))
			}
		}, outcome: byText("e.to_state = ?")},

	{kind: audit.Firmware, from: `device_firmware f LEFT JOIN LATERAL (SELECT version FROM device_firmware p
			WHERE p.device_id = f.device_id AND p.id < f.id ORDER BY p.id DESC LIMIT 1) p ON true`, at: "f.first_seen",
		key: auditKey("f.first_seen", "3", "f.id::text"), where: "true",
		columns: `NULL::uuid, f.first_seen, ` + noAuditActor + `, 'firmware', f.device_id, '',
			json_build_object('before', p.version, 'version', f.version, 'slot', nullif(f.slot, ''),
				'build', nullif(f.elf_sha256, '')), ` + noOrigin,
		scope:   func(w *where, ctx context.Context) { w.scopeOf(ctx, "f.device_id") },
		subject: byText("f.device_id = ?")},
}

// filter adds the conditions of the filter. It returns false if the kind has no entries for it.
func (src *auditSource) filter(w *where, f audit.Filter) bool {
	wanted := f.Kinds
	if len(wanted) == 0 {
		wanted = []audit.Kind{audit.Action}
	}
	noTrace := f.Trace == origin.TraceID{}
	if !slices.Contains(wanted, src.kind) || f.Actor != "" && src.actor == "" || f.Outcome != "" && src.outcome == nil ||
		!src.request && (!noTrace || f.Address != "") ||
		f.Action != "" && src.action == "" && f.Action != string(src.kind) {
		return false
	}
	w.and(src.where)
	if f.Subject != "" {
		src.subject(w, f.Subject)
	}
	if src.action != "" {
		w.andText(src.action, f.Action)
	}
	w.andText(src.actor, f.Actor)
	if f.Outcome != "" {
		src.outcome(w, f.Outcome)
	}
	if !noTrace {
		w.and("trace_id = ?", uuid.UUID(f.Trace))
	}
	if !f.Since.IsZero() {
		w.and(src.at+" >= ?", f.Since)
		if src.ids {
			w.and("id >= ?", idFloor(f.Since.Add(-idSlack)))
		}
	}
	if !f.Until.IsZero() {
		w.and(src.at+" < ?", f.Until)
		if src.ids {
			w.and("id < ?", idFloor(f.Until.Add(idSlack)))
		}
	}
	return true
}

// sql returns the statement for the entries of the kind from the position on.
func (src *auditSource) sql(ctx context.Context, w *where, address string, at *cursor, limit string) (string, error) {
	if src.scope != nil {
		src.scope(w, ctx)
	}
	columns := src.columns
	if strings.Contains(columns, "{name}") {
		name := "actor_name"
		if in := w.devicesInScope(ctx); in != "" {
			name = campaignName(in)
		}
		columns = strings.Replace(columns, "{name}", name, 1)
	}
	order, err := src.place(w, at)
	if err != nil {
		return "", err
	}
	first := order + ` FETCH FIRST ` + limit + ` ROWS WITH TIES`
	head := `(SELECT ` + src.key + ` AS key, '` + string(src.kind) + `' AS kind, ` + columns + ` FROM `
	if address == "" {
		return head + src.from + w.String() + first + `)`, nil
	}
	// An address has an origin for each client. The rows of one are read along an index, newest first.
	w.and("origin_id = o.origin")
	return head + `(SELECT id AS origin FROM origins WHERE address = ` + w.arg(cleanText(address)) + `) o
		CROSS JOIN LATERAL (SELECT * FROM ` + src.from + w.String() + first + `) AS ` + src.from + first + `)`, nil
}

// place restricts the entries to those from the cursor on, and returns their order.
func (src *auditSource) place(w *where, at *cursor) (order string, err error) {
	if src.ids {
		return w.idsDown(at)
	}
	if at == nil {
		return " ORDER BY " + src.at + " DESC", nil
	}
	key, err := uuid.Parse(at.ID)
	t, ok := idTime(key)
	if err != nil || !ok {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
	}
	if at.Back {
		w.and(src.at+" >= ?", t)
		w.and(src.key+" > ?", key)
		return " ORDER BY " + src.at, nil
	}
	w.and(src.at+" < ?", t.Add(time.Millisecond))
	w.and(src.key+" < ?", key)
	return " ORDER BY " + src.at + " DESC", nil
}

type auditRow struct {
	Key       uuid.UUID
	Kind      audit.Kind
	ID        uuid.NullUUID
	At        time.Time
	ActorKind fleet.PrincipalKind
	ActorID   string
	ActorName string
	ActorRole fleet.Role
	Action    string
	Subject   string
	Outcome   string
	Detail    []byte
	originRow
}

func (r auditRow) entry(ctx context.Context) (audit.Entry, error) {
	e := audit.Entry{Kind: r.Kind, Key: r.Key.String(), ID: r.ID.UUID, At: r.At, Action: r.Action, Subject: r.Subject,
		Outcome: r.Outcome, Origin: r.origin(),
		Actor: fleet.Principal{Kind: r.ActorKind, ID: r.ActorID, Name: r.ActorName, Role: r.ActorRole}}
	if err := json.Unmarshal(r.Detail, &e.Detail); err != nil {
		return e, fmt.Errorf("%s %s: %w", e.Kind, e.Key, err)
	}
	if e.Kind != audit.Action { // json_strip_nulls refuses \u0000, which arguments may contain
		maps.DeleteFunc(e.Detail, func(_ string, v any) bool { return v == nil })
	}
	if code, ok := e.Detail["reason_code"].(string); ok && e.Kind == audit.Step {
		reason := fleet.Reason{Code: code}
		if unnamed(ctx, &reason); reason.Params != nil {
			e.Detail["reason_params"] = reason.Params
		}
	}
	return e, nil
}

// auditQuery returns the statement for one row more than limit, from the cursor on; "" if no kind has entries for the
// filter.
func auditQuery(ctx context.Context, f audit.Filter, at *cursor, limit int) (sql string, args []any, err error) {
	var w where
	most := w.arg(limit + 1)
	var parts []string
	for _, source := range auditSources {
		part := where{args: w.args}
		if !source.filter(&part, f) {
			continue
		}
		sql, err := source.sql(ctx, &part, f.Address, at, most)
		if err != nil {
			return "", nil, err
		}
		parts, w.args = append(parts, sql), part.args
	}
	if len(parts) == 0 {
		return "", nil, nil
	}
	order := " DESC"
	if at.back() {
		order = ""
	}
	return `SELECT * FROM (` + strings.Join(parts, " UNION ALL ") + `) e (key, kind, id, at, actor_kind, actor_id,
		actor_name, actor_role, action, subject, outcome, detail, address, client, trace_id)
		ORDER BY key` + order + ` LIMIT ` + most, w.args, nil
}

// AuditEntries lists entries, newest first.
func (s *Store) AuditEntries(ctx context.Context, f audit.Filter) (fleet.Page[audit.Entry], error) {
	none := fleet.Page[audit.Entry]{}
	limit := fleet.ClampLimit(f.Limit)
	at, err := parseCursor(f.Cursor, "audit")
	if err != nil {
		return none, err
	}
	sql, args, err := auditQuery(ctx, f, at, limit)
	if err != nil || sql == "" {
		return none, err
	}
	rows, _ := s.db.Query(ctx, sql, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[auditRow])
	if err != nil {
		return none, fmt.Errorf("audit entries: %w", domainError(err))
	}
	found := makePage(list, limit, at, func(r auditRow) cursor { return cursor{List: "audit", ID: r.Key.String()} })
	page := fleet.Page[audit.Entry]{Items: make([]audit.Entry, len(found.Items)), Next: found.Next, Prev: found.Prev}
	for i, r := range found.Items {
		if page.Items[i], err = r.entry(ctx); err != nil {
			return none, fmt.Errorf("audit entries: %w", err)
		}
	}
	return page, s.nameSubjects(ctx, page.Items)
}
