package gateway

import (
	"encoding/json"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"

	"fleetd/fleet"
)

// object is a JSON object whose members the gateway does not look at.
type object = json.RawMessage

var schemaTypes = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[json.RawMessage](): {Type: "object"},
	reflect.TypeFor[uuid.UUID]():       {Type: "string", Format: "uuid"},
	reflect.TypeFor[fleet.Params]():    {Type: "object"},
}

func schemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: schemaTypes})
	if err != nil {
		panic(err) // at the start, in every test
	}
	return s
}

// portable is the schema of arguments as every model takes it: with one type each.
// That null counts as left out is known to the check alone, which has the whole schema.
// s is left as it is.
func portable(s *jsonschema.Schema) *jsonschema.Schema {
	c := *s
	c.Type, c.Types = typeOf(s), nil
	if s.Items != nil {
		c.Items = portable(s.Items)
	}
	if s.Properties != nil {
		c.Properties = make(map[string]*jsonschema.Schema, len(s.Properties))
		for name, p := range s.Properties {
			c.Properties[name] = portable(p)
		}
	}
	return &c
}

// typeOf is the type of a schema, null aside.
func typeOf(s *jsonschema.Schema) string {
	for _, t := range s.Types {
		if t != "null" {
			return t
		}
	}
	return s.Type
}

// outline is the schema of an answer: its members and their types, without what is in
// them. Each client sends the list of tools to its model in every conversation; answers
// name what they have.
func outline(s *jsonschema.Schema) *jsonschema.Schema {
	c := &jsonschema.Schema{Type: "object", Required: s.Required, PropertyOrder: s.PropertyOrder,
		Properties: make(map[string]*jsonschema.Schema, len(s.Properties))}
	for name, p := range s.Properties {
		c.Properties[name] = &jsonschema.Schema{Type: typeOf(p)}
		if p.Items != nil {
			c.Properties[name].Items = &jsonschema.Schema{Type: typeOf(p.Items)}
		}
	}
	return c
}

// Limits of schemas.

func oneOf[T ~string](values ...T) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) {
		for _, v := range values {
			s.Enum = append(s.Enum, string(v))
		}
	}
}

func between(least, most float64) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) { s.Minimum, s.Maximum = &least, &most }
}

func longest(n int) func(*jsonschema.Schema) { return func(s *jsonschema.Schema) { s.MaxLength = &n } }
