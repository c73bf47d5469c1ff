package i18n

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// fillChinese fills the placeholders of a Chinese text and sets the space at both ends of each
// value: a space between Chinese characters and a Latin word or a number, none between Chinese
// characters. Only the value itself shows which of the two applies.
func fillChinese(text string, values map[string]string) string {
	var out string
	at := 0
	for _, found := range placeholder.FindAllStringIndex(text, -1) {
		value, ok := values[text[found[0]:found[1]]]
		if !ok {
			continue
		}
		out = join(out, text[at:found[0]])
		out = join(out, value)
		at = found[1]
	}
	return join(out, text[at:])
}

// join appends next to text. Marks of foreign parts do not count as characters; a space within them
// stays.
func join(text, next string) string {
	before, _ := utf8.DecodeLastRuneInString(Unmarked(strings.TrimSuffix(text, " ")))
	after, _ := utf8.DecodeRuneInString(Unmarked(strings.TrimPrefix(next, " ")))
	switch {
	case isWide(before) && isWide(after):
		return strings.TrimSuffix(text, " ") + strings.TrimPrefix(next, " ")
	case strings.HasSuffix(text, " ") || strings.HasPrefix(next, " "):
	case unicode.Is(unicode.Han, before) && isNarrow(after), isNarrow(before) && unicode.Is(unicode.Han, after):
		return text + " " + next
	}
	return text + next
}

// isWide reports whether a character needs no space next to a Chinese one.
func isWide(r rune) bool {
	return unicode.Is(unicode.Han, r) || strings.ContainsRune("“”‘’（）《》，。；：、！？", r)
}

func isNarrow(r rune) bool {
	return (unicode.IsLetter(r) || unicode.IsDigit(r)) && !unicode.Is(unicode.Han, r)
}
