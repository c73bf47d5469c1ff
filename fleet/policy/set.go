package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/internal/bounded"
)

// A Set is a compiled table of rules. It never changes.
//
// Most rules do not apply to a given call. The set indexes the conditions on the caller's
// kind, the tool and the plain terms of the device query: for each value it has the rules
// that the value allows. It then evaluates only the rules in the intersection one by one.
type Set struct {
	Version int64
	rules   []*compiled // enabled ones, in order
	words   int         // words of a ruleSet that are in use

	kinds, roles map[string]ruleSet
	noKind       ruleSet // rules without a condition on the kind
	noRole       ruleSet
	userTools    ruleSet // rules that may apply to user-only tools
	modelTools   ruleSet
	terms        [len(indexed)]termIndex

	tools     knownAnswers // by tool: rules whose patterns and effects match
	arguments knownAnswers // by arguments: rules whose schema matches
}

// A ruleSet has one bit for each rule of a set.
type ruleSet [(MaxRules + 63) / 64]uint64

func (s *ruleSet) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s *ruleSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

// keep removes the rules that are not in other.
func (s *ruleSet) keep(other *ruleSet) {
	for i := range s {
		s[i] &= other[i]
	}
}

func (s *ruleSet) join(other *ruleSet) {
	for i := range s {
		s[i] |= other[i]
	}
}

// indexed are the fields of device queries whose terms are indexed.
var indexed = [...]string{"tag", "board", "id"}

// A termIndex indexes the rules by one field of their device queries.
type termIndex struct {
	free ruleSet // rules without an indexable term on the field
	of   map[string]ruleSet
}

// A compiled rule has the conditions that the set's indexes do not decide.
type compiled struct {
	Rule
	key    string // id of the rule
	asks   bool   // a device query remains to be evaluated
	query  fleet.Query
	schema *jsonschema.Resolved
	phase  atomic.Pointer[phase]
}

// A phase is a period in which a window neither opens nor closes.
type phase struct {
	from, until time.Time
	open        bool
}

// Compile compiles rules, which must be in order. A stored rule that this version cannot read
// is an error, because skipping it could allow what it denies.
func Compile(rules []Rule, version int64) (*Set, error) {
	s := &Set{Version: version, kinds: map[string]ruleSet{}, roles: map[string]ruleSet{},
		tools:     knownAnswers{bounded.New[string, answers](maxAnswers)},
		arguments: knownAnswers{bounded.New[string, answers](maxAnswers)}}
	for f := range s.terms {
		s.terms[f].of = map[string]ruleSet{}
	}
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("%d rules exceed the limit of %d", len(rules), MaxRules)
	}
	for _, r := range rules {
		if !r.Enabled {
			continue
		}
		if err := r.Clean(); err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.ID, err)
		}
		if err := s.compile(r); err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.ID, err)
		}
	}
	s.words = (len(s.rules) + 63) / 64
	return s, nil
}

func (s *Set) compile(r Rule) error {
	i := len(s.rules)
	c := &compiled{Rule: r, key: r.ID.String()}
	var err error
	if c.query, err = fleet.ParseQuery(r.Devices); err != nil {
		return err
	}
	c.asks = !c.query.Empty()
	if len(r.Arguments) > 0 {
		c.schema = call.CompileSchema(r.Arguments)
	}
	s.rules = append(s.rules, c)
	index(s.kinds, &s.noKind, r.Kinds, i)
	index(s.roles, &s.noRole, r.Roles, i)
	if r.Audience != fleet.AudienceModel {
		s.userTools.add(i)
	}
	if r.Audience != fleet.AudienceUser {
		s.modelTools.add(i)
	}
	for f, name := range indexed {
		index(s.terms[f].of, &s.terms[f].free, plainValues(c.query, name), i)
	}
	return nil
}

// index adds rule i under each of the values, or to free if it has none.
func index[S ~string](of map[string]ruleSet, free *ruleSet, values []S, i int) {
	if len(values) == 0 {
		free.add(i)
	}
	for _, v := range values {
		rules := of[string(v)]
		rules.add(i)
		of[string(v)] = rules
	}
}

// plainValues returns the values of a term that requires one of several values of the field;
// nil if there is no such term.
func plainValues(q fleet.Query, field string) []string {
	for _, t := range q.Terms {
		if t.Field != field || t.Not || strings.Contains(strings.Join(t.Values, ""), "*") {
			continue
		}
		values := make([]string, len(t.Values))
		for i, v := range t.Values {
			values[i] = strings.ToLower(v)
		}
		return values
	}
	return nil
}

// Decide returns the first rule that applies to the call, nil if none does. It returns an
// error if a device may read the arguments differently from the rules that check them.
func (s *Set) Decide(p *call.Proposal) (*Rule, error) {
	c, err := s.decide(p)
	if c == nil {
		return nil, err
	}
	return &c.Rule, err
}

func (s *Set) decide(p *call.Proposal) (*compiled, error) {
	candidates := s.ofTool(p.Tool.Name)
	candidates.keep(orFree(s.kinds, &s.noKind, string(p.Principal.Kind)))
	candidates.keep(orFree(s.roles, &s.noRole, string(p.Principal.RoleOn(*p.Device))))
	if p.Tool.UserOnly() {
		candidates.keep(&s.userTools)
	} else {
		candidates.keep(&s.modelTools)
	}
	s.keepTerms(&candidates, p.Device)
	for w := range s.words {
		for left := candidates[w]; left != 0; left &= left - 1 {
			i := w*64 + bits.TrailingZeros64(left)
			applies, err := s.applies(i, p)
			if applies || err != nil {
				return s.rules[i], err
			}
		}
	}
	return nil, nil
}

func orFree(of map[string]ruleSet, free *ruleSet, value string) *ruleSet {
	rules := of[value]
	rules.join(free)
	return &rules
}

// keepTerms removes the rules whose query requires another tag, board or id.
func (s *Set) keepTerms(candidates *ruleSet, d *fleet.Device) {
	tags, board, id := &s.terms[0], &s.terms[1], &s.terms[2]
	if len(tags.of) > 0 {
		rules := tags.free
		for _, tag := range d.Tags {
			tagged := tags.of[strings.ToLower(tag)]
			rules.join(&tagged)
		}
		candidates.keep(&rules)
	}
	if len(board.of) > 0 {
		candidates.keep(orFree(board.of, &board.free, strings.ToLower(d.Board)))
	}
	if len(id.of) > 0 {
		candidates.keep(orFree(id.of, &id.free, strings.ToLower(string(d.ID))))
	}
}

// ofTool returns the rules whose patterns and effects match the tool.
func (s *Set) ofTool(tool string) ruleSet {
	known, ok := s.tools.Get(tool)
	if ok {
		return known.yes
	}
	for i, c := range s.rules {
		if c.meetsTool(tool) {
			known.yes.add(i)
		}
	}
	s.tools.put(tool, known)
	return known.yes
}

func (r *Rule) meetsTool(tool string) bool {
	if len(r.Tools) > 0 && !fleet.MatchTool(r.Tools, tool) {
		return false
	}
	if len(r.Effects) == 0 {
		return true
	}
	effect := fleet.EffectOf(tool)
	for _, e := range r.Effects {
		if e == effect {
			return true
		}
	}
	return false
}

// applies evaluates the conditions that the indexes leave open.
func (s *Set) applies(i int, p *call.Proposal) (bool, error) {
	c := s.rules[i]
	switch {
	case len(c.Names) > 0 && !fleet.MatchTool(c.Names, p.Principal.Name),
		c.Window != nil && !c.windowOpen(p.At),
		c.asks && !c.query.Selects(p.Device, p.Offers, p.At):
		return false, nil
	case c.schema == nil:
		return true, nil
	}
	known, _ := s.arguments.Get(string(p.Arguments))
	if known.yes.has(i) || known.no.has(i) {
		return known.yes.has(i), nil
	}
	arguments, err := decode(p.Arguments)
	if err != nil {
		return false, err
	}
	if c.schema.Validate(arguments) == nil {
		known.yes.add(i)
	} else {
		known.no.add(i)
	}
	s.arguments.put(string(p.Arguments), known)
	return known.yes.has(i), nil
}

func (c *compiled) windowOpen(at time.Time) bool {
	if known := c.phase.Load(); known != nil && !at.Before(known.from) && at.Before(known.until) {
		return known.open
	}
	open, from, until := c.Window.Phase(at)
	c.phase.Store(&phase{from, until, open})
	return open
}

// decode decodes arguments as a device does. If two members have the same name, whatever
// their case, devices read the first and Go the last; if a rule depends on such arguments,
// they are refused.
func decode(raw json.RawMessage) (map[string]any, error) {
	arguments := map[string]any{}
	if len(raw) == 0 {
		return arguments, nil
	}
	if repeats(json.NewDecoder(bytes.NewReader(raw))) || json.Unmarshal(raw, &arguments) != nil || arguments == nil {
		return nil, errAmbiguous
	}
	return arguments, nil
}

var errAmbiguous = errors.New("ambiguous arguments: an object has two members of one name")

// repeats reports whether an object has two members of one name.
func repeats(d *json.Decoder) bool {
	var seen []map[string]bool // names in each open object; nil for arrays
	key := false
	for {
		token, err := d.Token()
		if err != nil {
			return false // the end, or an error that Unmarshal reports
		}
		if text, ok := token.(string); ok && key {
			folded := strings.ToLower(text)
			if seen[len(seen)-1][folded] {
				return true
			}
			seen[len(seen)-1][folded] = true
			key = false
			continue
		}
		switch token {
		case json.Delim('{'):
			seen = append(seen, map[string]bool{})
		case json.Delim('['):
			seen = append(seen, nil)
		case json.Delim('}'), json.Delim(']'):
			seen = seen[:len(seen)-1]
		}
		key = len(seen) > 0 && seen[len(seen)-1] != nil
	}
}

// knownAnswers caches which rules a text met, and which not.
type knownAnswers struct {
	*bounded.Cache[string, answers]
}

// answers are the rules that a text met, and those that it did not meet.
type answers struct{ yes, no ruleSet }

// maxAnswers limits the memory of a set, with [call.MaxArgumentBytes], to 4 MB.
const maxAnswers = 1000

// put adds to the answers. If two calls add to the same text at once, the answers of one
// may be lost, and are found again.
func (k knownAnswers) put(text string, a answers) {
	had, _ := k.Get(text)
	a.yes.join(&had.yes)
	a.no.join(&had.no)
	k.Add(strings.Clone(text), a)
}
