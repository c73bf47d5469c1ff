package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres/embedded"
)

// post creates something over REST.
func (d *daemon) post(path string, body map[string]string) {
	d.t.Helper()
	var answer json.RawMessage
	if status := d.rest(http.MethodPost, path, body, &answer); status/100 != 2 {
		d.t.Fatalf("POST %s: %d %s", path, status, answer)
	}
}

// latestAudit returns the id of the latest audit entry.
func (d *daemon) latestAudit() string {
	d.t.Helper()
	var page struct{ Items []struct{ ID string } }
	if status := d.rest(http.MethodGet, "/audit?limit=1", nil, &page); status != 200 || len(page.Items) != 1 {
		d.t.Fatalf("audit: %d, %d entries", status, len(page.Items))
	}
	return page.Items[0].ID
}

// audit runs fleetd audit, and returns its output and whether it succeeded.
func (d *daemon) audit(args ...string) (out string, ok bool) {
	d.t.Helper()
	cmd := d.command(append([]string{"audit"}, args...)...)
	data, err := cmd.CombinedOutput()
	return string(data), err == nil
}

// followsTheLog checks that follow appends each entry once and in order, also after a crash cut its last line off.
func (d *daemon) followsTheLog(t *testing.T) {
	t.Helper()
	name := filepath.Join(d.dir, "followed")
	follow := func(flags ...string) int {
		t.Helper()
		if out, ok := d.audit(append([]string{"follow", "--once", "-o", name}, flags...)...); !ok {
			t.Fatalf("follow: %s", out)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		for i, line := range lines {
			var e struct {
				Number int
				Kind   string
				Line   map[string]any
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Number != i || e.Line["entry"] != e.Kind {
				t.Fatalf("line %d is %q: %v", i, line, err)
			}
		}
		return len(lines)
	}
	first := follow()
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(`{"number":9999,"ki`)
		file.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	d.post("/tokens", map[string]string{"name": "late", "role": "viewer"})
	fleettest.EventuallyWithin(t, time.Minute, "another entry", func() bool { return follow() > first })
	if err := os.WriteFile(name+".next", []byte("999999"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, ok := d.audit("follow", "--once", "-o", name); ok || !strings.Contains(out, "entry_not_sealed") {
		t.Errorf("from an entry that does not exist: %s", out)
	}
}

// The commands of the sealed record, as an auditor uses them: with files, and a client of tlog-tiles that is not
// fleetd's.
func TestAuditCommands(t *testing.T) {
	d := newDaemon(t)
	const tokens = 300 // each is an audit entry: more than a tile
	for range tokens {
		d.post("/tokens", map[string]string{"name": "t", "role": "viewer"})
	}
	entry := d.latestAudit()
	var status struct {
		Origin, Key, Root string
		Entries           int64
		Sealing           bool
	}
	fleettest.EventuallyWithin(t, time.Minute, "the entries to be sealed", func() bool {
		out, ok := d.audit("status", "--json")
		return ok && json.Unmarshal([]byte(out), &status) == nil && status.Entries > tokens
	})
	if !status.Sealing || !strings.HasPrefix(status.Key, status.Origin+"+") {
		t.Errorf("status %+v", status)
	}

	out, ok := d.audit("entries", "--action", "token.create", "--format", "csv")
	if lines := strings.Count(out, "\n"); !ok || lines < tokens+1 || !strings.HasPrefix(out, "at,kind,id,") ||
		!strings.Contains(out, entry) {
		t.Errorf("entries: %d lines: %.300s", lines, out)
	}
	if out, ok := d.audit("entries", "--kind", "deed"); ok || !strings.Contains(out, "invalid_audit_kind") {
		t.Errorf("entries of an unknown kind: %s", out)
	}

	d.followsTheLog(t)

	proof, kept := filepath.Join(d.dir, "proof"), filepath.Join(d.dir, "kept")
	if out, ok := d.audit("prove", entry, "-o", proof); !ok {
		t.Fatalf("prove: %s", out)
	}
	if out, ok := d.audit("check", proof, "--key", status.Key); !ok || !strings.Contains(out, entry) {
		t.Errorf("check: %s", out)
	}
	other := status.Key[:len(status.Key)-2] + "A="
	if out, ok := d.audit("check", proof, "--key", other); ok {
		t.Errorf("check with another key: %s", out)
	}
	data, err := os.ReadFile(proof)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(string) string{
		"another index": func(s string) string { return strings.Replace(s, "\nindex ", "\nindex 1", 1) },
		"another size":  func(s string) string { return strings.Replace(s, "\ntime ", "\ntime x", 1) },
		"cut off":       func(s string) string { return s[:len(s)/2] },
		"empty":         func(string) string { return "" },
	} {
		bad := filepath.Join(d.dir, "bad")
		if err := os.WriteFile(bad, []byte(change(string(data))), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, ok := d.audit("check", bad, "--key", status.Key); ok {
			t.Errorf("check of a proof with %s: %s", name, out)
		}
	}
	for _, no := range []string{"99999999", "-1", "nothing", "0193e5a0-0000-7000-8000-000000000000"} {
		if out, ok := d.audit("prove", "--", no); ok {
			t.Errorf("prove %s: %s", no, out)
		}
	}

	checkpoint, ok := d.audit("checkpoint")
	if !ok {
		t.Fatalf("checkpoint: %s", checkpoint)
	}
	if err := os.WriteFile(kept, []byte(checkpoint), 0o600); err != nil {
		t.Fatal(err)
	}
	d.post("/tokens", map[string]string{"name": "later", "role": "viewer"})
	if out, ok := d.audit("verify", "--against", kept); !ok || !strings.Contains(out, `"sound"`) {
		t.Errorf("verify: %s", out)
	}
	d.checkTiles(status.Key)

	// A database administrator changes an author.
	url, _, err := embedded.Join(filepath.Join(d.dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background())
	if _, err := db.Exec(t.Context(), `UPDATE audit_entries SET actor_name = 'somebody' WHERE id = $1`, entry); err != nil {
		t.Fatal(err)
	}
	if out, ok := d.audit("verify"); ok || !strings.Contains(out, "changed at entry") || !strings.Contains(out, entry) {
		t.Errorf("verify after the change: %s", out)
	}
	if out, ok := d.audit("prove", entry); ok || !strings.Contains(out, "entry_changed") {
		t.Errorf("prove after the change: %s", out)
	}
}

// A witness that is not fleetd's, the program that FLEETD_WITNESS names, signs the checkpoints; a proof shows it. A
// directory keeps them.
func TestForeignWitness(t *testing.T) {
	program := os.Getenv("FLEETD_WITNESS")
	if program == "" {
		t.Skip("FLEETD_WITNESS names no program")
	}
	d := newDaemon(t)
	entry := d.latestAudit()
	var status struct {
		Key     string
		Entries int64
		Places  []struct {
			Kind, To, Message string
			Entries           int64
		}
	}
	ask := func() {
		t.Helper()
		if out, ok := d.audit("status", "--json"); !ok || json.Unmarshal([]byte(out), &status) != nil {
			t.Fatalf("status: %s", out)
		}
	}
	ask()
	witness := exec.Command(program, status.Key)
	stdin, err := witness.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := witness.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := witness.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); _ = witness.Wait() })
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	key, address, _ := strings.Cut(strings.TrimSpace(line), " ")

	dir := t.TempDir()
	d.stop()
	d.start("--witness", key+" "+address, "--allow-outbound", strings.TrimPrefix(address, "http://"), "--checkpoint-to",
		"file://"+dir, "--checkpoint-every", "1s")
	for range 3 { // each checkpoint continues the one before
		d.post("/tokens", map[string]string{"name": "next", "role": "viewer"})
		entry = d.latestAudit()
		fleettest.EventuallyWithin(t, time.Minute, "the witness to sign", func() bool {
			proof := filepath.Join(d.dir, "proof")
			if _, ok := d.audit("prove", entry, "-o", proof); !ok { // not sealed yet
				return false
			}
			out, ok := d.audit("check", proof, "--key", status.Key, "--witness", key)
			return ok && strings.Contains(out, "signed by the witness witness.example/w1 at ")
		})
	}
	kept, err := filepath.Glob(filepath.Join(dir, "checkpoints", "*"))
	if err != nil || len(kept) < 2 {
		t.Errorf("the directory has %d checkpoints: %v", len(kept), err)
	}
	for _, name := range append(kept, filepath.Join(dir, "checkpoint")) {
		if out, ok := d.audit("verify", "--against", name); !ok {
			t.Errorf("verify --against %s: %s", name, out)
		}
	}
	if ask(); len(status.Places) != 2 || status.Places[0].Message+status.Places[1].Message != "" {
		t.Errorf("%+v", status.Places)
	}
}

// checkTiles exports the log twice, and lets a foreign program check the files if FLEETD_TLOG_FSCK names one.
func (d *daemon) checkTiles(key string) {
	d.t.Helper()
	dir, public := filepath.Join(d.dir, "log"), filepath.Join(d.dir, "key")
	for range 2 {
		if out, ok := d.audit("export", "--tiles", dir); !ok {
			d.t.Fatalf("export: %s", out)
		}
		d.post("/tokens", map[string]string{"name": "next", "role": "viewer"})
	}
	if err := os.WriteFile(public, []byte(key), 0o600); err != nil {
		d.t.Fatal(err)
	}
	for _, name := range []string{"checkpoint", "tile/0/000", "tile/entries/000"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			d.t.Error(err)
		}
	}
	fsck := os.Getenv("FLEETD_TLOG_FSCK")
	if fsck == "" {
		d.t.Log("FLEETD_TLOG_FSCK is not set: no foreign program checks the files")
		return
	}
	check := func(limit time.Duration) string {
		ctx, cancel := context.WithTimeout(d.t.Context(), limit)
		defer cancel()
		out, _ := exec.CommandContext(ctx, fsck, "--ui=false", "--storage_url=file://"+dir,
			"--public_key="+public).CombinedOutput() // it exits with 0 also after a failure
		return string(out)
	}
	if out := check(time.Minute); !strings.Contains(out, "Successfully fsck'd log") {
		d.t.Errorf("the foreign program: %s", out)
	}
	entries := filepath.Join(dir, "tile/entries/000")
	data, err := os.ReadFile(entries)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(entries, bytes.Replace(data, []byte("admin"), []byte("nimda"), 1), 0o600); err != nil {
		d.t.Fatal(err)
	}
	// It may wait for ever after a tile that does not match.
	if out := check(5 * time.Second); strings.Contains(out, "Successfully fsck'd log") {
		d.t.Errorf("the foreign program, with another entry: %s", out)
	}
}
