// Package terminal prints the results of fleetd's commands: aligned tables on a terminal,
// JSON for a script. It cleans text from other sources, such as a device's name, so the
// text cannot control the terminal.
//
// It does not depend on devices or servers, and has no state: callers pass rows of text.
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

// Table prints aligned rows under a heading, whose words are the column names.
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

// Printable replaces control characters and the characters that change the direction of
// text.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) || (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069) {
			return '·'
		}
		return r
	}, s)
}
