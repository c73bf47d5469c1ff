package i18n

import (
	"io/fs"
	"regexp"
	"testing"
)

// encoding/json uses the last of two equal keys of an object and silently drops the first.
func TestEachKeyIsDefinedOnce(t *testing.T) {
	names, err := fs.Glob(files, "messages/*.json")
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]string{}
	for _, name := range names {
		b, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?m)^\s*"([^"]+)": \[`).FindAllSubmatch(b, -1) {
			key := string(found[1])
			if before, ok := in[key]; ok {
				t.Errorf("%s is defined in %s and in %s", key, before, name)
			}
			in[key] = name
		}
	}
	if len(in) < 1000 {
		t.Errorf("only %d keys were found", len(in))
	}
}
