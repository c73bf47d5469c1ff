package fleet_test

import (
	"strings"
	"testing"

	"fleetd/fleet"
)

// Forms limit text in characters, and a Chinese character has three bytes.
func TestLinesAreBoundedInCharacters(t *testing.T) {
	for _, s := range []string{strings.Repeat("x", 120), strings.Repeat("厅", 120), strings.Repeat("🤖", 120)} {
		if got, err := fleet.CleanLine("name", s, 120); err != nil || got != s {
			t.Errorf("CleanLine of 120 characters, %d bytes = %q, %v", len(s), got, err)
		}
		if _, err := fleet.CleanLine("name", s+"厅", 120); err == nil {
			t.Errorf("121 characters, %d bytes, were accepted", len(s))
		}
	}
}
