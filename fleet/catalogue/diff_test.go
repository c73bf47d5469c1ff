package catalogue

import (
	"fmt"
	"strings"
	"testing"

	"fleetd/fleet"
)

func definition(description, schema string) Definition {
	t := fleet.Tool{Name: "self.t", Description: description, InputSchema: []byte(schema)}
	return Definition{Tool: t.Name, Digest: t.Digest(), Description: description, InputSchema: t.InputSchema,
		Audience: fleet.AudienceModel}
}

func TestCompare(t *testing.T) {
	const object = `{"type":"object","properties":{%s},"required":[%s]}`
	for _, tt := range []struct {
		name, from, to, want string
	}{
		{"the same, spelt differently", `{"type":"object","properties":{"a":{"type":"string","title":"x"}}}`,
			`{"properties":{"a":{"title":"x","type":"string"}},"type":"object"}`, ""},
		{"added and required", fmt.Sprintf(object, ``, ``), fmt.Sprintf(object, `"a":{"type":"string"}`, `"a"`),
			"added a required:false>true"},
		{"removed", fmt.Sprintf(object, `"a":{}`, ``), fmt.Sprintf(object, ``, ``), "removed a required:false>false"},
		{"changed", fmt.Sprintf(object, `"a":{"maximum":1}`, ``), fmt.Sprintf(object, `"a":{"maximum":2}`, ``),
			"changed a required:false>false"},
		{"required alone", fmt.Sprintf(object, `"a":{}`, ``), fmt.Sprintf(object, `"a":{}`, `"a"`),
			"changed a required:false>true"},
		{"nested", fmt.Sprintf(object, `"a":{"properties":{"b":{"type":"string"}}}`, ``),
			fmt.Sprintf(object, `"a":{"properties":{"b":{"type":"integer"}}}`, ``), "changed a.b required:false>false"},
		{"in an array", fmt.Sprintf(object, `"a":{"items":{"properties":{"b":{}}}}`, ``),
			fmt.Sprintf(object, `"a":{"items":{"properties":{"c":{}}}}`, ``),
			"removed a[].b required:false>false, added a[].c required:false>false"},
		{"no property", fmt.Sprintf(object, ``, ``), `{"type":"object","properties":{},"additionalProperties":false}`, "other"},
		{"not an object", `"broken"`, `{"type":"object"}`, "other"},
		{"large numbers", fmt.Sprintf(object, `"a":{"maximum":9007199254740993}`, ``),
			fmt.Sprintf(object, `"a":{"maximum":9007199254740992}`, ``), "changed a required:false>false"},
	} {
		d := Compare(definition("", tt.from), definition("", tt.to))
		var got []string
		for _, c := range d.Properties {
			got = append(got, fmt.Sprintf("%s %s required:%v>%v", c.Change, c.Path, c.RequiredBefore, c.RequiredAfter))
		}
		if d.Other {
			got = append(got, "other")
		}
		if text := strings.Join(got, ", "); text != tt.want || d.Same() != (tt.want == "") {
			t.Errorf("%s: %q, want %q", tt.name, text, tt.want)
		}
	}
	if d := Compare(definition("a", `{}`), definition("b", `{}`)); !d.Description || d.Same() {
		t.Errorf("another description: %+v", d)
	}
}

// Hostile schemas neither exhaust memory nor fail.
func TestCompareHostile(t *testing.T) {
	deep := strings.Repeat(`{"properties":{"<b>\u202e":`, 3000) + `{}` + strings.Repeat(`}}`, 3000)
	arrays := strings.Repeat(`{"items":`, 3000) + `{}` + strings.Repeat(`}`, 3000)
	var wide strings.Builder
	wide.WriteString(`{"properties":{"x":{}`)
	for i := range 5000 {
		fmt.Fprintf(&wide, `,"p%d":{}`, i)
	}
	wide.WriteString(`}}`)
	for _, schema := range []string{deep, arrays, wide.String(), `{"properties":[]}`, `{"properties":{"a":true},"required":{}}`,
		`null`, ``, `{`} {
		d := Compare(definition("", `{}`), definition("", schema))
		if len(d.Properties) > maxChanges {
			t.Errorf("%d changes", len(d.Properties))
		}
		if d := Compare(definition("", schema), definition("", schema)); !d.Same() {
			t.Errorf("%.40s differs from itself", schema)
		}
	}
}
