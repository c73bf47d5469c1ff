package client

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The author of a build controls the names in flasher_args.json.
func TestLayoutFilesAreFilesOfTheBuild(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "table.bin"), []byte("table"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"table.bin":     "",
		"missing.bin":   "no such file",
		"pipe":          "not a regular file",
		".":             "not a regular file",
		"../table.bin":  "outside",
		"/dev/zero":     "outside",
		"a/../../b.bin": "outside",
	} {
		var body bytes.Buffer
		err := addFile(multipart.NewWriter(&body), dir, name)
		switch {
		case want == "" && (err != nil || !strings.Contains(body.String(), "table")):
			t.Errorf("%s: %v, sent %q", name, err, body.String())
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// A foreign flasher_args.json cannot name a local file outside the build.
func TestLayoutNamesItsOwnApp(t *testing.T) {
	for _, app := range []string{"../../etc/passwd", "/etc/passwd"} {
		dir := t.TempDir()
		args := fmt.Sprintf(`{"flash_files":{"0x0":"b.bin"},"app":{"file":%q}}`, app)
		if err := os.WriteFile(filepath.Join(dir, flasherArgsFile), []byte(args), 0o600); err != nil {
			t.Fatal(err)
		}
		push := imagePush{Layout: dir}
		if _, err := push.buildFiles(); err == nil || !strings.Contains(err.Error(), "outside") || push.File != "" {
			t.Errorf("%s: %v, would push %q", app, err, push.File)
		}
	}
}

func TestKeysAndManifestsAreSmall(t *testing.T) {
	if _, err := readSmall("/dev/zero"); err == nil || !strings.Contains(err.Error(), "larger than 64 KiB") {
		t.Errorf("read from a file without an end: %v", err)
	}
}
