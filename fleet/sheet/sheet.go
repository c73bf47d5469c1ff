// Package sheet protects tables that a spreadsheet may read or write: it escapes cells that a
// spreadsheet would calculate, and checks the size of a file before it is parsed.
//
// It does not depend on devices or columns. There is no lock and no goroutine.
package sheet

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// formulas are the characters at the start of text that some spreadsheet calculates, executes
// (|) or splits (;). The last four are full-width forms, which East Asian editions read as
// the first four.
const formulas = "=+-@|;\uff1d\uff0b\uff0d\uff20"

// calculated reports whether a spreadsheet may interpret the text. Spreadsheets skip blanks
// and zero-width characters before a formula.
func calculated(s string) bool {
	for i, r := range s {
		switch {
		case strings.ContainsRune(formulas, r):
			return true
		case i == 0 && (r == '\t' || r == '\r' || r == '\n'):
			return true
		case !unicode.IsSpace(r) && !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zs) && r != utf8.RuneError:
			return false
		}
	}
	return false
}

// Shield makes a text safe as the cell of a table. If a spreadsheet may calculate it, Shield
// puts a ' before it, which marks text there. [Unshield] undoes it.
func Shield(s string) string {
	if calculated(s) || marked(s) {
		return "'" + s
	}
	return s
}

// Unshield returns the text from which [Shield] made s.
func Unshield(s string) string {
	if marked(s) {
		return s[1:]
	}
	return s
}

// marked reports whether Shield may have put the first character before another text.
func marked(s string) bool {
	return len(s) > 1 && s[0] == '\'' && (s[1] == '\'' || calculated(s[1:]))
}

// Limits are the limits of a CSV file.
type Limits struct {
	Columns   int // cells of one line
	CellBytes int // bytes of one cell, quotes included
}

// A BoundError is the place where a file exceeds its limits.
type BoundError struct {
	Line    int  // first line of the record, from 1
	Columns bool // too many cells; otherwise a cell is too large
}

func (e *BoundError) Error() string {
	if e.Columns {
		return fmt.Sprintf("line %d has too many cells", e.Line)
	}
	return fmt.Sprintf("line %d has a cell that is too large", e.Line)
}

// Check checks a file before it is parsed and allocates nothing; encoding/csv needs some 40
// bytes for each comma. It splits records and cells as encoding/csv does, with comma, an
// ASCII character, as the separator. After an invalid quote both skip the rest of the line.
// The error is a [BoundError].
func Check(text []byte, comma byte, l Limits) error {
	for line := 1; len(text) > 0; {
		first, cells := line, 1
		for more := true; more; {
			var size int
			if text, size, more = cell(text, comma, &line); size > l.CellBytes {
				return &BoundError{Line: first}
			}
			if more {
				if cells++; cells > l.Columns {
					return &BoundError{Line: first, Columns: true}
				}
			}
		}
	}
	return nil
}

// cell skips one cell and its separator, or the rest of the line if it is the last cell. more
// reports whether another cell follows in the record.
func cell(text []byte, comma byte, line *int) (rest []byte, size int, more bool) {
	if len(text) > 0 && text[0] == '"' {
		size = 1
		for {
			i := bytes.IndexByte(text[size:], '"')
			if i < 0 {
				return nil, len(text), false
			}
			*line += bytes.Count(text[size:size+i], []byte{'\n'})
			if size += i + 1; size == len(text) || text[size] != '"' {
				break
			}
			size++
		}
		if size < len(text) && text[size] == comma {
			return text[size+1:], size, true
		}
		return nextLine(text[size:], line), size, false
	}
	size = len(text)
	for i, c := range text {
		switch c {
		case comma:
			return text[i+1:], i, true
		case '"', '\n':
			return nextLine(text[i:], line), i, false
		}
	}
	return nil, size, false
}

func nextLine(text []byte, line *int) []byte {
	i := bytes.IndexByte(text, '\n')
	if i < 0 {
		return nil
	}
	*line++
	return text[i+1:]
}
