package catalogue

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"fleetd/fleet"
)

// A Diff is how one definition of a tool differs from another.
type Diff struct {
	From, To    Definition
	Description bool // it differs
	Audience    bool
	Properties  []PropertyChange // of the input schema, by path
	// Other is set if the schemas differ in something that is no property: title, or
	// additionalProperties.
	Other bool
}

// Same reports whether nothing differs.
func (d *Diff) Same() bool {
	return !d.Description && !d.Audience && !d.Other && len(d.Properties) == 0
}

// A PropertyChange is an argument that was added or removed, or differs.
type PropertyChange struct {
	Path                          string // names joined by dots; an array's items are []
	Change                        Change
	Before, After                 json.RawMessage // the property without its own properties; nil if it is absent
	RequiredBefore, RequiredAfter bool
}

// Change is what happened to a property.
type Change string

const (
	Added   Change = "added"
	Removed Change = "removed"
	Changed Change = "changed"
)

// maxDepth bounds how deep schemas are compared. What is deeper is compared as a whole.
const maxDepth = 16

// maxChanges bounds the changes of a diff.
const maxChanges = 1_000

// Compare compares two definitions of a tool.
func Compare(from, to Definition) Diff {
	d := Diff{From: from, To: to, Description: from.Description != to.Description, Audience: from.Audience != to.Audience}
	before, after := decode(from.InputSchema), decode(to.InputSchema)
	d.properties("", before, after, 0)
	d.Other = !equal(rest(before), rest(after))
	slices.SortStableFunc(d.Properties, func(a, b PropertyChange) int { return strings.Compare(a.Path, b.Path) })
	return d
}

func decode(schema json.RawMessage) any {
	dec := json.NewDecoder(bytes.NewReader(schema))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return string(schema)
	}
	return v
}

// rest returns a schema without what is compared property by property.
func rest(v any) any {
	object, ok := v.(map[string]any)
	if !ok {
		return v
	}
	r := maps.Clone(object)
	if _, ok := r["properties"].(map[string]any); ok {
		delete(r, "properties")
		delete(r, "required")
	}
	if items, ok := r["items"].(map[string]any); ok {
		r["items"] = rest(items)
	}
	return r
}

func equal(a, b any) bool {
	x, _ := json.Marshal(a) // decoded from JSON
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

// properties compares the properties of two schemas, and those of their properties.
func (d *Diff) properties(path string, before, after any, depth int) {
	old, oldRequired := propertiesOf(before)
	now, nowRequired := propertiesOf(after)
	names := slices.Sorted(maps.Keys(old))
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, had := old[name]; !had {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if len(d.Properties) >= maxChanges {
			return
		}
		was, had := old[name]
		is, has := now[name]
		c := PropertyChange{Path: path + name, Change: Changed, RequiredBefore: oldRequired[name],
			RequiredAfter: nowRequired[name]}
		deeper := had && has && depth < maxDepth
		if !deeper {
			c.Before, c.After = encode(was, had), encode(is, has)
		} else {
			c.Before, c.After = encode(rest(was), true), encode(rest(is), true)
		}
		switch {
		case !had:
			c.Change = Added
		case !has:
			c.Change = Removed
		case bytes.Equal(c.Before, c.After) && c.RequiredBefore == c.RequiredAfter:
			c.Change = ""
		}
		if c.Change != "" {
			d.Properties = append(d.Properties, c)
		}
		if deeper {
			d.properties(path+name+".", was, is, depth+1)
			d.properties(path+name+"[].", itemsOf(was), itemsOf(is), depth+1)
		}
	}
}

func encode(v any, present bool) json.RawMessage {
	if !present {
		return nil
	}
	text, _ := json.Marshal(v) // decoded from JSON
	return text
}

func itemsOf(schema any) any {
	object, _ := schema.(map[string]any)
	return object["items"]
}

func propertiesOf(schema any) (properties map[string]any, required map[string]bool) {
	object, _ := schema.(map[string]any)
	properties, _ = object["properties"].(map[string]any)
	required = map[string]bool{}
	if names, ok := object["required"].([]any); ok {
		for _, name := range names {
			if text, ok := name.(string); ok {
				required[text] = true
			}
		}
	}
	return properties, required
}

// Find returns the definitions to compare: those with the given digests, or, for an empty one, the
// newest (to) and the one before it (from).
func (t *Tool) Find(from, to string) (a, b Definition, err error) {
	if a, err = t.pick("from", from, 1); err == nil {
		b, err = t.pick("to", to, 0)
	}
	return a, b, err
}

func (t *Tool) pick(field, digest string, place int) (Definition, error) {
	if digest == "" && len(t.Definitions) > 0 {
		return t.Definitions[min(place, len(t.Definitions)-1)], nil
	}
	parsed, err := fleet.ParseToolDigest(digest)
	if err != nil {
		return Definition{}, fleet.Refuse(fleet.ErrInvalid, "invalid_digest").At(field)
	}
	d, ok := t.Definition(parsed)
	if !ok {
		return Definition{}, fleet.Refuse(fleet.ErrNotFound, "unknown_tool_definition", "tool", t.Name).At(field)
	}
	return d, nil
}
