package plugin

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// write writes a file that has been left alone for a minute.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

// described returns each plug-in as NAME=COMMAND or NAME=COMMAND!PROBLEM.
func described(list []Plugin) string {
	var all []string
	for _, p := range list {
		text := p.Name + "=" + strings.Join(p.Manifest.Command, " ")
		if !p.Problem.Is("") {
			text += "!" + p.Problem.Code
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func TestDirectory(t *testing.T) {
	path := t.TempDir()
	at := func(name string) string { return filepath.Join(path, name) }
	d := directory{path: path}
	check := func(what, want string, wantChanged bool) {
		t.Helper()
		list, changed := d.scan()
		if got := described(list); got != want || changed != wantChanged {
			t.Errorf("%s: %s (changed: %t), want %s (%t)", what, got, changed, want, wantChanged)
		}
	}
	check("empty", "", false)
	write(t, at("a.yaml"), "command: one")
	write(t, at("notes.txt"), "command: no")
	write(t, at(".hidden.yaml"), "command: no")
	if err := os.Mkdir(at("dir.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	check("added", "a=one", true)
	check("the same", "a=one", false)
	write(t, at("a.yaml"), "command: other")
	check("changed", "a=other", true)
	write(t, at("a.yaml"), "command: [")
	check("broken: the last right one stays", "a=other!plugin_manifest", true)
	check("still broken", "a=other!plugin_manifest", false)
	write(t, at("a.yml"), "command: second")
	write(t, at("Bad Name.yaml"), "command: x")
	old := time.Now().Add(-time.Minute)
	if err := errors.Join(syscall.Mkfifo(at("pipe.yaml"), 0o644), os.Chtimes(at("pipe.yaml"), old, old)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", at("gone.yaml")); err != nil {
		t.Fatal(err)
	}
	const all = "Bad Name.yaml=!plugin_name, a=other!plugin_manifest, a.yml=second!plugin_duplicate, gone=!plugin_unreadable, pipe=!plugin_unreadable"
	check("bad ones", all, true)
	check("bad ones again", all, false)
	if err := os.Rename(path, path+"-away"); err != nil {
		t.Fatal(err)
	}
	check("the directory is away", all, true)
	check("still away", all, false)
	if err := os.Rename(path+"-away", path); err != nil {
		t.Fatal(err)
	}
	check("it is back", all, true)
	for _, name := range []string{"a.yaml", "pipe.yaml", "gone.yaml", "Bad Name.yaml"} {
		if err := os.Remove(at(name)); err != nil {
			t.Fatal(err)
		}
	}
	check("removed", "a=second", true)

	if err := os.WriteFile(at("a.yml"), []byte("command: half"), 0o644); err != nil {
		t.Fatal(err)
	}
	check("just written", "a=second", false)
	write(t, at("a.yml"), "command: whole")
	check("left alone", "a=whole", true)
}

// Kubernetes mounts a ConfigMap as links through a directory that it replaces as a whole.
func TestDirectoryOfLinks(t *testing.T) {
	path := t.TempDir()
	mount := func(version, text string) {
		dir := filepath.Join(path, version)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "a.yaml"), text)
		if err := os.Symlink(version, filepath.Join(path, "..tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(path, "..tmp"), filepath.Join(path, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	mount("..1", "command: one")
	if err := os.Symlink("..data/a.yaml", filepath.Join(path, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	d := directory{path: path}
	if list, _ := d.scan(); described(list) != "a=one" || list[0].Directory != path {
		t.Errorf("%+v", list)
	}
	mount("..2", "command: two") // of the same size and nearly the same age
	if list, changed := d.scan(); described(list) != "a=two" || !changed {
		t.Errorf("%+v", list)
	}
}

// A manifest of the database names only files in the directory, and nothing that loads code.
func TestConfine(t *testing.T) {
	path, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(path, "weather"), "x")
	write(t, filepath.Join(path, "a.env"), "A=1")
	write(t, filepath.Join(outside, "evil"), "x")
	for link, to := range map[string]string{"evil": filepath.Join(outside, "evil"), "etc": "/etc", "good": "weather"} {
		if err := os.Symlink(to, filepath.Join(path, link)); err != nil {
			t.Fatal(err)
		}
	}
	s := New(Options{Directory: path})
	for _, m := range []Manifest{{Command: Words{"./weather", "-x"}}, {Command: Words{filepath.Join(path, "weather")}},
		{Command: Words{"./good"}, EnvFiles: []string{"./a.env"}, Env: map[string]string{"API_KEY": "x"}}, {URL: "https://x.test/"}} {
		if err := s.confine(m); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	refused := map[string]Manifest{}
	for _, program := range []string{"sh", "weather", "/bin/sh", "./evil", "./etc/passwd", "../" + filepath.Base(outside) + "/evil", "./missing", "./", "./../x"} {
		refused["command "+program] = Manifest{Command: Words{program}}
	}
	for _, name := range []string{"LD_PRELOAD", "ld_library_path", "PATH", "HOME", "NODE_OPTIONS", "PYTHONPATH", "BASH_ENV", "PERL5OPT", "RUBYOPT",
		"JAVA_TOOL_OPTIONS", "GCONV_PATH", "OPENSSL_CONF", "GIT_SSH_COMMAND"} {
		refused["env "+name] = Manifest{Command: Words{"./weather"}, Env: map[string]string{name: "x"}}
	}
	refused["user root"] = Manifest{Command: Words{"./weather"}, User: "root"}
	refused["directory /"] = Manifest{Command: Words{"./weather"}, Directory: "/"}
	refused["env_files /etc/passwd"] = Manifest{Command: Words{"./weather"}, EnvFiles: []string{"./a.env", "/etc/passwd"}}
	refused["headers_file /etc/shadow"] = Manifest{URL: "https://x.test/", HeadersFile: "/etc/shadow"}
	for _, what := range slices.Sorted(maps.Keys(refused)) {
		err := s.confine(refused[what])
		if err == nil {
			t.Errorf("%s is allowed", what)
			continue
		}
		if _, field, _ := refusalOf(t, err); field != strings.Fields(what)[0] {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := New(Options{}).confine(Manifest{Command: Words{"/bin/sh"}}); err == nil {
		t.Error("a program is allowed without a directory")
	}
}
