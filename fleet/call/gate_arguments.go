package call

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"fleetd/fleet"
)

// checkArguments holds the arguments against the tool's own schema, and against
// typing errors: a stock device ignores an argument it does not know.
func (g *gate) checkArguments(inventory string, tool fleet.Tool, arguments json.RawMessage) *refusal {
	same := passed{inventory, tool.Name, string(arguments)}
	if g.passed.has(same) {
		return nil
	}
	args, err := decodeObject(arguments)
	if err != nil {
		return invalid(notAnObject(err))
	}
	schema := g.schemas.of(inventory, tool)
	if schema == nil {
		return nil // the device sent an invalid schema; it validates the arguments
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if _, known := schema.Schema().Properties[name]; !known {
			return invalid(fleet.NewCallError("invalid_arguments.unknown", "tool", tool.Name, "argument", fleet.CleanText(name, 60)))
		}
	}
	if err := schema.Validate(args); err != nil {
		return invalid(explainArguments(schema.Schema(), args, err))
	}
	g.passed.add(same)
	return nil
}

// CheckArguments holds arguments against the schema of a tool of fleetd itself, in
// the words that devices' tools have. A nil error means that they fit.
func CheckArguments(tool string, schema *jsonschema.Resolved, arguments json.RawMessage) *fleet.CallError {
	args, err := decodeObject(arguments)
	if err != nil {
		return notAnObject(err)
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if _, known := schema.Schema().Properties[name]; !known {
			return fleet.NewCallError("invalid_arguments.not_among", "tool", tool, "argument", fleet.CleanText(name, 60), "arguments",
				strings.Join(slices.Sorted(maps.Keys(schema.Schema().Properties)), ", "))
		}
	}
	if err := schema.Validate(args); err != nil {
		return explainArguments(schema.Schema(), args, err)
	}
	return nil
}

func decodeObject(raw json.RawMessage) (map[string]any, error) {
	args := map[string]any{}
	if len(raw) == 0 {
		return args, nil
	}
	err := json.Unmarshal(raw, &args)
	if err == nil && args == nil {
		err = fmt.Errorf("null is none")
	}
	return args, err
}

// A schemaCache keeps compiled schemas by inventory and tool. Inventories are
// few, since equal devices share one; the bound is for hostile ones.
type schemaCache struct {
	mu sync.RWMutex
	m  map[schemaKey]*jsonschema.Resolved
}

type schemaKey struct{ inventory, tool string }

const maxSchemas = 20_000

// of returns the compiled schema of the tool, nil if it is not a valid one.
func (c *schemaCache) of(inventory string, tool fleet.Tool) *jsonschema.Resolved {
	key := schemaKey{inventory, tool.Name}
	c.mu.RLock()
	s, ok := c.m[key]
	c.mu.RUnlock()
	if ok {
		return s
	}
	s = CompileSchema(tool.InputSchema)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil || len(c.m) >= maxSchemas {
		c.m = make(map[schemaKey]*jsonschema.Resolved)
	}
	c.m[key] = s
	return s
}

// CompileSchema returns a JSON schema ready to validate with, nil if it is not a
// valid one, or one that could take long: with a reference, or large patterns.
func CompileSchema(raw json.RawMessage) *jsonschema.Resolved {
	if !boundedSchema(raw) {
		return nil
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil
	}
	resolved, err := s.Resolve(nil) // without a loader: nothing is fetched for a device
	if err != nil {
		return nil
	}
	return resolved
}

// A passedCache remembers arguments that fitted their schema: a fan-out and a
// script make the same call many times over.
type passedCache struct {
	mu sync.RWMutex
	m  map[passed]struct{}
}

type passed struct{ inventory, tool, arguments string }

// maxPassed bounds the cache; with [MaxArgumentBytes] it takes 6 MB at most.
const maxPassed = 2000

func (c *passedCache) has(p passed) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, ok := c.m[p]
	return ok
}

func (c *passedCache) add(p passed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil || len(c.m) >= maxPassed {
		c.m = make(map[passed]struct{})
	}
	c.m[p] = struct{}{}
}

func notAnObject(err error) *fleet.CallError {
	return fleet.NewCallError("invalid_arguments.object", "detail", fleet.CleanText(err.Error(), 300))
}

// explainArguments says which argument breaks the schema. The schemas of
// devices are flat and use few keywords (protocol 4.3); for any other the
// text is the validator's.
func explainArguments(schema *jsonschema.Schema, args map[string]any, err error) *fleet.CallError {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		value, given := args[name]
		if !given && slices.Contains(schema.Required, name) {
			return fleet.NewCallError("invalid_arguments.missing", "argument", fleet.CleanText(name, 60),
				"wanted", wanted(schema.Properties[name]))
		}
		if given && breaks(schema.Properties[name], value) {
			text, _ := json.Marshal(value)
			return fleet.NewCallError("invalid_arguments.value", "argument", fleet.CleanText(name, 60),
				"wanted", wanted(schema.Properties[name]), "given", fleet.CleanText(string(text), 60))
		}
	}
	return fleet.NewCallError("invalid_arguments.schema", "detail", fleet.CleanText(plainSchemaError(err), 310))
}

func breaks(property *jsonschema.Schema, value any) bool {
	alone := *property
	resolved, err := alone.Resolve(nil)
	return err == nil && resolved.Validate(value) != nil
}

// wanted describes a property: an integer from 0 to 100.
func wanted(p *jsonschema.Schema) fleet.Reason {
	if len(p.Enum) > 0 {
		values, _ := json.Marshal(p.Enum)
		return fleet.Because("wanted.one_of", "values", fleet.CleanText(strings.Trim(string(values), "[]"), 300))
	}
	switch p.Type {
	case "integer", "number", "string", "boolean":
	default:
		return fleet.Because("wanted.described")
	}
	what := fleet.Because("type." + p.Type)
	switch {
	case p.Minimum != nil && p.Maximum != nil:
		return fleet.Because("wanted.range", "type", what, "least", *p.Minimum, "most", *p.Maximum)
	case p.Minimum != nil:
		return fleet.Because("wanted.least", "type", what, "least", *p.Minimum)
	case p.Maximum != nil:
		return fleet.Because("wanted.most", "type", what, "most", *p.Maximum)
	}
	return what
}

// plainSchemaError keeps the last, specific part of a validator's message.
func plainSchemaError(err error) string {
	msg := err.Error()
	if i := strings.LastIndex(msg, "validating /"); i >= 0 {
		msg = msg[i+len("validating /"):]
	}
	msg = strings.TrimPrefix(msg, "properties/")
	if len(msg) > 300 {
		msg = strings.ToValidUTF8(msg[:300], "") + "…"
	}
	return msg
}

// maxPatternBytes bounds the patterns of a schema, all together. Stock tools
// have none; a pattern of 1 KB can ask for hundreds of megabytes of automaton.
const maxPatternBytes = 256

// boundedSchema reports whether arguments can be held against the schema in
// bounded time. A schema comes from a device and is not trusted: one that
// refers to itself sends the validator into a recursion that ends the process,
// and a few references to references take it longer than a caller can wait.
func boundedSchema(raw json.RawMessage) bool {
	var schema any
	return json.Unmarshal(raw, &schema) == nil && !hasReference(schema) && patternBytes(schema) <= maxPatternBytes
}

// hasReference also finds members of those names that are no keywords, such
// as a property called $ref: no device has one.
func hasReference(schema any) bool {
	return anyMember(schema, func(key string, _ any) bool {
		return key == "$ref" || key == "$dynamicRef" || key == "$recursiveRef"
	})
}

func patternBytes(schema any) int {
	total := 0
	anyMember(schema, func(key string, value any) bool {
		switch v := value.(type) {
		case string:
			if key == "pattern" {
				total += len(v)
			}
		case map[string]any:
			if strings.HasPrefix(key, "pattern") { // patternProperties
				for pattern := range v {
					total += len(pattern)
				}
			}
		}
		return false
	})
	return total
}

// anyMember reports whether is holds for a member of an object anywhere in v.
func anyMember(v any, is func(key string, value any) bool) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if is(key, value) || anyMember(value, is) {
				return true
			}
		}
	case []any:
		for _, value := range v {
			if anyMember(value, is) {
				return true
			}
		}
	}
	return false
}
