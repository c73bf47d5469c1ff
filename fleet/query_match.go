package fleet

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// ToolSet reports whether a device offers a tool; the device itself only has the id of its
// inventory.
type ToolSet func(d Device, tool string) bool

// Match reports whether the device matches the query at the given time and, if it does not,
// the term that excludes it. A retired device does not match unless the query uses the field
// retired; the term is then "-retired".
//
// It is the Go version of the store's SQL; a test compares the two.
func (q Query) Match(d Device, offers ToolSet, now time.Time) (term string, ok bool) {
	if d.RetiredAt != nil && !q.Asks("retired") {
		return "-retired", false
	}
	return q.match(&d, offers, now)
}

// Selects is [Query.Match] without copying the device: policies match many queries against
// one device.
func (q *Query) Selects(d *Device, offers ToolSet, now time.Time) bool {
	if d.RetiredAt != nil && !q.Asks("retired") {
		return false
	}
	_, ok := q.match(d, offers, now)
	return ok
}

func (q *Query) match(d *Device, offers ToolSet, now time.Time) (term string, ok bool) {
	for i := range q.Terms {
		if t := &q.Terms[i]; t.holds(d, offers, now) == t.Not {
			return t.Text, false
		}
	}
	return "", true
}

func (t *Term) holds(d *Device, offers ToolSet, now time.Time) bool {
	switch t.Field {
	case "":
		return search(d, t.Values[0])
	case "hold":
		return d.Hold.Active(now)
	case "conflict":
		return d.Claimed != nil || d.Conflict.Active(now)
	case "retired":
		return d.RetiredAt != nil
	case "safe_mode":
		return d.SafeMode
	case "core_dump":
		return d.CoreDump
	case "seen":
		return t.since(d.LastSeen, now)
	case "crashed":
		return t.since(d.CrashedAt, now)
	case "version":
		return t.version(d)
	case "tag":
		return slices.ContainsFunc(d.Tags, t.anyOf)
	case "tool":
		return offers != nil && slices.ContainsFunc(t.Values, func(tool string) bool { return offers(*d, tool) })
	}
	return t.anyOf(t.text(d))
}

func (t *Term) text(d *Device) string {
	switch t.Field {
	case "id":
		return string(d.ID)
	case "name":
		return d.Name
	case "board":
		return d.Board
	case "chip":
		return d.Chip
	case "kind":
		return string(d.Kind)
	case "presence":
		return string(d.Presence)
	case "enrolment":
		return string(d.Enrolment)
	case "slot":
		return d.Slot
	case "elf":
		return d.ELFSHA256
	case "transport":
		return d.Transport
	}
	return ""
}

// anyOf compares case-insensitively; a trailing * matches any ending.
func (t *Term) anyOf(s string) bool {
	return slices.ContainsFunc(t.Values, func(v string) bool {
		if prefix, ok := strings.CutSuffix(v, "*"); ok {
			_, ok := cutLower(s, prefix)
			return ok
		}
		rest, ok := cutLower(s, v)
		return ok && rest == ""
	})
}

// cutLower cuts the prefix from s case-insensitively. It allocates nothing because policies
// call it often.
func cutLower(s, prefix string) (rest string, ok bool) {
	for prefix != "" {
		if s == "" {
			return "", false
		}
		r, n := utf8.DecodeRuneInString(s)
		want, m := utf8.DecodeRuneInString(prefix)
		if r != want && unicode.ToLower(r) != unicode.ToLower(want) {
			return "", false
		}
		s, prefix = s[n:], prefix[m:]
	}
	return s, true
}

func containsLower(s, word string) bool {
	for i := range s {
		if _, ok := cutLower(s[i:], word); ok {
			return true
		}
	}
	return false
}

// since compares the age of a moment. A device without it was never seen, or never crashed, and
// counts as older than any age.
func (t *Term) since(at *time.Time, now time.Time) bool {
	recent := at != nil && now.Sub(*at) < t.Age
	return recent == (t.Op == "<")
}

// version compares as the firmware does. A version without a [VersionKey] is neither older
// nor newer than any other.
func (t *Term) version(d *Device) bool {
	if t.Op == ":" {
		return t.anyOf(d.Version)
	}
	c, ok := compareVersion(d.Version, t.Version)
	if !ok {
		return false
	}
	switch t.Op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// compareVersion compares the [VersionKey] of a version with another key without building it.
// It returns false if the version has no key.
func compareVersion(version string, key []int64) (c int, ok bool) {
	if version == "" {
		return 0, false
	}
	parts := 0
	for part := range strings.SplitSeq(version, ".") {
		n, ok := leadingNumber(part)
		if !ok {
			return 0, false
		}
		if parts < len(key) && c == 0 {
			c = cmp.Compare(n, key[parts])
		}
		parts++
	}
	if c == 0 {
		c = cmp.Compare(parts, len(key))
	}
	return c, true
}

// search looks for a word in the names and ids by which people identify a device. It ignores
// the separators of a pasted MAC address.
func search(d *Device, word string) bool {
	if looksLikeMAC(word) {
		id, _ := ParseDeviceID(word)
		return d.ID == id
	}
	if digits := MACDigits(word); digits != "" && containsLower(string(d.ID), digits) {
		return true
	}
	return containsLower(string(d.ID), word) || containsLower(d.Name, word) || containsLower(d.Board, word) ||
		slices.ContainsFunc(d.Tags, func(tag string) bool { return containsLower(tag, word) })
}
