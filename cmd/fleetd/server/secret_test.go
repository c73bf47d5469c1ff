package server

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecretKeyFile(t *testing.T) {
	t.Setenv("FLEETD_SECRET_KEY", "")
	dir := filepath.Join(t.TempDir(), "data")
	key, err := secretKey(dir)
	if err != nil || len(key) != secretBytes {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "secret.key")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v: %v", info, err)
	}
	if again, err := secretKey(dir); err != nil || !bytes.Equal(again, key) {
		t.Errorf("another key at the second start: %v", err)
	}
	for _, mode := range []os.FileMode{0o644, 0o604, 0o640} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := secretKey(dir)
		if refused := err != nil && strings.Contains(err.Error(), "chmod 600"); refused != (mode&0o007 != 0) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	// The file that a killed start left behind, readable by all, does not pass on its
	// mode.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := secretKey(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("after a leftover: %v: %v", info, err)
	}
}

// The flags of the process may contain passwords.
func TestAdminListenerHidesTheCommandLine(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://localhost/debug/pprof/cmdline", nil)
	(&adminServer{reg: newMetrics().registry}).handler().ServeHTTP(w, r)
	if w.Code != http.StatusNotFound {
		t.Errorf("answered %d %q", w.Code, w.Body)
	}
}
