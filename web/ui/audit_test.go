package ui

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fleetd/fleet/call"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// Each recorded action has a text in the console.
func TestAuditActionsHaveWords(t *testing.T) {
	has := func(where, kind, verb string) {
		if !i18n.Has("audit.kind." + kind) {
			t.Errorf("%s: no audit.kind.%s in the catalogue", where, kind)
		}
		if verb != "" && !i18n.Has("audit.verb."+verb) {
			t.Errorf("%s: no audit.verb.%s in the catalogue", where, verb)
		}
	}
	action := regexp.MustCompile(`"(campaign|device|keys)\.([a-z_]+)"|(?:audit(?:ed)?|auditArgs)\([^"]*"([a-z_]+)\.([a-z_]*)"`)
	seen := 0
	err := filepath.WalkDir("../../fleet", func(file string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		b, err := os.ReadFile(file)
		for _, m := range action.FindAllStringSubmatch(string(b), -1) {
			seen++
			has(file, m[1]+m[3], m[2]+m[4])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 60 {
		t.Errorf("only %d actions found", seen)
	}
	for _, s := range []call.FanOutState{call.FanOutRunning, call.FanOutCompleted, call.FanOutCanceled,
		call.FanOutRefused} {
		has("a fan-out's state", "fanout", string(s))
	}
	for _, s := range []firmware.ReleaseState{firmware.ReleaseReleased, firmware.ReleaseDeprecated,
		firmware.ReleaseRevoked} {
		has("a release's state", "release", string(s))
	}
}
