package main

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fleetd/internal/bus"
)

// fleetdIn runs a command that needs no server, and returns its exit code and
// what it prints.
func fleetdIn(t *testing.T, dir string, args ...string) (int, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), beFleetd+"=1")
	out, err := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func TestClusterCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(wantExit int, want string, args ...string) string {
		t.Helper()
		exit, out := fleetdIn(t, dir, args...)
		if exit != wantExit || !strings.Contains(out, want) {
			t.Errorf("fleetd %s: exit %d, %s; want exit %d and %q", strings.Join(args, " "), exit, out, wantExit, want)
		}
		return out
	}
	cert := func(args ...string) []string {
		return append([]string{"cluster", "cert", "--dir", "c", "--role"}, args...)
	}

	out := run(0, "fleetd cluster cert --dir "+filepath.Join(dir, "c")+" NAME", "cluster", "init", "c")
	m := regexp.MustCompile(`cluster ([0-9a-f]{16});`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no id: %s", out)
	}
	run(1, "already contains", "cluster", "init", "c")

	run(0, "core core-1, valid until", cert("core", "core-1")...)
	run(0, "edge edge-1, valid until", cert("edge", "edge-1", "--out", "elsewhere", "--host", "a.example,10.0.0.7", "--days", "30")...)
	for path, want := range map[string]bus.Node{"c/core-1": {Name: "core-1", Role: bus.Core},
		"elsewhere": {Name: "edge-1", Role: bus.Edge}} {
		id, err := bus.Open(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if id.Node != want || string(id.Cluster) != m[1] {
			t.Errorf("%s is %v of the cluster %s, want %v of %s", path, id.Node, id.Cluster, want, m[1])
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "elsewhere/node.pem"), filepath.Join(dir, "elsewhere/node-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"a.example", "10.0.0.7"} {
		if err := pair.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}

	run(2, "a-z", cert("edge", "Edge_1")...)
	run(2, "--role", cert("all", "edge-2")...)
	run(2, "--days", cert("edge", "edge-2", "--days", "0")...)
	run(1, "no node may have", cert("edge", "edge-2", "--out", "c")...)
	_, err = bus.Open(filepath.Join(dir, "c"))
	if err == nil || !strings.Contains(err.Error(), "fleetd cluster cert") {
		t.Errorf("the cluster's directory as that of a node: %v", err)
	}

	// One file has the CA's key, and each key is private.
	keys := make(map[string]fs.FileMode)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if info, _ := d.Info(); strings.Contains(string(text), "PRIVATE KEY") {
			name, _ := filepath.Rel(dir, path)
			keys[name] = info.Mode().Perm()
		}
		return err
	})
	if err != nil || len(keys) != 3 {
		t.Errorf("%v: keys in %v", err, keys)
	}
	for _, name := range []string{"c/ca-key.pem", "c/core-1/node-key.pem", "elsewhere/node-key.pem"} {
		if keys[name] != 0o600 {
			t.Errorf("%s has mode %o", name, keys[name])
		}
	}

	run(0, "--host=NAME,...", "cluster", "cert", "--help")
}
