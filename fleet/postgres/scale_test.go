package postgres_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"golang.org/x/sync/errgroup"

	"fleetd/bench/large"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/postgres"
)

// scaleCalls is the number of calls to load, in millions; without it TestScale does not run.
// Loading takes a minute per million.
const scaleCalls = "FLEETD_SCALE_MILLION_CALLS"

// TestScale times the pages of a large fleet. It judges medians: a page may take 100 ms of the
// server's time, the calls of a device 50 ms.
func TestScale(t *testing.T) {
	millions, _ := strconv.Atoi(os.Getenv(scaleCalls))
	if millions < 1 {
		t.Skipf("set %s=1 (or 10) to time the pages of 100,000 devices and so many million calls", scaleCalls)
	}
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	load(t, db, 100_000, millions*1_000_000)
	ctx := t.Context()

	for _, text := range []string{"", "board:board-3", "version<2.4", "presence:online -hold", "tag:lab", "tool:self.t2",
		"kitchen", "77", "nothing-like-this",
		"seen<1d -tag:lab version>=1.2 board:board-1*"} {
		q := query(t, text)
		for _, sort := range []fleet.DeviceSort{fleet.SortName, fleet.SortBoard, fleet.SortVersion, fleet.SortPresence,
			fleet.SortLastSeen, fleet.SortCreated} {
			f := fleet.DeviceFilter{Query: q, Sort: sort, Desc: true}
			if p, err := s.Devices(ctx, f); err == nil {
				f.Cursor = p.Next
			}
			atMost(t, 100*time.Millisecond, fmt.Sprintf("devices %q by %s, a page and the count", text, sort), func() error {
				g, ctx := errgroup.WithContext(ctx) // both at once, as the console asks
				g.Go(func() error { _, err := s.Devices(ctx, f); return err })
				g.Go(func() error { _, err := s.CountDevices(ctx, q); return err })
				return g.Wait()
			})
		}
	}
	atMost(t, 100*time.Millisecond, "versions of the fleet", func() error {
		_, err := s.CountBy(ctx, query(t, ""), "version")
		return err
	})
	page, err := s.Calls(ctx, call.Filter{})
	check(t, err)
	for name, f := range map[string]call.Filter{
		"newest":         {},
		"second page":    {Cursor: page.Next},
		"device":         {Device: large.DeviceID(77)},
		"device, tool":   {Device: large.DeviceID(77), Tool: "self.t3"},
		"no such device": {Device: "nobody"},
		"tool":           {Tool: "self.t3"},
		"no such tool":   {Tool: "none"},
		"actor":          {Actor: "op5"},
		"failure":        {States: []fleet.CallState{fleet.CallTimedOut}},
		"no such state":  {States: []fleet.CallState{fleet.CallInvalid}},
		"failures":       {States: []fleet.CallState{fleet.CallTimedOut, fleet.CallInvalid}},
		"open":           {States: []fleet.CallState{fleet.CallPending, fleet.CallSent}},
		"since, until":   {Since: time.Now().AddDate(0, 0, -40), Until: time.Now().AddDate(0, 0, -39)},
		"device, until":  {Device: large.DeviceID(77), Until: time.Now().AddDate(0, 0, -39)},
	} {
		atMost(t, 50*time.Millisecond, "calls: "+name, func() error {
			_, err := s.Calls(ctx, f)
			return err
		})
	}
	atMost(t, 50*time.Millisecond, "one call", func() error {
		_, err := s.Call(ctx, page.Items[7].ID)
		return err
	})
	atMost(t, 100*time.Millisecond, "calls of a day by the hour", func() error {
		_, err := s.CallBuckets(ctx, "", time.Now().AddDate(0, 0, -1), time.Hour)
		return err
	})
}

// atMost runs f once, then five times more, and judges the median of those.
func atMost(t *testing.T, limit time.Duration, what string, f func() error) {
	t.Helper()
	var took []time.Duration
	for range 6 {
		began := time.Now()
		check(t, f())
		took = append(took, time.Since(began))
	}
	took = took[1:]
	slices.Sort(took)
	t.Logf("%8.2f ms  %s", float64(took[2].Microseconds())/1000, what)
	if took[2] > limit {
		t.Errorf("%s takes %v, more than %v", what, took[2], limit)
	}
}

// load makes a fleet, with calls spread over the last three months.
func load(t *testing.T, db *pgxpool.Pool, devices, calls int) {
	t.Helper()
	began := time.Now()
	check(t, large.Fleet{Devices: devices, Calls: calls, Now: began, Span: 90 * 24 * time.Hour}.Write(t.Context(), db))
	t.Logf("loaded %d devices and %d calls in %v", devices, calls, time.Since(began).Round(time.Second))
}
