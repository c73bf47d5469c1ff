package ui

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
)

// otherChoice is the value of the radio button "something else", whose text is
// typed in the field arg.NAME.other.
const otherChoice = "\u2063other"

// Arguments reads a submitted tool form into the JSON object to be sent. What
// the form leaves empty is left out, unless it is required; url arguments are
// left to fleetd. Values that cannot be what they should be are marked as
// Problems on the returned fields (by message key), and ok is false.
func Arguments(fields []Field, form url.Values) (args json.RawMessage, shown []Field, ok bool) {
	object := make(map[string]any)
	shown, ok = append([]Field(nil), fields...), true
	for i := range shown {
		f := &shown[i]
		if f.Ours {
			continue
		}
		f.Value = f.submitted(form)
		value, present, problem := f.parse()
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
	if v == otherChoice {
		v = form.Get("arg." + f.Name + ".other")
	}
	if f.Type == "boolean" {
		return strconv.FormatBool(v != "")
	}
	return v
}

func (f Field) parse() (value any, present bool, problem string) {
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
		return f.parseInt()
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

func (f Field) parseInt() (any, bool, string) {
	n, err := strconv.ParseInt(f.Value, 10, 64)
	switch {
	case err != nil:
		return nil, false, "field.not_whole"
	case f.Min != nil && n < *f.Min, f.Max != nil && n > *f.Max:
		return nil, false, "field.out_of_range"
	}
	return n, true, ""
}

// other returns the value of a choice field if it is not among its choices.
func (f Field) other() string {
	for _, c := range f.Choices {
		if f.Value == c {
			return ""
		}
	}
	return f.Value
}
