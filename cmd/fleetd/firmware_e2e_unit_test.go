package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

const unitBoard = "esp32s3-lcd" // with a screen of 320 x 240

// A unit is a virtual device: the firmware of firmware/ in a separate process.
type unit struct {
	t       *testing.T
	id      string // as fleetd writes it
	dir     string // its flash
	log     string
	args    []string
	process *os.Process
	ended   chan error
}

// virtualPrograms returns the paths of the firmware's programs, or ends the test.
func virtualPrograms(t *testing.T) (vdevice, mkimage string) {
	t.Helper()
	vdevice, mkimage = os.Getenv("FLEETD_VDEVICE"), os.Getenv("FLEETD_MKIMAGE")
	if vdevice == "" || mkimage == "" {
		t.Skip("needs the firmware's programs in FLEETD_VDEVICE and FLEETD_MKIMAGE: make firmware-test STEPS=e2e")
	}
	return vdevice, mkimage
}

// newUnit creates the nth unit of a test, not running yet, with timeouts for tests.
func newUnit(t *testing.T, d *daemon, n int, args ...string) *unit {
	t.Helper()
	virtualPrograms(t)
	dir := t.TempDir()
	u := &unit{t: t, id: fmt.Sprintf("02f1e20000%02x", n), dir: filepath.Join(dir, "flash"), log: filepath.Join(dir,
		"log")}
	u.args = append([]string{"--ota-url", "http://" + d.http + "/xiaozhi/ota/", "--state-dir", u.dir, "--mac",
		colons(u.id),
		"--board", unitBoard, "--restart-ms", "200", "--trial-ms", "90000", "--proof-ms", "2000"}, args...)
	t.Cleanup(u.cleanUp)
	return u
}

func colons(id string) string {
	return strings.Join(regexp.MustCompile("..").FindAllString(id, -1), ":")
}

// start powers the unit on, with faults for this run only.
func (u *unit) start(faults ...string) {
	u.t.Helper()
	vdevice, _ := virtualPrograms(u.t)
	log, err := os.OpenFile(u.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		u.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(vdevice, u.args...)
	for _, f := range faults {
		cmd.Args = append(cmd.Args, "--fault", f)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	u.ended = make(chan error, 1)
	go func() {
		// The kernel counts the thread that starts a process as its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			u.ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		u.t.Fatal(err)
	}
	u.process = cmd.Process
}

// cutPower kills the process, without a warning to the unit.
func (u *unit) cutPower() {
	_ = u.process.Kill()
	<-u.ended
	u.process = nil
}

// died waits until a fault ended the unit.
func (u *unit) died(within time.Duration) bool {
	select {
	case <-u.ended:
		u.process = nil
		return true
	case <-time.After(within):
		return false
	}
}

// cleanUp stops the unit and checks what the sanitizers found in it.
func (u *unit) cleanUp() {
	if u.process != nil {
		_ = u.process.Signal(syscall.SIGTERM)
		select {
		case err := <-u.ended:
			if err != nil {
				u.t.Errorf("unit %s ended with %v", u.id, err)
			}
		case <-time.After(time.Minute):
			u.cutPower()
			u.t.Errorf("unit %s does not stop", u.id)
		}
	}
	said := u.said()
	if strings.Contains(said, "Sanitizer") || strings.Contains(said, "runtime error") || u.t.Failed() {
		u.t.Errorf("unit %s said:\n%s", u.id, said)
	}
}

func (u *unit) said() string {
	data, err := os.ReadFile(u.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		u.t.Error(err)
	}
	return string(data)
}

// reads waits until the unit's log matches, and returns the last group.
func (u *unit) reads(d *daemon, pattern string) (group string) {
	u.t.Helper()
	re := regexp.MustCompile(pattern)
	d.eventually("in the log of the unit: "+pattern, func() bool {
		all := re.FindAllStringSubmatch(u.said(), -1)
		if len(all) == 0 {
			return false
		}
		last := all[len(all)-1]
		group = last[len(last)-1]
		return true
	})
	return group
}

// buildImage makes an image for the unit's board; payload sets its behaviour.
func buildImage(t *testing.T, version, payload string) (file string) {
	t.Helper()
	_, mkimage := virtualPrograms(t)
	file = filepath.Join(t.TempDir(), unitBoard+"-"+version+".bin")
	out, err := exec.Command(mkimage, "--chip", "esp32s3", "--version", version, "--payload", payload, "--size", "200000",
		file).CombinedOutput()
	if err != nil {
		t.Fatalf("mkimage: %v: %s", err, out)
	}
	return file
}
