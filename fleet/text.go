package fleet

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// CleanText makes foreign text fit to store and show: valid UTF-8, no control or
// direction-changing characters, at most limit bytes.
func CleanText(s string, limit int) string {
	if isPlain(s) && len(s) <= limit {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, s)
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// CleanLine trims a single line of text and checks that every page and table can show it.
// limit counts characters, as forms and the API document it.
func CleanLine(field, s string, limit int) (string, error) {
	s = strings.TrimSpace(s)
	if len(s) > limit && utf8.RuneCountInString(s) > limit || !utf8.ValidString(s) ||
		strings.ContainsFunc(s, unicode.IsControl) {
		return "", Refuse(ErrInvalid, "invalid_"+field+".line", "field", field, "limit", limit).At(field)
	}
	return s, nil
}
