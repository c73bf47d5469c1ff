package forms

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// maxConfigFields bounds the form; a document of the included firmware has at most 2 KiB.
const maxConfigFields = 64

// The kinds of a setting, by the JSON type of its value.
const (
	ConfigBool  = "boolean"
	ConfigInt   = "integer"
	ConfigText  = "string"
	ConfigOther = "other" // shown, but not editable
)

// A ConfigField is one setting of a device, as a form control named "v."+Key.
type ConfigField struct {
	Key     string
	Kind    string
	Value   string // as in the form: "true", "60", text
	Problem string // key of the message that says why a value was rejected
}

// A Setting describes a setting of the included firmware.
type Setting struct {
	Key, Kind string
	Min, Max  int64 // of a [ConfigInt]
	Length    int   // maximum bytes of a [ConfigText]; 0 for no limit
	Choices   []string
}

var settings = []Setting{
	{Key: "heartbeat_s", Kind: ConfigInt, Min: 10, Max: 3600},
	{Key: "telemetry", Kind: ConfigBool},
	{Key: "log_level", Kind: ConfigText, Choices: []string{"none", "error", "warn", "info", "debug", "verbose"}},
	{Key: "url_hosts", Kind: ConfigText, Length: 256},
	{Key: "allow_http", Kind: ConfigBool},
}

// rank returns the index of the field's setting in settings, or their number if it is not among
// them or has an unexpected type.
func (f ConfigField) rank() int {
	i := slices.IndexFunc(settings, func(s Setting) bool { return s.Key == f.Key && s.Kind == f.Kind })
	if i < 0 {
		return len(settings)
	}
	return i
}

// Setting returns the description of the field's setting, or nil if its key is unknown or it has an
// unexpected type.
func (f ConfigField) Setting() *Setting {
	if i := f.rank(); i < len(settings) {
		return &settings[i]
	}
	return nil
}

// ConfigFields returns the settings in a device's report: the known ones first, then the others in
// the order of the device.
func ConfigFields(values json.RawMessage) []ConfigField {
	var raw map[string]json.RawMessage
	if json.Unmarshal(values, &raw) != nil {
		return nil
	}
	var all []ConfigField
	for _, key := range objectKeys(values) {
		seen := slices.ContainsFunc(all, func(f ConfigField) bool { return f.Key == key })
		if key != "" && !seen && len(all) < maxConfigFields {
			all = append(all, newConfigField(key, raw[key]))
		}
	}
	slices.SortStableFunc(all, func(a, b ConfigField) int { return a.rank() - b.rank() })
	return all
}

func newConfigField(key string, value json.RawMessage) ConfigField {
	value = bytes.TrimSpace(value)
	f := ConfigField{Key: key, Kind: ConfigOther, Value: plain(value)}
	var n int64
	switch {
	case len(value) > 0 && value[0] == '"':
		f.Kind, f.Value = ConfigText, oneLine(f.Value)
	case string(value) == "true", string(value) == "false":
		f.Kind = ConfigBool
	case json.Unmarshal(value, &n) == nil && string(value) != "null":
		f.Kind = ConfigInt
	}
	return f
}

// oneLine returns a text as an input element changes it.
func oneLine(s string) string {
	return strings.NewReplacer("\r", "", "\n", "").Replace(s)
}

// ReadConfig reads the submitted form. It returns the values that differ from those in fields, and
// the fields as typed. ok is false if a value is invalid. A field that the form lacks stays
// unchanged; an unchecked box is identified by its hidden companion "has.".
func ReadConfig(fields []ConfigField, form url.Values) (changed map[string]any, typed []ConfigField, ok bool) {
	changed, typed, ok = make(map[string]any), slices.Clone(fields), true
	for i := range typed {
		f := &typed[i]
		before := f.Value
		if f.Kind == ConfigOther || !f.submitted(form) || f.Value == before {
			continue
		}
		value, problem := f.parse()
		if problem != "" {
			f.Problem, ok = problem, false
			continue
		}
		changed[f.Key] = value
	}
	return changed, typed, ok
}

// submitted copies the field's value from the form; it returns false if the form lacks it.
func (f *ConfigField) submitted(form url.Values) bool {
	name := "v." + f.Key
	if f.Kind == ConfigBool {
		f.Value = strconv.FormatBool(form.Has(name))
		return form.Has("has." + f.Key)
	}
	if !form.Has(name) {
		return false
	}
	f.Value = oneLine(form.Get(name))
	if f.Kind == ConfigInt {
		f.Value = strings.TrimSpace(f.Value)
	}
	return true
}

func (f ConfigField) parse() (value any, problem string) {
	s := f.Setting()
	switch {
	case f.Kind == ConfigBool:
		return f.Value == "true", ""
	case f.Kind == ConfigInt && s == nil:
		return parseInt(f.Value, nil, nil)
	case f.Kind == ConfigInt:
		return parseInt(f.Value, &s.Min, &s.Max)
	case s != nil && len(s.Choices) > 0 && !slices.Contains(s.Choices, f.Value):
		return nil, "config.not_a_choice"
	case s != nil && s.Length > 0 && len(f.Value) > s.Length:
		return nil, "config.too_long"
	}
	return f.Value, ""
}
