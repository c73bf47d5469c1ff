package postgres

import (
	"context"
	"strings"
	"time"

	"fleetd/fleet"
)

// tagMark is placed before, between and after the tags in tags_key. It cannot occur in a query,
// which accepts no control characters.
const tagMark = "\x01"

// tagsKey returns the lower-cased form of tags that queries search.
func tagsKey(tags []string) string {
	if len(tags) == 0 {
		return ""
	}
	return tagMark + strings.ToLower(strings.Join(tags, tagMark)) + tagMark
}

// query adds the conditions of a device query, the SQL equivalent of [fleet.Query.Match].
func (w *where) query(q fleet.Query, now time.Time) {
	if !q.Asks("retired") {
		w.and("in_service")
	}
	w.terms(q, now)
}

func (w *where) terms(q fleet.Query, now time.Time) {
	for _, t := range q.Terms {
		cond := w.term(t, now)
		if t.Not {
			cond = "NOT " + cond
		}
		w.and(cond)
	}
}

// scope narrows a statement about devices to those that exist for the principal whose request the
// context carries. Unlike [where.query] it includes retired devices.
func (w *where) scope(ctx context.Context) {
	if q, narrow := fleet.ScopeOf(ctx); narrow {
		w.terms(q, time.Now())
	}
}

// scopeOf is [where.scope] for rows that belong to the device in the column.
func (w *where) scopeOf(ctx context.Context, column string) {
	if in := w.devicesInScope(ctx); in != "" {
		w.conds = append(w.conds, column+" IN "+in)
	}
}

// devicesInScope returns a query for the ids of the devices that exist, or "" if all do.
func (w *where) devicesInScope(ctx context.Context) string {
	if _, narrow := fleet.ScopeOf(ctx); !narrow {
		return ""
	}
	inner := where{args: w.args}
	inner.scope(ctx)
	w.args = inner.args
	return "(SELECT id FROM devices" + inner.String() + ")"
}

// callScope narrows a statement to the calls of tools that exist for the principal, on devices
// that do. tool and device are the names of its columns.
func (w *where) callScope(ctx context.Context, tool, device string) {
	w.scopeOf(ctx, device)
	w.toolScope(ctx, tool, `EXISTS (SELECT FROM device_inventories listed JOIN inventories i ON i.id = listed.inventory_id
		WHERE listed.device_id = `+device+` AND `+tool+` = ANY (i.user_tools))`)
}

// fanOutScope is callScope for fan-outs; all devices of a fan-out must exist.
func (w *where) fanOutScope(ctx context.Context) {
	w.scopeOfAll(ctx, fanOutAudience)
	w.toolScope(ctx, "fanouts.tool", `EXISTS (SELECT FROM inventories i WHERE fanouts.tool = ANY (i.user_tools) AND EXISTS (
		SELECT FROM device_inventories listed JOIN fanout_targets part ON part.device_id = listed.device_id
		WHERE listed.inventory_id = i.id AND part.fanout_id = fanouts.id AND part.reason = ''))`)
}

// pictureScope is callScope for pictures, by the call that took each picture. Pictures without a
// call belong to conversations.
func (w *where) pictureScope(ctx context.Context, table string) {
	w.scopeOf(ctx, table+"device_id")
	if fleet.ToolScopeOf(ctx) == nil {
		return
	}
	call := where{args: w.args}
	call.callScope(ctx, "c.tool", "c.device_id")
	w.args = call.args
	w.conds = append(w.conds, "(EXISTS (SELECT FROM calls c WHERE c.id = "+table+"call_id AND "+
		strings.Join(call.conds, " AND ")+") OR "+table+"call_id = "+noUUID+" AND "+w.namedTool(ctx, "'"+fleet.ToolTakePhoto+"'")+")")
}

// reportScope is callScope for reports of a device that the tool would also return.
func (w *where) reportScope(ctx context.Context, tool, device string) {
	w.callScope(ctx, "'"+tool+"'", device)
}

// jobScope is scopeOf for jobs. Jobs of a campaign belong to its deployments; the others belong
// to tools for people.
func (w *where) jobScope(ctx context.Context) {
	w.scopeOf(ctx, "device_jobs.device_id")
	if fleet.ToolScopeOf(ctx) != nil {
		w.conds = append(w.conds, "device_jobs.deployment_id IS NOT NULL")
	}
}

// toolScope leaves out rows about tools that do not exist for the principal. listed is the
// condition that a concerned device has listed the tool for people only. Earlier listings count
// too, since results are kept.
func (w *where) toolScope(ctx context.Context, tool, listed string) {
	if fleet.ToolScopeOf(ctx) == nil {
		return
	}
	w.conds = append(w.conds, w.namedTool(ctx, tool), "NOT "+listed)
}

// namedTool returns the part of toolScope that depends only on the name.
func (w *where) namedTool(ctx context.Context, tool string) string {
	t := fleet.ToolScopeOf(ctx)
	var conds []string
	if t.Patterns != nil {
		exact, open := []string{}, []string{}
		for _, p := range t.Patterns {
			exact = append(exact, cleanText(p))
			if prefix, ok := strings.CutSuffix(p, "*"); ok {
				open = append(open, likeEscaper.Replace(cleanText(prefix))+"%")
			}
		}
		conds = append(conds, "("+tool+" = ANY ("+w.arg(exact)+"::text[]) OR "+tool+" LIKE ANY ("+w.arg(open)+"::text[]))")
	}
	conds = append(conds, tool+" <> ALL ("+w.arg(fleet.UserOnlyTools())+"::text[])")
	return "(" + strings.Join(conds, " AND ") + ")"
}

// An audience is a table with a row for each device of a collection.
type audience struct{ table, key, of string }

var (
	fanOutAudience   = audience{"fanout_targets", "fanout_id", "fanouts.id"}
	campaignAudience = audience{"deployments", "campaign_id", "campaigns.id"}
)

// scopeOfAll leaves out collections with any device that does not exist.
func (w *where) scopeOfAll(ctx context.Context, a audience) {
	if in := w.devicesInScope(ctx); in != "" {
		w.conds = append(w.conds, "NOT EXISTS (SELECT FROM "+a.table+" part WHERE part."+a.key+" = "+a.of+
			" AND part.device_id NOT IN "+in+")")
	}
}

// scopedTo returns the scope for the end of a complete statement: " AND …" and the statement's
// arguments followed by those of the scope.
func scopedTo(ctx context.Context, column string, args ...any) (string, []any) {
	return scopedBy(args, func(w *where) { w.scopeOf(ctx, column) })
}

// scopedToAll is scopedTo for a statement about collections.
func scopedToAll(ctx context.Context, a audience, args ...any) (string, []any) {
	return scopedBy(args, func(w *where) { w.scopeOfAll(ctx, a) })
}

func scopedBy(args []any, add func(*where)) (string, []any) {
	w := where{args: args}
	if add(&w); len(w.conds) == 0 {
		return "", args
	}
	return " AND " + strings.Join(w.conds, " AND "), w.args
}

// term returns a condition in parentheses that is never null.
func (w *where) term(t fleet.Term, now time.Time) string {
	switch t.Field {
	case "":
		return w.search(t.Values[0])
	case "hold":
		return "(hold_since IS NOT NULL AND (hold_until IS NULL OR hold_until > " + w.arg(now) + "))"
	case "conflict":
		return "(claimed_at IS NOT NULL OR conflict_last IS NOT NULL AND conflict_last > " +
			w.arg(now.Add(-fleet.ConflictTTL)) + ")"
	case "retired":
		return "(NOT in_service)"
	case "safe_mode", "core_dump":
		return "(id IN (SELECT device_id FROM device_vitals WHERE " + t.Field + "))"
	case "seen":
		return w.seen(t, now)
	case "crashed":
		return w.crashed(t, now)
	case "version":
		return w.version(t)
	case "tag":
		return w.tag(t.Values)
	case "tool":
		return "(inventory_id IS NOT NULL AND inventory_id IN (SELECT id FROM inventories WHERE tool_names && " +
			w.arg(t.Values) + "::text[]))"
	}
	return w.anyOf(textColumns[t.Field], t.Values)
}

// textColumns contain lower-cased text. Build information from devices is ASCII in practice and
// lower-cased as such.
var textColumns = map[string]string{
	"id":        "id",
	"name":      "name_key",
	"board":     "board_key",
	"chip":      "lower(chip)",
	"kind":      "kind",
	"presence":  "presence",
	"enrolment": "enrolment",
	"slot":      "lower(slot)",
	"elf":       "lower(elf_sha256)",
	"transport": "lower(transport)",
}

func (w *where) anyOf(column string, values []string) string {
	if column == "" {
		return "(false)" // a field that the parser knows and this store does not
	}
	var exact, patterns []string
	for _, v := range values {
		v = strings.ToLower(v)
		if prefix, ok := strings.CutSuffix(v, "*"); ok {
			patterns = append(patterns, likeEscaper.Replace(prefix)+"%")
		} else {
			exact = append(exact, v)
		}
	}
	switch {
	case len(patterns) == 0:
		return "(" + column + " = ANY (" + w.arg(exact) + "))"
	case len(exact) == 0:
		return "(" + column + " LIKE ANY (" + w.arg(patterns) + "))"
	}
	return "(" + column + " = ANY (" + w.arg(exact) + ") OR " + column + " LIKE ANY (" + w.arg(patterns) + "))"
}

func (w *where) tag(values []string) string {
	patterns := make([]string, len(values))
	for i, v := range values {
		v = strings.ToLower(v)
		if prefix, ok := strings.CutSuffix(v, "*"); ok {
			patterns[i] = "%" + tagMark + likeEscaper.Replace(prefix) + "%"
		} else {
			patterns[i] = "%" + tagMark + likeEscaper.Replace(v) + tagMark + "%"
		}
	}
	return "(tags_key LIKE ANY (" + w.arg(patterns) + "))"
}

func (w *where) seen(t fleet.Term, now time.Time) string {
	recent := "(last_seen IS NOT NULL AND last_seen > " + w.arg(now.Add(-t.Age)) + ")"
	if t.Op == "<" {
		return recent
	}
	return "(NOT " + recent + ")"
}

// isCrash is the condition on a row c of report_changes that the device restarted after a crash:
// [trend.CrashReasons].
const isCrash = `c.code = 'restarted' AND c.params->>'reset_reason' IN ('panic', 'watchdog', 'brownout')`

func (w *where) crashed(t fleet.Term, now time.Time) string {
	recent := "(id IN (SELECT c.device_id FROM report_changes c WHERE c.at > " + w.arg(now.Add(-t.Age)) + " AND " + isCrash + "))"
	if t.Op == "<" {
		return recent
	}
	return "(NOT " + recent + ")"
}

func (w *where) version(t fleet.Term) string {
	if t.Op == ":" {
		return w.anyOf("lower(version)", t.Values)
	}
	op := ">="
	switch t.Op {
	case "<", "<=", ">":
		op = t.Op
	}
	return "(version_key IS NOT NULL AND version_key " + op + " " + w.arg(t.Version) + "::bigint[])"
}

// search matches text in id, name, board and tags. It ignores the separators of a pasted MAC
// address.
func (w *where) search(text string) string {
	if id, ok := pastedMAC(text); ok {
		return "(id = " + w.arg(id) + ")"
	}
	p := w.arg("%" + likeEscaper.Replace(strings.ToLower(text)) + "%")
	digits := ""
	if d := fleet.MACDigits(text); d != "" {
		digits = "id LIKE " + w.arg("%"+d+"%") + " OR "
	}
	return "(" + digits + "id LIKE " + p + " OR name_key LIKE " + p + " OR board_key LIKE " + p + " OR tags_key LIKE " + p + ")"
}

// pastedMAC reports whether text is a MAC address with separators.
func pastedMAC(text string) (fleet.DeviceID, bool) {
	const separated = len("a0:85:e3:11:22:33")
	if len(text) != separated || strings.TrimSpace(text) != text {
		return "", false
	}
	id, err := fleet.ParseDeviceID(text)
	return id, err == nil && len(id) < separated && id.MAC() != ""
}
