package ui

import (
	"context"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
	"fleetd/web/forms"
	"fleetd/web/i18n"
)

// PathPlugins is the list of plug-ins: GET list, POST create. Below it, by the name of one: GET shows
// it, POST "reload", "edit", "enable", "disable" and "delete" (confirm: the name).
const PathPlugins = "/settings/plugins"

// PluginPath is the page of one plug-in, or one of its acts.
func PluginPath(name string, parts ...string) string {
	path := PathPlugins + "/" + url.PathEscape(name)
	for _, p := range parts {
		path += "/" + url.PathEscape(p)
	}
	return path
}

// A PluginsPage lists the plug-ins, and has the form for a new one.
type PluginsPage struct {
	Rows      []PluginRow
	Directory string // of plug-ins that are files; "" if fleetd has none
	Form      forms.Plugin
	Problems  FieldProblems
}

// A PluginRow is one plug-in in the list. A live stream sends it as a patch.
type PluginRow struct {
	plugin.Listed
	Tools   int  // of its device
	Deleted bool // the plug-in no longer exists
}

// A PluginPage shows one plug-in: GET [PluginPath].
type PluginPage struct {
	Row      PluginRow
	Lines    []plugin.Line // oldest first
	Form     forms.Plugin
	Problems FieldProblems
}

// PluginNews are the latest lines of a log, which a live page appends.
type PluginNews []plugin.Line

// maxPluginLines is how many lines the page shows.
const maxPluginLines = 500

var pluginTones = map[plugin.State]tone{plugin.Invalid: toneBad, plugin.Disabled: toneNone, plugin.Starting: toneBusy,
	plugin.Running: toneGood, plugin.Waiting: toneWarn, plugin.Crashing: toneBad, plugin.Stopping: toneBusy}

func (v PluginRow) slot() string { return "plugin-" + v.Name }

// changeable reports whether the console can change the plug-in: it is one of the database, and no
// file has its name.
func (v PluginRow) changeable() bool { return v.stored() && !v.Problem.Is("plugin_duplicate") }

// stored reports whether the plug-in is one of the database.
func (v PluginRow) stored() bool { return v.File == "" }

func (v PluginRow) fileName() string { return filepath.Base(v.File) }

// why returns why the plug-in does not run, or "": marked, for [phrase].
func (v PluginRow) why(ctx context.Context) string {
	switch {
	case v.State == plugin.Running && !v.Reason.Is(""):
		return t(ctx, "plugins.kept", "why", PluginReason(ctx, v.Reason))
	case v.State == plugin.Running && !v.Problem.Is(""):
		return t(ctx, "plugins.kept", "why", PluginReason(ctx, v.Problem))
	case v.State == plugin.Invalid:
		return PluginReason(ctx, v.Problem.Or(v.Reason))
	case v.State == plugin.Waiting || v.State == plugin.Crashing || v.State == plugin.Starting:
		return PluginReason(ctx, v.Reason)
	}
	return ""
}

// starts reports whether the time of the next start is known.
func (v PluginRow) starts() bool {
	return (v.State == plugin.Waiting || v.State == plugin.Crashing) && !v.Next.IsZero()
}

// PluginReason returns the reason why a plug-in does not run, with its foreign parts marked.
func PluginReason(ctx context.Context, r fleet.Reason) string {
	if r.Is("") {
		return ""
	}
	if i18n.Has("reason." + r.Code) {
		return reasonText(ctx, r)
	}
	return problemText(ctx, r)
}

// processor returns which share of one processor the program has used since its start, or "".
func (v PluginRow) processor(ctx context.Context) string {
	lasted := page(ctx).Now.Sub(v.Since)
	if v.PID == 0 || v.State != plugin.Running || lasted < time.Second {
		return ""
	}
	return percentText(ctx, min(float64(v.CPU)/float64(lasted), float64(max(v.Processes, 1)*64)))
}

func (v PluginRow) memory(ctx context.Context) string {
	if v.PID == 0 {
		return ""
	}
	return bytesText(ctx, v.Memory)
}

// command returns the program with its arguments, one of each line.
func (v PluginRow) command() []string {
	return slices.Concat([]string(v.Manifest.Command), v.Manifest.Args)
}

// variables returns the names of the program's variables.
func (v PluginRow) variables() []string { return slices.Sorted(maps.Keys(v.Manifest.Env)) }

func limitText(ctx context.Context, limit string) string {
	if limit == "" {
		return t(ctx, "plugins.no_limit")
	}
	return t(ctx, "plugins.limit", "limit", limit)
}

func (v PluginRow) memoryLimit(ctx context.Context) string {
	if v.Manifest.Limits.Memory == 0 {
		return limitText(ctx, "")
	}
	return limitText(ctx, bytesText(ctx, int64(v.Manifest.Limits.Memory)))
}

func (v PluginRow) cpuLimit(ctx context.Context) string {
	if v.Manifest.Limits.CPU == 0 {
		return limitText(ctx, "")
	}
	return limitText(ctx, percentText(ctx, v.Manifest.Limits.CPU))
}

func (v PluginRow) filesLimit(ctx context.Context) string {
	if v.Manifest.Limits.OpenFiles == 0 {
		return limitText(ctx, "")
	}
	return limitText(ctx, num(ctx, v.Manifest.Limits.OpenFiles))
}

// server returns the name and version of the MCP server.
func (v PluginRow) server() string { return strings.TrimSpace(v.ServerName + " " + v.ServerVersion) }

// eventsURL follows the plug-ins that the page shows.
func (v PluginsPage) eventsURL() string {
	names := make([]string, len(v.Rows))
	for i, row := range v.Rows {
		names[i] = row.Name
	}
	return EventsURL(ViewPlugins, url.Values{"shown": names})
}

func (v PluginPage) eventsURL() string {
	return EventsURL(ViewPlugin, url.Values{"name": {v.Row.Name}})
}

func lineClass(l plugin.Line) string { return "from-" + string(l.Source) }
