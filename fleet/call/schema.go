package call

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"fleetd/fleet"
)

// CheckArguments validates arguments against the schema of a tool of fleetd, with the same
// error texts as for devices' tools. It returns nil if they are valid.
func CheckArguments(tool string, schema *jsonschema.Resolved, arguments json.RawMessage) *fleet.CallError {
	args, err := decodeObject(arguments)
	if err != nil {
		return notAnObject(err)
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if _, known := schema.Schema().Properties[name]; !known {
			return fleet.NewCallError("invalid_arguments.not_among", "tool", tool, "argument", name, "arguments",
				strings.Join(slices.Sorted(maps.Keys(schema.Schema().Properties)), ", "))
		}
	}
	if err := schema.Validate(args); err != nil {
		return explainArguments(schema.Schema(), args, err)
	}
	return nil
}

// maxSchemas limits the cached compiled schemas. Inventories never change and are few, since
// equal devices share one; the limit protects against hostile devices.
const maxSchemas = 20_000

type schemaKey struct{ inventory, tool string }

// schema returns the compiled schema of the tool, or nil if the schema is invalid.
func (g *gate) schema(inventory string, tool fleet.Tool) *jsonschema.Resolved {
	key := schemaKey{inventory, tool.Name}
	s, ok := g.schemas.Get(key)
	if !ok {
		s = CompileSchema(tool.InputSchema)
		g.schemas.Add(key, s)
	}
	return s
}

// CompileSchema compiles a JSON schema for validation. It returns nil if the schema is invalid,
// or if validation could take long: with a reference, or with large patterns.
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

// A passed identifies arguments that satisfied the schema of their tool. The gate caches some,
// because a fan-out or a script makes the same call many times.
type passed struct{ inventory, tool, arguments string }

// maxPassed limits that cache; with [MaxArgumentBytes] it uses at most 6 MB.
const maxPassed = 2000

func notAnObject(err error) *fleet.CallError {
	return fleet.NewCallError("invalid_arguments.object", "detail", err.Error())
}

// explainArguments returns which argument violates the schema. The schemas of devices are flat
// and use few keywords (protocol 4.3); for any other schema the text is the validator's.
func explainArguments(schema *jsonschema.Schema, args map[string]any, err error) *fleet.CallError {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		value, given := args[name]
		if !given && slices.Contains(schema.Required, name) {
			return fleet.NewCallError("invalid_arguments.missing", "argument", name,
				"wanted", wanted(schema.Properties[name]))
		}
		if given && breaks(schema.Properties[name], value) {
			text, _ := json.Marshal(value)
			return fleet.NewCallError("invalid_arguments.value", "argument", name,
				"wanted", wanted(schema.Properties[name]), "given", string(text))
		}
	}
	return fleet.NewCallError("invalid_arguments.schema", "detail", plainSchemaError(err))
}

func breaks(property *jsonschema.Schema, value any) bool {
	alone := *property
	resolved, err := alone.Resolve(nil)
	return err == nil && resolved.Validate(value) != nil
}

// wanted describes the valid values of a property, such as an integer from 0 to 100.
func wanted(p *jsonschema.Schema) fleet.Reason {
	if len(p.Enum) > 0 {
		values, _ := json.Marshal(p.Enum)
		return fleet.Because("wanted.one_of", "values", strings.Trim(string(values), "[]"))
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

// plainSchemaError returns the last, most specific part of a validator's message.
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

// maxPatternBytes limits the total size of a schema's patterns. Stock tools have no patterns; a
// pattern of 1 KB can require an automaton of hundreds of megabytes.
const maxPatternBytes = 256

// boundedSchema reports whether validation against the schema takes bounded time. A schema comes
// from a device and is not trusted: a reference to itself sends the validator into a recursion
// that ends the process, and a few nested references take it longer than a caller can wait.
func boundedSchema(raw json.RawMessage) bool {
	var schema any
	return json.Unmarshal(raw, &schema) == nil && !hasReference(schema) && patternBytes(schema) <= maxPatternBytes
}

// hasReference also matches members with these names that are not keywords, such as a property
// named $ref: no device has such a property.
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

// anyMember reports whether is returns true for a member of any object in v.
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
