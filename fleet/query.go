package fleet

import (
	"slices"
	"strings"
	"time"
)

// A Query is a filter of devices, in the language that lists, fan-outs, policies and
// campaigns share. It consists of terms separated by blanks, and a device must match all of
// them.
//
//	board:bread-compact-wifi tag:lab version<2.4 presence:online -hold kitchen
//
// A term consists of field, operator and value; a leading "-" negates it. A value with commas
// matches any of its parts, a trailing * matches any ending, and double quotes preserve
// blanks. A word without a field searches id, name, board and tags.
type Query struct {
	Text  string // as written
	Terms []Term
}

// A Term is one condition of a [Query].
type Term struct {
	Text   string // as written
	Not    bool
	Field  string   // one of the QueryFields; "" for a search word
	Op     string   // ":", "<", "<=", ">", ">="; "" for a flag such as hold
	Values []string // alternatives; comparisons have one
	// Age is the value of a term on seen or crashed.
	Age time.Duration
	// Version is the value of a term that compares version.
	Version []int64
}

// A QueryField documents one field of the query language.
type QueryField struct {
	Name    string
	Kind    FieldKind
	Example string
}

// FieldKind determines which operators a field allows.
type FieldKind int

const (
	TextField    FieldKind = iota // ":" with alternatives and trailing *
	VersionField                  // also < <= > >=
	AgeField                      // < and > with a duration: 90s, 10m, 2h, 7d
	FlagField                     // bare word
)

// QueryFields lists the fields of the query language.
var QueryFields = []QueryField{
	{"id", TextField, "id:a085e3*"},
	{"name", TextField, `name:"front door"`},
	{"board", TextField, "board:bread-compact-wifi,esp-box-3"},
	{"chip", TextField, "chip:esp32s3"},
	{"kind", TextField, "kind:plugin,endpoint"},
	{"version", VersionField, "version<2.4"},
	{"presence", TextField, "presence:online,unresponsive"},
	{"tag", TextField, "tag:lab"},
	{"tool", TextField, "tool:self.reboot"},
	{"enrolment", TextField, "enrolment:waiting"},
	{"slot", TextField, "slot:ota_1"},
	{"elf", TextField, "elf:9f2c*"},
	{"transport", TextField, "transport:mqtt"},
	{"seen", AgeField, "seen>2d"},
	{"crashed", AgeField, "crashed<1d"},
	{"hold", FlagField, "-hold"},
	{"conflict", FlagField, "conflict"},
	{"retired", FlagField, "retired"},
	{"safe_mode", FlagField, "safe_mode"},
	{"core_dump", FlagField, "core_dump"},
}

// Empty reports whether the query matches every device in service.
func (q Query) Empty() bool { return len(q.Terms) == 0 }

// And returns the query that matches the devices which both match. It joins their terms and
// not their texts, so that a quote or a negation in one cannot affect the other.
func (q Query) And(other Query) Query {
	return Query{Text: strings.TrimSpace(q.Text + " " + other.Text), Terms: slices.Concat(q.Terms, other.Terms)}
}

// Asks reports whether any term uses the field, negated or not.
func (q Query) Asks(field string) bool {
	for _, t := range q.Terms {
		if t.Field == field {
			return true
		}
	}
	return false
}

// VersionKey returns a firmware version as numbers that compare as the stock firmware
// compares versions: part by part, with the digits up to the first other character; a version
// with more parts is newer. It returns nil if a part does not start with a digit, which the
// stock firmware cannot compare.
func VersionKey(version string) []int64 {
	if version == "" {
		return nil
	}
	parts := strings.Split(version, ".")
	key := make([]int64, len(parts))
	for i, p := range parts {
		n, ok := leadingNumber(p)
		if !ok {
			return nil
		}
		key[i] = n
	}
	return key
}

func leadingNumber(s string) (int64, bool) {
	var n int64
	digits := 0
	for ; digits < len(s) && s[digits] >= '0' && s[digits] <= '9'; digits++ {
		n = n*10 + int64(s[digits]-'0')
		if n > 1<<31-1 {
			return 0, false // the device's stoi would throw
		}
	}
	return n, digits > 0
}
