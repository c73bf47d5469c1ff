package api

import (
	"context"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerPlugins() {
	const path, one = "/plugins", "/plugins/{name}"
	register(a, operation{id: "list-plugins", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodGet, path: path,
		role: fleet.RoleAdmin, summary: "List plug-ins, with what each does now",
		about: "By name: those of the plug-in directory and those of the database. Values of variables are never shown."},
		a.listPlugins)
	register(a, operation{id: "get-plugin", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodGet, path: one,
		role: fleet.RoleAdmin, noun: "plugin", summary: "Get a plug-in"}, a.getPlugin)
	register(a, operation{id: "create-plugin", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodPost, path: path,
		role: fleet.RoleAdmin, created: true, summary: "Add a plug-in to the database, and start it",
		about: "It has either a command or a url. Its program and the files that it reads must be in the plug-in directory."},
		a.createPlugin)
	register(a, operation{id: "update-plugin", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodPatch, path: one,
		role: fleet.RoleAdmin, noun: "plugin", summary: "Change a plug-in of the database",
		about: "Omitted fields stay as they are. It starts again with the change; if that fails, it goes on as before. " +
			"A plug-in of the directory is changed in its file."}, a.updatePlugin)
	register(a, operation{id: "delete-plugin", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: one, role: fleet.RoleAdmin, noun: "plugin",
		summary: "Stop and remove a plug-in of the database", about: "Its device is retired; calls and records stay."}, a.deletePlugin)
	register(a, operation{id: "restart-plugin", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: one + "/restart", role: fleet.RoleAdmin, noun: "plugin",
		summary: "Read the definition of a plug-in again, and start it again now",
		about:   "The running program finishes its calls after the new one has answered initialize."}, a.restartPlugin)
	register(a, operation{id: "get-plugin-log", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: one + "/log", role: fleet.RoleAdmin, noun: "plugin",
		summary: "Get the latest lines of a plug-in's log, oldest first",
		about:   "At most 500, since fleetd started."}, a.pluginLog)
}

// PluginView is the contract's plug-in.
type PluginView struct {
	Name     string         `json:"name"`
	DeviceID fleet.DeviceID `json:"device_id" example:"plugin.weather" doc:"Device of the fleet that has its tools; empty if its name is taken or not valid"`
	Source   string         `json:"source" enum:"file,database"`
	File     string         `json:"file" doc:"Name of its manifest in the plug-in directory; empty for one of the database"`

	PluginDefinitionView
	PluginStatusView

	Version   int64      `json:"version" doc:"Counts the changes of a plug-in of the database, from 1; 0 for a file"`
	UpdatedBy string     `json:"updated_by" doc:"Empty for a file"`
	UpdatedAt *time.Time `json:"updated_at" doc:"null for a file"`
}

// TransformSchema marks the properties that may be null.
func (PluginView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "updated_at", "since", "next_start")
}

// PluginDefinitionView is the part of a plug-in that its manifest defines.
type PluginDefinitionView struct {
	Command      []string         `json:"command" nullable:"false" doc:"Program and its first arguments; empty with a url"`
	Args         []string         `json:"args" nullable:"false"`
	Env          []string         `json:"env" nullable:"false" doc:"Names of its variables; values are never shown"`
	EnvFiles     []string         `json:"env_files" nullable:"false"`
	User         string           `json:"user" doc:"Of a file only; empty: chosen by fleetd"`
	Directory    string           `json:"directory" doc:"Of a file only; empty: the plug-in directory"`
	Limits       pluginLimitsView `json:"limits"`
	URL          string           `json:"url"`
	HeadersFile  string           `json:"headers_file"`
	Tools        []string         `json:"tools" nullable:"false" doc:"Patterns of the tools that are offered; empty: all"`
	Audience     fleet.Audience   `json:"audience" enum:"model,user,"`
	OfferToVoice bool             `json:"offer_to_voice"`
	Disabled     bool             `json:"disabled"`
	Problem      string           `json:"problem" doc:"Why this definition cannot run; empty if it can. A plug-in of a file keeps running with its last correct definition"`
	ProblemCode  string           `json:"problem_code" example:"plugin_field"`
	ProblemOf    map[string]any   `json:"problem_params"`
}

type pluginLimitsView struct {
	Memory    string  `json:"memory" example:"128MiB" doc:"Empty: no limit"`
	CPU       float64 `json:"cpu" doc:"Cores; 0: no limit"`
	OpenFiles int     `json:"open_files" doc:"0: the limit of fleetd itself"`
}

// PluginStatusView is what a plug-in does now.
type PluginStatusView struct {
	State      plugin.State   `json:"state" enum:"invalid,disabled,starting,running,waiting,crashing,stopping"`
	Since      *time.Time     `json:"since"`
	NextStart  *time.Time     `json:"next_start" doc:"For waiting and crashing: when it is started again"`
	Reason     string         `json:"reason" doc:"Why it does not run, or why a change of it failed; empty if neither"`
	ReasonCode string         `json:"reason_code" example:"plugin_ended"`
	ReasonOf   map[string]any `json:"reason_params"`

	PID         int   `json:"pid" doc:"0 without a program"`
	UID         int   `json:"uid" doc:"User of the program; -1: that of fleetd"`
	Processes   int   `json:"processes"`
	MemoryBytes int64 `json:"memory_bytes" doc:"Resident, of all its processes"`
	CPUMs       int64 `json:"cpu_ms" doc:"Used since its start"`
	ThrottledMs int64 `json:"throttled_ms" doc:"How long the limit of CPU stopped it, since its start"`
	Starts      int   `json:"starts" doc:"Since fleetd started"`

	ServerName    string `json:"server_name" doc:"As the plug-in calls itself"`
	ServerVersion string `json:"server_version"`
	Protocol      string `json:"protocol" example:"2025-06-18" doc:"Version of MCP"`
	Prompts       int    `json:"prompts"`
	Resources     int    `json:"resources" doc:"With templates"`
}

// pluginReason returns the English text of a reason of package plugin.
func pluginReason(r fleet.Reason) string {
	if r.Is("") {
		return ""
	}
	return i18n.Because(i18n.English, time.UTC, "error.code.", r)
}

func viewPlugin(p plugin.Listed) PluginView {
	m, st := p.Manifest, p.Status
	v := PluginView{Name: p.Name, DeviceID: p.Device(), Source: "database", Version: p.Version, UpdatedBy: p.UpdatedBy,
		UpdatedAt: utcOrNil(&p.UpdatedAt)}
	if p.Problem.Is("plugin_duplicate") || p.Problem.Is("plugin_name") {
		v.DeviceID = ""
	}
	if p.File != "" {
		v.Source, v.File = "file", filepath.Base(p.File)
	}
	v.PluginDefinitionView = PluginDefinitionView{Command: notNil(m.Command), Args: notNil(m.Args),
		Env: notNil(slices.Sorted(maps.Keys(m.Env))), EnvFiles: notNil(m.EnvFiles), User: m.User, Directory: m.Directory,
		Limits: pluginLimitsView{CPU: m.Limits.CPU, OpenFiles: m.Limits.OpenFiles}, URL: m.URL, HeadersFile: m.HeadersFile,
		Tools: notNil(m.Tools), Audience: m.Audience, OfferToVoice: m.OfferToVoice, Disabled: m.Disabled,
		Problem: pluginReason(p.Problem), ProblemCode: p.Problem.Code, ProblemOf: paramsOf(p.Problem)}
	if m.Limits.Memory != 0 {
		v.Limits.Memory = m.Limits.Memory.String()
	}
	v.PluginStatusView = PluginStatusView{State: st.State, Since: utcOrNil(&st.Since), NextStart: utcOrNil(&st.Next),
		Reason: pluginReason(st.Reason), ReasonCode: st.Reason.Code, ReasonOf: paramsOf(st.Reason), PID: st.PID, UID: st.UID,
		Processes: st.Processes, MemoryBytes: st.Memory, CPUMs: st.CPU.Milliseconds(),
		ThrottledMs: st.Throttled.Milliseconds(), Starts: st.Starts, ServerName: st.ServerName,
		ServerVersion: st.ServerVersion, Protocol: st.Protocol, Prompts: st.Prompts, Resources: st.Resources}
	return v
}

// notNil returns a list that JSON writes as [] if it is empty.
func notNil[S ~[]string](list S) []string { return append([]string{}, list...) }

func (a *api) listPlugins(_ context.Context, by fleet.Principal, _ *struct{}) (*answer[list[PluginView]], error) {
	all, err := a.Plugins.List(by)
	if err != nil {
		return nil, err
	}
	return listOf(all, viewPlugin), nil
}

// PluginPath names a plug-in.
type PluginPath struct {
	Name string `path:"name" maxLength:"300"`
}

func (p PluginPath) pathID() string { return p.Name }

func (a *api) getPlugin(_ context.Context, by fleet.Principal, in *PluginPath) (*answer[PluginView], error) {
	return pluginAnswer(a.Plugins.Plugin(by, in.Name))
}

func pluginAnswer(p plugin.Listed, err error) (*answer[PluginView], error) {
	if err != nil {
		return nil, err
	}
	return answerWith(viewPlugin(p)), nil
}

// PluginFields are the settable fields of a plug-in; nil leaves one unchanged.
type PluginFields struct {
	Command     *[]string    `json:"command,omitempty" nullable:"false" maxItems:"64" example:"[\"./weather\"]" doc:"Program and its first arguments. The path contains a slash, and is relative to the plug-in directory"`
	Args        *[]string    `json:"args,omitempty" nullable:"false" maxItems:"64"`
	Env         pluginEnv    `json:"env,omitempty" doc:"Variables by name, stored encrypted and never shown. Merged with the present ones; null removes one"`
	EnvFiles    *[]string    `json:"env_files,omitempty" nullable:"false" maxItems:"64" doc:"Files of lines NAME=value in the plug-in directory"`
	URL         *string      `json:"url,omitempty" maxLength:"4096" doc:"Address of an MCP server over Streamable HTTP"`
	HeadersFile *string      `json:"headers_file,omitempty" maxLength:"4096" doc:"File of lines Name: value in the plug-in directory, sent with each request to the url"`
	Limits      *pluginLimit `json:"limits,omitempty" doc:"Omitted limits stay as they are"`
	Tools       *[]string    `json:"tools,omitempty" nullable:"false" maxItems:"64" example:"[\"get_*\"]" doc:"Patterns of the tools that are offered; a trailing * matches any ending. Empty: all"`
	Audience    *string      `json:"audience,omitempty" enum:"model,user" doc:"model: people and language models may use it; user: only people. Default: model"`
	Voice       *bool        `json:"offer_to_voice,omitempty" doc:"Adds its tools to those of each board in conversations"`
	Disabled    *bool        `json:"disabled,omitempty" doc:"It does not run"`
	Version     int64        `json:"version,omitempty" minimum:"0" doc:"Version of the plug-in on which the change is based; nothing changes if it differs now. 0: any"`
}

// pluginEnv are changes of variables: nil removes one.
type pluginEnv map[string]*string

// Schema implements [huma.SchemaProvider].
func (pluginEnv) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: &huma.Schema{
		AnyOf: []*huma.Schema{{Type: huma.TypeString}, {Type: "null"}}}}
}

type pluginLimit struct {
	Memory    *string  `json:"memory,omitempty" maxLength:"40" example:"128MiB" doc:"Bytes, or a number with KiB, MiB or GiB; 0: no limit. At least 4MiB"`
	CPU       *float64 `json:"cpu,omitempty" doc:"Cores, from 0.01 to 1024; 0: no limit"`
	OpenFiles *int     `json:"open_files,omitempty" doc:"From 8 to 1048576; 0: the limit of fleetd itself"`
}

// change changes a manifest.
func (f *PluginFields) change(m *plugin.Manifest) error {
	set((*[]string)(&m.Command), f.Command)
	set(&m.Args, f.Args)
	set(&m.EnvFiles, f.EnvFiles)
	set(&m.URL, f.URL)
	set(&m.HeadersFile, f.HeadersFile)
	set(&m.Tools, f.Tools)
	set((*string)(&m.Audience), f.Audience)
	set(&m.OfferToVoice, f.Voice)
	set(&m.Disabled, f.Disabled)
	for name, value := range f.Env {
		if value == nil {
			delete(m.Env, name)
			continue
		}
		if m.Env == nil {
			m.Env = map[string]string{}
		}
		m.Env[name] = *value
	}
	if f.Limits == nil {
		return nil
	}
	set(&m.Limits.CPU, f.Limits.CPU)
	set(&m.Limits.OpenFiles, f.Limits.OpenFiles)
	if f.Limits.Memory != nil {
		size, err := plugin.ParseBytes(*f.Limits.Memory)
		if err != nil {
			return fleet.Refuse(fleet.ErrInvalid, "plugin_field.size", "field", "limits.memory", "value",
				*f.Limits.Memory).At("limits.memory")
		}
		m.Limits.Memory = size
	}
	return nil
}

type createPluginInput struct {
	Body struct {
		Name string `json:"name" minLength:"1" maxLength:"40" example:"weather" doc:"Lower-case letters, digits, _ and -"`
		PluginFields
	}
}

func (a *api) createPlugin(ctx context.Context, by fleet.Principal, in *createPluginInput) (*answer[PluginView],
	error) {
	var m plugin.Manifest
	if err := in.Body.change(&m); err != nil {
		return nil, err
	}
	return pluginAnswer(a.Plugins.Create(ctx, by, in.Body.Name, m))
}

type updatePluginInput struct {
	PluginPath
	Body PluginFields
}

func (a *api) updatePlugin(ctx context.Context, by fleet.Principal, in *updatePluginInput) (*answer[PluginView],
	error) {
	return pluginAnswer(a.Plugins.Update(ctx, by, in.Name, in.Body.Version, in.Body.change))
}

func (a *api) deletePlugin(ctx context.Context, by fleet.Principal, in *PluginPath) (*empty, error) {
	return &empty{}, a.Plugins.Delete(ctx, by, in.Name)
}

func (a *api) restartPlugin(ctx context.Context, by fleet.Principal, in *PluginPath) (*answer[PluginView], error) {
	return pluginAnswer(a.Plugins.Restart(ctx, by, in.Name))
}

type pluginLogInput struct {
	PluginPath
	After int64 `query:"after" minimum:"0" doc:"Only lines with a greater number"`
}

// PluginLineView is one line of a plug-in's log.
type PluginLineView struct {
	Number int64         `json:"number" doc:"Increases with each line"`
	At     time.Time     `json:"at"`
	Source plugin.Source `json:"source" enum:"stderr,stdout,mcp,fleetd" doc:"stdout: what is no message of MCP; mcp: notifications/message; fleetd: its starts and ends"`
	Text   string        `json:"text" doc:"As the plug-in wrote it: show it as text"`
}

func (a *api) pluginLog(_ context.Context, by fleet.Principal, in *pluginLogInput) (*answer[list[PluginLineView]],
	error) {
	lines, err := a.Plugins.Lines(by, in.Name)
	if err != nil {
		return nil, err
	}
	lines = slices.DeleteFunc(slices.Clone(lines), func(l plugin.Line) bool { return l.Number <= in.After })
	return listOf(lines, func(l plugin.Line) PluginLineView {
		return PluginLineView{Number: l.Number, At: utc(l.At), Source: l.Source, Text: l.Text}
	}), nil
}
