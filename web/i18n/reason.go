package i18n

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"fleetd/fleet"
)

// Because returns the text of a code: message prefix+code with the code's parameters, each
// formatted according to the end of its name (see [fleet.Params]). The parameter "case" selects
// among messages prefix+code+"."+case. zone is the reader's zone. A parameter that is a reason gets
// the same prefix. A code without a message is returned unchanged: it came from a newer version, or
// from a device or server.
func Because(l Lang, zone *time.Location, prefix string, r fleet.Reason) string {
	return writer{lang: l, zone: zone, prefix: prefix, nested: prefix}.text(r)
}

// BecauseMarked is [Because] with its foreign parts marked, for [Pieces].
func BecauseMarked(l Lang, zone *time.Location, prefix string, r fleet.Reason) string {
	return writer{lang: l, zone: zone, prefix: prefix, nested: prefix, mark: true}.text(r)
}

// otherPrefixes are further prefixes for codes that are parameters of another code. The reason why an
// image is withheld is a part of refusals and also of the records of campaigns; that of a plug-in's
// end is a part of an alert.
var otherPrefixes = map[string][]string{reasonPrefix: {errorPrefix}, errorPrefix: {reasonPrefix},
	alertPrefix: {reasonPrefix, errorPrefix}}

const (
	reasonPrefix = "reason."     // of a recorded [fleet.Reason]
	errorPrefix  = "error.code." // of [fleet.Error], and of everything nested in it
	callPrefix   = "call.error." // of [fleet.CallError]
	alertPrefix  = "alert.what." // of an alert
)

// Error returns the text of an error for a page: a sentence in the reader's language.
func Error(l Lang, zone *time.Location, e *fleet.Error) string {
	return Unmarked(ErrorMarked(l, zone, e))
}

// ErrorMarked is [Error] with its foreign parts marked, for [Pieces].
func ErrorMarked(l Lang, zone *time.Location, e *fleet.Error) string {
	return writer{lang: l, zone: zone, prefix: errorPrefix, nested: errorPrefix, sentence: true, mark: true, terms: true}.
		text(e.Reason())
}

// ErrorDetail returns the text of an error for programs, logs and terminals: English that can be
// part of a larger sentence.
func ErrorDetail(e *fleet.Error) string { return Detail(errorPrefix, e.Reason()) }

// Detail is [Because] for programs and terminals.
func Detail(prefix string, r fleet.Reason) string {
	return writer{lang: English, prefix: prefix, nested: prefix}.text(r)
}

// CallError returns the cause of a failed call for a page. foreign reports whether the text came
// from the device or from an older version.
func CallError(l Lang, zone *time.Location, e *fleet.CallError) (text string, foreign bool) {
	text, foreign = CallErrorMarked(l, zone, e)
	return Unmarked(text), foreign
}

// CallErrorMarked is [CallError] with the foreign parts of the console's texts marked, for
// [Pieces].
func CallErrorMarked(l Lang, zone *time.Location, e *fleet.CallError) (text string, foreign bool) {
	return callError(writer{lang: l, zone: zone, prefix: callPrefix, nested: errorPrefix, sentence: true, mark: true,
		terms: true}, e)
}

// CallErrorDetail returns the cause of a failed call for programs and terminals.
func CallErrorDetail(e *fleet.CallError) string {
	text, _ := callError(writer{lang: English, prefix: callPrefix, nested: errorPrefix}, e)
	return text
}

func callError(w writer, e *fleet.CallError) (text string, foreign bool) {
	if e == nil {
		return "", false
	}
	r := e.Reason()
	if n, ok := r.Params["bytes"].(int64); ok { // both are sizes; their names on the wire are older than the rule
		limit, _ := r.Params["limit"].(int64)
		r = r.With("bytes", Bytes(w.lang, n)).With("limit", Bytes(w.lang, limit))
	}
	key := w.key(r)
	if key != "" && (e.Message == "" || filled(catalogue[key][w.lang], r.Params)) {
		return w.text(r), false
	}
	return cmp.Or(e.Message, e.Code), e.Message != ""
}

// filled reports whether every placeholder has a parameter: records of older versions have none.
func filled(texts forms, p fleet.Params) bool {
	for _, name := range placeholdersIn(texts[len(texts)-1]) {
		if _, ok := p[name]; !ok {
			return false
		}
	}
	return true
}

// A writer formats codes for one reader.
type writer struct {
	lang           Lang
	zone           *time.Location // nil for programs: times are RFC 3339
	prefix, nested string         // of the messages of a code, and of the codes in its parameters
	sentence       bool           // with a capital and a full stop
	mark           bool           // with its foreign parts marked
	terms          bool           // with the pages' names for roles and fields
}

// key returns the message key of a code, or "". A case with the same text for many codes has its
// message under "any".
func (w writer) key(r fleet.Reason) string {
	keys := []string{w.prefix + r.Code}
	if which := r.Params.Case(); which != "" {
		keys = []string{w.prefix + r.Code + "." + which, w.prefix + "any." + which, w.prefix + r.Code}
	}
	for _, key := range keys {
		if Has(key) {
			return key
		}
	}
	return ""
}

func (w writer) text(r fleet.Reason) string {
	key := w.key(r)
	if key == "" {
		return r.Code
	}
	args := make([]any, 0, 2*len(r.Params))
	for name, value := range r.Params {
		if at, ok := value.(string); ok && w.zone != nil && strings.HasSuffix(name, "_time") {
			args = append(args, name, w.moment(r.Params, at))
			continue
		}
		args = append(args, name, w.param(name, value))
	}
	text := Text(w.lang, key, args...)
	if w.sentence && w.lang == English {
		return sentence(catalogue[key][English].form(args), text)
	}
	return text
}

// moment formats one of the times of a reason: as time of day alone if all times are on one day, to
// the second if they are close to each other.
func (w writer) moment(all fleet.Params, text string) string {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return text
	}
	at = at.In(w.zone)
	layout := "15:04"
	for name, value := range all {
		other, _ := value.(string)
		o, err := time.Parse(time.RFC3339, other)
		switch {
		case err != nil || !strings.HasSuffix(name, "_time"):
		case o.In(w.zone).Format(time.DateOnly) != at.Format(time.DateOnly):
			return DateTime(w.lang, at)
		case o.Sub(at).Abs() < 2*time.Minute && !o.Equal(at):
			layout = time.TimeOnly
		}
	}
	return at.Format(layout)
}

func (w writer) param(name string, value any) any {
	switch v := value.(type) {
	case fleet.Reason:
		in := writer{lang: w.lang, zone: w.zone, prefix: w.nested, nested: w.nested, mark: w.mark, terms: w.terms}
		for _, other := range otherPrefixes[w.nested] {
			if in.key(v) == "" {
				in.prefix, in.nested = other, other
			}
		}
		return in.text(v)
	case int64:
		switch {
		case strings.HasSuffix(name, "_ms"):
			return time.Duration(v) * time.Millisecond
		case strings.HasSuffix(name, "_bytes"):
			return Bytes(w.lang, v)
		case strings.HasSuffix(name, "_hex"):
			return fmt.Sprintf("%#x", v)
		}
	case string:
		if at, err := time.Parse(time.RFC3339, v); err == nil && w.zone != nil && strings.HasSuffix(name, "_at") {
			return at.In(w.zone)
		}
		if w.terms {
			if text := term(w.lang, name, v); text != "" {
				return text
			}
		}
		if w.mark {
			return Mark(v)
		}
	}
	return value
}

// sentence gives a text its capital and full stop. A text that begins with a parameter or with the
// name of a field keeps its first letter.
func sentence(message, text string) string {
	if strings.HasPrefix(message, "{cause}") || strings.HasPrefix(message, "{act}") ||
		strings.HasPrefix(message, "{field}") { // one of the console's texts
		message = text
	}
	first, _ := utf8.DecodeRuneInString(message)
	word, _, _ := strings.Cut(message, " ")
	if unicode.IsLower(first) && !strings.ContainsAny(word, "_{") {
		text = string(unicode.ToUpper(first)) + text[utf8.RuneLen(first):]
	}
	if last, _ := utf8.DecodeLastRuneInString(text); unicode.IsPunct(last) && last != ')' && last != '"' {
		return text
	}
	return text + "."
}
