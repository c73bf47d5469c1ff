package fleet

import (
	"encoding/json"
	"strings"
)

// maxPatternBytes bounds the patterns of a schema, all together. Stock tools
// have none; a pattern of 1 KB can ask for hundreds of megabytes of automaton.
const maxPatternBytes = 256

// boundedSchema reports whether arguments can be held against the schema in
// bounded time. A schema is a device's word: one that refers to itself sends
// the validator into a recursion that ends the process, and a few references
// to references take it longer than anyone can wait.
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
