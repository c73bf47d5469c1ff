package embedded

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Each refusal is one sentence that says what to do, and changes nothing.
func TestRefusals(t *testing.T) {
	tests := []struct {
		name    string
		binDir  string
		prepare func(t *testing.T, dir string)
		want    []string
	}{
		{"another major", "", files("postgres/PG_VERSION", "99\n"), []string{"PostgreSQL 99", "this machine has PostgreSQL",
			"apt-get install postgresql-99"}},
		{"too old a major", "", files("postgres/PG_VERSION", "14\n"), []string{"PostgreSQL 14", "needs 15 or newer",
			"pg_upgrade"}},
		{"ancient major", "", files("postgres/PG_VERSION", "9.6\n"), []string{"9.6", "move the directory away"}},
		{"foreign files", "", files("postgres/thesis.txt", "all my work"), []string{"no PostgreSQL cluster", "move it away"}},
		{"a cluster itself", "", files("PG_VERSION", "15\n"), []string{"is itself a PostgreSQL data directory",
			"--database-url"}},
		{"no binaries", "/nonexistent", files("some/file", ""), []string{"no PostgreSQL 15 or newer in /nonexistent"}},
		{"a root's cluster", "", func(t *testing.T, dir string) {
			needRoot(t)
			files("postgres/PG_VERSION", "15\n")(t, dir)
		}, []string{"belongs to root", "chown -R postgres"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.prepare(t, dir)
			if tt.name == "another major" || tt.name == "too old a major" {
				giveAway(t, dir)
			}
			before := listing(t, dir)
			s, err := Start(t.Context(), Options{DataDir: dir, BinDir: tt.binDir})
			if err == nil {
				stop(t, s)
				t.Fatal("started")
			}
			checkSentence(t, err.Error(), tt.want...)
			if diff := cmp.Diff(before, listing(t, dir)); diff != "" {
				t.Errorf("the disk changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestNoServerInstalled(t *testing.T) {
	t.Setenv("PATH", "/nonexistent")
	old := versionedDirs
	versionedDirs = "/nonexistent/*/bin"
	t.Cleanup(func() { versionedDirs = old })
	dir := filepath.Join(t.TempDir(), "data")
	_, err := Start(t.Context(), Options{DataDir: dir})
	if err == nil {
		t.Fatal("started")
	}
	checkSentence(t, err.Error(), "apt-get install postgresql-15", "--database-url")
	if _, err := os.Stat(dir); err == nil {
		t.Error("the data directory was made")
	}
}

func TestUnwritable(t *testing.T) {
	needRoot(t)
	parent := publicDir(t, "") // root's; the other user may not write to it
	for _, dir := range []string{parent, filepath.Join(parent, "data")} {
		msg := startHelper(t, dir, "nobody").failure(t)
		checkSentence(t, msg, "user nobody cannot write to the data directory "+dir, "permission denied", "--data-dir")
	}
	checkSentence(t, startHelper(t, "/proc/data", "").failure(t), "cannot write", "--data-dir")
	if got := listing(t, parent); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

func TestDataDirIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{DataDir: path})
	if err == nil {
		t.Fatal("started")
	}
	checkSentence(t, err.Error(), path, "not a directory", "--data-dir")
}

func TestUsersClusterOfAnother(t *testing.T) {
	needRoot(t)
	dir := publicDir(t, "")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	stop(t, start(t, dir))
	msg := startHelper(t, dir, "nobody").failure(t)
	checkSentence(t, msg, "user nobody", "the user that started it first")
}

func TestDiskFull(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=20m"); err != nil {
		t.Skipf("cannot mount a small disk: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, 0) })
	_, err := Start(t.Context(), Options{DataDir: filepath.Join(dir, "data")})
	if err == nil {
		t.Fatal("started")
	}
	checkSentence(t, err.Error(), "only 20 MB are free", "free some space")
	if got := listing(t, dir); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

func TestTwoAtOnce(t *testing.T) {
	dir := t.TempDir()
	startHelper(t, dir, "").ready(t)
	_, err := Start(t.Context(), Options{DataDir: dir})
	if err == nil {
		t.Fatal("a second server started")
	}
	checkSentence(t, err.Error(), "in use by another fleetd (pid ", "--data-dir")
}

func files(name, content string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// giveAway hands root's cluster to a user that a server may run as.
func giveAway(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	uid, gid := lookup(t, "nobody")
	if err := os.Chown(filepath.Join(dir, "postgres"), int(uid), int(gid)); err != nil {
		t.Fatal(err)
	}
}

func listing(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if path != dir {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func checkSentence(t *testing.T, msg string, want ...string) {
	t.Helper()
	t.Log(msg)
	if strings.Contains(msg, "\n") {
		t.Errorf("%q has more than one line", msg)
	}
	for _, w := range want {
		if !strings.Contains(msg, w) {
			t.Errorf("%q does not say %q", msg, w)
		}
	}
}
