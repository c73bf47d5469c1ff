package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"fleetd/fleet"
	"fleetd/web/ui"
)

// demoUnits are the virtual devices, one of each board.
var demoUnits = []demoUnit{
	{"02:f1:1e:00:00:01", "esp32-devkit", "esp32"},
	{"02:f1:1e:00:00:02", "esp32c3-supermini", "esp32c3"},
	{"02:f1:1e:00:00:03", "esp32s3-lcd", "esp32s3"},
}

// demoClaimed is the device that joins with the code on its screen even if the
// others join at once, to demonstrate claiming.
const demoClaimed = fleet.DeviceID("02f11e000003")

type demoUnit struct{ mac, board, chip string }

// demoBuilds are the virtual devices' releases; the devices run the first one.
var demoBuilds = []demoBuild{
	{"1.0.0", "", "What the virtual devices run at first."},
	{"1.1.0", "", "For the virtual devices: a campaign to it succeeds."},
	{"1.2.0", `{"selftest":"fail"}`, "For the virtual devices: its self-test fails, and they roll back automatically."},
}

type demoBuild struct{ version, payload, notes string }

// unitImageSize makes a download long enough to be visible.
const unitImageSize = 600_000

// A virtualFleet runs the firmware of firmware/ in separate processes, one for
// each device. They end with this process, however it ends.
type virtualFleet struct {
	server   *Server
	programs string // directory of vdevice and mkimage
	dir      string // their flash, and their logs
	host     string // the host in fleetd's links
	log      *slog.Logger
}

// claimedByHand reports whether the device shows its code in a demo.
func (c *Config) claimedByHand(id fleet.DeviceID) bool {
	return c.DemoVirtual != "" && id == demoClaimed
}

func (s *Server) virtualFleet() (*virtualFleet, error) {
	public, err := url.Parse(s.cfg.PublicURL)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.cfg.DataDir, "vdevices")
	if err := os.MkdirAll(filepath.Join(dir, "firmware"), 0o700); err != nil {
		return nil, err
	}
	return &virtualFleet{server: s, programs: s.cfg.DemoVirtual, dir: dir, host: public.Hostname(), log: s.log}, nil
}

// start creates the releases and starts the devices.
func (v *virtualFleet) start(ctx context.Context) error {
	for _, b := range demoBuilds {
		if err := v.release(ctx, b); err != nil {
			return fmt.Errorf("firmware %s of the virtual devices: %w", b.version, err)
		}
	}
	for i, u := range demoUnits {
		v.server.stages.run("virtual device "+u.board, func(ctx context.Context) error { return v.run(ctx, i+1, u) })
	}
	return nil
}

// greet prints where the devices are.
func (v *virtualFleet) greet(w io.Writer) {
	fmt.Fprintf(w, "\n  Virtual    %d devices that run the firmware of firmware/; what they log and show is in %s\n",
		len(demoUnits), filepath.Join(v.dir, "[1-3].log"))
	if !v.server.Enrolments.Known(demoClaimed) {
		fmt.Fprintf(w, "             The third waits to be claimed: its screen shows a code, which is in %s\n"+
			"             and in %s; type it at %s%s\n",
			v.logFile(3), filepath.Join(v.flash(3), "screen.ppm"), v.server.cfg.PublicURL, ui.PathClaim)
	}
	fmt.Fprintln(w)
}

func (v *virtualFleet) release(ctx context.Context, b demoBuild) error {
	var images []demoImage
	for _, u := range demoUnits {
		file := v.imageFile(u, b)
		out, err := exec.CommandContext(ctx, filepath.Join(v.programs, "mkimage"), "--chip", u.chip, "--version", b.version,
			"--payload", b.payload, "--size", strconv.Itoa(unitImageSize), file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("mkimage: %w: %s", err, out)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		images = append(images, demoImage{u.board, data})
	}
	return v.server.demoRelease(ctx, b.version, b.notes, images)
}

// run restarts one device whenever its process ends. fleetd keeps running if a device
// ends early: the device's log shows the reason.
func (v *virtualFleet) run(ctx context.Context, n int, u demoUnit) error {
	// The kernel counts the thread that starts a process as its parent.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := v.process(ctx, n, u); ctx.Err() == nil {
		v.log.Warn("virtual device ended", "board", u.board, "log", v.logFile(n), "err", err)
		<-ctx.Done()
	}
	return nil
}

func (v *virtualFleet) process(ctx context.Context, n int, u demoUnit) error {
	out, err := os.Create(v.logFile(n))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(v.programs, "vdevice"), "--ota-url", v.server.URL()+"/xiaozhi/ota/",
		"--state-dir", v.flash(n), "--board", u.board, "--mac", u.mac, "--image", v.imageFile(u, demoBuilds[0]),
		"--url-hosts", v.host)
	cmd.Stdout, cmd.Stderr = out, out
	// Ctrl-C reaches only fleetd, which passes it on
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd.Run()
}

func (v *virtualFleet) flash(n int) string   { return filepath.Join(v.dir, strconv.Itoa(n)) }
func (v *virtualFleet) logFile(n int) string { return v.flash(n) + ".log" }
func (v *virtualFleet) imageFile(u demoUnit, b demoBuild) string {
	return filepath.Join(v.dir, "firmware", u.board+"-"+b.version+".bin")
}
