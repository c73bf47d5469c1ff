package fleet

import (
	"slices"
	"strings"
	"time"
)

// ToolSet answers whether a device offers a tool; the device itself only names
// its inventory.
type ToolSet func(d Device, tool string) bool

// Match reports whether the device fits the query at the given time, and if it
// does not, which term kept it out. A retired device is out unless the query
// asks about retirement; that term reads "-retired".
//
// It says in Go what the store says in SQL; a test holds the two together.
func (q Query) Match(d Device, offers ToolSet, now time.Time) (term string, ok bool) {
	if d.RetiredAt != nil && !q.Asks("retired") {
		return "-retired", false
	}
	for _, t := range q.Terms {
		if t.holds(d, offers, now) == t.Not {
			return t.Text, false
		}
	}
	return "", true
}

func (t Term) holds(d Device, offers ToolSet, now time.Time) bool {
	switch t.Field {
	case "":
		return search(d, t.Values[0])
	case "hold":
		return d.Hold.Active(now)
	case "conflict":
		return d.Conflict.Active(now)
	case "retired":
		return d.RetiredAt != nil
	case "safe_mode":
		return d.SafeMode
	case "core_dump":
		return d.CoreDump
	case "seen":
		return t.seen(d, now)
	case "version":
		return t.version(d)
	case "tag":
		return slices.ContainsFunc(d.Tags, t.anyOf)
	case "tool":
		return offers != nil && slices.ContainsFunc(t.Values, func(tool string) bool { return offers(d, tool) })
	}
	return t.anyOf(t.text(d))
}

func (t Term) text(d Device) string {
	switch t.Field {
	case "id":
		return string(d.ID)
	case "name":
		return d.Name
	case "board":
		return d.Board
	case "chip":
		return d.Chip
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

// anyOf compares without case; a trailing * matches any ending.
func (t Term) anyOf(s string) bool {
	s = strings.ToLower(s)
	return slices.ContainsFunc(t.Values, func(v string) bool {
		v = strings.ToLower(v)
		if prefix, ok := strings.CutSuffix(v, "*"); ok {
			return strings.HasPrefix(s, prefix)
		}
		return s == v
	})
}

// seen compares the age of the latest message. A device never seen is older
// than any age.
func (t Term) seen(d Device, now time.Time) bool {
	recent := d.LastSeen != nil && now.Sub(*d.LastSeen) < t.Age
	return recent == (t.Op == "<")
}

// version compares as the firmware does. A version that cannot be compared is
// neither older nor newer than any.
func (t Term) version(d Device) bool {
	if t.Op == ":" {
		return t.anyOf(d.Version)
	}
	key := VersionKey(d.Version)
	if key == nil {
		return false
	}
	c := slices.Compare(key, t.Version)
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

// search finds a word in what people know a device by. The separators of a
// pasted MAC address do not count.
func search(d Device, word string) bool {
	word = strings.ToLower(word)
	if looksLikeMAC(word) {
		id, _ := ParseDeviceID(word)
		return d.ID == id
	}
	for _, s := range append([]string{string(d.ID), d.Name, d.Board}, d.Tags...) {
		if strings.Contains(strings.ToLower(s), word) {
			return true
		}
	}
	return false
}
