package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"fleetd/fleet"
)

// Limits of manifests.
const (
	maxManifestBytes = 64 << 10
	maxText          = 4 << 10 // of one argument, path or value
	maxItems         = 64      // arguments, variables, files or patterns
	maxCPU           = 1024
	minMemory        = 4 << 20
)

// namePattern is the form of a plug-in's name, which is part of a device's id and of URLs.
var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)

// A Manifest defines a plug-in. It has either a command or a URL.
type Manifest struct {
	// Command is the program and its first arguments; Args follow. A relative path with a slash
	// is relative to the manifest's directory; a name without one is looked up in PATH.
	Command  Words             `json:"command,omitempty" yaml:"command"`
	Args     []string          `json:"args,omitempty" yaml:"args"`
	Env      map[string]string `json:"env,omitempty" yaml:"env"`
	EnvFiles []string          `json:"env_files,omitempty" yaml:"env_files"` // lines NAME=value
	// User is the name or the uid of the user that the program runs as. "" is a user that no
	// other program has if fleetd runs as root, else the user of fleetd.
	User      string `json:"user,omitempty" yaml:"user"`
	Directory string `json:"directory,omitempty" yaml:"directory"` // "" is the manifest's directory
	Limits    Limits `json:"limits,omitzero" yaml:"limits"`

	// URL is the address of an MCP server over Streamable HTTP.
	URL         string `json:"url,omitempty" yaml:"url"`
	HeadersFile string `json:"headers_file,omitempty" yaml:"headers_file"` // lines Name: value

	// Tools are patterns of the tools that are offered; a trailing * matches any ending. None
	// means all.
	Tools []string `json:"tools,omitempty" yaml:"tools"`
	// Audience is who may call them. Default: [fleet.AudienceModel].
	Audience fleet.Audience `json:"audience,omitempty" yaml:"audience"`
	// OfferToVoice adds the tools to those of each board in conversations.
	OfferToVoice bool `json:"offer_to_voice,omitempty" yaml:"offer_to_voice"`
	Disabled     bool `json:"disabled,omitempty" yaml:"disabled"` // it does not run
}

// Limits bound what a program uses. 0 means no limit.
type Limits struct {
	Memory    Bytes   `json:"memory,omitempty" yaml:"memory"` // resident, of all its processes
	CPU       float64 `json:"cpu,omitempty" yaml:"cpu"`       // cores, as an average over seconds
	OpenFiles int     `json:"open_files,omitempty" yaml:"open_files"`
}

// Words are texts that a manifest may also write as one text, which is then a single word.
type Words []string

// UnmarshalYAML reads a list, or one text.
func (w *Words) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		*w = Words{n.Value}
		return nil
	}
	return n.Decode((*[]string)(w))
}

// UnmarshalJSON reads a list, or one text.
func (w *Words) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*w = Words{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(w))
}

// Bytes is a size: a number, or a text such as 128MiB.
type Bytes int64

var units = []struct {
	name string
	size float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}

// ParseBytes parses a size.
func ParseBytes(text string) (Bytes, error) {
	number := strings.TrimRight(text, "KMGikB")
	unit := strings.TrimSpace(text[len(number):])
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	for _, u := range units {
		if size := n * u.size; err == nil && u.name == unit && size >= 0 && size <= math.MaxInt64/2 {
			return Bytes(size), nil
		}
	}
	return 0, fmt.Errorf("%q is not a size: write a number of bytes, or one with KiB, MiB or GiB", text)
}

// String returns the size in the largest unit that loses nothing.
func (b Bytes) String() string {
	for _, u := range []string{"GiB", "MiB", "KiB"} {
		i := slices.IndexFunc(units, func(x struct {
			name string
			size float64
		}) bool {
			return x.name == u
		})
		if size := int64(units[i].size); b != 0 && int64(b)%size == 0 {
			return strconv.FormatInt(int64(b)/size, 10) + u
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// UnmarshalYAML reads a number or a text.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) (err error) {
	if *b, err = ParseBytes(n.Value); err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	return nil
}

// UnmarshalJSON reads a number or a text.
func (b *Bytes) UnmarshalJSON(data []byte) (err error) {
	*b, err = ParseBytes(strings.Trim(string(data), `"`))
	return err
}

// MarshalJSON writes a text.
func (b Bytes) MarshalJSON() ([]byte, error) { return json.Marshal(b.String()) }

// Parse reads a manifest. Its errors have a code of [Reasons], and say which line is wrong.
func Parse(data []byte) (Manifest, error) {
	var m Manifest
	if len(data) > maxManifestBytes {
		return m, fleet.Refuse(fleet.ErrInvalid, "plugin_manifest.large", "limit_bytes", maxManifestBytes)
	}
	d := yaml.NewDecoder(strings.NewReader(string(data)))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil && !errors.Is(err, io.EOF) {
		line, detail := lineOf(err)
		if line == 0 {
			return m, fleet.Refuse(fleet.ErrInvalid, "plugin_manifest.yaml", "detail", detail)
		}
		return m, fleet.Refuse(fleet.ErrInvalid, "plugin_manifest.yaml_line", "line", line, "detail", detail)
	}
	var more any
	if !errors.Is(d.Decode(&more), io.EOF) {
		return m, fleet.Refuse(fleet.ErrInvalid, "plugin_manifest.documents")
	}
	return m, m.Check()
}

var lineInError = regexp.MustCompile(`line (\d+): (.*)`)

// lineOf returns the first line that an error of YAML names, 0 if it names none.
func lineOf(err error) (line int, detail string) {
	text := err.Error()
	if e, ok := errors.AsType[*yaml.TypeError](err); ok && len(e.Errors) > 0 {
		text = e.Errors[0]
	}
	if found := lineInError.FindStringSubmatch(text); found != nil {
		line, _ = strconv.Atoi(found[1])
		text = found[2]
	}
	text = strings.ReplaceAll(strings.TrimPrefix(text, "yaml: "), " in type plugin.Manifest", "")
	return line, fleet.CleanText(strings.ReplaceAll(text, " in type plugin.Limits", " in limits"), 200)
}

// inField sets the field of an error, which is also its parameter.
func inField(e *fleet.Error) error {
	field, _ := e.Params["field"].(string)
	return e.At(field)
}

// Check refuses a manifest that cannot be run, and sets the defaults.
func (m *Manifest) Check() error {
	switch {
	case len(m.Command) == 0 && m.URL == "":
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.missing", "field", "command"))
	case len(m.Command) > 0 && m.URL != "":
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.both", "field", "url"))
	case len(m.Command) > 0 && m.Command[0] == "":
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.empty", "field", "command"))
	case len(m.Command) > 0 && m.HeadersFile != "":
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.remote", "field", "headers_file"))
	}
	lists := map[string][]string{"command": m.Command, "args": m.Args, "env_files": m.EnvFiles, "tools": m.Tools,
		"env": slices.Sorted(maps.Values(m.Env)), "user": {m.User}, "directory": {m.Directory}, "url": {m.URL},
		"headers_file": {m.HeadersFile}}
	for _, field := range slices.Sorted(maps.Keys(lists)) {
		if len(lists[field]) > maxItems {
			return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.many", "field", field, "limit", maxItems))
		}
		for _, text := range lists[field] {
			if len(text) > maxText || strings.ContainsRune(text, 0) {
				return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.text", "field", field, "limit", maxText))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Env)) {
		if !envName.MatchString(name) {
			return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.name", "field", "env", "value", name))
		}
	}
	if m.URL != "" {
		if err := m.checkURL(); err != nil {
			return err
		}
	}
	l := m.Limits
	switch {
	case l.Memory != 0 && l.Memory < minMemory:
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.least", "field", "limits.memory", "limit", Bytes(minMemory).String()))
	case l.CPU != 0 && !(l.CPU >= 0.01 && l.CPU <= maxCPU): // or not a number
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.range", "field", "limits.cpu", "from", "0.01", "to", maxCPU))
	case l.OpenFiles < 0 || l.OpenFiles > 1<<20 || l.OpenFiles != 0 && l.OpenFiles < 8:
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.range", "field", "limits.open_files", "from", 8, "to", 1<<20))
	}
	for _, p := range m.Tools {
		if p == "" || strings.Contains(strings.TrimSuffix(p, "*"), "*") {
			return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.pattern", "field", "tools", "value", p))
		}
	}
	switch m.Audience {
	case "":
		m.Audience = fleet.AudienceModel
	case fleet.AudienceModel, fleet.AudienceUser:
	default:
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.audience", "field", "audience", "value", string(m.Audience)))
	}
	if m.OfferToVoice && m.Audience == fleet.AudienceUser {
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.voice", "field", "offer_to_voice"))
	}
	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkURL refuses what a program would need, and addresses with credentials, which pages show.
func (m *Manifest) checkURL() error {
	u, err := url.Parse(m.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.url", "field", "url"))
	}
	if len(m.Args) > 0 || len(m.Env) > 0 || len(m.EnvFiles) > 0 || m.User != "" || m.Directory != "" ||
		m.Limits != (Limits{}) {
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.program", "field", "url"))
	}
	return nil
}

// Offers reports whether the manifest offers the tool.
func (m Manifest) Offers(tool string) bool {
	return len(m.Tools) == 0 || slices.ContainsFunc(m.Tools, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return tool == pattern || open && strings.HasPrefix(tool, prefix)
	})
}

func encodeEnv(env map[string]string) []byte {
	data, _ := json.Marshal(env) // texts: cannot fail
	return data
}

func decodeEnv(data []byte) (env map[string]string, err error) {
	err = json.Unmarshal(data, &env)
	return env, err
}
