package postgres

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// maxDepth bounds the nesting of stored JSON: PostgreSQL's parser recurses, and
// refuses a text that would overflow its stack.
const maxDepth = 500

// cleanText makes text storable: PostgreSQL accepts only valid UTF-8 without NUL.
func cleanText(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "")
	}
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// cleanJSON makes JSON storable in a json column without rewriting it. Text that is invalid or
// too deeply nested to be read back is stored as a JSON string. Nil stays nil.
func cleanJSON(raw json.RawMessage) *string {
	if len(raw) == 0 {
		return nil
	}
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	s := string(raw)
	if !json.Valid(raw) || tooDeep(s) {
		quoted, _ := json.Marshal(cleanText(s)) // marshalling a string cannot fail
		s = string(quoted)
	}
	return &s
}

// tooDeep reports whether s, which is valid JSON, exceeds maxDepth. It counts brackets outside
// strings.
func tooDeep(s string) bool {
	depth, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && (c == '[' || c == '{'):
			if depth++; depth > maxDepth {
				return true
			}
		case !quoted && (c == ']' || c == '}'):
			depth--
		}
	}
	return false
}

// marshalled returns v as storable JSON, nil for an empty list.
func marshalled(v any) *string {
	b, err := json.Marshal(v)
	if err != nil || string(b) == "null" || string(b) == "[]" {
		return nil
	}
	return cleanJSON(b)
}

// orNull converts the zero time to SQL's null.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// storableJSON returns v as text for a json or jsonb column: without NUL, which
// jsonb refuses. Nil is null.
func storableJSON(v any) *string {
	b, err := json.Marshal(v)
	if err != nil || string(b) == "null" {
		return nil
	}
	text := cleanJSON(b)
	clean := withoutNUL(*text)
	return &clean
}

func cleanTextPtr(s *string) *string {
	if s == nil {
		return nil
	}
	clean := cleanText(*s)
	return &clean
}
