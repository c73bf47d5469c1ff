package embedded

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestSecondStartKeepsDataAndIsFast(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := start(t, dir)
	query(t, s.URL(), "CREATE TABLE kept AS SELECT 'still here' AS v")
	stop(t, s)
	if err := s.Err(); err != nil {
		t.Errorf("Err after Stop = %v, want nil", err)
	}

	began := time.Now()
	s = start(t, dir)
	t.Logf("second start took %v", time.Since(began)) // about 0.15 s
	if got := query(t, s.URL(), "SELECT v FROM kept"); got != "still here" {
		t.Errorf("kept data = %q", got)
	}
}

func TestSettings(t *testing.T) {
	s := start(t, t.TempDir())
	for name, want := range map[string]string{
		"listen_addresses": "", "server_encoding": "UTF8", "lc_ctype": "C.UTF-8", "data_checksums": "on",
		"fsync": "on", "synchronous_commit": "on", "max_connections": "60", "TimeZone": "UTC", "is_superuser": "off",
	} {
		if got := query(t, s.URL(), "SELECT current_setting('"+name+"')"); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := query(t, s.URL(), "SELECT string_agg(x, '' ORDER BY x) || upper('é') FROM unnest('{b,a,B,é}'::text[]) x"); got != "BabéÉ" {
		t.Errorf("text order and case = %q, want BabéÉ", got)
	}
	if logs, err := os.ReadDir(s.dir.logs()); err != nil || len(logs) == 0 {
		t.Errorf("no log files: %v", err)
	}
}

func TestRootBelowClosedHome(t *testing.T) {
	needRoot(t)
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	s := start(t, filepath.Join(home, "checkout", "data"))
	info, err := os.Stat(s.dir.cluster())
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid == 0 {
		t.Error("the cluster belongs to root")
	}
	if mode := info.Mode().Perm(); mode != 0o700 {
		t.Errorf("socket directory has mode %o, want 700", mode)
	}
}

func TestOrdinaryUser(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(dirOf(t, "nobody"), "data")
	_, url := startHelper(t, dir, "nobody").ready(t)
	if got := query(t, url, "SELECT current_user"); got != database {
		t.Errorf("current_user = %q", got)
	}
}

func TestRootTakesOverUsersCluster(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(dirOf(t, "nobody"), "data")
	h := startHelper(t, dir, "nobody")
	h.ready(t)
	h.input.Close()
	if err := h.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	s := start(t, dir)
	if got := query(t, s.URL(), "SELECT current_user"); got != database {
		t.Errorf("current_user = %q", got)
	}
	info, _ := os.Stat(filepath.Join(s.dir.cluster(), "postmaster.pid"))
	if uid, _ := lookup(t, "nobody"); info.Sys().(*syscall.Stat_t).Uid != uid {
		t.Error("the server does not run as the cluster's owner")
	}
}

func TestKillNine(t *testing.T) {
	users := []string{""}
	if os.Geteuid() == 0 {
		users = append(users, "nobody")
	}
	for _, as := range users {
		t.Run("as "+as, func(t *testing.T) {
			dir := t.TempDir()
			if as != "" {
				dir = dirOf(t, as)
			}
			h := startHelper(t, dir, as)
			pid, url := h.ready(t)
			query(t, url, "CREATE TABLE kept AS SELECT 'durable' AS v")
			idle, err := pgx.Connect(t.Context(), url) // a client that stays must not hold the server up
			if err != nil {
				t.Fatal(err)
			}
			defer idle.Close(context.Background())
			pids := family(t, pid)
			if len(pids) < 5 {
				t.Fatalf("server has processes %v: is this really PostgreSQL?", pids)
			}
			h.cmd.Process.Kill()
			h.cmd.Wait()
			if as == "" { // at once, while the old server is still going down
				s := start(t, dir)
				if got := query(t, s.URL(), "SELECT v FROM kept"); got != "durable" {
					t.Errorf("after kill -9: %q", got)
				}
			}
			waitGone(t, pids)
		})
	}
}

func TestServerDiesUnexpectedly(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	query(t, s.URL(), "CREATE TABLE kept AS SELECT 'recovered' AS v")
	pids := family(t, s.proc.pid())
	s.proc.cmd.Process.Kill()
	<-s.Done()
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "ended unexpectedly") {
		t.Errorf("Err = %v", err)
	}
	waitGone(t, pids)
	s.Stop(context.Background())

	again := start(t, dir) // over the stale postmaster.pid
	if got := query(t, again.URL(), "SELECT v FROM kept"); got != "recovered" {
		t.Errorf("after recovery: %q", got)
	}
}

func TestStopCutShort(t *testing.T) {
	s := start(t, t.TempDir())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	pids := family(t, s.proc.pid())
	s.Stop(ctx) // may win the race and be orderly
	select {
	case <-s.Done():
	default:
		t.Error("Stop returned before the server was gone")
	}
	waitGone(t, pids)
}

func TestStartCancelled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	if s, err := Start(ctx, Options{DataDir: dir}); err == nil {
		stop(t, s)
		t.Skip("this machine makes a cluster in less than 150 ms")
	}
	if _, err := os.Stat(dataDir(dir).unborn()); err == nil {
		t.Error("an unfinished cluster was left")
	}
	start(t, dir)
}

func TestLongPath(t *testing.T) {
	dir := t.TempDir()
	for len(dir) <= maxSocketPath {
		dir = filepath.Join(dir, "a-directory,with a long name")
	}
	s := start(t, dir)
	if got := query(t, s.URL(), "SELECT current_database()"); got != database {
		t.Errorf("current_database = %q", got)
	}
	url, running, err := Join(dir)
	if err != nil || !running {
		t.Fatalf("Join = %v, %v", running, err)
	}
	if got := query(t, url, "SELECT current_database()"); got != database {
		t.Errorf("joined: current_database = %q", got)
	}
}
