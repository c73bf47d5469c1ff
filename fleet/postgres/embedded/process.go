package embedded

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// mountPath is the path of the cluster's directory in a child: the first file descriptor it
// inherits after its standard three.
const mountPath = "/proc/self/fd/3"

// A process is a running server.
type process struct {
	cmd      *exec.Cmd
	said     *os.File // what it wrote before its own log began; in memory
	stopping atomic.Bool
	exited   chan struct{}
	exitErr  error // set before exited is closed
}

// launch starts the server on the cluster behind mount.
func launch(bin binaries, who owner, mount *os.File, extra map[string]string) (*process, error) {
	fd, err := unix.MemfdCreate("postgres-output", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	said := os.NewFile(uintptr(fd), "postgres-output")
	cmd := exec.Command(bin.path("postgres"), serverArgs(extra)...)
	cmd.Stdout, cmd.Stderr = said, said
	// SIGINT is PostgreSQL's fast shutdown: clients out, all on disk.
	confine(cmd, bin, who, mount, syscall.SIGINT)
	p := &process{cmd: cmd, said: said, exited: make(chan struct{})}
	err = startBound(cmd, func(err error) {
		p.exitErr = err
		close(p.exited)
	})
	if err != nil {
		said.Close()
		return nil, err
	}
	return p, nil
}

func serverArgs(extra map[string]string) []string {
	args := []string{"-D", mountPath,
		"-c", "listen_addresses=", "-c", "port=" + socketPort, "-c", "unix_socket_directories=.",
		"-c", "cluster_name=fleetd"}
	for _, k := range slices.Sorted(maps.Keys(extra)) {
		args = append(args, "-c", k+"="+extra[k])
	}
	return args
}

// confine makes cmd an unprivileged process that knows the cluster only as
// [mountPath] and that gets signal atDeath when this process dies.
func confine(cmd *exec.Cmd, bin binaries, who owner, mount *os.File, atDeath syscall.Signal) {
	cmd.Dir = "/" // PostgreSQL 15 insists on returning to where it was started
	cmd.Env = []string{"PATH=" + bin.dir + ":/usr/bin:/bin", "LC_ALL=C"}
	if libs, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libs)
	}
	cmd.ExtraFiles = []*os.File{mount}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: who.credential(),
		Pdeathsig:  atDeath,
		Setsid:     true, // Ctrl-C in the terminal is fleetd's, which stops the server last
	}
}

// startBound starts cmd and calls exited when it has ended.
func startBound(cmd *exec.Cmd, exited func(error)) error {
	started := make(chan error)
	go runBound(cmd, started, exited)
	return <-started
}

// runBound keeps its thread until cmd has exited. The kernel counts the
// *thread* that made a child as its parent: one that Go retires early would
// take the server with it.
func runBound(cmd *exec.Cmd, started chan<- error, exited func(error)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		exited(cmd.Wait())
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// failure returns how the process ended, nil while it runs and after a stop.
func (p *process) failure() error {
	select {
	case <-p.exited:
	default:
		return nil
	}
	if p.stopping.Load() {
		return nil
	}
	if p.exitErr == nil {
		return errors.New("orderly exit")
	}
	return p.exitErr
}

// stop requests a fast shutdown and, if ctx ends first, an immediate one.
func (p *process) stop(ctx context.Context) error {
	select {
	case <-p.exited:
		return nil
	default:
	}
	p.stopping.Store(true)
	p.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
	}
	for _, sig := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGKILL} {
		p.cmd.Process.Signal(sig)
		select {
		case <-p.exited:
			return fmt.Errorf("embedded PostgreSQL was cut short while shutting down (%w): its next start takes a recovery",
				ctx.Err())
		case <-time.After(5 * time.Second): // PostgreSQL allows its own children as long
		}
	}
	return fmt.Errorf("embedded PostgreSQL (pid %d) does not end", p.pid())
}
