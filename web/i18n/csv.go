package i18n

import "strings"

// CSVCell makes a text safe for a spreadsheet: one that begins like a formula
// gets an apostrophe in front, which shows it as text.
func CSVCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
