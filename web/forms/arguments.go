package forms

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/shown"
)

// A Field is one argument of a tool, as a form control named "arg."+Name. The
// control follows from the tool's input schema.
type Field struct {
	Name     string
	Type     string // JSON type: "integer", "number", "boolean", "string"; for others the field holds raw JSON
	Value    string // shown; "true" checks the box of a boolean
	Default  string // as in the schema
	HasDef   bool
	Required bool
	Min, Max *int64   // integers
	Choices  []string // strings, if the description names the values
	Ours     bool     // fleetd fills it in: a one-time address
	Long     bool     // it may have many lines
	Problem  string   // why the value was rejected
}

type schemaProperty struct {
	Type    string          `json:"type"`
	Default json.RawMessage `json:"default"`
	Minimum *float64        `json:"minimum"`
	Maximum *float64        `json:"maximum"`
	Enum    []string        `json:"enum"`
}

// NewFields returns the form of a tool. last holds the previous arguments, which the form offers
// again; nil offers the defaults.
func NewFields(tool fleet.Tool, last json.RawMessage) []Field {
	var schema struct {
		Properties json.RawMessage `json:"properties"`
		Required   []string        `json:"required"`
	}
	if json.Unmarshal(shown.Schema(tool.InputSchema), &schema) != nil {
		return nil
	}
	var properties map[string]schemaProperty
	if json.Unmarshal(schema.Properties, &properties) != nil {
		return nil
	}
	var used map[string]json.RawMessage
	_ = json.Unmarshal(last, &used) // unreadable arguments are not offered

	var fields []Field
	for _, name := range objectKeys(schema.Properties) {
		f := newField(name, properties[name], tool)
		f.Required = slices.Contains(schema.Required, name)
		f.offer(used[name])
		fields = append(fields, f)
	}
	return fields
}

func newField(name string, p schemaProperty, tool fleet.Tool) Field {
	f := Field{Name: name, Type: p.Type, Choices: p.Enum, Min: whole(p.Minimum), Max: whole(p.Maximum)}
	f.Ours = name == "url" && fleet.OwnsURL(tool.Name)
	if p.Type == "string" && !f.Ours && len(f.Choices) == 0 {
		f.Choices = choices(tool.Description, name)
	}
	if len(p.Default) > 0 && !f.Ours {
		f.HasDef, f.Default = true, plain(p.Default)
		f.Value = f.Default
	}
	return f
}

// offer shows the previous value if it still has the right type.
func (f *Field) offer(raw json.RawMessage) {
	if len(raw) == 0 || f.Ours {
		return
	}
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return
	}
	fits := true
	switch v.(type) {
	case string:
		fits = f.Type == "string"
	case bool:
		fits = f.Type == "boolean"
	case float64:
		fits = f.Type == "integer" || f.Type == "number"
	}
	if fits {
		f.Value = plain(raw)
	}
}

// plain formats a JSON value as a person types it.
func plain(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

func whole(f *float64) *int64 {
	if f == nil || *f != float64(int64(*f)) {
		return nil
	}
	n := int64(*f)
	return &n
}

// objectKeys lists the keys of a JSON object in the order of the text, which is the order that the
// firmware's author chose.
func objectKeys(raw json.RawMessage) []string {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	var keys []string
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return keys
		}
		var skip json.RawMessage
		if d.Decode(&skip) != nil {
			return keys
		}
		keys = append(keys, key.(string))
	}
	return keys
}

var (
	alternatives = regexp.MustCompile(
		"`[^`\\s]{1,40}`(?:(?:\\s*[,，、/|]\\s*|\\s*,?\\s*(?:or|and|或|或者|和)\\s*)`[^`\\s]{1,40}`)+")
	backticked = regexp.MustCompile("`([^`]+)`")
)

// choices returns the values that a description names for an argument: two or more adjacent words
// in backticks, in a sentence that mentions the argument.
func choices(description, argument string) []string {
	ends := func(r rune) bool { return strings.ContainsRune(".。\n;；", r) }
	for _, sentence := range strings.FieldsFunc(description, ends) {
		if !strings.Contains(strings.ToLower(sentence), strings.ToLower(argument)) {
			continue
		}
		var found []string
		for _, m := range backticked.FindAllStringSubmatch(alternatives.FindString(sentence), -1) {
			if m[1] != argument && !slices.Contains(found, m[1]) {
				found = append(found, m[1])
			}
		}
		if len(found) > 1 {
			return found
		}
	}
	return nil
}

// OtherChoice is the value of the radio button for a value outside the choices, which is typed in
// the field arg.NAME.other.
const OtherChoice = "\u2063other"

// Other returns the value of a field if it is not one of its choices.
func (f Field) Other() string {
	if slices.Contains(f.Choices, f.Value) {
		return ""
	}
	return f.Value
}

// Values returns the form with the values of the fields; [Arguments] reads them back.
func Values(fields []Field) url.Values {
	form := url.Values{}
	for _, f := range fields {
		switch {
		case f.Ours, f.Type == "boolean" && f.Value != "true":
		case f.Other() != "" && len(f.Choices) > 0:
			form.Set("arg."+f.Name, OtherChoice)
			form.Set("arg."+f.Name+".other", f.Value)
		default:
			form.Set("arg."+f.Name, f.Value)
		}
	}
	return form
}

// Arguments reads a submitted tool form into the JSON object to send. It omits empty fields unless
// they are required, and leaves url arguments to fleetd. If a value is invalid, its returned field
// has a Problem (a message key), and ok is false.
func Arguments(fields []Field, form url.Values) (args json.RawMessage, shown []Field, ok bool) {
	object := make(map[string]any)
	shown, ok = slices.Clone(fields), true
	for i := range shown {
		f := &shown[i]
		if f.Ours {
			continue
		}
		f.Value = f.submitted(form)
		value, present, problem := f.Parse()
		if problem != "" {
			f.Problem, ok = problem, false
		} else if present {
			object[f.Name] = value
		}
	}
	args, _ = json.Marshal(object) // of strings, numbers, bools and valid raw JSON
	return args, shown, ok
}

func (f Field) submitted(form url.Values) string {
	v := form.Get("arg." + f.Name)
	if v == OtherChoice {
		v = form.Get("arg." + f.Name + ".other")
	}
	if f.Type == "boolean" {
		return strconv.FormatBool(v != "")
	}
	return v
}

// Parse returns the value of the field's text. present is false for an omitted value; problem is
// the message key of an error.
func (f Field) Parse() (value any, present bool, problem string) {
	if f.Value == "" {
		if f.Required && f.Type != "string" {
			return nil, false, "field.required"
		}
		return "", f.Required, ""
	}
	switch f.Type {
	case "boolean":
		return f.Value == "true", true, ""
	case "string":
		return f.Value, true, ""
	case "integer":
		n, problem := parseInt(f.Value, f.Min, f.Max)
		return n, problem == "", problem
	case "number":
		n, err := strconv.ParseFloat(f.Value, 64)
		if err != nil {
			return nil, false, "field.not_a_number"
		}
		return n, true, ""
	}
	if raw := json.RawMessage(strings.TrimSpace(f.Value)); json.Valid(raw) {
		return raw, true, ""
	}
	return nil, false, "field.not_json"
}
