package server

import (
	"bytes"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetd/fleet/enrolment"
)

func TestSecretKeyFile(t *testing.T) {
	t.Setenv("FLEETD_SECRET_KEY", "")
	dir := filepath.Join(t.TempDir(), "data")
	secretKey := func(dir string) ([]byte, error) {
		s, err := readSecret(dir)
		if err == nil {
			err = s.create()
		}
		return s.key, err
	}
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

// A key is refused if the database is used with another one; the sentence names the place of the
// key. Reading creates no file.
func TestSecretKeyOfTheDatabase(t *testing.T) {
	t.Setenv(secretVariable, "")
	dir := t.TempDir()
	missing, err := readSecret(dir)
	if err != nil || missing.key != nil {
		t.Fatalf("%v, key %v", err, missing.key)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("reading created %v, %v", files, err)
	}
	ours := bytes.Repeat([]byte{1}, secretBytes)
	on := enrolment.Fingerprint(ours)
	if strings.Contains(on, hex.EncodeToString(ours)) || on != enrolment.Fingerprint(ours) {
		t.Errorf("fingerprint %s", on)
	}
	path := filepath.Join(dir, "secret.key")
	for _, tt := range []struct {
		name        string
		s           secretKey
		fingerprint string
		used        bool
		want        string // part of the sentence; "": accepted
	}{
		{"the key of the database", secretKey{ours, path}, on, true, ""},
		{"a database of an earlier version", secretKey{ours, path}, "", true, ""},
		{"a new database", secretKey{ours, path}, "", false, ""},
		{"neither database nor key", missing, "", false, ""},
		{"no file", missing, on, true, path + " does not exist"},
		{"no file, and a database of an earlier version", missing, "", true, path + " does not exist"},
		{"another file", secretKey{make([]byte, secretBytes), path}, on, true, path + " does not contain"},
		{"another variable", secretKey{make([]byte, secretBytes), secretVariable}, on, true,
			secretVariable + " does not contain"},
	} {
		err := tt.s.check(tt.fingerprint, tt.used)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) ||
			!strings.Contains(err.Error(), "fleetd key reset")) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
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
