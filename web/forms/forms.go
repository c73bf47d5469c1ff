// Package forms reads the forms of the console into the domain's types: the
// arguments of a tool and the rules of enrolment. What cannot be read becomes a
// problem of its field, as a message key.
//
// It does not know HTTP, nor how a form looks: that is package ui. It has no
// state, no lock and no goroutine.
package forms

import (
	"encoding/json"
	"net/url"
	"strconv"

	"fleetd/web/ui"
)

// Arguments reads a submitted tool form into the JSON object to be sent. What
// the form leaves empty is left out, unless it is required; url arguments are
// left to fleetd. Values that cannot be what they should be are marked as
// Problems on the returned fields (by message key), and ok is false.
func Arguments(fields []ui.Field, form url.Values) (args json.RawMessage, shown []ui.Field, ok bool) {
	object := make(map[string]any)
	shown, ok = append([]ui.Field(nil), fields...), true
	for i := range shown {
		f := &shown[i]
		if f.Ours {
			continue
		}
		f.Value = submitted(*f, form)
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

func submitted(f ui.Field, form url.Values) string {
	v := form.Get("arg." + f.Name)
	if v == ui.OtherChoice {
		v = form.Get("arg." + f.Name + ".other")
	}
	if f.Type == "boolean" {
		return strconv.FormatBool(v != "")
	}
	return v
}
