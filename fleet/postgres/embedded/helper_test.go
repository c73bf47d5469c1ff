package embedded

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres/pgtest/scratch"
)

// asHelper makes the test binary a fleetd in small: it starts the server in
// the directory named, says how that went, and stops when its input ends.
const asHelper = "EMBEDDED_TEST_DATA_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asHelper); dir != "" {
		help(dir)
		return
	}
	programs = os.TempDir()
	os.Setenv("TMPDIR", scratch.Dir())
	goleak.VerifyTestMain(m)
}

// programs is a directory that programs may run from, unlike that of clusters.
var programs string

func help(dir string) {
	s, err := Start(context.Background(), Options{DataDir: dir, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("ready", s.proc.pid(), s.URL())
	io.Copy(io.Discard, os.Stdin)
	if err := s.Stop(context.Background()); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

// A helper is another process that runs, or failed to run, a server.
type helper struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	out   *bufio.Reader
}

// startHelper runs a helper as the given user; "" is the test's own.
func startHelper(t *testing.T, dir, as string) *helper {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asHelper+"="+dir)
	cmd.Stderr = os.Stderr
	if as != "" {
		uid, gid := lookup(t, as)
		cmd.Path = publicCopy(t, os.Args[0])
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &helper{cmd: cmd, input: in, out: bufio.NewReader(out)}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	return h
}

// ready waits for the server and returns its pid and URL.
func (h *helper) ready(t *testing.T) (pid int, url string) {
	t.Helper()
	line, _ := h.out.ReadString('\n')
	if _, err := fmt.Sscanf(line, "ready %d %s", &pid, &url); err != nil {
		t.Fatalf("helper says %q, want ready", line)
	}
	return pid, url
}

// failure returns the error that the helper ended with.
func (h *helper) failure(t *testing.T) string {
	t.Helper()
	line, _ := h.out.ReadString('\n')
	msg, ok := strings.CutPrefix(line, "error ")
	if !ok {
		t.Fatalf("helper says %q, want an error", line)
	}
	return strings.TrimSpace(msg)
}

// publicCopy puts the test binary where every user may run it.
func publicCopy(t *testing.T, bin string) string {
	t.Helper()
	b, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(publicDir(t, programs), "helper")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// publicDir is a directory in parent that every user can reach, unlike t.TempDir.
func publicDir(t *testing.T, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "embedded")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// dirOf is a directory that belongs to the user.
func dirOf(t *testing.T, name string) string {
	t.Helper()
	dir := publicDir(t, "")
	uid, gid := lookup(t, name)
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func lookup(t *testing.T, name string) (uid, gid uint32) {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		t.Skip(err)
	}
	id, _ := strconv.Atoi(u.Uid)
	group, _ := strconv.Atoi(u.Gid)
	return uint32(id), uint32(group)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func start(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop(context.Background()) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

// query runs one statement and returns its one value as text.
func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var v *string
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil && err != pgx.ErrNoRows {
		t.Fatalf("%s: %v", sql, err)
	}
	if v == nil {
		return ""
	}
	return *v
}

// family is pid and its live children. Each of PostgreSQL's children starts a new
// session, so only the parent pid identifies them, and only while the parent
// lives.
func family(t *testing.T, pid int) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	pids := []int{pid}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if _, parent, ok := procStat(child); err == nil && ok && parent == pid {
			pids = append(pids, child)
		}
	}
	return pids
}

// procStat reads a process's state letter and its parent.
func procStat(pid int) (state string, parent int, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	_, err = fmt.Sscan(rest, &state, &parent)
	return state, parent, err == nil
}

func waitGone(t *testing.T, pids []int) {
	t.Helper()
	fleettest.Eventually(t, fmt.Sprintf("none of the processes %v runs", pids), func() bool {
		return !slices.ContainsFunc(pids, running)
	})
}

// running is false for a zombie, which only waits for its new parent.
func running(pid int) bool {
	state, _, ok := procStat(pid)
	return ok && state != "Z"
}
