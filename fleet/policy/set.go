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

// A Set is a table of rules, compiled. It never changes.
//
// Most rules do not apply to a call. For each condition that the caller's kind,
// the tool or a plain term of the device query decides, the set knows which rules
// it lets through; what these sets have in common is looked at rule by rule.
type Set struct {
	Version int64
	rules   []*compiled // enabled ones, in order
	words   int         // of a ruleSet that are in use

	kinds, roles map[string]ruleSet
	noKind       ruleSet // of rules that any kind may meet
	noRole       ruleSet
	userTools    ruleSet // that may apply to user-only tools
	modelTools   ruleSet
	terms        [len(indexed)]termIndex

	tools     knownAnswers // by tool: rules whose patterns and effects it meets
	arguments knownAnswers // by arguments: rules whose schema they satisfy
}

// A ruleSet has one bit for each rule of a set.
type ruleSet [(MaxRules + 63) / 64]uint64

func (s *ruleSet) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s *ruleSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

// keep leaves out what other does not have.
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

// indexed are the fields of a device query whose terms are looked up.
var indexed = [...]string{"tag", "board", "id"}

// A termIndex is about one field of device queries.
type termIndex struct {
	free ruleSet // do not ask for the field in a way that can be looked up
	of   map[string]ruleSet
}

// A compiled rule holds what the set itself does not decide.
type compiled struct {
	Rule
	key    string // its id
	asks   bool   // a device query is left
	query  fleet.Query
	schema *jsonschema.Resolved
	phase  atomic.Pointer[phase]
}

// A phase is a stretch of time in which a window does not open or close.
type phase struct {
	from, until time.Time
	open        bool
}

// Compile makes a set of rules, which are in order. Rules of a store that this
// version cannot read are an error: leaving one out could allow what it denies.
func Compile(rules []Rule, version int64) (*Set, error) {
	s := &Set{Version: version, kinds: map[string]ruleSet{}, roles: map[string]ruleSet{},
		tools:     knownAnswers{bounded.New[string, answers](maxAnswers)},
		arguments: knownAnswers{bounded.New[string, answers](maxAnswers)}}
	for f := range s.terms {
		s.terms[f].of = map[string]ruleSet{}
	}
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("%d rules, at most %d are possible", len(rules), MaxRules)
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

// index notes rule i for each of the values, or as one that asks for none.
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

// plainValues are the values of a term that asks for one of several values of
// the field, none without such a term.
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

// Decide returns the first rule that applies to the call, nil if none does. The
// error is that of arguments which a device may read in another way than the
// rules that ask about them.
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

// keepTerms leaves out rules whose query names another tag, board or id.
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

// ofTool returns the rules whose patterns and effects the tool meets.
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

// applies looks at what the indexes leave open.
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

// decode reads arguments as a device does. Of two members of one name, whatever
// their case, devices read the first and Go the last: such arguments are refused
// where a rule depends on them.
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

var errAmbiguous = errors.New("arguments that can be read in two ways")

// repeats reports whether an object has two members of one name.
func repeats(d *json.Decoder) bool {
	var seen []map[string]bool // of the objects that are open; nil for arrays
	key := false
	for {
		token, err := d.Token()
		if err != nil {
			return false // the end, or what Unmarshal refuses
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

// maxAnswers bounds the memory of a set: with [call.MaxArgumentBytes], to 4 MB.
const maxAnswers = 1000

// put adds to the answers. If two calls add to the same text at once, the answers of one
// may be lost, and are found again.
func (k knownAnswers) put(text string, a answers) {
	had, _ := k.Get(text)
	a.yes.join(&had.yes)
	a.no.join(&had.no)
	k.Add(strings.Clone(text), a)
}
