// Package redact removes a device's Client-Id from the text that the device sends.
//
// A stock device proves nothing at its boot poll: only the Client-Id distinguishes it from
// another unit with the same Device-Id, and tools reveal it (self.get_system_info returns it
// as "uuid"). Therefore device text passes through this package on entry, before it is stored
// or shown: package broker redacts messages from connections, package enrolment redacts boot
// polls.
//
// It does not parse JSON: it works on the bytes as received, and valid JSON stays valid.
package redact

import (
	"bytes"
	"strings"
)

// Mark replaces a Client-Id.
const Mark = "***"

const (
	// A shorter Client-Id is no secret and might be part of any word. The Client-Ids of
	// boards are UUIDs.
	minLetters = 8
	// maxNeedle is the maximum length searched for. Client-Ids have at most 64 letters.
	maxNeedle = 64
)

// ClientID returns b with each spelling of the Client-Id replaced by [Mark]: upper or lower
// case, with its dashes, without them, or with them escaped. It does not change b, and
// returns b itself if the Client-Id does not occur, which costs two searches.
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

// Text is [ClientID] for a string.
func Text(s, id string) string {
	b := []byte(s)
	if clean := ClientID(b, id); len(clean) != len(b) || !bytes.Equal(clean, b) {
		return string(clean)
	}
	return s
}

// contains searches for the needle as written, in lower and in upper case.
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

// longestRun returns the longest part of the Client-Id without separators, the last one of
// several: it is the same with and without separators. It returns "" for a Client-Id that
// cannot be a secret: one that is short, or without a letter that numbers do not have, so
// that no number in JSON is mistaken for it.
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

// escapes are the escaped separators in JSON and URLs.
var escapes = []string{`\u002d`, `\u002e`, `\u005f`, "%2d", "%2e", "%5f"}

// match returns the length of the Client-Id at the start of b, 0 if b does not start with it.
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

// separator returns the length of the separator at the start of b.
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
