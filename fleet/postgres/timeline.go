package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

var _ fleet.TimelineStore = (*Store)(nil)

// A timelineSource reads one table for time lines. The columns are key, at, kind, ref, code,
// params, actor_kind and actor_name. Arguments replace the placeholders of its text: {device},
// {key} and {at}, before which entries lie; {in}, the condition of the scope; and {name}, the
// name of a campaign as far as the scope permits it. Each source reads at most {limit} rows along
// an index that begins with the device.
type timelineSource struct {
	kinds []fleet.TimelineKind
	sql   string
	scope func(*where, context.Context) // nil: the scope of the device suffices
}

// keyed returns the key of a row that is not ordered by a version 7 id.
func keyed(at, source, n string) string { return "timeline_key(" + at + ", " + source + ", " + n + ")" }

func before(at, key string) string { return at + " < {at} AND " + key + " < {key}" }

var (
	presenceKey   = keyed("at", "1", "0")
	reportKey     = keyed("at", "2", "length(code)")
	firmwareKey   = keyed("first_seen", "3", "id")
	inventoryKey  = keyed("first_seen", "4", "id")
	deploymentKey = keyed("at", "5", "hashtextextended(id::text, 0)")
)

const noActor = `'' AS actor_kind, '' AS actor_name`

var timelineSources = []timelineSource{
	{kinds: []fleet.TimelineKind{fleet.TimelinePresence}, sql: `
		SELECT ` + presenceKey + ` AS key, at, 'presence' AS kind, '' AS ref, presence AS code,
			jsonb_build_object('evidence', jsonb_build_object('code', evidence_code, 'params', evidence_params),
				'transport', transport) AS params, ` + noActor + `
		FROM presence_changes WHERE device_id = {device} AND ` + before("at", presenceKey) + `
		ORDER BY at DESC LIMIT {limit}`},

	{kinds: []fleet.TimelineKind{fleet.TimelineCall},
		scope: func(w *where, ctx context.Context) { w.callScope(ctx, "calls.tool", "calls.device_id") }, sql: `
		SELECT id, created_at, 'call', id::text, state,
			jsonb_strip_nulls(jsonb_build_object('tool', tool, 'arguments', left(nullif(arguments::text, '{}'), 200),
				'duration_ms', floor(extract(epoch FROM finished_at - sent_at) * 1000)::bigint,
				'error', error_code, 'detail', left(error_message, 200), 'fanout', fanout_id,
				'reason', CASE WHEN position('\u0000' IN error_params::text) = 0 -- which jsonb does not take
					THEN jsonb_build_object('code', error_code, 'params', error_params) END)),
			actor_kind, {name}
		FROM calls WHERE device_id = {device} AND id < {key} AND created_at < {at} + interval '1 hour'{in}
		ORDER BY 1 DESC LIMIT {limit}`},

	{kinds: []fleet.TimelineKind{fleet.TimelineEdit, fleet.TimelineHold, fleet.TimelineAudit},
		scope: (*where).auditScope, sql: `
		SELECT a.id, a.created_at, a.kind, a.id::text, a.action,
			(SELECT coalesce(jsonb_object_agg(CASE k WHEN 'until' THEN 'until_at' ELSE k END, left(coalesce(
				CASE jsonb_typeof(v) WHEN 'array' THEN (SELECT string_agg(x, ', ') FROM jsonb_array_elements_text(v) x)
				ELSE v #>> '{}' END, ''), 300)), '{}') FROM jsonb_each(detail) e (k, v) WHERE v <> 'null'),
			actor_kind, actor_name
		FROM (SELECT *, CASE WHEN action = 'device.update' THEN 'edit'
				WHEN action IN ('device.hold', 'device.release') THEN 'hold' ELSE 'audit' END AS kind FROM audit_entries) a
		WHERE subject = {device} AND id < {key} AND created_at < {at} + interval '1 hour' AND kind = ANY ({kinds}){in}
		ORDER BY a.id DESC LIMIT {limit}`},

	{kinds: []fleet.TimelineKind{fleet.TimelineDeployment},
		scope: func(w *where, ctx context.Context) { w.scopeOfAll(ctx, deploymentAudience) }, sql: `
		SELECT ` + deploymentKey + `, at, 'deployment', id::text, state,
			jsonb_strip_nulls(jsonb_build_object('campaign', campaign_id, 'name', left(name, 120), 'from', from_version,
				'to', to_version, 'skip', nullif(skip, ''), 'reason', CASE WHEN reason_code <> ''
					THEN jsonb_build_object('code', reason_code, 'params', reason_params) END)), '', ''
		FROM (SELECT d.*, c.name, coalesce(d.finished_at, d.sent_at, d.created_at) AS at
			FROM deployments d JOIN campaigns c ON c.id = d.campaign_id WHERE d.device_id = {device}{in}) d
		WHERE ` + before("at", deploymentKey) + `
		ORDER BY at DESC LIMIT {limit}`},

	{kinds: []fleet.TimelineKind{fleet.TimelineFirmware}, sql: `
		SELECT ` + firmwareKey + `, first_seen, 'firmware', '',
			CASE WHEN p.version IS NULL THEN 'firmware_first' ELSE 'firmware_changed' END,
			jsonb_strip_nulls(jsonb_build_object('version', f.version, 'slot', f.slot, 'build', f.elf_sha256,
				'before', p.version)), '', ''
		FROM device_firmware f LEFT JOIN LATERAL (SELECT version FROM device_firmware p
			WHERE p.device_id = f.device_id AND p.id < f.id ORDER BY p.id DESC LIMIT 1) p ON true
		WHERE device_id = {device} AND ` + before("first_seen", firmwareKey) + `
		ORDER BY f.id DESC LIMIT {limit}`},

	{kinds: []fleet.TimelineKind{fleet.TimelineCrash},
		scope: func(w *where, ctx context.Context) {
			w.reportScope(ctx, fleet.ToolCoreDumpInfo, "core_dumps.device_id")
		}, sql: `
		SELECT id, created_at, 'crash', id::text, 'core_dump',
			jsonb_build_object('summary', left(summary, 200), 'version', version, 'reset_reason', reset_reason), '', ''
		FROM core_dumps WHERE device_id = {device} AND id < {key} AND created_at < {at} + interval '1 hour'{in}
		ORDER BY 1 DESC LIMIT {limit}`},

	{kinds: []fleet.TimelineKind{fleet.TimelineCrash, fleet.TimelineConfiguration}, scope: (*where).changeScope, sql: `
		SELECT ` + reportKey + `, at, CASE code WHEN 'restarted' THEN 'crash' ELSE 'configuration' END, '', code, params, '', ''
		FROM report_changes WHERE device_id = {device} AND ` + before("at", reportKey) + `
			AND CASE code WHEN 'restarted' THEN 'crash' ELSE 'configuration' END = ANY ({kinds}){in}
		ORDER BY at DESC LIMIT {limit}`},

	{kinds: []fleet.TimelineKind{fleet.TimelineInventory}, sql: `
		SELECT ` + inventoryKey + `, first_seen, 'inventory', '',
			CASE WHEN p.inventory_id IS NULL THEN 'tools_first' ELSE 'tools_changed' END,
			jsonb_strip_nulls(jsonb_build_object('tools', i.tools_count, 'inventory', i.inventory_id, 'version', i.version,
				'before', p.inventory_id)), '', ''
		FROM device_inventories i LEFT JOIN LATERAL (SELECT inventory_id FROM device_inventories p
			WHERE p.device_id = i.device_id AND p.id < i.id ORDER BY p.id DESC LIMIT 1) p ON true
		WHERE device_id = {device} AND ` + before("first_seen", inventoryKey) + `
		ORDER BY i.id DESC LIMIT {limit}`},

	{kinds: []fleet.TimelineKind{fleet.TimelineConversation}, sql: `
		SELECT id, created_at, 'conversation', id::text, 'conversation',
			jsonb_strip_nulls(jsonb_build_object('upstream', upstream, 'calls', calls, 'ended', nullif(ended, ''),
				'duration_ms', floor(extract(epoch FROM end_at - created_at) * 1000)::bigint)), '', ''
		FROM conversations WHERE device_id = {device} AND id < {key} AND created_at < {at} + interval '1 hour'
		ORDER BY 1 DESC LIMIT {limit}`},

	{kinds: []fleet.TimelineKind{fleet.TimelinePicture},
		scope: func(w *where, ctx context.Context) { w.pictureScope(ctx, "snapshots.") }, sql: `
		SELECT id, created_at, 'picture', id::text, 'picture_' || kind,
			jsonb_strip_nulls(jsonb_build_object('call', nullif(call_id, ` + noUUID + `), 'question', nullif(left(question, 200), ''))),
			'', ''
		FROM snapshots WHERE device_id = {device} AND id < {key} AND created_at < {at} + interval '1 hour'{in}
		ORDER BY 1 DESC LIMIT {limit}`},
}

// These are a key and a time after all others.
var (
	timelineEnd     = uuid.Max
	timelineEndTime = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// changeScope leaves out changes of the configuration if the principal may not read it.
func (w *where) changeScope(ctx context.Context) {
	if fleet.ToolScopeOf(ctx) == nil {
		return
	}
	config := where{args: w.args}
	config.reportScope(ctx, fleet.ToolConfigGet, "report_changes.device_id")
	w.args = config.args
	w.conds = append(w.conds, "(code <> 'configured' OR "+strings.Join(config.conds, " AND ")+")")
}

type timelineRow struct {
	Key       uuid.UUID
	At        time.Time
	Kind      fleet.TimelineKind
	Ref       string
	Code      string
	Params    []byte
	ActorKind fleet.PrincipalKind
	ActorName string
}

func (r timelineRow) entry(ctx context.Context) (fleet.TimelineEntry, error) {
	e := fleet.TimelineEntry{At: r.At, Kind: r.Kind, Ref: r.Ref, Code: r.Code, Key: r.Key.String()}
	if r.ActorKind != "" {
		e.Actor = &fleet.Principal{Kind: r.ActorKind, Name: r.ActorName}
	}
	if !bytes.Equal(r.Params, []byte("{}")) {
		if err := json.Unmarshal(r.Params, &e.Params); err != nil {
			return e, fmt.Errorf("entry %s: %w", r.Key, err)
		}
	}
	for name, value := range e.Params {
		if reason, ok := value.(fleet.Reason); ok {
			unnamed(ctx, &reason)
			e.Params[name] = reason
		}
	}
	return e, nil
}

// Timeline lists what happened to a device, newest first.
func (s *Store) Timeline(ctx context.Context, f fleet.TimelineFilter) (fleet.Page[fleet.TimelineEntry], error) {
	none := fleet.Page[fleet.TimelineEntry]{}
	sql, args, limit, err := timelineQuery(ctx, f)
	if err != nil {
		return none, err
	}
	rows, _ := s.db.Query(ctx, sql, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[timelineRow])
	if err != nil {
		return none, fmt.Errorf("time line of device %s: %w", f.Device, domainError(err))
	}
	page := makePage(list, limit, nil, func(r timelineRow) cursor { return cursor{List: "timeline", ID: r.Key.String()} })
	out := fleet.Page[fleet.TimelineEntry]{Items: make([]fleet.TimelineEntry, len(page.Items)), Next: page.Next}
	for i, r := range page.Items {
		if out.Items[i], err = r.entry(ctx); err != nil {
			return none, fmt.Errorf("time line of device %s: %w", f.Device, err)
		}
	}
	return out, nil
}

func timelineQuery(ctx context.Context, f fleet.TimelineFilter) (sql string, args []any, limit int, err error) {
	key, at := timelineEnd, timelineEndTime
	if !f.Before.IsZero() {
		key, at = idFloor(f.Before), f.Before
	}
	from, err := parseCursor(f.Cursor, "timeline")
	if err == nil && from != nil {
		key, err = uuid.Parse(from.ID)
		t, ok := idTime(key)
		if err != nil || !ok {
			return "", nil, 0, fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
		}
		at = t.Add(time.Millisecond)
	}
	if err != nil {
		return "", nil, 0, err
	}
	kinds := f.Kinds
	if len(kinds) == 0 {
		kinds = fleet.TimelineKinds
	}
	limit = fleet.ClampLimit(f.Limit)

	var w where
	device, before, until, most := w.arg(cleanText(string(f.Device))), w.arg(key), w.arg(at), w.arg(limit+1)
	in := w.devicesInScope(ctx)
	name := "actor_name"
	if in != "" {
		name = campaignName(in)
	}
	fill := []string{"{device}", device, "{key}", before + "::uuid", "{at}", until + "::timestamptz", "{limit}", most,
		"{name}", name}
	if slices.ContainsFunc(kinds, severalOfSource) {
		fill = append(fill, "{kinds}", w.arg(kinds)+"::text[]")
	}
	var parts []string
	for _, source := range timelineSources {
		if !slices.ContainsFunc(source.kinds, func(k fleet.TimelineKind) bool { return slices.Contains(kinds, k) }) {
			continue
		}
		scoped := ""
		if source.scope != nil {
			inner := where{args: w.args}
			if source.scope(&inner, ctx); len(inner.conds) > 0 {
				scoped = " AND " + strings.Join(inner.conds, " AND ")
			}
			w.args = inner.args
		}
		parts = append(parts, "("+strings.NewReplacer(append(fill, "{in}", scoped)...).Replace(source.sql)+")")
	}
	own := ""
	if in != "" {
		own = " WHERE EXISTS (SELECT FROM " + in + " d WHERE d.id = " + device + ")"
	}
	return `SELECT * FROM (` + strings.Join(parts, " UNION ALL ") + `) line (key, at, kind, ref, code, params,
		actor_kind, actor_name)` + own + ` ORDER BY key DESC LIMIT ` + most,
		w.args, limit, nil
}

// severalOfSource reports whether the kind's source also has other kinds.
func severalOfSource(k fleet.TimelineKind) bool {
	return slices.ContainsFunc(timelineSources, func(s timelineSource) bool {
		return len(s.kinds) > 1 && slices.Contains(s.kinds, k)
	})
}
