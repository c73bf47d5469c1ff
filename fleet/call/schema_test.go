package call

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
)

// A device chooses its schemas, and a process cannot recover from a stack overflow: none of
// these schemas may end the process or keep it busy.
func TestHostileSchemas(t *testing.T) {
	laughs := `"z":{}`
	for c := 'y'; c >= 'a'; c-- {
		next := `{"$ref":"#/$defs/` + string(c+1) + `"}`
		laughs += `,"` + string(c) + `":{"allOf":[` + next + `,` + next + `,` + next + `]}`
	}
	wide := strings.TrimSuffix(strings.Repeat(`{"pattern":"(a{1,9}){1,99}$"},`, 60), ",")
	tests := []struct{ name, schema string }{
		{"refers to itself", `{"allOf":[{"$ref":"#"}],"properties":{"a":{}}}`},
		{"property refers to the whole", `{"properties":{"a":{"not":{"$ref":"#/properties/a"}}}}`},
		{"two refer to each other", `{"properties":{"a":{"$ref":"#/properties/b"},"b":{"$ref":"#/properties/a"}}}`},
		{"refers to itself dynamically", `{"$dynamicRef":"#","properties":{"a":{}}}`},
		{"anchor", `{"$anchor":"x","anyOf":[{"$ref":"#x"}],"properties":{"a":{}}}`},
		{"a billion laughs", `{"$ref":"#/$defs/a","$defs":{` + laughs + `},"properties":{"a":{}}}`},
		{"elsewhere", `{"$ref":"http://192.0.2.1/schema","properties":{"a":{}}}`},
		{"many patterns", `{"properties":{"a":{"anyOf":[` + wide + `]}}}`},
		{"long pattern", `{"properties":{"a":{"pattern":"` + strings.Repeat("(a{1000})?", 1000) + `b"}}}`},
		{"long property pattern", `{"properties":{"a":{}},"patternProperties":{"` + strings.Repeat("(a{1000})?", 1000) +
			`b":{}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate(Options{})
			began := time.Now()
			arguments := json.RawMessage(`{"a":"` + strings.Repeat("a", 2000) + `"}`)
			g.checkArguments("inventory", fleet.Tool{Name: "self.evil", InputSchema: json.RawMessage(tt.schema)}, arguments)
			if took := time.Since(began); took > time.Minute { // without limits it takes hours
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestBoundedSchemaKeepsChecking(t *testing.T) {
	g := newGate(Options{})
	tool := fleet.Tool{Name: "self.t", InputSchema: json.RawMessage(
		`{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]+$"}}}`)}
	if g.checkArguments("inventory", tool, json.RawMessage(`{"a":"9"}`)) == nil {
		t.Error("an argument against its pattern passed")
	}
}
