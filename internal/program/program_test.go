package program

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// roleVariable makes the test binary act as a program; see TestMain.
const roleVariable = "PROGRAM_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		os.Setenv("PROGRAM_TEST_SECRET", "x") // no program may see it
		flag.Parse()
		flag.Set("test.parallel", "8") // most tests wait
		goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("fleetd/internal/program.runLauncher"))
	case "spin": // until the end of stdin, at most 20 s
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		}
	case "open files":
		n := 3
		for ; n < 1000; n++ {
			if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
				break
			}
		}
		fmt.Println(n)
	case "fleetd":
		p := must(Start(shell("echo $$; setsid sleep 20 & echo $!; sleep 20")))
		go io.Copy(os.Stdout, p.Stdout())
		select {
		case <-p.Done():
		case <-time.After(20 * time.Second):
		}
	case "PID 1":
		reapOrphans()
	}
}

// reapOrphans acts as fleetd does in a container: orphans become its children. It prints which
// of them it did not reap.
func reapOrphans() {
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	zombies := func() (n int) {
		for _, e := range must(os.ReadDir("/proc")) {
			pid, _ := strconv.Atoi(e.Name())
			if st, err := readStat(pid, make([]byte, 4096)); err == nil && st.ppid == os.Getpid() && st.state == 'Z' {
				n++
			}
		}
		return n
	}
	p := must(Start(shell("for i in 1 2 3; do (setsid sleep 1 & setsid sleep 20 &); done; read x")))
	for end := time.Now().Add(20 * time.Second); p.Usage().Processes != 7 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	for end := time.Now().Add(20 * time.Second); p.Usage().Processes != 4 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(2 * scanInterval)
	while := zombies()
	err := p.Stop(context.Background())
	fmt.Println("zombies:", while, zombies(), err)
}

const path = "PATH=/usr/local/bin:/usr/bin:/bin"

// shell describes a program that runs a shell script.
func shell(script string) Spec {
	return Spec{Name: "test", Path: "sh", Args: []string{"-c", script}, Env: []string{path}}
}

// role describes a program that is the test binary.
func role(name string) Spec {
	return Spec{Name: "test", Path: testBinary(), Env: []string{path, roleVariable + "=" + name}}
}

func testBinary() string {
	file, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return file
}

func start(t testing.TB, spec Spec) *Process {
	t.Helper()
	p, err := Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // kills at once
		if err := p.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

// output starts a program, reads its output and waits for its end.
func output(t *testing.T, spec Spec) (string, Exit) {
	t.Helper()
	p := start(t, spec)
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out)), await(t, p)
}

func await(t *testing.T, p *Process) Exit {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(30 * time.Second):
		t.Fatalf("process %d has not ended", p.PID())
	}
	return p.Exit()
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after 20 s: %s", what)
		}
	}
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	st, err := readStat(pid, make([]byte, 4096))
	return err == nil && st.state != 'Z' && st.state != 'X'
}

func readLine(t *testing.T, r io.Reader) string {
	t.Helper()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func readPID(t *testing.T, r io.Reader) int {
	t.Helper()
	pid, err := strconv.Atoi(readLine(t, r))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestExit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		script string
		want   Exit
		text   string
	}{
		{"exit 0", Exit{Reason: Exited}, "exited with code 0"},
		{"exit 3", Exit{Reason: Exited, Code: 3}, "exited with code 3"},
		{"kill -SEGV $$", Exit{Reason: Exited, Code: -1, Signal: syscall.SIGSEGV}, "ended by signal 11 (segmentation fault)"},
	}
	for _, tt := range tests {
		_, got := output(t, shell(tt.script))
		if got != tt.want || got.String() != tt.text {
			t.Errorf("%s: exit %+v (%v), want %+v (%s)", tt.script, got, got, tt.want, tt.text)
		}
	}
}

func TestPipes(t *testing.T) {
	t.Parallel()
	p := start(t, Spec{Name: "cat", Path: "/bin/cat"})
	if e := p.Exit(); e != (Exit{}) {
		t.Errorf("exit while it runs: %v", e)
	}
	fmt.Fprintln(p.Stdin(), "hello")
	if got := readLine(t, p.Stdout()); got != "hello" {
		t.Errorf("read %q", got)
	}
	begin := time.Now()
	if err := p.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > closeTimeout {
		t.Errorf("stop took %v; the program ends when its input does", d)
	}
	if e := p.Exit(); e != (Exit{Reason: Stopped}) {
		t.Errorf("exit %+v", e)
	}
	if err := p.Stop(context.Background()); err != nil {
		t.Errorf("second stop: %v", err)
	}
}

// Output that the program wrote before its end can be read after it.
func TestOutputAfterEnd(t *testing.T) {
	t.Parallel()
	p := start(t, shell("echo last words"))
	await(t, p)
	if got := readLine(t, p.Stdout()); got != "last words" {
		t.Errorf("read %q", got)
	}
}

func TestStopIgnoresTerm(t *testing.T) {
	t.Parallel()
	p := start(t, shell(`trap "" TERM; echo ready; i=0; while [ $i -lt 200 ]; do sleep 0.1; i=$((i+1)); done`))
	readLine(t, p.Stdout())
	begin := time.Now()
	if err := p.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d < closeTimeout+termTimeout {
		t.Errorf("stopped after %v, before SIGTERM had its time", d)
	}
	if e := p.Exit(); e.Reason != Stopped || e.Signal != syscall.SIGKILL || e.Code != -1 {
		t.Errorf("exit %+v", e)
	}
}

func TestStopAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t, shell(`trap "" TERM; echo ready; sleep 20`))
	readLine(t, p.Stdout())
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if err := p.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if d := time.Since(begin); d > closeTimeout {
		t.Errorf("stop took %v after its context ended", d)
	}
}

// Stop unblocks a writer and a reader of a program that does neither.
func TestStopUnblocks(t *testing.T) {
	t.Parallel()
	p := start(t, shell("exec sleep 20"))
	wrote, read := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := p.Stdin().Write(make([]byte, 1<<20))
		wrote <- err
	}()
	go func() {
		_, err := io.ReadAll(p.Stdout())
		read <- err
	}()
	time.Sleep(50 * time.Millisecond)
	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop(context.Background()) }()
	if err := <-wrote; !errors.Is(err, fs.ErrClosed) {
		t.Errorf("write: %v", err)
	}
	// Stop closes stdout when the program has ended. A busy reader sees that before it sees the end.
	if err := <-read; err != nil && !errors.Is(err, fs.ErrClosed) {
		t.Errorf("read: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestDescendants(t *testing.T) {
	t.Parallel()
	t.Run("main process ends", func(t *testing.T) {
		t.Parallel()
		p := start(t, shell("(setsid sleep 20 >/dev/null & echo $!)"))
		pid := readPID(t, p.Stdout())
		if e := await(t, p); e != (Exit{Reason: Exited}) {
			t.Errorf("exit %+v", e)
		}
		if alive(pid) {
			t.Errorf("process %d lives", pid)
		}
	})
	t.Run("stop", func(t *testing.T) {
		t.Parallel()
		p := start(t, shell("(setsid sh -c 'trap : TERM; sleep 20; sleep 20' >/dev/null & echo $!); read x"))
		pid := readPID(t, p.Stdout())
		if err := p.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if alive(pid) {
			t.Errorf("process %d lives", pid)
		}
	})
	t.Run("cleared environment", func(t *testing.T) {
		t.Parallel()
		p := start(t, shell("sh -c 'setsid env -i sleep 20 >/dev/null & echo $!; read x'; read x"))
		pid := readPID(t, p.Stdout())
		eventually(t, "3 processes", func() bool { return p.Usage().Processes == 3 })
		fmt.Fprintln(p.Stdin())
		eventually(t, "2 processes", func() bool { return p.Usage().Processes == 2 })
		if !alive(pid) {
			t.Fatalf("process %d has ended", pid)
		}
		if err := p.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if alive(pid) {
			t.Errorf("process %d lives", pid)
		}
	})
}

func TestMemory(t *testing.T) {
	t.Parallel()
	const limit = 64 << 20
	for name, script := range map[string]string{
		"main process": "exec dd if=/dev/zero of=/dev/null bs=150M count=100",
		"child":        "dd if=/dev/zero of=/dev/null bs=150M count=100; exit 0",
		"together":     "for i in 1 2 3 4; do dd if=/dev/zero of=/dev/null bs=40M count=400 & done; wait",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := shell(script)
			spec.Limits.Memory = limit
			_, e := output(t, spec)
			if e.Reason != OverMemory || e.Used <= limit || e.Used > 4*limit || e.Limit != limit {
				t.Errorf("exit %+v", e)
			}
			if !strings.HasSuffix(e.String(), "MiB of memory, and its limit is 64 MiB") {
				t.Errorf("exit %v", e)
			}
		})
	}
	t.Run("faster than the scan", func(t *testing.T) {
		t.Parallel()
		spec := shell("exec dd if=/dev/zero of=/dev/null bs=3G count=1")
		spec.Limits.Memory = limit
		var lines []string
		spec.Stderr = func(line string) { lines = append(lines, line) }
		_, e := output(t, spec)
		if e.Reason != Exited || e.Code != 1 || !strings.Contains(strings.Join(lines, " "), "exhausted") {
			t.Errorf("exit %v, stderr %q", e, lines)
		}
	})
	t.Run("below", func(t *testing.T) {
		t.Parallel()
		spec := shell("read x")
		spec.Limits.Memory = limit
		p := start(t, spec)
		eventually(t, "memory is measured", func() bool { return p.Usage().Memory > 0 })
		if m := p.Usage().Memory; m > limit/4 {
			t.Errorf("a shell uses %d bytes", m)
		}
	})
}

// cpuOf returns the CPU time of processes by the kernel's account.
func cpuOf(t *testing.T, pids ...int) (d time.Duration) {
	t.Helper()
	for _, pid := range pids {
		st, err := readStat(pid, make([]byte, 4096))
		if err != nil {
			t.Fatal(err)
		}
		d += st.cpu
	}
	return d
}

func TestCPU(t *testing.T) {
	t.Parallel()
	const limit = 0.25
	one := role("spin")
	two := shell(`exec 3<&0; setsid "$0" <&3 & echo $!; "$0" <&3 & echo $!; wait`)
	two.Args = append(two.Args, testBinary())
	two.Env = append(two.Env, roleVariable+"=spin")
	for name, spec := range map[string]Spec{"one process": one, "two sessions": two} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec.Limits.CPU = limit
			p := start(t, spec)
			pids := []int{p.PID()}
			if name != "one process" {
				r := bufio.NewReader(p.Stdout())
				for range 2 {
					line, _ := r.ReadString('\n')
					pid, _ := strconv.Atoi(strings.TrimSpace(line))
					pids = append(pids, pid)
				}
			}
			eventually(t, "throttled", func() bool { return p.Usage().Throttled > 0 })
			var wall time.Duration
			for got, tries := 0.0, 0; got < 0.3*limit; tries++ {
				if tries == 10 { // a busy machine may have given it less, for a time
					t.Fatalf("used %.3f cores, want about %v", got, limit)
				}
				begin, before := time.Now(), cpuOf(t, pids...)
				time.Sleep(4 * time.Second)
				spent := cpuOf(t, pids...) - before
				wall = time.Since(begin)
				if got = spent.Seconds() / wall.Seconds(); got > 1.5*limit {
					t.Fatalf("used %.3f cores, want about %v", got, limit)
				}
			}
			u := p.Usage()
			if total := cpuOf(t, pids...); u.CPU > total+50*time.Millisecond || u.CPU < total-time.Second {
				t.Errorf("usage says %v of CPU time, the kernel %v", u.CPU, total)
			}
			if u.Throttled < wall/4 {
				t.Errorf("throttled for %v of %v", u.Throttled, wall)
			}
		})
	}
	t.Run("stop while throttled", func(t *testing.T) {
		t.Parallel()
		spec := role("spin")
		spec.Limits.CPU = 0.02
		p := start(t, spec)
		eventually(t, "stopped by the limit", func() bool {
			st, err := readStat(p.PID(), make([]byte, 4096))
			return err == nil && st.state == 'T'
		})
		if err := p.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if e := p.Exit(); e != (Exit{Reason: Stopped}) {
			t.Errorf("exit %+v: the program did not get to see the end of its input", e)
		}
	})
	t.Run("below the limit", func(t *testing.T) {
		t.Parallel()
		spec := shell("read x")
		spec.Limits.CPU = 0.5
		p := start(t, spec)
		eventually(t, "measured", func() bool { return p.Usage().Processes == 1 })
		time.Sleep(2 * scanInterval)
		if u := p.Usage(); u.Throttled != 0 {
			t.Errorf("usage %+v", u)
		}
	})
}

func TestCharge(t *testing.T) {
	now := time.Now()
	var a account
	step := func(d, own, inherited, gone, wantCPU, wantBudget time.Duration) {
		t.Helper()
		now = now.Add(d)
		a.own, a.inherited, a.gone = own, inherited, gone
		a.charge(0.5, now)
		if a.cpu != wantCPU || a.budget != wantBudget {
			t.Errorf("spent %v, budget %v, want %v, %v", a.cpu, a.budget, wantCPU, wantBudget)
		}
	}
	const s = time.Second
	step(0, 0, 0, 0, 0, s)
	step(s, s, 0, 0, s, s/2)               // earned half, spent one
	step(s, 0, 0, s, s, s)                 // a process ended that was charged already
	step(s, 0, s+s/4, 0, s+s/4, s)         // its parent waited for it
	step(s, 0, s/4, 0, s+s/2, s)           // and for one that was never seen
	step(s, 100*s, 0, 0, 101*s+s/2, -15*s) // the debt is bounded
	step(60*s, 0, 0, 0, 101*s+s/2, s)      // and so is what it saves up
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"children": "i=0; while [ $i -lt 30 ]; do sleep 15 & i=$((i+1)); done; wait",
		"sessions": "i=0; while [ $i -lt 30 ]; do setsid sleep 15 & i=$((i+1)); done; wait",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := shell(script)
			spec.Limits.Processes = 10
			_, e := output(t, spec)
			if e.Reason != TooManyProcesses || e.Limit != 10 || e.Used <= 10 || e.Used > 31 {
				t.Errorf("exit %+v", e)
			}
			if want := fmt.Sprintf("killed: it had %d processes, and its limit is 10", e.Used); e.String() != want {
				t.Errorf("exit %v, want %s", e, want)
			}
		})
	}
}

// A program that forks as fast as it can, within bounds, while it is killed.
func TestForkLoop(t *testing.T) {
	t.Parallel()
	p := start(t, shell(`f() { i=0; while [ $i -lt 20 ]; do setsid sleep 10 & i=$((i+1)); done; }
		for k in 1 2 3 4 5; do (f) & done; wait; sleep 10`))
	if e := await(t, p); e.Reason != TooManyProcesses || e.Used <= 64 || e.Limit != 64 {
		t.Errorf("exit %+v", e)
	}
	super.mu.Lock()
	defer super.mu.Unlock()
	super.scan(time.Now())
	for _, name := range must(os.ReadDir("/proc")) {
		pid, err := strconv.Atoi(name.Name())
		if err == nil && readMarker(pid, make([]byte, 128<<10)) == p.marker {
			t.Errorf("process %d lives", pid)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestOpenFiles(t *testing.T) {
	t.Parallel()
	spec := role("open files")
	spec.Limits.OpenFiles = 50
	if out, _ := output(t, spec); must(strconv.Atoi(out)) > 50 {
		t.Errorf("opened %s files", out)
	}
	spec = shell("ulimit -Hn; ulimit -n; ulimit -Hc; ulimit -Hd; cat /proc/$$/oom_score_adj")
	spec.Limits.OpenFiles = 50
	spec.Limits.Memory = 1 << 30
	if out, _ := output(t, spec); out != "50\n50\n0\n2097152\n1000" {
		t.Errorf("limits: %q", out)
	}
}

func TestNothingInherited(t *testing.T) {
	t.Parallel()
	// A descriptor without close-on-exec, as fleetd may inherit it.
	fd := must(unix.Open("/dev/null", unix.O_RDONLY, 0))
	defer unix.Close(fd)
	if out, _ := output(t, Spec{Name: "test", Path: "/bin/ls", Args: []string{"/proc/self/fd"}}); out != "0\n1\n2\n3" {
		t.Errorf("descriptors %q, want 0, 1, 2 and that of ls", out)
	}

	spec := Spec{Name: "test", Path: "/usr/bin/env", Env: []string{"A=b", markerVariable + "=x"}}
	out, _ := output(t, spec)
	lines := strings.Split(out, "\n")
	if len(lines) != 2 || lines[0] != "A=b" || !strings.HasPrefix(lines[1], markerVariable+"=test.") {
		t.Errorf("environment %q", lines)
	}
	if out, _ := output(t, shell("pwd")); out != "/" {
		t.Errorf("working directory %s", out)
	}
	spec = shell("pwd; ps -o sid= -p $$ | tr -d ' '; echo $$; grep NoNewPrivs /proc/self/status")
	spec.Dir = must(filepath.EvalSymlinks(t.TempDir()))
	out, _ = output(t, spec)
	lines = strings.Split(out, "\n")
	if len(lines) != 4 || lines[0] != spec.Dir || lines[1] != lines[2] || lines[3] != "NoNewPrivs:\t1" {
		t.Errorf("directory, session, PID, privileges: %q", lines)
	}
}

func TestUser(t *testing.T) {
	if os.Geteuid() != 0 {
		_, err := Start(Spec{Name: "test", Path: "/bin/true", User: &User{UID: 1234, GID: 1234}})
		if want := "program test: cannot run /bin/true as user 1234: fleetd does not run as root"; err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
		t.Skip("the rest requires root")
	}
	t.Parallel()
	u := &User{UID: 61234, GID: 61235}
	spec := shell("id -u; id -g; id -G; grep ^Groups /proc/self/status; cat /proc/self/limits | grep processes; echo text >/dev/stderr")
	spec.User = u
	var lines []string
	spec.Stderr = func(line string) { lines = append(lines, line) }
	out, _ := output(t, spec)
	got := strings.Fields(out)
	want := strings.Fields("61234 61235 61235 Groups: Max processes 1024 1024 processes")
	if !slices.Equal(got, want) || !slices.Equal(lines, []string{"text"}) {
		t.Errorf("output %q, stderr %q", got, lines)
	}

	// This process has neither parent, session nor marker in common with the main process.
	spec = shell("(env -i setsid sleep 20 >/dev/null & echo $!); exit 0")
	spec.User = u
	p := start(t, spec)
	pid := readPID(t, p.Stdout())
	await(t, p)
	if alive(pid) {
		t.Errorf("process %d lives", pid)
	}

	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "run")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Start(Spec{Name: "test", Path: file, User: u})
	if err == nil || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "user 61234 may not enter or execute /") {
		t.Errorf("error %v", err)
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string, mode fs.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	plain := write("plain", "text", 0o644)
	script := write("script", "#!/no/such/interpreter -x\n", 0o755)
	text := write("text", "text", 0o755)
	tests := []struct {
		name string
		spec Spec
		want string // in the error
		is   error
	}{
		{"no name", Spec{Path: "/bin/true"}, "bad name", nil},
		{"no path", Spec{}, "is not absolute", nil},
		{"relative path", Spec{Path: "./x"}, "is not absolute", nil},
		{"missing", Spec{Path: dir + "/missing"}, "missing does not exist: install it", fs.ErrNotExist},
		{"not in PATH", Spec{Path: "sh", Env: []string{"PATH=/nowhere"}}, `no executable file "sh" in PATH "/nowhere"`, fs.ErrNotExist},
		{"no PATH", Spec{Path: "sh"}, `no executable file "sh" in PATH ""`, fs.ErrNotExist},
		{"directory", Spec{Path: dir}, dir + " is a directory", syscall.EISDIR},
		{"not executable", Spec{Path: plain}, "plain is not executable (mode -rw-r--r--)", fs.ErrPermission},
		{"interpreter", Spec{Path: script}, `the interpreter "/no/such/interpreter" of ` + script + " does not exist", fs.ErrNotExist},
		{"format", Spec{Path: text}, "nor a script that begins with #!", syscall.ENOEXEC},
		{"working directory", Spec{Path: "/bin/true", Dir: dir + "/x"}, "working directory: ", fs.ErrNotExist},
		{"working directory is a file", Spec{Path: "/bin/true", Dir: plain}, "is not a directory", nil},
		{"NUL", Spec{Path: "/bin/true", Args: []string{"a\x00b"}}, "NUL", nil},
		{"arguments", Spec{Path: "/bin/true", Args: []string{strings.Repeat("x", 1<<20)}}, "too long", syscall.E2BIG},
		{"negative limit", Spec{Path: "/bin/true", Limits: Limits{CPU: -1}}, "negative limit", nil},
		{"few files", Spec{Path: "/bin/true", Limits: Limits{OpenFiles: 2}}, "too low", nil},
	}
	for _, tt := range tests {
		if tt.name != "no name" {
			tt.spec.Name = "plug-in"
		}
		p, err := Start(tt.spec)
		if err == nil {
			p.Stop(context.Background())
			t.Errorf("%s: no error", tt.name)
			continue
		}
		if !strings.HasPrefix(err.Error(), "program "+tt.spec.Name+": ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %q, want %q", tt.name, err, tt.want)
		}
		if tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%s: error %q is not %v", tt.name, err, tt.is)
		}
	}
}

func TestStderr(t *testing.T) {
	t.Parallel()
	var lines []string
	spec := shell(`printf 'one\ttab\033[1m\r\nbad \377 byte\n\n%02000d\nend' 7 >&2`)
	spec.Stderr = func(line string) { lines = append(lines, line) }
	output(t, spec)
	want := []string{"one tab[1m", "bad \uFFFD byte", "", strings.Repeat("0", 1024), "end"}
	if !slices.Equal(lines, want) {
		t.Errorf("lines %q, want %q", lines, want)
	}
}

func TestStderrFlood(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]time.Duration{"": 0, "slow reader": 5 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines, dropped := 0, 0
			spec := shell("yes 0123456789abcdef0123456789abcdef0123456789abcdef | head -n 1000000 >&2")
			spec.Stderr = func(line string) {
				var n int
				if _, err := fmt.Sscanf(line, "fleetd dropped %d lines", &n); err == nil {
					dropped += n
				} else if lines++; lines < 60 {
					time.Sleep(wait)
				}
			}
			p := start(t, spec)
			begin := time.Now()
			e := await(t, p)
			seconds := int(time.Since(begin).Seconds()) + 1
			if e != (Exit{Reason: Exited}) || lines+dropped != 1_000_000 || lines > linesPerSec*seconds {
				t.Errorf("%v: %d lines and %d dropped in %d s", e, lines, dropped, seconds)
			}
		})
	}
}

// The last count of dropped lines comes even if Stderr is still busy when the program ends.
func TestStderrLastReport(t *testing.T) {
	t.Parallel()
	lines, dropped := 0, 0
	spec := shell("yes | head -n 200 >&2; sleep 1.1; yes | head -n 200 >&2")
	spec.Stderr = func(line string) {
		var n int
		if _, err := fmt.Sscanf(line, "fleetd dropped %d lines", &n); err == nil {
			dropped += n
		} else if lines++; lines == 1 {
			time.Sleep(1500 * time.Millisecond)
		}
	}
	await(t, start(t, spec))
	if lines+dropped != 400 {
		t.Errorf("%d lines and %d dropped of 400", lines, dropped)
	}
}

// The count of dropped lines comes a second later even if the program then writes no more.
func TestStderrReport(t *testing.T) {
	t.Parallel()
	report := make(chan string, 1)
	spec := shell("yes | head -n 500 >&2; read x")
	spec.Stderr = func(line string) {
		if line != "y" {
			report <- line
		}
	}
	start(t, spec)
	select {
	case line := <-report:
		if !strings.HasPrefix(line, "fleetd dropped 400 lines") {
			t.Error(line)
		}
	case <-time.After(20 * time.Second):
		t.Error("no report")
	}
}

// A program dies with fleetd, even if that is killed.
func TestParentDeath(t *testing.T) {
	t.Parallel()
	fleetd := exec.Command(testBinary())
	fleetd.Env = []string{roleVariable + "=fleetd"}
	out, err := fleetd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := fleetd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid, child int
	if _, err := fmt.Fscan(out, &pid, &child); err != nil {
		t.Fatal(err)
	}
	start(t, shell("read x")) // scans
	time.Sleep(3 * scanInterval)
	if !alive(pid) || !alive(child) {
		t.Errorf("process %d or %d does not run: killed while its fleetd lives", pid, child)
	}
	fleetd.Process.Kill()
	fleetd.Wait()
	eventually(t, "the program has ended", func() bool { return !alive(pid) })
	eventually(t, "its child has ended", func() bool { return !alive(child) })
}

func TestInstance(t *testing.T) {
	namespace, pid, start, ok := instanceOf(newMarker("a.b"))
	if !ok || pid != os.Getpid() || start == 0 || namespace+fmt.Sprintf(".%d.%d", pid, start) != instance() {
		t.Errorf("instance %s %d %d, want %s", namespace, pid, start, instance())
	}
	for _, marker := range []string{"", "x", "a.pid:[1].x.5.R", "a.pid:[1].0.5.R", "a.pid:[1].5.-1.R"} {
		if _, _, _, ok := instanceOf(marker); ok {
			t.Errorf("marker %q accepted", marker)
		}
	}
}

func TestReapOrphans(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(testBinary())
	cmd.Env = []string{roleVariable + "=PID 1"}
	out, err := cmd.Output()
	if got := strings.TrimSpace(string(out)); err != nil || got != "zombies: 0 0 <nil>" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestMany(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	for i := range 30 {
		group.Go(func() {
			p, err := Start(Spec{Name: fmt.Sprint("cat", i), Path: "/bin/cat"})
			if err != nil {
				t.Error(err)
				return
			}
			text := strings.Repeat(fmt.Sprintln(i), 100)
			go io.WriteString(p.Stdin(), text)
			got := make([]byte, len(text))
			if _, err := io.ReadFull(p.Stdout(), got); err != nil || string(got) != text {
				t.Errorf("read %q, %v", got, err)
			}
			if err := p.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// BenchmarkScan measures what runs every 500 ms with 100 programs of two processes.
func BenchmarkScan(b *testing.B) {
	for range 100 {
		start(b, shell("sleep 60; exit"))
	}
	time.Sleep(2 * scanInterval)
	super.mu.Lock()
	defer super.mu.Unlock()
	for b.Loop() {
		super.scan(time.Now())
	}
	b.ReportMetric(float64(len(super.procs)), "processes")
}
