package postgres_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/fleet/record"
)

// sealerURL names the database of a test binary that runs as a sealer, which a test kills.
const sealerURL = "FLEETD_TEST_SEALER"

// runSealer makes calls and seals their entries as fast as it can. It prints the id of each call whose outcome was
// stored.
func runSealer(url string) {
	ctx := context.Background()
	db, err := postgres.Open(ctx, url)
	if err != nil {
		panic(err)
	}
	s := postgres.New(db, postgres.Options{})
	go func() { _ = s.Run(ctx) }()
	term, _ := strconv.Atoi(os.Getenv("FLEETD_TEST_TERM"))
	q, err := record.OpenSequencer(ctx, record.SequencerOptions{Store: s, Secret: recordSecret, Term: term,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	var mu sync.Mutex
	for range 8 {
		go func() {
			for {
				c := newCall("d", fleet.CallSent)
				if err := s.InsertCall(ctx, c); err != nil {
					panic(err)
				}
				if err := s.FinishCall(ctx, finish(c, fleet.CallTimedOut, "")); err != nil {
					panic(err)
				}
				mu.Lock()
				fmt.Println(c.ID)
				mu.Unlock()
			}
		}()
	}
	for {
		if err := q.Seal(ctx); err != nil {
			panic(err)
		}
	}
}

// A leader is killed again and again between the entries and their checkpoints. Each entry whose outcome was
// acknowledged is in the log once, and the log is sound. FLEETD_KILLS is the number of kills.
func TestKilledSealer(t *testing.T) {
	kills := 25
	if n, err := strconv.Atoi(os.Getenv("FLEETD_KILLS")); err == nil {
		kills = n
	} else if testing.Short() {
		t.Skip("starts processes")
	}
	url := pgtest.URL(t)
	s := postgres.New(testDBAt(t, url), postgres.Options{})
	var acknowledged []uuid.UUID
	for round := range kills {
		acknowledged = append(acknowledged, killedSealer(t, url, round+1)...)
	}
	check(t, openSequencer(t, s, kills+1).Seal(t.Context()))
	r := verify(t, s)
	for _, f := range r.Findings {
		t.Errorf("%s %s %s", f.Problem, f.Kind, f.Subject())
	}
	entries := make(map[string]int)
	leaves, err := s.RecordLeaves(t.Context(), 0, r.Entries)
	check(t, err)
	for _, l := range leaves {
		if l.Kind == record.Call {
			entries[l.Ref]++
		}
	}
	for _, id := range acknowledged {
		if n := entries[string(id[:])]; n != 1 {
			t.Errorf("call %s is in the log %d times", id, n)
		}
	}
	if len(acknowledged) < kills || r.Queued != 0 {
		t.Errorf("%d calls acknowledged in %d rounds, %d entries queued", len(acknowledged), kills, r.Queued)
	}
	t.Logf("%d kills, %d calls acknowledged, %d entries, %d checkpoints", kills, len(acknowledged), r.Entries, r.Checked)
}

// killedSealer runs a sealer until a random moment after its first call, and returns the calls that it acknowledged.
func killedSealer(t *testing.T, url string, term int) (acknowledged []uuid.UUID) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), sealerURL+"="+url, "FLEETD_TEST_TERM="+strconv.Itoa(term))
	out, err := cmd.StdoutPipe()
	check(t, err)
	cmd.Stderr = os.Stderr
	check(t, cmd.Start())
	var kill *time.Timer
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		id, err := uuid.Parse(lines.Text())
		if err != nil {
			break // the kill cut it off
		}
		acknowledged = append(acknowledged, id)
		if kill == nil {
			kill = time.AfterFunc(time.Duration(rand.IntN(30))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		}
	}
	if kill == nil {
		t.Error("the sealer acknowledged no call")
	}
	_ = cmd.Wait() // killed
	return acknowledged
}
