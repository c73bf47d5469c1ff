// Package redaction replaces values in the arguments of calls by keyed digests before they are stored. A
// [Rule] names tools and a path into their arguments. Equal values have equal digests, so a value whose
// records are wanted is found by its digest, and no record reveals it.
//
// Devices get the true values. What has to be sent later is kept sealed; see [Service.Seal]. Rules apply
// to calls from then on: older records are part of the sealed log and never change.
//
// The package knows neither calls nor SQL. Readers of the rules take no lock.
package redaction

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/internal/bounded"
	"fleetd/internal/jsonscan"
)

// Limits of rules and of what they replace.
const (
	MaxRules  = 200
	MaxNote   = 200               // bytes
	maxTool   = 200               // bytes
	maxDepth  = jsonscan.MaxDepth // of arguments under rules
	maxSize   = 1 << 20           // bytes of such arguments
	maxValues = 100               // that are replaced in one call
)

// A Rule replaces the values at a path in the arguments of tools.
type Rule struct {
	ID   uuid.UUID
	Tool string // name, or a beginning followed by *
	Path string // see [ParsePath]
	Note string // for people
	// Revision counts the changes of the rule, from 1.
	Revision  int64
	CreatedBy string
	CreatedAt time.Time
	UpdatedBy string
	UpdatedAt time.Time
}

// Clean checks a rule and brings it into the form that is stored.
func (r *Rule) Clean() (err error) {
	r.Tool = strings.TrimSpace(r.Tool)
	if r.Tool == "" || len(r.Tool) > maxTool || fleet.CleanText(r.Tool, maxTool) != r.Tool {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_redaction_tool", "limit", maxTool).At("tool")
	}
	path, err := ParsePath(strings.TrimSpace(r.Path))
	if err != nil {
		return err
	}
	r.Path = path.String()
	r.Note, err = fleet.CleanLine("note", r.Note, MaxNote)
	return err
}

// Detail returns the rule as audit entries show it.
func (r *Rule) Detail() map[string]any {
	d := map[string]any{"tool": r.Tool, "path": r.Path}
	if r.Note != "" {
		d["note"] = r.Note
	}
	return d
}

// A Digester makes the digests.
type Digester struct{ key []byte }

// NewDigester returns the digester of the server's secret.
func NewDigester(secret []byte) (Digester, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "fleetd redaction v1", sha256.Size)
	return Digester{key}, err
}

const (
	digestPrefix = "hmac-sha256:"
	digestBytes  = 16
)

// Digest returns the digest of a JSON value: "hmac-sha256:" and 32 hex digits. Spaces, the order of members
// and the spelling of numbers and strings do not matter. A text that is not JSON counts as it is.
func (d Digester) Digest(value json.RawMessage) string {
	mac := hmac.New(sha256.New, d.key)
	mac.Write(canonical(value))
	return digestPrefix + hex.EncodeToString(mac.Sum(nil)[:digestBytes])
}

// ParseDigest returns the bytes of a digest; it reports false for any other text.
func ParseDigest(text string) ([]byte, bool) {
	digits, ok := strings.CutPrefix(text, digestPrefix)
	b, err := hex.DecodeString(digits)
	return b, ok && err == nil && len(b) == digestBytes && digits == strings.ToLower(digits)
}

// Contains reports whether a value in the arguments is a digest: they were copied from a record, and the
// true value is missing.
func Contains(arguments json.RawMessage) bool {
	if !bytes.Contains(arguments, []byte(digestPrefix)) {
		return false
	}
	for d := json.NewDecoder(bytes.NewReader(arguments)); ; {
		token, err := d.Token()
		if err != nil {
			return false
		}
		if text, ok := token.(string); ok {
			if _, is := ParseDigest(text); is {
				return true
			}
		}
	}
}

// Without returns arguments from a record without the digests, so that a person can fill in the values.
func Without(arguments json.RawMessage) json.RawMessage {
	if !Contains(arguments) {
		return arguments
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(arguments))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil
	}
	left, _ := without(v).(map[string]any)
	if left == nil {
		return nil
	}
	text, _ := json.Marshal(left) // decoded from JSON
	return text
}

func without(v any) any {
	switch v := v.(type) {
	case string:
		if _, is := ParseDigest(v); is {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = without(v[i])
		}
	case map[string]any:
		for key, value := range v {
			if left := without(value); left != nil || value == nil {
				v[key] = left
			} else {
				delete(v, key)
			}
		}
	}
	return v
}

// canonical returns one text for all texts of a value.
func canonical(value json.RawMessage) []byte {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	var v any
	if jsonscan.Check(value, maxDepth) != nil || d.Decode(&v) != nil {
		return append([]byte("text:"), value...) // no JSON value begins like this
	}
	return appendCanonical(nil, v)
}

func appendCanonical(b []byte, v any) []byte {
	switch v := v.(type) {
	case []any:
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCanonical(b, item)
		}
		return append(b, ']')
	case map[string]any:
		b = append(b, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendCanonical(b, key), ':')
			b = appendCanonical(b, v[key])
		}
		return append(b, '}')
	case json.Number:
		return append(b, canonicalNumber(v.String())...)
	}
	text, _ := json.Marshal(v) // null, a boolean or a string
	return append(b, text...)
}

// maxExact is the number up to which each integer is a float64.
const maxExact = 1 << 53

// canonicalNumber returns an integer without fraction and exponent, and any other number as the nearest
// float64. Integers that are no float64 keep their digits.
func canonicalNumber(s string) string {
	if !strings.ContainsAny(s, ".eE") && s != "-0" {
		return s
	}
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil:
		return s
	case f == math.Trunc(f) && math.Abs(f) <= maxExact:
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// A Set is compiled rules. It never changes.
type Set struct {
	digester Digester
	rules    []compiled
	tools    *bounded.Cache[string, []Path] // of the rules that match the tool
}

type compiled struct {
	tool []string
	path Path
}

// maxTools limits the tools whose rules a set remembers.
const maxTools = 1000

// Compile compiles rules. A rule that this version cannot read is an error: without it, values would be
// stored openly.
func Compile(d Digester, rules []Rule) (*Set, error) {
	s := &Set{digester: d, tools: bounded.New[string, []Path](maxTools)}
	for _, r := range rules {
		path, err := ParsePath(r.Path)
		if err != nil {
			return nil, err
		}
		s.rules = append(s.rules, compiled{[]string{r.Tool}, path})
	}
	return s, nil
}

func (s *Set) paths(tool string) []Path {
	if known, ok := s.tools.Get(tool); ok {
		return known
	}
	var paths []Path
	for _, r := range s.rules {
		if fleet.MatchTool(r.tool, tool) {
			paths = append(paths, r.path)
		}
	}
	s.tools.Add(strings.Clone(tool), paths)
	return paths
}

// Redact returns the arguments as records store them, and the digests in them. Arguments that are no JSON,
// too large or nested too deeply, or that have too many values under rules, are replaced as a whole.
func (s *Set) Redact(tool string, arguments json.RawMessage) (shown json.RawMessage, digests []string) {
	if s == nil || len(s.rules) == 0 || len(arguments) == 0 {
		return arguments, nil
	}
	paths := s.paths(tool)
	if len(paths) == 0 {
		return arguments, nil
	}
	w := walk{digester: s.digester, paths: paths, data: arguments, found: map[string]json.RawMessage{}}
	if len(arguments) > maxSize || jsonscan.Check(arguments, maxDepth) != nil ||
		w.value(bytes.TrimSpace(arguments), start(paths)) != nil {
		digest := s.digester.Digest(arguments)
		return json.RawMessage(strconv.Quote(digest)), []string{digest}
	}
	if w.values == 0 {
		return arguments, nil
	}
	return append(w.out, arguments[w.copied:]...), slices.Sorted(maps.Keys(w.found))
}

// Restore puts the true values in the place of digests in arguments that were copied from a record; real
// are the arguments of the record. It reports false if a digest would remain, or a value would come to
// another place.
func (s *Set) Restore(tool string, arguments, real json.RawMessage) (json.RawMessage, bool) {
	if s == nil {
		return nil, false
	}
	w := walk{paths: s.paths(tool), data: real, found: map[string]json.RawMessage{}, digester: s.digester}
	var given any
	d := json.NewDecoder(bytes.NewReader(arguments))
	d.UseNumber()
	if jsonscan.Check(arguments, maxDepth) != nil || jsonscan.Check(real, maxDepth) != nil ||
		w.value(bytes.TrimSpace(real), start(w.paths)) != nil || d.Decode(&given) != nil {
		return nil, false
	}
	restored, err := json.Marshal(withValues(given, w.found))
	shown, _ := s.Redact(tool, restored)
	return restored, err == nil && !Contains(restored) && bytes.Equal(canonical(shown), canonical(arguments))
}

// withValues returns a decoded value with the texts of digests replaced.
func withValues(v any, values map[string]json.RawMessage) any {
	switch v := v.(type) {
	case string:
		if value, ok := values[v]; ok {
			return value
		}
	case []any:
		for i := range v {
			v[i] = withValues(v[i], values)
		}
	case map[string]any:
		for key := range v {
			v[key] = withValues(v[key], values)
		}
	}
	return v
}
