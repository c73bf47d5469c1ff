package sim

import (
	"bytes"
	"encoding/json"
	"iter"
	"math"
	"strconv"
	"strings"
)

// A value is the text of one JSON value inside a message that json.Valid has
// accepted; nil means that the member is absent. It reads as the firmware's cJSON does:
// keys match in any case and the first match wins, which encoding/json's own
// decoding into structs would not do.
type value []byte

func (v value) isObject() bool { return len(v) > 0 && v[0] == '{' }
func (v value) isString() bool { return len(v) > 0 && v[0] == '"' }
func (v value) isBool() bool   { return len(v) > 0 && (v[0] == 't' || v[0] == 'f') }
func (v value) isTrue() bool   { return len(v) > 0 && v[0] == 't' }
func (v value) isNumber() bool {
	return len(v) > 0 && (v[0] == '-' || v[0] >= '0' && v[0] <= '9')
}

// text returns the string in v, or "" if v is no string.
func (v value) text() string {
	if !v.isString() {
		return ""
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1])
	}
	var s string
	_ = json.Unmarshal(v, &s) // v is valid JSON and a string
	return s
}

// number returns cJSON's valueint: fractions are truncated, and a number outside the range of a C
// int becomes the nearest int.
func (v value) number() int {
	f, _ := strconv.ParseFloat(string(v), 64)
	switch {
	case f >= math.MaxInt32:
		return math.MaxInt32
	case f <= math.MinInt32:
		return math.MinInt32
	}
	return int(f)
}

// field returns the first member of the object v whose key is name in any case. It does not find
// a key written with escapes; no server writes one.
func (v value) field(name string) value {
	for key, member := range v.members() {
		if len(key) == len(name)+2 && strings.EqualFold(string(key[1:len(key)-1]), name) {
			return member
		}
	}
	return nil
}

// members yields the keys (as JSON strings) and values of the object v.
func (v value) members() iter.Seq2[value, value] {
	return func(yield func(value, value) bool) {
		if !v.isObject() {
			return
		}
		for i := v.skipSpace(1); v[i] != '}'; {
			keyEnd := v.skipString(i)
			start := v.skipSpace(v.skipSpace(keyEnd) + 1) // over the colon
			end := v.skipValue(start)
			if !yield(v[i:keyEnd], v[start:end]) {
				return
			}
			if i = v.skipSpace(end); v[i] == ',' {
				i = v.skipSpace(i + 1)
			}
		}
	}
}

func (v value) skipSpace(i int) int {
	for i < len(v) && (v[i] == ' ' || v[i] == '\n' || v[i] == '\r' || v[i] == '\t') {
		i++
	}
	return i
}

func (v value) skipString(i int) int {
	for i++; v[i] != '"'; i++ {
		if v[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func (v value) skipValue(i int) int {
	depth := 0
	for i < len(v) {
		switch c := v[i]; c {
		case '"':
			i = v.skipString(i)
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // the end of the object around a bare number or literal
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return i
}

// appendQuoted appends s as cJSON prints strings: only the quote, the backslash and control
// characters are escaped, UTF-8 is unchanged.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ':
			b = append(b, c)
		default:
			b = appendControl(b, c)
		}
	}
	return append(b, '"')
}

func appendControl(b []byte, c byte) []byte {
	if i := strings.IndexByte("\b\f\n\r\t", c); i >= 0 {
		return append(b, '\\', "bfnrt"[i])
	}
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}
