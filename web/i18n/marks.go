package i18n

import "strings"

// Foreign text within one of the console's texts is enclosed in these: the isolates of Unicode,
// which cleaned text does not contain.
const markBegin, markEnd = "\u2068", "\u2069"

// A Piece is a part of one of the console's texts.
type Piece struct {
	Text    string
	Foreign bool // written by a device, an operator or a program
}

// Mark marks text as foreign within one of the console's texts.
func Mark(text string) string {
	if text == "" {
		return ""
	}
	return markBegin + Unmarked(text) + markEnd
}

// Unmarked returns the text without its marks.
func Unmarked(text string) string {
	return strings.NewReplacer(markBegin, "", markEnd, "").Replace(text)
}

// Pieces divides a text at its marks. If a text was cut within a foreign part, that part has no end
// mark.
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
