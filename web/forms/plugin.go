package forms

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
)

// The values of the field "runs" of a [Plugin].
const (
	PluginCommand = "command"
	PluginURL     = "url"
)

// Plugin is the form of a plug-in of the database, as typed. Values of variables are written, and
// never shown: the field env has lines NAME=value.
type Plugin struct {
	New     bool  // the form has a name
	Version int64 // of the plug-in that was shown
	Name    string

	Runs        string // PluginCommand or PluginURL
	Command     string // the program and its arguments, one of each line
	URL         string
	HeadersFile string

	Tools                  string // patterns
	Audience               string
	OfferToVoice           bool
	Memory, CPU, OpenFiles string
	EnvFiles               string   // one of each line
	Variables              []string // names of those that are set
	Forgot                 bool     // values were typed, and have to be typed again

	env  string // lines NAME=value
	drop []string
}

// NewPlugin returns the empty form.
func NewPlugin() Plugin {
	return Plugin{New: true, Runs: PluginCommand, Audience: string(fleet.AudienceModel)}
}

// FillPlugin returns the form of a plug-in.
func FillPlugin(p plugin.Plugin) Plugin {
	m := p.Manifest
	f := Plugin{Version: p.Version, Name: p.Name, Runs: PluginCommand, URL: m.URL, HeadersFile: m.HeadersFile,
		Command: strings.Join(slices.Concat([]string(m.Command), m.Args), "\n"), Tools: strings.Join(m.Tools, ", "),
		Audience: string(m.Audience), OfferToVoice: m.OfferToVoice, EnvFiles: strings.Join(m.EnvFiles, "\n"),
		Variables: slices.Sorted(maps.Keys(m.Env))}
	if m.URL != "" {
		f.Runs = PluginURL
	}
	if l := m.Limits; l.Memory > 0 {
		f.Memory = l.Memory.String()
	}
	if l := m.Limits; l.CPU > 0 {
		f.CPU = strconv.FormatFloat(l.CPU, 'g', -1, 64)
	}
	if l := m.Limits; l.OpenFiles > 0 {
		f.OpenFiles = strconv.Itoa(l.OpenFiles)
	}
	return f
}

// PostedPlugin returns the form as posted.
func PostedPlugin(v url.Values) Plugin {
	f := Plugin{Name: strings.TrimSpace(v.Get("name")), Runs: PluginCommand, Command: v.Get("command"),
		URL: strings.TrimSpace(v.Get("url")), HeadersFile: strings.TrimSpace(v.Get("headers_file")),
		Tools: v.Get("tools"), Audience: v.Get("audience"), OfferToVoice: v.Get("offer_to_voice") != "",
		Memory: strings.TrimSpace(v.Get("memory")), CPU: strings.TrimSpace(v.Get("cpu")),
		OpenFiles: strings.TrimSpace(v.Get("open_files")), EnvFiles: v.Get("env_files"),
		env: v.Get("env"), drop: v["drop"], Forgot: strings.TrimSpace(v.Get("env")) != ""}
	if v.Get("runs") == PluginURL {
		f.Runs = PluginURL
	}
	f.Version, _ = strconv.ParseInt(v.Get("version"), 10, 64)
	return f
}

// Values returns the fields of the form, without values of variables.
func (f Plugin) Values() url.Values {
	v := url.Values{"name": {f.Name}, "runs": {f.Runs}, "command": {f.Command}, "url": {f.URL},
		"headers_file": {f.HeadersFile}, "tools": {f.Tools}, "audience": {f.Audience}, "memory": {f.Memory}, "cpu": {f.CPU},
		"open_files": {f.OpenFiles}, "env_files": {f.EnvFiles}, "drop": f.drop,
		"version": {strconv.FormatInt(f.Version, 10)}}
	check(v, "offer_to_voice", f.OfferToVoice)
	return v
}

// Drops reports whether the variable is removed.
func (f Plugin) Drops(name string) bool { return slices.Contains(f.drop, name) }

// Read returns the manifest of a new plug-in.
func (f Plugin) Read() (plugin.Manifest, error) {
	var m plugin.Manifest
	return m, f.Change(&m)
}

// Change changes a manifest to what the form says. Variables that the form does not name stay.
func (f Plugin) Change(m *plugin.Manifest) error {
	m.Tools = words(f.Tools)
	m.Audience, m.OfferToVoice = fleet.Audience(f.Audience), f.OfferToVoice
	m.Command, m.Args, m.URL, m.HeadersFile = nil, nil, "", ""
	if f.Runs == PluginURL {
		m.URL, m.HeadersFile = f.URL, f.HeadersFile
		m.Limits, m.Env, m.EnvFiles = plugin.Limits{}, nil, nil
		if m.URL == "" {
			return fleet.Refuse(fleet.ErrInvalid, "plugin_form.url").At("url")
		}
		return nil
	}
	if command := lines(f.Command); len(command) > 0 {
		m.Command, m.Args = command[:1], command[1:]
	}
	m.EnvFiles = lines(f.EnvFiles)
	if err := f.limits(&m.Limits); err != nil {
		return err
	}
	return f.variables(m)
}

func (f Plugin) limits(l *plugin.Limits) (err error) {
	wrong := func(field, value string) error {
		return fleet.Refuse(fleet.ErrInvalid, "plugin_form.number", "value", value).At(field)
	}
	*l = plugin.Limits{}
	if f.Memory != "" {
		if l.Memory, err = plugin.ParseBytes(f.Memory); err != nil {
			return wrong("limits.memory", f.Memory)
		}
	}
	if f.CPU != "" {
		if l.CPU, err = strconv.ParseFloat(f.CPU, 64); err != nil || l.CPU != l.CPU {
			return wrong("limits.cpu", f.CPU)
		}
	}
	if f.OpenFiles != "" {
		if l.OpenFiles, err = strconv.Atoi(f.OpenFiles); err != nil {
			return wrong("limits.open_files", f.OpenFiles)
		}
	}
	return nil
}

func (f Plugin) variables(m *plugin.Manifest) error {
	env := maps.Clone(m.Env)
	for _, name := range f.drop {
		delete(env, name)
	}
	for i, line := range lines(f.env) {
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return fleet.Refuse(fleet.ErrInvalid, "plugin_form.pair", "line", i+1).At("env")
		}
		if env == nil {
			env = make(map[string]string)
		}
		env[strings.TrimSpace(name)] = value
	}
	m.Env = env
	return nil
}

// lines returns the lines of a text without blank ones. Only the end of a line is trimmed of a
// carriage return: an argument or a value may begin or end with blanks.
func lines(text string) (all []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); strings.TrimSpace(line) != "" {
			all = append(all, line)
		}
	}
	return all
}

// words returns the words between commas and blanks.
func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n,，、", r) })
}
