// Package terminal prints what fleetd's commands found: aligned tables for a
// person, JSON for a script. Text that others wrote, such as a device's name,
// cannot steer the terminal.
//
// It knows neither devices nor servers, and has no state: callers pass rows of text.
package terminal

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"
)

// Interactive reports whether standard output is a terminal.
func Interactive() bool { return term.IsTerminal(int(os.Stdout.Fd())) }

// JSON prints v, indented.
func JSON(v any) error {
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(v)
}

// Table prints rows under a heading, whose words are the columns, aligned.
func Table(heading string, rows [][]string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(heading, " ", "\t"))
	for _, r := range rows {
		for i := range r {
			r[i] = Printable(r[i])
		}
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// Printable replaces control characters and those that change the direction of
// the text around them.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) || (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069) {
			return '·'
		}
		return r
	}, s)
}
