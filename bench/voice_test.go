package main

import (
	"strings"
	"testing"
)

// withSection replaces the section of conversations in place, or inserts it
// before the figures of other commands.
func TestWithSection(t *testing.T) {
	section := voiceHeading + "\nnew\n"
	for _, tt := range []struct{ report, want string }{
		{"# M\n\n## A\n\na\n", "# M\n\n## A\n\na\n\n" + section},
		{"# M\n\n## A\n\na\n\n" + keptHeading + "\n\nk\n", "# M\n\n## A\n\na\n\n" + section + "\n" + keptHeading + "\n\nk\n"},
		{"# M\n\n" + voiceHeading + "\nold\n\n## One call costs\n\nc\n", "# M\n\n" + section + "\n## One call costs\n\nc\n"},
		{"# M\n\n" + voiceHeading + "\nold\n", "# M\n\n" + section},
	} {
		if got := withSection(tt.report, section); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestVoiceSection(t *testing.T) {
	var b strings.Builder
	relayed := talk{P50: 2, P99: 20, Back: 100, CPU: 25}
	r := round{Voice: voiceReading{Echo: talk{P50: 1, P99: 2}, Relayed: relayed, KiB: 16}}
	voiceSection(&b, []round{r}, "")
	for _, line := range []string{"more than plain UDP | <= 2 | 1.00 | met |", "more than plain UDP | <= 15 | 18.00 | **missed** |",
		"came back, % | >= 100 | 100 | met |", "% of a core | <= 30 | 25.00 | met |", "KiB | <= 64 | 16.00 | met |"} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("no line %q in\n%s", line, b.String())
		}
	}
}
