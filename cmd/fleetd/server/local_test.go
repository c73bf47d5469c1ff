package server

import (
	"io"
	"os"
	"strings"
	"testing"

	"fleetd/fleet/postgres/pgtest"
)

// The command line warns of a scope that depends on values that devices report, but
// not of a scope over tags.
func TestCommandsWarnOfClaims(t *testing.T) {
	db := Database{DataDir: t.TempDir(), DatabaseURL: pgtest.URL(t)}
	for scope, want := range map[string]string{"tag:lab": "", "tag:lab board:lock": "report about themselves: board.", "": ""} {
		stderr := errorsOf(t, func() error {
			return (&tokenCreate{Database: db, Name: "t", Role: "viewer", Kind: "program", Scope: scope}).Run(t.Context())
		})
		if warned := strings.Contains(stderr, "about themselves"); warned != (want != "") || !strings.Contains(stderr, want) {
			t.Errorf("a token with the scope %q: %s", scope, stderr)
		}
	}
	stderr := errorsOf(t, func() error {
		return (&userAdd{Database: db, Name: "eve", Role: "operator", Scope: "chip:esp32s3",
			Password: "purple-otter-lamp-33"}).Run(t.Context())
	})
	if !strings.Contains(stderr, "report about themselves: chip.") {
		t.Errorf("an operator: %s", stderr)
	}
}

// errorsOf returns the text that run writes to standard error.
func errorsOf(t *testing.T, run func() error) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	usual := os.Stderr
	os.Stderr = w
	err = run()
	os.Stderr = usual
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
