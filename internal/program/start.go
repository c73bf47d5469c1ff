package program

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// markerVariable names the environment variable that marks the processes of a program. Its value
// consists of the program's name, the fleetd that runs it (see instance) and a random text.
const markerVariable = "FLEETD_PROGRAM"

func newMarker(name string) string { return name + "." + instance() + "." + rand.Text() }

// instance identifies this fleetd among all that run or ran since the boot, by PID namespace,
// PID and start.
var instance = sync.OnceValue(func() string {
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	st, _ := readStat(os.Getpid(), make([]byte, 4096)) // without /proc the supervisor can do nothing
	return fmt.Sprintf("%s.%d.%d", namespace, os.Getpid(), st.start)
})

// instanceOf returns the PID namespace, PID and start of the fleetd that made a marker.
func instanceOf(marker string) (namespace string, pid int, start uint64, ok bool) {
	parts := strings.Split(marker, ".")
	if len(parts) < 5 {
		return "", 0, 0, false
	}
	parts = parts[len(parts)-4:]
	pid, err1 := strconv.Atoi(parts[1])
	start, err2 := strconv.ParseUint(parts[2], 10, 64)
	return parts[0], pid, start, err1 == nil && err2 == nil && pid > 0 && start > 0
}

// launcher is a thread that starts all programs. The kernel sends the parent death signal when
// the thread that forked ends, so this one never does. As it is locked, the Go runtime clones
// no other thread from it, and no_new_privs stays confined to it and the programs.
var launcher = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go runLauncher(calls)
	return calls
})

func runLauncher(calls <-chan func()) {
	runtime.LockOSThread()
	unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) // exists since Linux 3.5
	for call := range calls {
		call()
	}
}

func onLauncher(f func() error) error {
	result := make(chan error)
	launcher() <- func() { result <- f() }
	return <-result
}

// launch starts the main process and gives it to the supervisor.
func (p *Process) launch(spec Spec, path string) error {
	var files []uintptr // of the program
	var closers []*os.File
	closeAll := func() {
		for _, f := range closers {
			f.Close()
		}
	}
	// pipe returns our end of a new pipe. The program's end blocks, as programs expect.
	pipe := func(programReads bool) (*os.File, error) {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return nil, fmt.Errorf("pipe: %w", err)
		}
		ours, theirs := fds[0], fds[1]
		if programReads {
			ours, theirs = theirs, ours
		}
		unix.SetNonblock(ours, true) // cannot fail on a pipe
		if spec.User != nil {        // lets the program open /dev/stderr
			unix.Fchown(theirs, int(spec.User.UID), int(spec.User.GID)) // most do not need it
		}
		files = append(files, uintptr(theirs))
		f := os.NewFile(uintptr(ours), p.name)
		closers = append(closers, f)
		return f, nil
	}
	defer func() {
		for _, fd := range files {
			unix.Close(int(fd)) // the program has its own
		}
	}()
	var stderr *os.File
	var err error
	if p.stdin, err = pipe(true); err == nil {
		p.stdout, err = pipe(false)
	}
	if err == nil && spec.Stderr != nil {
		stderr, err = pipe(false)
	} else if err == nil {
		var fd int
		if fd, err = unix.Open(os.DevNull, unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
			files = append(files, uintptr(fd))
		}
	}
	if err == nil {
		err = onLauncher(func() error { return p.exec(spec, path, files) })
	}
	if err != nil {
		closeAll()
		return err
	}
	if stderr != nil {
		p.stderr = readStderr(stderr, spec.Stderr)
	}
	return nil
}

// exec runs on the launcher. The main process is traced until it has its limits: it stops
// before its first instruction. Where ptrace is forbidden it gets them just after its start.
func (p *Process) exec(spec Spec, path string, files []uintptr) error {
	// Descriptors that fleetd itself inherited may lack the flag. Needs Linux 5.11.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) // Go's own have it

	env := slices.DeleteFunc(slices.Clone(spec.Env), func(e string) bool {
		return strings.HasPrefix(e, markerVariable+"=")
	})
	attr := &syscall.ProcAttr{
		Dir: spec.Dir, Env: append(env, markerVariable+"="+p.marker), Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Ptrace: true},
	}
	if u := spec.User; u != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID}
	}
	argv := append([]string{path}, spec.Args...)
	pid, err := syscall.ForkExec(path, argv, attr)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) {
		attr.Sys.Ptrace = false
		pid, err = syscall.ForkExec(path, argv, attr)
	}
	if err != nil {
		return explain(spec, path, err)
	}
	if attr.Sys.Ptrace {
		for {
			err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	p.pid = pid
	super.add(p)
	limitErr := p.setLimits(spec)
	if limitErr != nil {
		unix.Kill(pid, unix.SIGKILL) // it is ours and not reaped
	}
	if attr.Sys.Ptrace {
		unix.PtraceDetach(pid) // fails only if the process was killed
	}
	if limitErr != nil {
		super.remove(p)
		unix.Wait4(pid, nil, 0, nil) // SIGKILL ends it
		return limitErr
	}
	return nil
}

// dataSlack is how much more than its memory limit a process may reserve for data. Go and Node
// programs reserve much that they do not use.
const dataSlack = 1 << 30

func (p *Process) setLimits(spec Spec) error {
	// If memory gets scarce, the kernel should kill programs and not fleetd.
	os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.pid), []byte("1000"), 0) // helps only

	type limit struct {
		resource int
		max      uint64
		what     string
	}
	limits := []limit{{unix.RLIMIT_CORE, 0, "core files"}}
	if n := spec.Limits.OpenFiles; n > 0 {
		limits = append(limits, limit{unix.RLIMIT_NOFILE, uint64(n), "open files"})
	}
	if n := spec.Limits.Memory; n > 0 {
		limits = append(limits, limit{unix.RLIMIT_DATA, uint64(n) + dataSlack, "memory"})
	}
	if p.ownUID { // counts threads, and those of all programs of the user
		limits = append(limits, limit{unix.RLIMIT_NPROC, uint64(p.limits.Processes) * 16, "processes"})
	}
	for _, l := range limits {
		var old unix.Rlimit
		if err := unix.Getrlimit(l.resource, &old); err == nil {
			l.max = min(l.max, old.Max) // which the program inherited; raising it may be forbidden
		}
		set := func() error { return unix.Prlimit(p.pid, l.resource, &unix.Rlimit{Cur: l.max, Max: l.max}, nil) }
		err := set()
		if errors.Is(err, unix.EPERM) && spec.User != nil {
			restore := asRealUser(*spec.User)
			err = set()
			restore()
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cannot limit %s to %d: %w: run fleetd as root or as the program's user",
				l.what, l.max, err)
		}
	}
	return nil
}

// asRealUser changes the real user and group of this thread, which is the launcher, and returns a
// function that changes them back. Without the capability SYS_RESOURCE, which containers seldom
// have, prlimit requires that they are those of the program. The effective user remains root.
// For these microseconds another process of the user could send fleetd a signal, which is one
// reason for the rule that no other program should run as this user.
func asRealUser(u User) (restore func()) {
	const keep = ^uintptr(0)
	set := func(uid, gid uintptr) {
		// Those of packages syscall and unix change all threads.
		unix.RawSyscall(unix.SYS_SETRESGID, gid, keep, keep)
		unix.RawSyscall(unix.SYS_SETRESUID, uid, keep, keep)
	}
	uid, gid := os.Getuid(), os.Getgid()
	set(uintptr(u.UID), uintptr(u.GID))
	return func() { set(uintptr(uid), uintptr(gid)) }
}

// find returns the path of the program and checks what can be checked before the start.
func find(s *Spec) (string, error) {
	path := s.Path
	switch {
	case filepath.IsAbs(path):
	case path == "" || strings.Contains(path, "/"):
		return "", fmt.Errorf("path %q is not absolute: give an absolute path, or a name to look up in PATH", path)
	default:
		var dirs string
		for _, e := range s.Env { // the last one counts, as in package os/exec
			if v, ok := strings.CutPrefix(e, "PATH="); ok {
				dirs = v
			}
		}
		if path = lookUp(s.Path, dirs); path == "" {
			return "", fmt.Errorf("no executable file %q in PATH %q of its environment: "+
				"install it, or give an absolute path: %w", s.Path, dirs, fs.ErrNotExist)
		}
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s does not exist: install it or correct the path: %w", path, fs.ErrNotExist)
	case err != nil:
		return "", err
	case info.IsDir():
		return "", fmt.Errorf("%s is a directory: give the path of a file: %w", path, syscall.EISDIR)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return "", fmt.Errorf("%s is not executable (mode %v): chmod +x may help: %w", path, info.Mode(), fs.ErrPermission)
	}
	return path, nil
}

func lookUp(name, dirs string) string {
	for _, dir := range filepath.SplitList(dirs) {
		path := filepath.Join(dir, name)
		if !filepath.IsAbs(dir) {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// explain says why the kernel refused to start a program that find accepted.
func explain(s Spec, path string, err error) error {
	uid, gid := os.Geteuid(), os.Getegid()
	if s.User != nil {
		uid, gid = int(s.User.UID), int(s.User.GID)
	}
	interpreter := readInterpreter(path)
	switch {
	case errors.Is(err, syscall.ENOENT) && interpreter != "":
		return fmt.Errorf("the interpreter %q of %s does not exist: install it or correct the first line: %w",
			interpreter, path, err)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("the dynamic loader of %s does not exist: install the libraries that it was built for: %w",
			path, err)
	case errors.Is(err, syscall.EACCES):
		for _, p := range []string{s.Dir + "/.", path, interpreter} {
			if at := denied(p, uid, gid); at != "" {
				return fmt.Errorf("user %d may not enter or execute %s: change its mode or owner: %w", uid, at, err)
			}
		}
		return fmt.Errorf("user %d may not execute %s in %s: check modes and mount options (noexec): %w",
			uid, path, s.Dir, err)
	case errors.Is(err, syscall.EPERM) && s.User != nil:
		return fmt.Errorf("cannot run %s as user %d: fleetd lacks the capabilities SETUID and SETGID: %w", path, uid, err)
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("%s is not a program for %s, nor a script that begins with #!: %w", path, runtime.GOARCH, err)
	case errors.Is(err, syscall.E2BIG):
		return fmt.Errorf("the arguments and the environment of %s are too long: shorten them: %w", path, err)
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("user %d has too many processes to start %s: end some or raise its limit: %w", uid, path, err)
	}
	return fmt.Errorf("cannot start %s: %w", path, err)
}

// readInterpreter returns the program in a script's first line, or "".
func readInterpreter(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	line, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return ""
	}
	if f := strings.Fields(string(line)); len(f) > 0 {
		return f[0]
	}
	return ""
}

// denied returns the first directory on the way to path that the user may not enter, or path if
// the user may not execute it, or "". It knows no ACLs.
func denied(path string, uid, gid int) string {
	if uid == 0 || !filepath.IsAbs(path) {
		return ""
	}
	at := "/"
	for part := range strings.SplitSeq(path[1:], "/") {
		at = filepath.Join(at, part)
		var st unix.Stat_t
		if unix.Stat(at, &st) != nil {
			return ""
		}
		mode := st.Mode
		switch {
		case st.Uid == uint32(uid):
			mode >>= 6
		case st.Gid == uint32(gid):
			mode >>= 3
		}
		if mode&1 == 0 {
			return at
		}
	}
	return ""
}

func procPath(pid int, file string) string { return "/proc/" + strconv.Itoa(pid) + "/" + file }
