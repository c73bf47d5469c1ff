package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// explainArguments says in a person's words which argument breaks the schema.
// The schemas of devices are flat and use few keywords (protocol 4.3); for any
// other the validator's own words have to do.
func explainArguments(schema *jsonschema.Schema, args map[string]any, err error) string {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		value, given := args[name]
		if !given && slices.Contains(schema.Required, name) {
			return fmt.Sprintf("%s is missing: it must be %s", name, wanted(schema.Properties[name]))
		}
		if given && breaks(schema.Properties[name], value) {
			text, _ := json.Marshal(value)
			return fmt.Sprintf("%s must be %s; %.60s was given", name, wanted(schema.Properties[name]), text)
		}
	}
	return plainSchemaError(err)
}

func breaks(property *jsonschema.Schema, value any) bool {
	alone := *property
	resolved, err := alone.Resolve(nil)
	return err == nil && resolved.Validate(value) != nil
}

// wanted describes a property: "an integer from 0 to 100".
func wanted(p *jsonschema.Schema) string {
	what := map[string]string{"integer": "an integer", "number": "a number", "string": "text",
		"boolean": "true or false"}[p.Type]
	switch {
	case what == "":
		return "as the tool describes it"
	case p.Minimum != nil && p.Maximum != nil:
		return fmt.Sprintf("%s from %v to %v", what, *p.Minimum, *p.Maximum)
	case p.Minimum != nil:
		return fmt.Sprintf("%s of at least %v", what, *p.Minimum)
	case p.Maximum != nil:
		return fmt.Sprintf("%s of at most %v", what, *p.Maximum)
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
