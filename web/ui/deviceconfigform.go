package ui

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// maxConfigFields bounds the form; a document of the included firmware has at
// most 2 KiB.
const maxConfigFields = 64

// The kinds of a setting, by the JSON type of its value.
const (
	configBool  = "boolean"
	configInt   = "integer"
	configText  = "string"
	configOther = "other" // shown, not changed
)

// A ConfigField is one setting of a device, as a form control named "v."+Key.
type ConfigField struct {
	Key     string
	Kind    string
	Value   string // as the form writes it: "true", "60", text
	Problem string // key of the message that says why a value was not taken
}

// A configSetting is what the console knows of a setting of the included
// firmware. Settings that it does not know are asked for by name.
type configSetting struct {
	key, kind, label, help string
	min, max               int64 // integers
	length                 int   // bytes of a text
	choices                []string
}

var configSettings = []configSetting{
	{key: "heartbeat_s", kind: configInt, label: "config.heartbeat", help: "config.heartbeat_help", min: 10, max: 3600},
	{key: "telemetry", kind: configBool, label: "config.telemetry", help: "config.telemetry_help"},
	{key: "log_level", kind: configText, label: "config.log_level", help: "config.log_level_help",
		choices: []string{"none", "error", "warn", "info", "debug", "verbose"}},
	{key: "url_hosts", kind: configText, label: "config.url_hosts", help: "config.url_hosts_help", length: 256},
	{key: "allow_http", kind: configBool, label: "config.allow_http", help: "config.allow_http_help"},
}

// setting is what is known of the field; nil if its key is not one of ours, or
// has another type than it should.
func (f ConfigField) setting() *configSetting {
	for i, s := range configSettings {
		if s.key == f.Key && s.kind == f.Kind {
			return &configSettings[i]
		}
	}
	return nil
}

// ConfigFields are the settings in what a device reported: those that the
// console knows first, the others in the order of the device.
func ConfigFields(values json.RawMessage) []ConfigField {
	var raw map[string]json.RawMessage
	if json.Unmarshal(values, &raw) != nil {
		return nil
	}
	var all []ConfigField
	for _, key := range objectKeys(values) {
		if key != "" && len(all) < maxConfigFields && !slices.ContainsFunc(all,
			func(f ConfigField) bool { return f.Key == key }) {
			all = append(all, newConfigField(key, raw[key]))
		}
	}
	slices.SortStableFunc(all, func(a, b ConfigField) int { return a.rank() - b.rank() })
	return all
}

func newConfigField(key string, value json.RawMessage) ConfigField {
	value = bytes.TrimSpace(value)
	f := ConfigField{Key: key, Kind: configOther, Value: plain(value)}
	var n int64
	switch {
	case len(value) > 0 && value[0] == '"':
		f.Kind, f.Value = configText, oneLine(f.Value)
	case string(value) == "true", string(value) == "false":
		f.Kind = configBool
	case json.Unmarshal(value, &n) == nil && string(value) != "null":
		f.Kind = configInt
	}
	return f
}

func (f ConfigField) rank() int {
	if s := f.setting(); s != nil {
		return slices.IndexFunc(configSettings, func(known configSetting) bool { return known.key == s.key })
	}
	return len(configSettings)
}

// oneLine is what an input element makes of a text.
func oneLine(s string) string {
	return strings.NewReplacer("\r", "", "\n", "").Replace(s)
}

// ReadConfigForm reads the submitted form: the values that differ from those
// in fields, and the fields as they were typed. ok is false if one cannot be.
// A field that the form does not have stays as it is; a box that is not ticked
// says so by its hidden companion "has.".
func ReadConfigForm(fields []ConfigField, form url.Values) (changed map[string]any, typed []ConfigField, ok bool) {
	changed, typed, ok = make(map[string]any), slices.Clone(fields), true
	for i := range typed {
		f := &typed[i]
		before := f.Value
		if f.Kind == configOther || !f.submitted(form) || f.Value == before {
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

// submitted takes the field's value from the form; false if it is not there.
func (f *ConfigField) submitted(form url.Values) bool {
	name := "v." + f.Key
	if f.Kind == configBool {
		f.Value = strconv.FormatBool(form.Has(name))
		return form.Has("has." + f.Key)
	}
	if !form.Has(name) {
		return false
	}
	f.Value = oneLine(form.Get(name))
	if f.Kind == configInt {
		f.Value = strings.TrimSpace(f.Value)
	}
	return true
}

func (f ConfigField) parse() (value any, problem string) {
	s := f.setting()
	switch f.Kind {
	case configBool:
		return f.Value == "true", ""
	case configInt:
		n, err := strconv.ParseInt(f.Value, 10, 64)
		if err != nil {
			return nil, "field.not_whole"
		}
		if s != nil && (n < s.min || n > s.max) {
			return nil, "field.out_of_range"
		}
		return n, ""
	}
	switch {
	case s != nil && len(s.choices) > 0 && !slices.Contains(s.choices, f.Value):
		return nil, "config.not_a_choice"
	case s != nil && s.length > 0 && len(f.Value) > s.length:
		return nil, "config.too_long"
	}
	return f.Value, ""
}
