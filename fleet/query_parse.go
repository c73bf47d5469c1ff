package fleet

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Limits of a query, which comes from a URL.
const (
	maxQueryBytes = 1024
	maxQueryTerms = 32
)

// ParseQuery parses the query language. Its errors name the invalid term and list what is
// allowed.
func ParseQuery(text string) (Query, error) {
	if len(text) > maxQueryBytes {
		return Query{}, Refuse(ErrInvalid, "invalid_query.long", "size", len(text), "limit", maxQueryBytes)
	}
	words, err := splitQuery(text)
	if err != nil {
		return Query{}, err
	}
	if len(words) > maxQueryTerms {
		return Query{}, Refuse(ErrInvalid, "invalid_query.terms", "terms", len(words), "limit", maxQueryTerms)
	}
	q := Query{Text: strings.TrimSpace(text)}
	for _, w := range words {
		t, err := parseTerm(w)
		if err != nil {
			return Query{}, err
		}
		q.Terms = append(q.Terms, t)
	}
	return q, nil
}

// splitQuery splits at blanks outside double quotes and keeps the quotes.
func splitQuery(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	quoted := false
	flush := func() {
		if word.Len() > 0 {
			words = append(words, word.String())
			word.Reset()
		}
	}
	for _, r := range text {
		switch {
		case r == '"':
			quoted = !quoted
			word.WriteRune(r)
		case unicode.IsSpace(r) && !quoted:
			flush()
		case unicode.IsControl(r) || r == unicode.ReplacementChar:
			return nil, Refuse(ErrInvalid, "invalid_query.control")
		default:
			word.WriteRune(r)
		}
	}
	if quoted {
		return nil, Refuse(ErrInvalid, "invalid_query.quote")
	}
	flush()
	return words, nil
}

func parseTerm(word string) (Term, error) {
	t := Term{Text: word}
	body := word
	if len(body) > 1 && body[0] == '-' {
		t.Not, body = true, body[1:]
	}
	at := strings.IndexAny(body, `:<>"`)
	if at <= 0 || body[at] == '"' {
		return flagOrWord(t, body)
	}
	name, rest := strings.ToLower(body[:at]), body[at:]
	if looksLikeMAC(body) {
		return flagOrWord(t, body)
	}
	if part := macPart(body); part != "" {
		return flagOrWord(t, part)
	}
	f, ok := queryField(name)
	if !ok {
		return t, Refuse(ErrInvalid, "unknown_field", "term", word, "field", name, "fields", fieldNames())
	}
	t.Field = name
	t.Op, rest = cutOperator(rest)
	return parseValue(t, f, rest)
}

// flagOrWord parses a term without an operator: a flag such as hold, or a search word.
func flagOrWord(t Term, body string) (Term, error) {
	if f, ok := queryField(strings.ToLower(body)); ok && f.Kind == FlagField {
		t.Field = f.Name
		return t, nil
	}
	word := strings.ReplaceAll(body, `"`, "")
	if word == "" {
		return t, Refuse(ErrInvalid, "invalid_query.empty", "term", t.Text)
	}
	t.Values = []string{word}
	return t, nil
}

// looksLikeMAC reports whether s is a pasted MAC address, whose colons are not operators.
func looksLikeMAC(s string) bool { return macSeparated.MatchString(strings.ToLower(s)) }

// macPart returns the hex digits of a MAC address or of its end, in the form printed on
// boards and boxes, such as 3E:11:f0; "" if s is neither.
func macPart(s string) string {
	if !macPartPattern.MatchString(s) {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(s, ":", ""))
}

// MACDigits returns the hex digits of a word that may be part of a MAC address with dashes,
// such as A0-85; "" otherwise. Names contain dashes too, so the search also uses the word as
// written.
func MACDigits(word string) string {
	if !macDashPattern.MatchString(word) {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(word, "-", ""))
}

func queryField(name string) (QueryField, bool) {
	i := slices.IndexFunc(QueryFields, func(f QueryField) bool { return f.Name == name })
	if i < 0 {
		return QueryField{}, false
	}
	return QueryFields[i], true
}

func fieldNames() string {
	names := make([]string, len(QueryFields))
	for i, f := range QueryFields {
		names[i] = f.Name
	}
	return strings.Join(names, ", ")
}

func cutOperator(s string) (op, rest string) {
	for _, op := range []string{"<=", ">=", "<", ">", ":"} {
		if rest, ok := strings.CutPrefix(s, op); ok {
			return op, rest
		}
	}
	return "", s
}

func parseValue(t Term, f QueryField, raw string) (Term, error) {
	t.Values = splitValues(raw)
	if len(t.Values) == 0 || f.Kind == FlagField {
		return t, Refuse(ErrInvalid, "invalid_query.no_value", "term", t.Text, "example", f.Example)
	}
	if t.Op == ":" && f.Kind != AgeField {
		return t, nil
	}
	var ok bool
	switch f.Kind {
	case VersionField:
		t.Version = VersionKey(t.Values[0])
		ok = t.Version != nil
	case AgeField:
		t.Age, ok = parseAge(t.Values[0])
		ok = ok && (t.Op == "<" || t.Op == ">")
	}
	if !ok || len(t.Values) != 1 {
		return t, Refuse(ErrInvalid, "invalid_query.no_order", "term", t.Text, "example", f.Example)
	}
	return t, nil
}

// splitValues splits at commas outside double quotes and removes the quotes.
func splitValues(s string) []string {
	var values []string
	var v strings.Builder
	quoted := false
	for _, r := range s {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ',' && !quoted:
			values = append(values, v.String())
			v.Reset()
		default:
			v.WriteRune(r)
		}
	}
	values = append(values, v.String())
	return slices.DeleteFunc(values, func(s string) bool { return s == "" })
}

// parseAge parses a duration with the units s, m, h, d, w.
func parseAge(s string) (time.Duration, bool) {
	units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour,
		'w': 7 * 24 * time.Hour}
	if len(s) < 2 {
		return 0, false
	}
	unit, ok := units[s[len(s)-1]]
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 16)
	return time.Duration(n) * unit, ok && err == nil
}
