package ui

import (
	"context"
	"net/url"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/changes"
	"fleetd/fleet/history"
)

// PathChanges is what happened lately. GET since: one of [changes.Spans].
const PathChanges = "/changes"

// A ChangesPage sums up what happened since a moment, as sentences that lead to the records.
type ChangesPage struct {
	changes.Summary
	Problem string // why there is no summary; "" if there is
}

// A changesPart is a group of sentences.
type changesPart struct {
	key   string // of its heading
	lines []changesLine
}

// A changesLine is one sentence about a number of things, as a link to them.
type changesLine struct {
	n       int
	key     string
	args    []any
	url     string // "" for none
	foreign string // a version, or names, before the sentence
}

// parts returns the sentences about what happened: none about nothing.
func (v ChangesPage) parts(ctx context.Context) (parts []changesPart) {
	for _, p := range []changesPart{{"changes.devices", v.devices(ctx)}, {"changes.firmware", v.firmware(ctx)},
		{"changes.settings", v.settings(ctx)}, {"changes.calls", v.calls(ctx)}} {
		var lines []changesLine
		for _, l := range p.lines {
			if l.n != 0 {
				lines = append(lines, l)
			}
		}
		if lines != nil {
			parts = append(parts, changesPart{p.key, lines})
		}
	}
	return parts
}

func (v ChangesPage) devices(ctx context.Context) []changesLine {
	return []changesLine{
		{n: v.Fields[history.FieldAdded], key: "changes.added", url: v.differ(ctx, history.FieldAdded)},
		{n: v.Fields[history.FieldRemoved], key: "changes.removed", url: v.differ(ctx, history.FieldRemoved)},
		{n: v.Offline, key: "changes.offline", url: v.records(ctx, audit.Connection, string(fleet.PresenceOffline))},
		{n: v.Away, key: "changes.away", url: QueryPath(changes.AwayQuery(v.Span))},
		{n: v.Online, key: "changes.online", url: v.records(ctx, audit.Connection, string(fleet.PresenceOnline))},
		{n: v.Crashed, key: "changes.crashed", url: QueryPath(changes.CrashedQuery(v.Span))},
		{n: v.AlertsBegan, key: "changes.alerts_began", url: PathAlerts},
		{n: v.AlertsEnd, key: "changes.alerts_ended", url: PathAlerts + "?state=ended"},
	}
}

func (v ChangesPage) firmware(ctx context.Context) []changesLine {
	lines := []changesLine{
		{n: v.Rebuilt, key: "changes.rebuilt", url: v.records(ctx, audit.Firmware, "")},
		{n: v.Updated, key: "changes.updated", url: v.records(ctx, audit.Step, "succeeded")},
		{n: v.NotUpdated, key: "changes.not_updated", url: v.records(ctx, audit.Step, "")},
	}
	for _, version := range v.Versions {
		l := changesLine{n: version.Now - version.Before, key: "changes.version_gained", args: []any{"now", version.Now},
			foreign: version.Version, url: QueryPath(Term("version", version.Version))}
		if l.n < 0 {
			l.n, l.key = -l.n, "changes.version_lost"
		}
		lines = append(lines, l)
	}
	return lines
}

func (v ChangesPage) settings(ctx context.Context) (lines []changesLine) {
	for _, f := range []history.Field{history.FieldTags, history.FieldName, history.FieldHold, history.FieldEnrolment,
		history.FieldBoard, history.FieldTools} {
		lines = append(lines, changesLine{n: v.Fields[f], key: "changes.field." + string(f), url: v.differ(ctx, f)})
	}
	configured := changesLine{n: len(v.Configured), key: "changes.configured"}
	if v.ConfiguredMore {
		configured.key = "changes.configured_more"
	}
	var ids []string
	for _, id := range v.Configured {
		ids = append(ids, string(id))
	}
	configured.url = QueryPath("id:" + strings.Join(ids, ","))
	return append(lines, configured)
}

func (v ChangesPage) calls(ctx context.Context) []changesLine {
	since := url.Values{"since": {v.local(ctx, v.Since)}}
	failed := url.Values{"since": since["since"], "state": {strings.Join(failedStates(), ",")}}
	lines := []changesLine{{n: v.Calls, key: "changes.calls_made", url: PathCalls + "?" + since.Encode()},
		{n: v.FailedCalls, key: "changes.calls_failed", url: PathCalls + "?" + failed.Encode()}}
	if v.ActCount > 0 {
		lines = append(lines, changesLine{n: v.ActCount, key: "changes.acts", url: PathAudit + "?" + since.Encode()})
	}
	return lines
}

// failedStates are the states of calls that failed.
func failedStates() (states []string) {
	for _, o := range callOutcomes {
		for _, s := range o.states {
			if s.Failed() {
				states = append(states, string(s))
			}
		}
	}
	return states
}

// local returns a time as lists read it from their addresses: in the zone of the viewer, to the second.
func (v ChangesPage) local(ctx context.Context, at time.Time) string {
	return at.In(page(ctx).Zone).Format(HistoryTime)
}

// records returns the list of the audit log with records of a kind.
func (v ChangesPage) records(ctx context.Context, kind audit.Kind, outcome string) string {
	q := url.Values{"kind": {string(kind)}, "since": {v.local(ctx, v.Since)}}
	if outcome != "" {
		q.Set("outcome", outcome)
	}
	return PathAudit + "?" + q.Encode()
}

// actURL returns the list of the audit log with an action.
func (v ChangesPage) actURL(ctx context.Context, a changes.Act) string {
	return PathAudit + "?" + url.Values{"action": {a.Action}, "since": {v.local(ctx, v.Since)}}.Encode()
}

// differ returns the devices that differ in a field.
func (v ChangesPage) differ(ctx context.Context, f history.Field) string {
	compare := v.Compare.Add(time.Second - 1).Truncate(time.Second) // not before the beginning of the history
	return PathHistory + "?" + url.Values{"at": {v.local(ctx, v.Now)}, "with": {v.local(ctx, compare)},
		"field": {string(f)}}.Encode()
}

// partial reports whether the history begins later than the time that is summed up.
func (v ChangesPage) partial() bool { return v.Compare.After(v.Since) }
