// Package program runs a program with limits and ends all its processes.
//
// It is for programs that fleetd does not trust, or that may have bugs: one that hangs, floods
// its outputs, forks without end or eats memory is stopped, and fleetd and the other programs
// go on. It is not a sandbox: a program may read and write whatever its user may.
//
// The processes of a program are its main process and all descendants. One scan of /proc every
// 500 ms finds those of all programs, by parent, by process group and session, by a random
// value of the environment variable FLEETD_PROGRAM, and by user if the program has its own. A
// process escapes only if it starts a session, loses its parent and clears its environment all
// between two scans, and the program runs as fleetd's user. When the main process ends, the
// rest are killed. They are all killed as well when the program exceeds its memory or its
// number of processes. A program that exceeds its CPU time is stopped for a while by SIGSTOP.
//
// The kernel kills the main process when fleetd dies, even of SIGKILL. Its descendants then
// notice only the end of their input; those that remain are killed once a fleetd on the same
// machine starts a program.
//
// Programs run with no_new_privs, so that a set-user-ID program gains nothing. The package
// requires Linux 5.4 and a /proc that shows the processes of the programs.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	closeTimeout  = 2 * time.Second // Stop waits this long after closing stdin
	termTimeout   = 2 * time.Second // and after SIGTERM
	killTimeout   = 5 * time.Second // and after SIGKILL, before it reports an error
	stderrTimeout = time.Second     // for the rest of stderr once all processes have ended
)

// A Spec describes a program to start.
type Spec struct {
	Name string   // appears in errors and in the environment of its processes
	Path string   // absolute, or a name to look up in the PATH of Env
	Args []string // without the name of the program
	Env  []string // the whole environment: the program inherits nothing of fleetd's
	Dir  string   // working directory, absolute. Default: /
	User *User    // nil: the user of this process

	Limits Limits

	// Stderr receives each line that the program writes to stderr, one call at a time. Lines
	// are cut at 1 KiB and lose their control characters. More than 100 lines a second, or
	// those that come while Stderr is busy, are dropped; one line then says how many. Nil
	// discards stderr.
	Stderr func(line string)
}

// A User is the user and group that a program runs as, with no other groups. No process except
// those of the program should run as this user: all its processes that start after the program
// count as the program's, unless several programs share the user.
type User struct {
	UID, GID uint32
}

// Limits bounds what all processes of a program use together, except where it says otherwise.
// The zero value limits only the number of processes.
type Limits struct {
	// Memory is the most resident memory in bytes; memory that processes share counts for
	// each. As it is measured every 500 ms, one process may also not reserve more than Memory
	// and 1 GiB for its data: its allocations then fail, and how it ends is up to it. 0: none.
	Memory int64
	// CPU is the most CPU time per time, in cores, as an average over some seconds. 0: none.
	CPU float64
	// OpenFiles is the most open files of each process. 0: fleetd's own limit.
	OpenFiles int
	// Processes is the most processes. Default: 64.
	Processes int
}

// Reason says why a program ended.
type Reason string

const (
	Exited           Reason = "exited" // without a cause in this package
	Stopped          Reason = "stopped"
	OverMemory       Reason = "over memory"
	TooManyProcesses Reason = "too many processes"
)

// An Exit describes how a program ended.
type Exit struct {
	Reason Reason
	Code   int            // exit code of the main process; -1 if a signal ended it
	Signal syscall.Signal // that ended the main process; 0 if it exited

	// Used and Limit are bytes for OverMemory and processes for TooManyProcesses.
	Used, Limit int64
}

func (e Exit) String() string {
	switch {
	case e.Reason == Stopped:
		return "stopped"
	case e.Reason == OverMemory:
		return fmt.Sprintf("killed: it used %d MiB of memory, and its limit is %d MiB", e.Used>>20, e.Limit>>20)
	case e.Reason == TooManyProcesses:
		return fmt.Sprintf("killed: it had %d processes, and its limit is %d", e.Used, e.Limit)
	case e.Signal != 0:
		return fmt.Sprintf("ended by signal %d (%v)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exited with code %d", e.Code)
}

// Usage is what a program used, as of the last measurement.
type Usage struct {
	Memory    int64         // bytes of resident memory
	CPU       time.Duration // since the start; short-lived processes may be missing
	Processes int
	Throttled time.Duration // time for which the CPU limit stopped the program
}

// A Process is a program that was started. Its methods may be called concurrently.
type Process struct {
	name   string
	pid    int
	marker string
	limits Limits // with Processes set
	uid    uint32 // of the user in the spec
	ownUID bool   // it differs from fleetd's

	stdin, stdout *os.File
	stderr        *stderrReader // may be nil
	done          chan struct{}
	exit          Exit // final once done is closed

	// The fields below belong to the supervisor and are guarded by its mutex.
	start    uint64 // of the main process, in ticks since the boot
	stopping bool   // Stop was called: the CPU limit no longer applies
	reason   Exit   // of the first cause of the end; Reason is empty while it runs
	usage    Usage
	account
}

// Start starts a program. The error names the program and what to change.
func Start(spec Spec) (*Process, error) {
	path, err := check(&spec)
	if err != nil {
		return nil, &StartError{spec.Name, err}
	}
	p := &Process{
		name: spec.Name, marker: newMarker(spec.Name), limits: spec.Limits, done: make(chan struct{}),
	}
	if p.limits.Processes == 0 {
		p.limits.Processes = 64
	}
	if u := spec.User; u != nil && u.UID != 0 && int(u.UID) != os.Geteuid() {
		p.uid, p.ownUID = u.UID, true
	}
	if err := p.launch(spec, path); err != nil {
		return nil, &StartError{spec.Name, err}
	}
	go p.wait()
	return p, nil
}

// Stdin returns the program's standard input. A write blocks while the program does not read;
// Stop, Close and the end of the program unblock it.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// Stdout returns the program's standard output. It ends when the program has ended, and remains
// readable until it is closed, by the caller or by Stop: a read during Stop ends with io.EOF or
// fs.ErrClosed.
func (p *Process) Stdout() io.ReadCloser { return p.stdout }

// PID returns the process ID of the main process.
func (p *Process) PID() int { return p.pid }

// Done returns a channel that is closed when all processes have ended and the main process has
// been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns how the program ended. It returns the zero value before Done is closed.
func (p *Process) Exit() Exit {
	select {
	case <-p.done:
		return p.exit
	default:
		return Exit{}
	}
}

// Usage returns what the program uses, at most about 500 ms ago.
func (p *Process) Usage() Usage {
	super.mu.Lock()
	defer super.mu.Unlock()
	u := p.usage
	if !p.throttledAt.IsZero() {
		u.Throttled += time.Since(p.throttledAt)
	}
	return u
}

// Stop ends the program and returns when all its processes have ended. It closes stdin, sends
// SIGTERM 2 s later and SIGKILL after another 2 s. If ctx ends, SIGKILL follows at once. An
// error means that a process did not end within 5 s of SIGKILL; it will be killed when it
// leaves the kernel. Stop may be called repeatedly, and after the program has ended.
func (p *Process) Stop(ctx context.Context) error {
	super.beginStop(p)
	p.stdin.Close() // also closed when the program ends
	defer p.stdout.Close()

	if p.ends(ctx, closeTimeout) {
		return nil
	}
	if ctx.Err() == nil {
		super.signal(p, unix.SIGTERM)
		if p.ends(ctx, termTimeout) {
			return nil
		}
	}
	super.signal(p, unix.SIGKILL)
	if p.ends(context.WithoutCancel(ctx), killTimeout) {
		return nil
	}
	return fmt.Errorf("program %s: its processes (main process %d) have not ended %v after SIGKILL: "+
		"see what they wait for in /proc/PID/stack", p.name, p.pid, killTimeout)
}

// ends waits for the program's end, until ctx is done or the time is over.
func (p *Process) ends(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	return false
}

// wait waits for the main process to end, kills the rest and publishes the result. The main
// process is reaped last: until then the kernel gives its PID to no other process, group or
// session. While it waits, it occupies a thread.
func (p *Process) wait() {
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	exit := super.ended(p)
	for delay := time.Millisecond; super.killRest(p) > 0; delay = min(2*delay, scanInterval) {
		time.Sleep(delay)
	}
	super.remove(p)

	var status unix.WaitStatus
	var used unix.Rusage
	for {
		if _, err := unix.Wait4(p.pid, &status, 0, &used); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	exit.Code = status.ExitStatus()
	if status.Signaled() {
		exit.Signal = status.Signal()
	}
	super.finalUsage(p, time.Duration(used.Utime.Nano()+used.Stime.Nano()))

	p.stdin.Close() // the program no longer reads
	if p.stderr != nil {
		p.stderr.finish(stderrTimeout)
	}
	p.exit = exit
	close(p.done)
}

// account is how much CPU time a program spent and may spend.
type account struct {
	cpu      time.Duration // of all its processes, since the start
	budget   time.Duration // CPU time that it may spend now; negative: it spent too much
	credited time.Time     // when budget last grew

	// Spent since the last call of charge: own is by processes themselves; inherited is what
	// they took over from children that ended; gone is what was already counted of processes
	// that ended, and goneBefore the part of it that no parent has taken over yet.
	own, inherited, gone, goneBefore time.Duration

	throttledAt time.Time // zero: not throttled
}

const (
	cpuWindow = 2 * time.Second  // a program may save up its CPU limit for this long
	cpuDebt   = 30 * time.Second // and is stopped for no longer than this
)

// charge counts what was spent. It pays from the budget if the program has a limit.
func (a *account) charge(limit float64, now time.Time) {
	available := a.gone + a.goneBefore
	known := min(a.inherited, available)
	spent := a.own + a.inherited - known
	a.goneBefore = min(a.gone, available-known)
	a.own, a.inherited, a.gone = 0, 0, 0
	a.cpu += spent
	if limit <= 0 {
		return
	}
	full := cores(limit, cpuWindow)
	if a.credited.IsZero() {
		a.budget, a.credited = full, now
	}
	a.budget += cores(limit, now.Sub(a.credited)) - spent
	a.budget = max(min(a.budget, full), -cores(limit, cpuDebt))
	a.credited = now
}

// busy reports whether the program spent much more than its limit lately, or is stopped.
func (a *account) busy(limit float64) bool {
	return limit > 0 && !a.credited.IsZero() && (a.budget < cores(limit, cpuWindow) || !a.throttledAt.IsZero())
}

func cores(n float64, d time.Duration) time.Duration {
	return time.Duration(math.Min(n*float64(d), math.MaxInt64/4))
}

// A StartError says why a program did not start.
type StartError struct {
	Name string // of the program
	Err  error
}

func (e *StartError) Error() string { return "program " + e.Name + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// check completes the spec with defaults and returns the path of the program.
func check(s *Spec) (path string, err error) {
	if s.Name == "" || strings.ContainsAny(s.Name, "\x00=\n") {
		return "", fmt.Errorf("bad name %q: use letters and digits", s.Name)
	}
	for _, e := range append(append([]string{s.Path, s.Dir}, s.Args...), s.Env...) {
		if strings.ContainsRune(e, 0) {
			return "", fmt.Errorf("%.40q contains a NUL character: remove it", e)
		}
	}
	if l := s.Limits; l.Memory < 0 || l.CPU < 0 || math.IsNaN(l.CPU) || l.OpenFiles < 0 || l.Processes < 0 {
		return "", fmt.Errorf("negative limit in %+v: use 0 for none", l)
	}
	if n := s.Limits.OpenFiles; n > 0 && n < 8 {
		return "", fmt.Errorf("a limit of %d open files is too low to start a program: use 8 or more", n)
	}
	if u := s.User; u != nil {
		if same := int(u.UID) == os.Geteuid() && int(u.GID) == os.Getegid(); same {
			s.User = nil
		} else if os.Geteuid() != 0 {
			return "", fmt.Errorf("cannot run %s as user %d: fleetd does not run as root", s.Path, u.UID)
		}
	}
	if s.Dir == "" {
		s.Dir = "/"
	}
	if info, err := os.Stat(s.Dir); err != nil {
		return "", fmt.Errorf("working directory: %w: create it or correct the setting", err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("working directory %s is not a directory: correct the setting", s.Dir)
	}
	return find(s)
}
