// Package i18n is the console's message catalogue: every visible text, in every language, and the
// rules for formatting numbers and times.
//
// Both languages of a message are side by side in messages/*.json, so neither is the translation of
// the other. A text is a whole sentence with named placeholders; code never joins parts into a
// sentence.
//
// It depends on codes and their parameters (of package fleet), but on no page and no subject: a
// code from a newer version is shown unchanged. The catalogue is read once, at the start, and never
// changes; there is no lock and no goroutine.
package i18n

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/text/language"
)

// A Lang is a language of the console, as written in the lang attribute.
type Lang string

// The languages, in the order in which messages/*.json lists their texts.
const (
	English Lang = "en"
	Chinese Lang = "zh-CN"
)

// Langs are all languages, in the order of the language switch.
var Langs = []Lang{English, Chinese}

var matcher = language.NewMatcher([]language.Tag{language.English, language.SimplifiedChinese})

// Match returns the language that fits best: the operator's choice if it is supported, else the
// browser's preference, else English.
func Match(choice string, r *http.Request) Lang {
	for _, l := range Langs {
		if choice == string(l) {
			return l
		}
	}
	tags, _, _ := language.ParseAcceptLanguage(r.Header.Get("Accept-Language"))
	_, i, _ := matcher.Match(tags...)
	return Langs[i]
}

// Text returns the message with its placeholders filled. args alternates names and values: Text(l,
// "devices.count", "n", 37). A number, a time or a duration is formatted for the language. The
// value named n selects the plural form. An unknown key is returned unchanged, so that a test finds
// it and an operator can report it.
func Text(l Lang, key string, args ...any) string {
	m, ok := catalogue[key]
	if !ok {
		return "⟦" + key + "⟧"
	}
	text := m[l].form(args)
	if len(args) == 0 {
		return text
	}
	if l == Chinese {
		values := make(map[string]string, len(args)/2)
		for i := 0; i+1 < len(args); i += 2 {
			values["{"+args[i].(string)+"}"] = value(l, args[i+1])
		}
		return fillChinese(text, values)
	}
	pairs := make([]string, 0, len(args))
	for i := 0; i+1 < len(args); i += 2 {
		pairs = append(pairs, "{"+args[i].(string)+"}", value(l, args[i+1]))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// Has reports whether the catalogue contains the message.
func Has(key string) bool {
	_, ok := catalogue[key]
	return ok
}

// Raw returns the form of a message for n with unfilled placeholders, for the script that fills
// them in the browser.
func Raw(l Lang, key string, n int) string { return catalogue[key][l].form([]any{"n", n}) }

func value(l Lang, v any) string {
	switch v := v.(type) {
	case int:
		return Number(l, int64(v))
	case int64:
		return Number(l, v)
	case time.Duration:
		return Duration(l, v)
	case time.Time:
		return DateTime(l, v)
	default:
		return fmt.Sprint(v)
	}
}
