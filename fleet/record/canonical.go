package record

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// appendValue appends a decoded JSON value in the canonical form.
func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case string:
		return appendQuoted(b, v)
	case json.Number:
		return appendNumber(b, v.String())
	case []any:
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, item)
		}
		return append(b, ']')
	case map[string]any:
		b = append(b, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendQuoted(b, key), ':')
			b = appendValue(b, v[key])
		}
		return append(b, '}')
	}
	return b // a decoder makes no other type
}

// maxExact is the maximum number of digits of an integer that is kept digit by digit.
const maxExact = 18

// appendNumber appends a number: an integer as it is, another one as the nearest float64. JSON and jsonb may
// write one number in different ways.
func appendNumber(b []byte, s string) []byte {
	digits := strings.TrimPrefix(s, "-")
	if len(digits) <= maxExact && strings.Trim(digits, "0123456789") == "" {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return strconv.AppendInt(b, n, 10) // -0 becomes 0
		}
	}
	f, _ := strconv.ParseFloat(s, 64)
	switch {
	case f == 0:
		return append(b, '0') // also -0
	case math.IsInf(f, 0): // jsonb has larger numbers than float64
		return append(b, `"out of range"`...)
	}
	if f > -1e15 && f < 1e15 && f == float64(int64(f)) {
		return strconv.AppendInt(b, int64(f), 10)
	}
	return strconv.AppendFloat(b, f, 'g', -1, 64)
}
