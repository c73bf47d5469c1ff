package gateway

import (
	"encoding/json"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"

	"fleetd/fleet"
)

// object is a JSON object whose members the gateway does not read.
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

// portable returns the schema of arguments in a form that every model accepts: with one
// type for each value. Only the check, which has the whole schema, accepts null as left
// out. s stays unchanged.
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

// typeOf returns the type of a schema, without null.
func typeOf(s *jsonschema.Schema) string {
	for _, t := range s.Types {
		if t != "null" {
			return t
		}
	}
	return s.Type
}

// outline returns the schema of an answer with its members and their types, but without
// the members' own schemas. Each client sends the list of tools to its model in every
// conversation, so a short schema saves tokens; answers name their members anyway.
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
