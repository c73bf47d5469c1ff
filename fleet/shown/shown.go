// Package shown prepares the schemas of devices' tools for people and language models. It is
// the only place that does: it removes control and direction-changing characters from strings
// and limits their length. The stored schema stays as the device wrote it, so that digests
// and pins cover the device's bytes, and calls use its property names.
//
// There is no lock and no goroutine.
package shown

import (
	"bytes"
	"encoding/json"
	"strings"

	"fleetd/fleet"
)

// Limits of the strings in a schema, in bytes.
const (
	maxString   = 2 << 10
	maxProperty = 128
)

// A Warning is a suspicious property of a tool.
type Warning string

const (
	// SentenceName means that the name reads like a sentence or an instruction.
	SentenceName Warning = "sentence_name"
	// HiddenProperties means that properties were removed from the schema because their names
	// cannot be shown unchanged. Callers of fleetd cannot use these properties.
	HiddenProperties Warning = "hidden_properties"
)

// Warnings returns the warnings about a tool; most tools have none.
func Warnings(t fleet.Tool) (all []Warning) {
	if fleet.IsSentence(t.Name) {
		all = append(all, SentenceName)
	}
	if _, hidden := clean(t.InputSchema); hidden {
		all = append(all, HiddenProperties)
	}
	return all
}

// Schema returns a schema in a form that can be shown. It returns nil if the schema is not
// valid JSON.
func Schema(raw json.RawMessage) json.RawMessage {
	shown, _ := clean(raw)
	return shown
}

func clean(raw json.RawMessage) (shown json.RawMessage, hidden bool) {
	if len(raw) == 0 || isPlain(raw) {
		return raw, false
	}
	w := writer{in: json.NewDecoder(bytes.NewReader(raw))}
	w.in.UseNumber()
	if w.value() != nil {
		return nil, w.hidden
	}
	return w.out.Bytes(), w.hidden
}

// isPlain reports whether nothing needs cleaning: printable ASCII without escapes, in short
// strings.
func isPlain(raw []byte) bool {
	run := 0
	for _, c := range raw {
		if c < 0x20 || c > 0x7e || c == '\\' {
			return false
		}
		if run++; c == '"' {
			run = 0
		}
		if run > maxProperty {
			return false
		}
	}
	return true
}

var blanks = strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ", "\t", " ")

// A writer copies a JSON value and cleans its strings. It preserves the order of members,
// because forms show fields as the device lists them.
type writer struct {
	in     *json.Decoder
	out    bytes.Buffer
	hidden bool // a member was removed
}

// value copies the next value. It returns an error at the end of the input.
func (w *writer) value() error {
	t, err := w.in.Token()
	if err != nil {
		return err
	}
	switch t := t.(type) {
	case json.Delim:
		return w.members(t)
	case string:
		return w.write(fleet.CleanText(blanks.Replace(t), maxString))
	}
	return w.write(t)
}

func (w *writer) write(v any) error {
	e := json.NewEncoder(&w.out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	w.out.Truncate(max(0, w.out.Len()-1)) // the newline
	return err
}

// members copies an object or an array whose opening delimiter was already read.
func (w *writer) members(open json.Delim) error {
	w.out.WriteByte(byte(open))
	for empty := true; w.in.More(); {
		before := w.out.Len()
		if !empty {
			w.out.WriteByte(',')
		}
		shown := true
		if open == '{' {
			t, err := w.in.Token()
			if err != nil {
				return err
			}
			name, _ := t.(string)
			shown = fleet.CleanText(name, maxProperty) == name
			if err := w.write(name); err != nil {
				return err
			}
			w.out.WriteByte(':')
		}
		if err := w.value(); err != nil {
			return err
		}
		if !shown {
			w.hidden = true
			w.out.Truncate(before)
			continue
		}
		empty = false
	}
	end, err := w.in.Token()
	if err == nil {
		d, _ := end.(json.Delim)
		w.out.WriteByte(byte(d))
	}
	return err
}
