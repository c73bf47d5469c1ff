package devices

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"fleetd/fleet"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Limits of one completion.
const (
	completedValues = 8
	completedTerms  = 3    // values of a field if the text names no field
	maxCompleted    = 1024 // bytes of the text
)

func (s *Server) completeRoutes() []pages.Route {
	return []pages.Route{{Method: http.MethodGet, Pattern: ui.PathComplete, Role: fleet.RoleViewer, Reach: access.List,
		Page: s.complete}}
}

// complete proposes completions of the last word in a filter of devices, each with the number of
// devices that it would find. It counts only devices that match the words before it and that the
// viewer may see.
func (s *Server) complete(r *http.Request) (pages.Answer, error) {
	ctx, text := r.Context(), r.URL.Query().Get("q")
	if len(text) > maxCompleted || !utf8.ValidString(text) {
		return pages.Show(ui.Completion{}.View())
	}
	before, word := lastWord(text)
	c := ui.Completion{Word: word}
	q, err := fleet.ParseQuery(before)
	if err != nil || strings.ContainsFunc(word, unicode.IsControl) {
		return pages.Show(c.View())
	}
	sign := ""
	if strings.HasPrefix(word, "-") {
		sign, word = "-", word[1:]
	}
	if at := strings.IndexAny(word, ":<>"); at > 0 {
		c.Options, err = s.completeValue(ctx, q, word, at)
	} else {
		c.Options, err = s.completeKey(ctx, q, word)
	}
	for i := range c.Options {
		c.Options[i].Text = sign + c.Options[i].Text
		if sign != "" { // a sign excludes devices, and the count is of the excluded ones
			c.Options[i].Counted = false
		}
	}
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(c.View())
}

// lastWord cuts the text before its last word, which may be empty or contain blanks within double
// quotes.
func lastWord(text string) (before, word string) {
	quoted, at := false, 0
	for i, r := range text {
		switch {
		case r == '"':
			quoted = !quoted
		case unicode.IsSpace(r) && !quoted:
			at = i + utf8.RuneLen(r)
		}
	}
	return text[:at], text[at:]
}

// completeKey proposes fields, flags, and the most frequent boards and tags.
func (s *Server) completeKey(ctx context.Context, q fleet.Query, word string) ([]ui.CompletionOption, error) {
	word = strings.ToLower(strings.Trim(word, `"`))
	var options, flags []ui.CompletionOption
	for _, f := range fleet.QueryFields {
		switch {
		case !strings.HasPrefix(f.Name, word):
		case f.Kind == fleet.FlagField:
			flags = append(flags, ui.CompletionOption{Text: f.Name})
		case f.Kind == fleet.AgeField:
			options = append(options, ui.CompletionOption{Text: f.Name + "<", Example: f.Example, Open: true})
		default:
			options = append(options, ui.CompletionOption{Text: f.Name + ":", Example: f.Example, Open: true})
		}
	}
	if err := s.countOptions(ctx, q, flags); err != nil {
		return nil, err
	}
	options = append(options, flags...)
	if word == "" {
		return options, nil
	}
	for _, field := range []string{"tag", "board"} {
		values, err := s.Devices.CountValues(ctx, q, field, word, completedTerms)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			options = append(options, ui.CompletionOption{Text: ui.Term(field, v.Value), Count: v.Count, Counted: true})
		}
	}
	return options, nil
}

// completeValue proposes values for a word that names its field.
func (s *Server) completeValue(ctx context.Context, q fleet.Query, word string, at int) ([]ui.CompletionOption, error) {
	field, rest := strings.ToLower(word[:at]), word[at:]
	op := rest[:1]
	if strings.HasPrefix(rest, op+"=") {
		op += "="
	}
	i := slices.IndexFunc(fleet.QueryFields, func(f fleet.QueryField) bool { return f.Name == field })
	if i < 0 {
		return nil, nil
	}
	typed := rest[len(op):]
	var options []ui.CompletionOption
	switch kind := fleet.QueryFields[i].Kind; {
	case kind == fleet.AgeField && op != ":":
		for _, age := range []string{"10m", "1h", "1d", "7d", "30d"} {
			if strings.HasPrefix(age, typed) {
				options = append(options, ui.CompletionOption{Text: field + op + age})
			}
		}
		return options, s.countOptions(ctx, q, options)
	case kind == fleet.VersionField && op != ":":
		values, err := s.Devices.CountValues(ctx, q, field, typed, completedValues)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if fleet.VersionKey(v.Value) != nil {
				options = append(options, ui.CompletionOption{Text: field + op + v.Value})
			}
		}
		return options, s.countOptions(ctx, q, options)
	case op != ":":
		return nil, nil
	}
	// Complete alternatives stay unchanged; the one after the last comma is completed.
	kept, last := "", typed
	if comma := strings.LastIndexByte(typed, ','); comma >= 0 && strings.Count(typed[:comma], `"`)%2 == 0 {
		kept, last = typed[:comma+1], typed[comma+1:]
	}
	values, err := s.Devices.CountValues(ctx, q, field, strings.Trim(last, `"*`), completedValues)
	for _, v := range values {
		value := strings.TrimPrefix(ui.Term(field, v.Value), field+":")
		if strings.Contains(v.Value, `"`) || strings.Contains(","+kept, ","+value+",") {
			continue
		}
		options = append(options, ui.CompletionOption{Text: field + ":" + kept + value, Count: v.Count, Counted: true})
	}
	return options, err
}

// countOptions counts the devices that each option would find.
func (s *Server) countOptions(ctx context.Context, q fleet.Query, options []ui.CompletionOption) error {
	var queries []fleet.Query
	for _, o := range options {
		term, err := fleet.ParseQuery(o.Text)
		if err != nil {
			return err
		}
		queries = append(queries, fleet.Query{Terms: slices.Concat(q.Terms, term.Terms)})
	}
	counts, err := s.Devices.CountEach(ctx, queries)
	for i, n := range counts {
		options[i].Count, options[i].Counted = n, true
	}
	return err
}
