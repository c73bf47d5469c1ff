package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleetd/broker/sim"
)

// exits runs a command that is to fail and returns its exit code and words.
func (d *daemon) exits(args ...string) (int, string) {
	d.t.Helper()
	cmd := d.command(args...)
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(out)
}

// made runs a command and returns a field of the JSON that it prints.
func (d *daemon) made(field string, args ...string) string {
	d.t.Helper()
	var v map[string]any
	if err := json.Unmarshal(d.run(args...), &v); err != nil {
		d.t.Fatalf("fleetd %s: %v", strings.Join(args, " "), err)
	}
	text, _ := v[field].(string)
	return text
}

func writeImage(t *testing.T, board, version string) string {
	t.Helper()
	data, err := sim.AppImage(board, version, 200_000)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), board+".bin")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// From a file to devices that run it, with nothing but commands.
func TestCampaignByCommand(t *testing.T) {
	t.Parallel()
	const board = "bread-compact-wifi"
	d := newDaemon(t)
	d.simulate(sim.Options{Devices: 3, Boards: []string{board}, Seed: 7, TimeScale: 0.05,
		BootDelay: 200 * time.Millisecond})
	d.listed(3)

	image := d.made("sha256", "image", "push", writeImage(t, board, "9.1.0"), "--board", board, "--notes", "from a test")
	release := d.made("id", "release", "create", image)
	plan := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(plan, []byte(
		`{"waves":[{"name":"canary","count":1,"soak_ms":0},{"name":"rest","percent":100,"soak_ms":0}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	create := []string{"campaign", "create", "--name", "spring", "--release", release, "--q", "board:" + board, "--plan",
		plan}
	if out := d.run(append(create, "--dry-run")...); !bytes.Contains(out, []byte(`"targets": 3`)) {
		t.Errorf("the dry run printed %s", out)
	}
	id := d.made("id", append(create, "--start")...)
	seen := bytes.Split(bytes.TrimSpace(d.run("campaign", "show", id, "--watch", "--every", "200ms")), []byte("\n"))
	var last struct {
		State  string
		Counts map[string]int
	}
	if err := json.Unmarshal(seen[len(seen)-1], &last); err != nil || last.State != "completed" ||
		last.Counts["succeeded"] != 3 {
		t.Errorf("it ended %s", seen[len(seen)-1])
	}
	if out := d.run("campaign", "deployments", id, "--state", "succeeded"); bytes.Count(out,
		[]byte(`"to_version": "9.1.0"`)) != 3 {
		t.Errorf("the deployments are %s", out)
	}
	if out := d.run("device", "list", "version:9.1.0"); bytes.Count(out, []byte(`"mac"`)) != 3 {
		t.Errorf("the devices are %s", out)
	}
	d.commandsThatFail(id, image)
}

func (d *daemon) commandsThatFail(campaign, image string) {
	d.t.Helper()
	text := filepath.Join(d.t.TempDir(), "text.bin")
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		d.t.Fatal(err)
	}
	tests := []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"image", "push", text}, 1, "image_"},
		{[]string{"image", "push", "/nowhere"}, 2, "no such file"},
		{[]string{"image", "delete", image}, 1, "image_in_use"},
		{[]string{"image", "show", strings.Repeat("0", 64)}, 1, "unknown_image"},
		{[]string{"release", "create", strings.Repeat("0", 64)}, 1, "unknown_image"},
		{[]string{"release", "create"}, 2, "sha256"},
		{[]string{"campaign", "show", "7"}, 1, "path.id"},
		{[]string{"campaign", "start", campaign}, 1, "wrong_state"},
		{[]string{"campaign", "create", "--name", "x"}, 2, "--release"},
		{[]string{"campaign", "create", "--mode", "fly"}, 2, "--mode"},
	}
	for _, tt := range tests {
		if exit, out := d.exits(tt.args...); exit != tt.exit || !strings.Contains(out, tt.want) {
			d.t.Errorf("fleetd %s: exit %d, %s; want exit %d and %q", strings.Join(tt.args, " "), exit, out, tt.exit, tt.want)
		}
	}
}
