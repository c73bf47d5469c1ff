package sim

import (
	"context"
	"fmt"
	"strconv"
)

type paramKind uint8

const (
	boolean paramKind = iota
	integer
	text
)

var kindNames = [...]string{boolean: "boolean", integer: "integer", text: "string"}

// An argument is a value of one of the three kinds that a tool can accept.
type argument struct {
	b bool
	i int
	s string
}

// A param declares one argument of a tool.
type param struct {
	name     string
	kind     paramKind
	ranged   bool // has min and max
	optional bool // has the default def
	min, max int
	def      argument
}

func boolParam(name string) param { return param{name: name, kind: boolean} }
func textParam(name string) param { return param{name: name, kind: text} }
func intParam(name string, low, high int) param {
	return param{name: name, kind: integer, ranged: true, min: low, max: high}
}

func (p param) or(def argument) param {
	p.optional, p.def = true, def
	return p
}

// A result is what a tool returns: text, or a picture in the firmware's own
// form (4.4).
type result struct {
	text  string
	image []byte // JPEG; the text is not used then
}

func done(ok bool) (result, error) { return result{text: strconv.FormatBool(ok)}, nil }

// A tool is a function that a board offers. run is called on the device's main
// task, so it may block, and blocks everything behind it.
type tool struct {
	name        string
	description string
	params      []param
	userOnly    bool
	run         func(ctx context.Context, d *Device, args []argument) (result, error)

	json string // as tools/list shows it
}

func (t *tool) marshal() string {
	b := append(appendQuoted([]byte(`{"name":`), t.name), `,"description":`...)
	b = append(appendQuoted(b, t.description), `,"inputSchema":{"type":"object","properties":{`...)
	for i, p := range t.params {
		if i > 0 {
			b = append(b, ',')
		}
		b = p.append(b)
	}
	b = append(t.appendRequired(append(b, '}')), '}')
	if t.userOnly {
		b = append(b, `,"annotations":{"audience":["user"]}`...)
	}
	return string(append(b, '}'))
}

func (p param) append(b []byte) []byte {
	b = append(appendQuoted(b, p.name), `:{"type":"`...)
	b = append(append(b, kindNames[p.kind]...), '"')
	if p.optional {
		b = p.appendDefault(append(b, `,"default":`...))
	}
	if p.ranged {
		b = fmt.Appendf(b, `,"minimum":%d,"maximum":%d`, p.min, p.max)
	}
	return append(b, '}')
}

func (p param) appendDefault(b []byte) []byte {
	switch p.kind {
	case boolean:
		return strconv.AppendBool(b, p.def.b)
	case integer:
		return strconv.AppendInt(b, int64(p.def.i), 10)
	}
	return appendQuoted(b, p.def.s)
}

func (t *tool) appendRequired(b []byte) []byte {
	first := true
	for _, p := range t.params {
		if p.optional {
			continue
		}
		if first {
			b = append(b, `,"required":[`...)
		} else {
			b = append(b, ',')
		}
		b, first = appendQuoted(b, p.name), false
	}
	if !first {
		b = append(b, ']')
	}
	return b
}

// arguments returns the values that t declares from the given object, in declared order (4.4).
// The error is the firmware's error text.
func (t *tool) arguments(given value) ([]argument, error) {
	args := make([]argument, len(t.params))
	for i, p := range t.params {
		a, ok := p.read(given.field(p.name))
		if !ok {
			if !p.optional {
				return nil, fmt.Errorf("Missing valid argument: %s", p.name) //lint:ignore ST1005 the firmware's text
			}
			a = p.def
		}
		if err := p.check(a); err != nil {
			return nil, err
		}
		args[i] = a
	}
	return args, nil
}

// read treats a value of the wrong type as absent.
func (p param) read(v value) (argument, bool) {
	switch {
	case p.kind == boolean && v.isBool():
		return argument{b: v.isTrue()}, true
	case p.kind == integer && v.isNumber():
		return argument{i: v.number()}, true
	case p.kind == text && v.isString():
		return argument{s: v.text()}, true
	}
	return argument{}, false
}

func (p param) check(a argument) error {
	if p.ranged && a.i < p.min {
		return fmt.Errorf("Value is below minimum allowed: %d", p.min) //lint:ignore ST1005 the firmware's text
	}
	if p.ranged && a.i > p.max {
		return fmt.Errorf("Value exceeds maximum allowed: %d", p.max) //lint:ignore ST1005 the firmware's text
	}
	return nil
}
