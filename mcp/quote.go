package mcp

import (
	"strconv"
	"unicode/utf8"

	"fleetd/internal/jsonscan"
)

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string literal. Unlike encoding/json it does
// not escape <, > and &, so the sent and the stored text read as written.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if !jsonscan.Unescaped[c] {
				dst = append(dst, s[start:i]...)
				dst = appendEscape(dst, c)
				start = i + 1
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[start:i]...)
			dst = utf8.AppendRune(dst, r)
			start = i + 1
		}
		i += n
	}
	return append(append(dst, s[start:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// appendClean appends the checked JSON text raw without white space and with
// each string cleaned, in the original order. It returns false if raw contains
// a number that PostgreSQL's jsonb, or a float64, cannot hold.
func appendClean(dst, raw []byte) ([]byte, bool) {
	s := jsonscan.Scanner{Data: raw}
	for c := s.Peek(); s.Pos < len(raw); c = s.Peek() {
		start := s.Pos
		switch {
		case c == '"':
			if s.StringLit() != nil {
				return dst, false
			}
			dst = appendString(dst, cleanText(raw[start:s.Pos], unlimited))
		case c == '-' || '0' <= c && c <= '9':
			if s.Number() != nil || !storable(raw[start:s.Pos]) {
				return dst, false
			}
			dst = append(dst, raw[start:s.Pos]...)
		default:
			s.Pos++
			dst = append(dst, c)
		}
	}
	return dst, true
}

func storable(number []byte) bool {
	if len(number) > 64 {
		return false
	}
	_, err := strconv.ParseFloat(string(number), 64)
	return err == nil
}
