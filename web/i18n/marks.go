package i18n

import "strings"

// Foreign text within a text of ours stands between these: the isolates of
// Unicode, which cleaned text does not have.
const markBegin, markEnd = "\u2068", "\u2069"

// A Piece is a part of a text of ours.
type Piece struct {
	Text    string
	Foreign bool // a device, an operator or a program wrote it
}

// Mark marks text as foreign within a text of ours.
func Mark(text string) string {
	if text == "" {
		return ""
	}
	return markBegin + Unmarked(text) + markEnd
}

// Unmarked is the text without its marks.
func Unmarked(text string) string {
	return strings.NewReplacer(markBegin, "", markEnd, "").Replace(text)
}

// Pieces divides a text at its marks. A text that was cut within a foreign part
// has no end of it.
func Pieces(text string) []Piece {
	var all []Piece
	add := func(text string, foreign bool) {
		if text = Unmarked(text); text != "" {
			all = append(all, Piece{text, foreign})
		}
	}
	for text != "" {
		ours, rest, _ := strings.Cut(text, markBegin)
		foreign, after, _ := strings.Cut(rest, markEnd)
		add(ours, false)
		add(foreign, true)
		text = after
	}
	return all
}
