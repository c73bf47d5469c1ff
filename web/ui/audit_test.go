package ui

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"fleetd/web/i18n"
)

// Each action that the store records has words in the console.
func TestAuditActionsHaveWords(t *testing.T) {
	recorded := regexp.MustCompile(`audit(?:ed)?\([^"]*"([a-z_]+)\.([a-z_]*)"`)
	files, err := filepath.Glob("../../fleet/postgres/*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range recorded.FindAllStringSubmatch(string(b), -1) {
			seen++
			if !i18n.Has("audit.kind." + m[1]) {
				t.Errorf("%s: %s.%s: no audit.kind.%s in the catalogue", file, m[1], m[2], m[1])
			}
			if m[2] != "" && !i18n.Has("audit.verb."+m[2]) {
				t.Errorf("%s: %s.%s: no audit.verb.%s in the catalogue", file, m[1], m[2], m[2])
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d actions found", seen)
	}
}
