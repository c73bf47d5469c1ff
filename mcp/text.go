package mcp

import (
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// unlimited is the limit for text that MaxMessage already bounds. (The text's
// length would be too small: cleaning turns one invalid byte into three.)
const unlimited = math.MaxInt

// cleanText decodes the string literal lit and cleans it with [keepInText]. It
// returns at most limit bytes, in whole characters.
func cleanText(lit []byte, limit int) string { return clean(lit[1:len(lit)-1], limit, keepInText) }

// cleanLine is cleanText for text that is shown on one line, such as a name.
func cleanLine(lit []byte, limit int) string { return clean(lit[1:len(lit)-1], limit, keepInLine) }

// clean decodes the inside of a string literal. Most text of devices is plain
// ASCII and needs one copy; invalid UTF-8 and lone surrogates become U+FFFD.
func clean(body []byte, limit int, keep func(rune) bool) string {
	if len(body) <= limit && isASCIILine(body) {
		return string(body)
	}
	out := make([]byte, 0, min(len(body), limit))
	for len(body) > 0 {
		r, n, _ := nextRune(body)
		body = body[n:]
		if !keep(r) {
			continue
		}
		if len(out)+utf8.RuneLen(r) > limit {
			break
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}

func isASCIILine(body []byte) bool {
	for _, c := range body {
		if c < 0x20 || c > 0x7e || c == '\\' {
			return false
		}
	}
	return true
}

// keepInText drops control characters, except tabs and line breaks. PostgreSQL
// refuses U+0000; the others could control a reader's terminal.
func keepInText(r rune) bool {
	return r == '\n' || r == '\t' || r == '\r' || r >= 0x20 && r < 0x7f || r > 0x9f
}

// keepInLine also drops line breaks and the marks that change the direction of
// writing, with which a name could pose as another.
func keepInLine(r rune) bool {
	bidi := r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
	return keepInText(r) && r >= 0x20 && !bidi && r != 0x2028 && r != 0x2029
}

// nextRune decodes the first character inside a checked string literal and
// returns its length in bytes. ok is false for invalid UTF-8 and lone
// surrogates, which decode to U+FFFD.
func nextRune(b []byte) (r rune, n int, ok bool) {
	if b[0] != '\\' {
		r, n = utf8.DecodeRune(b)
		return r, n, r != utf8.RuneError || n > 1
	}
	if b[1] != 'u' {
		return unescape(b[1]), 2, true
	}
	r = hex4(b[2:])
	if !utf16.IsSurrogate(r) {
		return r, 6, true
	}
	if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(b[8:])); pair != utf8.RuneError {
			return pair, 12, true
		}
	}
	return utf8.RuneError, 6, false
}

func unescape(c byte) rune {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return rune(c)
}

func hex4(b []byte) rune {
	n, _ := strconv.ParseUint(string(b[:4]), 16, 16) // four hex digits: checked by the scanner
	return rune(n)
}
