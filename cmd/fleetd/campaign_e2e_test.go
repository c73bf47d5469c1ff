package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleetd/broker/sim"
)

// exits runs a command that must fail and returns its exit code and output.
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

// Commands alone bring an image from a file to devices that run it.
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
	d.commandsOnATerminal(id, image, release)
	d.commandsThatFail(id, image)
}

// commandsOnATerminal checks the output of commands on a terminal: the columns
// of a heading, and one row of the table.
func (d *daemon) commandsOnATerminal(campaign, image, release string) {
	d.t.Helper()
	device := d.listed(3)[0].ID
	tests := []struct {
		args []string
		want []string // regular expressions
	}{
		{[]string{"device", "list"}, []string{`ID +NAME +BOARD +VERSION +PRESENCE +SINCE +TAGS`,
			device + ` +\S* +bread-compact-wifi +9\.1\.0 +online +\d+`}},
		{[]string{"device", "show", device}, []string{device + ` .*bread-compact-wifi +esp32s3 +9\.1\.0 +ota_1 +online +enrolled`,
			`TOOL +AUDIENCE`, `self\.reboot +user`}},
		{[]string{"device", "call", device, "self.audio_speaker.set_volume", `{"volume":3}`}, []string{`^true`}},
		{[]string{"device", "hold", device, "on the bench"}, []string{device + ` .*online +enrolled`}},
		{[]string{"device", "show", device}, []string{`held by e2e: on the bench`}},
		{[]string{"device", "release", device}, []string{device + ` .*online +enrolled`}},
		{[]string{"image", "list"}, []string{`SHA256 +VERSION +CHIP +BOARD +SIZE +STATE`,
			image + ` +9\.1\.0 +esp32s3 +bread-compact-wifi +\d+ KiB +ready`}},
		{[]string{"image", "show", image}, []string{`bread-compact-wifi\.bin, project \S+, IDF \S+, build [0-9a-f]{64}`}},
		{[]string{"release", "list"}, []string{release + ` +9\.1\.0 +released +1 +20`}},
		{[]string{"release", "show", release}, []string{release + ` +9\.1\.0`, image}},
		{[]string{"campaign", "list"}, []string{`ID +NAME +STATE +WAVE +DEVICES +CREATED`,
			campaign + ` +spring +completed +\d/2 +3 +20`}},
		{[]string{"campaign", "show", campaign}, []string{campaign + `  spring\s+completed\s+3 devices, 3 done: 3 succeeded, 0 failed; 0 left out`,
			`WAVE +NAME +STATE +DEVICES +DONE +SUCCEEDED +FAILED +VERDICT`, `1 +canary +\S+ +1 +1 +1 +0`, `STEP +DEVICES`}},
		{[]string{"campaign", "show", campaign, "--watch"}, []string{`completed; 3 of 3 devices done, 3 succeeded, 0 failed`}},
		{[]string{"campaign", "deployments", campaign}, []string{`DEVICE +BOARD +WAVE +STATE +ATTEMPTS +FROM +TO +REASON`,
			device + ` +bread-compact-wifi +[12] +succeeded +1 +\S+ +9\.1\.0`}},
		{[]string{"campaign", "create", "--name", "again", "--release", release, "--q", "", "--canary", "1", "--dry-run"},
			[]string{`3 devices match, 0 would get an image, 0 of them are offline`, `WAVE +NAME +DEVICES +GATE`,
				`LEFT_OUT +BOARD +COUNT +DETAIL`}},
		{[]string{"serial", "list"}, []string{`SERIAL +STATE +DEVICE +CONFLICT +WRONG +LOADED`}},
	}
	for _, tt := range tests {
		out := d.onTerminal(tt.args...)
		for _, want := range tt.want {
			if !regexp.MustCompile(`(?m)` + want).MatchString(out) {
				d.t.Errorf("fleetd %s printed\n%s\nwant %s", strings.Join(tt.args, " "), out, want)
			}
		}
	}
}

// onTerminal runs a command whose standard output is a terminal.
func (d *daemon) onTerminal(args ...string) string {
	d.t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer screen.Close()
	fd := int(screen.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := d.command(args...)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = tty, &stderr
	err = cmd.Start()
	tty.Close()
	if err != nil {
		d.t.Fatal(err)
	}
	out, _ := io.ReadAll(screen) // ends with an error once the last process has closed the terminal
	if err := cmd.Wait(); err != nil {
		d.t.Errorf("fleetd %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return strings.ReplaceAll(string(out), "\r\n", "\n")
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
