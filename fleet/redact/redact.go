// Package redact takes a device's Client-Id out of what the device says.
//
// A stock device proves nothing at its boot poll: the Client-Id is all that
// distinguishes it from another unit that names the same Device-Id, and tools show
// it (self.get_system_info answers it as "uuid"). So text of devices passes through
// here on its way in, before it is stored or shown: what comes over a connection in
// package broker, boot polls in package enrolment.
//
// It knows no JSON: it works on the bytes as they came, and keeps valid JSON valid.
package redact

import (
	"bytes"
	"strings"
)

// Mark replaces a Client-Id.
const Mark = "***"

const (
	// A shorter Client-Id is no secret, and might be part of any word. Those of boards
	// are UUIDs.
	minLetters = 8
	// maxNeedle bounds what is searched for. Client-Ids have at most 64 letters.
	maxNeedle = 64
)

// ClientID returns b with each spelling of the Client-Id replaced by [Mark]: in
// upper or lower case, with its dashes, without them, or with them escaped. b itself
// stays as it is, and is returned if it holds none, which costs two searches.
func ClientID(b []byte, id string) []byte {
	if needle := longestRun(id); needle == "" || !contains(b, needle) {
		return b
	}
	var out []byte
	from := 0
	for i := 0; i < len(b); {
		n := match(b[i:], id)
		if n == 0 {
			i++
			continue
		}
		out = append(append(out, b[from:i]...), Mark...)
		i += n
		from = i
	}
	if out == nil {
		return b
	}
	return append(out, b[from:]...)
}

// Text does the same with a string.
func Text(s, id string) string {
	b := []byte(s)
	if clean := ClientID(b, id); len(clean) != len(b) || !bytes.Equal(clean, b) {
		return string(clean)
	}
	return s
}

// contains searches for the needle as it is, in lower and in upper case.
func contains(b []byte, needle string) bool {
	var room [maxNeedle]byte
	written, low, up := room[:copy(room[:], needle)], true, true
	for i := range written {
		low = low && written[i] == lower(written[i])
		up = up && written[i] == upper(written[i])
	}
	if bytes.Contains(b, written) {
		return true
	}
	var other [maxNeedle]byte
	folded := other[:len(needle)]
	if !low {
		for i, c := range written {
			folded[i] = lower(c)
		}
		if bytes.Contains(b, folded) {
			return true
		}
	}
	if !up {
		for i, c := range written {
			folded[i] = upper(c)
		}
		return bytes.Contains(b, folded)
	}
	return false
}

// longestRun is the longest part of the Client-Id without separators, the last of
// several: it is written alike with and without them. It is "" of a Client-Id that
// cannot be a secret: one that is short, or has no letter that no number has, so
// that none in JSON is taken for it.
func longestRun(id string) string {
	letters, start, from, to, worded := 0, 0, 0, 0, false
	for i := 0; i <= len(id); i++ {
		if i < len(id) && !separates(id[i]) {
			letters++
			worded = worded || (id[i] < '0' || id[i] > '9') && id[i]|0x20 != 'e'
			continue
		}
		if i-start >= to-from {
			from, to = start, i
		}
		start = i + 1
	}
	if letters < minLetters || !worded || to-from > maxNeedle {
		return ""
	}
	return id[from:to]
}

// escapes are how JSON and URLs may write separators.
var escapes = []string{`\u002d`, `\u002e`, `\u005f`, "%2d", "%2e", "%5f"}

// match returns the length of the Client-Id that b begins with, 0 if with none.
func match(b []byte, id string) int {
	at := 0
	for i := range len(id) {
		if separates(id[i]) {
			at += separator(b[at:])
			continue
		}
		if at == len(b) || lower(b[at]) != lower(id[i]) {
			return 0
		}
		at++
	}
	return at
}

// separator returns the length of the separator that b begins with.
func separator(b []byte) int {
	if len(b) > 0 && separates(b[0]) {
		return 1
	}
	for _, e := range escapes {
		if len(b) >= len(e) && strings.EqualFold(string(b[:len(e)]), e) {
			return len(e)
		}
	}
	return 0
}

func separates(c byte) bool { return c == '-' || c == '.' || c == '_' }

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

func upper(c byte) byte {
	if c >= 'a' && c <= 'z' {
		return c + 'A' - 'a'
	}
	return c
}
