package fleet

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

func notAnObject(err error) *CallError {
	return NewCallError("invalid_arguments.object", "detail", CleanText(err.Error(), 300))
}

// explainArguments says which argument breaks the schema. The schemas of
// devices are flat and use few keywords (protocol 4.3); for any other the
// validator's own words have to do.
func explainArguments(schema *jsonschema.Schema, args map[string]any, err error) *CallError {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		value, given := args[name]
		if !given && slices.Contains(schema.Required, name) {
			return NewCallError("invalid_arguments.missing", "argument", CleanText(name, 60),
				"wanted", wanted(schema.Properties[name]))
		}
		if given && breaks(schema.Properties[name], value) {
			text, _ := json.Marshal(value)
			return NewCallError("invalid_arguments.value", "argument", CleanText(name, 60),
				"wanted", wanted(schema.Properties[name]), "given", CleanText(string(text), 60))
		}
	}
	return NewCallError("invalid_arguments.schema", "detail", CleanText(plainSchemaError(err), 310))
}

func breaks(property *jsonschema.Schema, value any) bool {
	alone := *property
	resolved, err := alone.Resolve(nil)
	return err == nil && resolved.Validate(value) != nil
}

// wanted describes a property: an integer from 0 to 100.
func wanted(p *jsonschema.Schema) Reason {
	switch p.Type {
	case "integer", "number", "string", "boolean":
	default:
		return Because("wanted.described")
	}
	what := Because("type." + p.Type)
	switch {
	case p.Minimum != nil && p.Maximum != nil:
		return Because("wanted.range", "type", what, "least", *p.Minimum, "most", *p.Maximum)
	case p.Minimum != nil:
		return Because("wanted.least", "type", what, "least", *p.Minimum)
	case p.Maximum != nil:
		return Because("wanted.most", "type", what, "most", *p.Maximum)
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
