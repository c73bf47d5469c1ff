package terminal_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetd/cmd/fleetd/terminal"
)

func TestReadSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := []struct {
		name, given, file string
		want, failure     string
		warned            bool
	}{
		{"none", "given", "", "given", "", false},
		{"a line", "", write("a", "s3cret\n", 0o600), "s3cret", "", false},
		{"blanks stay", "", write("b", " s3cret \r\n", 0o640), " s3cret ", "", false},
		{"world-readable", "", write("c", "s3cret", 0o644), "s3cret", "", true},
		{"the same twice", "s3cret", write("d", "s3cret\n", 0o600), "s3cret", "", false},
		{"two", "other", write("e", "s3cret\n", 0o600), "", "both set", false},
		{"empty", "", write("f", "\n", 0o600), "", "empty", false},
		{"missing", "", filepath.Join(dir, "nope"), "", "no such file", false},
		{"large", "", write("g", strings.Repeat("x", 70_000), 0o600), "", "64 KiB", false},
	}
	for _, tt := range tests {
		value, warned := tt.given, false
		err := terminal.ReadSecrets(func(string, string) { warned = true }, terminal.Secret{Flag: "--x", Value: &value,
			File: tt.file})
		switch {
		case tt.failure != "":
			if err == nil || !strings.Contains(err.Error(), tt.failure) || !strings.Contains(err.Error(), "--x") ||
				strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.failure)
			}
		case err != nil || value != tt.want || warned != tt.warned:
			t.Errorf("%s: %q, warned %t, %v", tt.name, value, warned, err)
		}
	}
}
