package redaction

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"fleetd/fleet"
	"fleetd/internal/jsonscan"
)

// Limits of a path.
const (
	maxPath  = 200 // bytes
	maxSteps = 16
	maxIndex = 9999
)

// A Path selects values in a JSON value: a subset of JSONPath (RFC 9535).
type Path []step

// A step leads from a value to values in it.
type step struct {
	kind  stepKind
	name  string
	index int
}

type stepKind int

const (
	member  stepKind = iota // .name: the member with the name
	every                   // [*]: each element of an array, each member of an object
	element                 // [n]: an element of an array
	within                  // ..name: the members with the name, at any depth
)

// ParsePath parses a path: $ and steps .name, ['name'], [*], .*, [n] and ..name. Names match whatever
// their case, because devices read arguments so.
func ParsePath(text string) (Path, error) {
	refused := fleet.Refuse(fleet.ErrInvalid, "invalid_redaction_path", "limit", maxPath, "steps", maxSteps).At("path")
	rest, ok := strings.CutPrefix(text, "$")
	if !ok || len(text) > maxPath || fleet.CleanText(text, maxPath) != text {
		return nil, refused
	}
	path := Path{}
	for rest != "" {
		var s step
		if s, rest, ok = parseStep(rest); !ok || len(path) == maxSteps {
			return nil, refused
		}
		path = append(path, s)
	}
	return path, nil
}

func parseStep(text string) (s step, rest string, ok bool) {
	switch {
	case strings.HasPrefix(text, ".."):
		name, rest := plainName(text[2:])
		return step{kind: within, name: name}, rest, name != ""
	case strings.HasPrefix(text, ".*"):
		return step{kind: every}, text[2:], true
	case strings.HasPrefix(text, "."):
		name, rest := plainName(text[1:])
		return step{kind: member, name: name}, rest, name != ""
	case strings.HasPrefix(text, "[*]"):
		return step{kind: every}, text[3:], true
	case strings.HasPrefix(text, "['"):
		name, rest, ok := strings.Cut(text[2:], "']")
		return step{kind: member, name: name}, rest, ok && name != "" && !strings.ContainsAny(name, `'\`)
	case strings.HasPrefix(text, "["):
		digits, rest, ok := strings.Cut(text[1:], "]")
		n, err := strconv.Atoi(digits)
		return step{kind: element, index: n}, rest, ok && err == nil && n >= 0 && n <= maxIndex && strconv.Itoa(n) == digits
	}
	return s, text, false
}

// plainName splits off a name that needs no quotes.
func plainName(text string) (name, rest string) {
	i := strings.IndexFunc(text, func(c rune) bool { return c <= ' ' || strings.ContainsRune(`.[]'"\*$`, c) })
	if i < 0 {
		return text, ""
	}
	return text[:i], text[i:]
}

// String returns the shortest text of the path.
func (p Path) String() string {
	b := strings.Builder{}
	b.WriteByte('$')
	for _, s := range p {
		switch plain, _ := plainName(s.name); {
		case s.kind == every:
			b.WriteString("[*]")
		case s.kind == element:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case s.kind == within:
			b.WriteString(".." + s.name)
		case plain == s.name:
			b.WriteString("." + s.name)
		default:
			b.WriteString("['" + s.name + "']")
		}
	}
	return b.String()
}

// reached has, for each path, a bit for each number of steps that lead to a value.
type reached []uint32

func start(paths []Path) reached {
	r := make(reached, len(paths))
	for i := range r {
		r[i] = 1
	}
	return r
}

// A walk replaces the values that paths select. It copies everything else as it is.
type walk struct {
	digester Digester
	paths    []Path
	data     []byte // the arguments
	copied   int    // bytes of data that are in out, as they are or replaced
	out      []byte
	values   int
	found    map[string]json.RawMessage // values by their digests
}

var errTooMany = errors.New("too many values under rules")

// value replaces a value, or those in it. text is a part of data, and valid JSON.
func (w *walk) value(text []byte, at reached) error {
	alive := false
	for i, p := range w.paths {
		if at[i]&(1<<len(p)) != 0 {
			return w.replace(text)
		}
		alive = alive || at[i] != 0
	}
	if !alive {
		return nil
	}
	switch text[0] {
	case '{':
		return jsonscan.Members(text, func(key, value []byte) error {
			name := string(key)
			if bytes.IndexByte(key, '\\') >= 0 {
				if err := json.Unmarshal([]byte(`"`+name+`"`), &name); err != nil {
					return err
				}
			}
			return w.value(value, w.after(at, func(s step) bool {
				return s.kind == every || s.kind != element && strings.EqualFold(s.name, name)
			}))
		})
	case '[':
		n := -1
		return jsonscan.Elements(text, func(value []byte) error {
			n++
			return w.value(value, w.after(at, func(s step) bool {
				return s.kind == every || s.kind == element && s.index == n
			}))
		})
	}
	return nil
}

// after returns what a part of a value is reached by.
func (w *walk) after(at reached, leads func(step) bool) reached {
	next := make(reached, len(at))
	for i, p := range w.paths {
		for n, s := range p {
			if at[i]&(1<<n) == 0 {
				continue
			}
			if leads(s) {
				next[i] |= 1 << (n + 1)
			}
			if s.kind == within {
				next[i] |= 1 << n
			}
		}
	}
	return next
}

func (w *walk) replace(text []byte) error {
	if w.values++; w.values > maxValues {
		return errTooMany
	}
	begin := cap(w.data) - cap(text) // text is a part of data
	digest := w.digester.Digest(text)
	w.found[digest] = text
	w.out = append(append(w.out, w.data[w.copied:begin]...), strconv.Quote(digest)...)
	w.copied = begin + len(text)
	return nil
}
