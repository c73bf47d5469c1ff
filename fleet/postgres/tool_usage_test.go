package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
)

// listTools makes the device list tools with the given descriptions, for models.
func listTools(t testing.TB, s *postgres.Store, device fleet.DeviceID, version string, tools ...fleet.Tool) {
	t.Helper()
	for i := range tools {
		if tools[i].InputSchema == nil {
			tools[i].InputSchema = []byte(`{"type":"object","properties":{}}`)
		}
		if tools[i].Audience == "" {
			tools[i].Audience = fleet.AudienceModel
		}
	}
	check(t, s.SaveListing(t.Context(), fleet.ToolListing{Device: device, Version: version, At: now(),
		Inventory: fleet.Inventory{ID: fleet.InventoryID(tools), Tools: tools}}))
}

// A madeCall is a call of the test, as it is on record.
type madeCall struct {
	id             uuid.UUID
	at             time.Time
	device         fleet.DeviceID
	tool, version  string
	state          fleet.CallState
	sent, finished *time.Time
}

func (c *madeCall) save(t testing.TB, db *pgxpool.Pool) {
	t.Helper()
	_, err := db.Exec(context.Background(), `
		INSERT INTO calls (id, created_at, device_id, tool, actor_kind, actor_id, actor_name, actor_role, state,
			failure, sent_at, finished_at)
		VALUES ($1, $2, $3, $4, 'operator', '1', 'ada', 'admin', $5, $6, $7, $8)
		ON CONFLICT (id, created_at) DO UPDATE SET state = excluded.state, failure = excluded.failure,
			sent_at = excluded.sent_at, finished_at = excluded.finished_at`,
		c.id, c.at, string(c.device), c.tool, string(c.state), failureOf(c.state), c.sent, c.finished)
	if err != nil {
		t.Error(err)
	}
}

func failureOf(s fleet.CallState) *string {
	if !s.Failed() {
		return nil
	}
	return ptr(string(s))
}

// finish gives a call its outcome.
func (c *madeCall) finish(r *rand.Rand) {
	states := []fleet.CallState{fleet.CallSucceeded, fleet.CallSucceeded, fleet.CallSucceeded, fleet.CallToolError,
		fleet.CallTimedOut, fleet.CallUnknown, fleet.CallRefused, fleet.CallInvalid, fleet.CallOffline, fleet.CallCanceled}
	c.state = states[r.IntN(len(states))]
	c.finished = ptr(c.at.Add(time.Duration(r.Int64N(int64(3 * time.Minute)))))
	switch c.state {
	case fleet.CallSucceeded, fleet.CallToolError, fleet.CallTimedOut, fleet.CallUnknown:
		c.sent = ptr(c.at.Add(c.finished.Sub(c.at) / 2).Truncate(time.Microsecond))
	}
}

func newUUID(r *rand.Rand, at time.Time) uuid.UUID {
	var id uuid.UUID
	ms := uint64(at.UnixMilli())
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	for i := 6; i < 16; i++ {
		id[i] = byte(r.UintN(256))
	}
	id[6], id[8] = 0x70|id[6]&0xf, 0x80|id[8]&0x3f
	return id
}

// The rollup counts each call once: with the version that the device ran, also if its outcome is late,
// while others write and count, and after a run was interrupted.
func TestUsageIsExact(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testUsage(t, rand.New(rand.NewPCG(seed, 7))) })
	}
}

func testUsage(t *testing.T, r *rand.Rand) {
	ctx, db := t.Context(), testDB(t)
	s, second := postgres.New(db, postgres.Options{}), postgres.New(db, postgres.Options{})
	devices := []fleet.DeviceID{"d1", "d2", "d3"}
	addDevices(t, s, devices...)
	tools := []string{"self.a", "self.b", "self.c"}
	for _, d := range devices {
		listTools(t, s, d, "1", fleet.Tool{Name: tools[0]}, fleet.Tool{Name: tools[1]}, fleet.Tool{Name: tools[2]})
	}
	day := time.Date(2031, 5, 20, 0, 0, 0, 0, time.UTC) // in the default partition
	if _, err := db.Exec(ctx, `TRUNCATE device_versions`); err != nil {
		t.Fatal(err)
	}
	changed := map[fleet.DeviceID]time.Time{}
	for _, d := range devices {
		changed[d] = day.Add(time.Duration(r.Int64N(int64(60 * time.Hour))))
		for version, at := range map[string]time.Time{"1": day.Add(-time.Hour), "2": changed[d]} {
			if _, err := db.Exec(ctx, `INSERT INTO device_versions VALUES ($1, $2, $3)`, string(d), at, version); err != nil {
				t.Fatal(err)
			}
		}
	}
	var calls []*madeCall
	var open []*madeCall
	begin := func(from time.Time) {
		at := from.Add(time.Duration(r.Int64N(int64(time.Hour)))).Truncate(time.Microsecond)
		c := &madeCall{id: newUUID(r, at), at: at, device: devices[r.IntN(3)], tool: tools[r.IntN(3)], version: "1"}
		if r.IntN(50) == 0 {
			c.tool = "no.such.tool" // a caller may name anything
		}
		if !at.Before(changed[c.device]) {
			c.version = "2"
		}
		c.state = fleet.CallPending
		if r.IntN(8) == 0 {
			open = append(open, c)
		} else {
			c.finish(r)
		}
		calls = append(calls, c)
		c.save(t, db)
	}
	for hour := range 72 {
		from := day.Add(time.Duration(hour) * time.Hour)
		for range 5 + r.IntN(10) {
			begin(from)
		}
		for len(open) > 0 && r.IntN(3) > 0 { // outcomes of up to a day later
			open[0].finish(r)
			open[0].save(t, db)
			open = open[1:]
		}
		for len(open) > 0 && open[0].at.Before(from.Add(-23*time.Hour)) {
			open[0].finish(r)
			open[0].save(t, db)
			open = open[1:]
		}
		switch r.IntN(4) {
		case 0: // killed: the connection ends in the middle
			short, cancel := context.WithTimeout(ctx, time.Duration(r.Int64N(int64(8*time.Millisecond))))
			_, err := s.RollUpUsage(short, from.Add(30*time.Minute))
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) && short.Err() == nil {
				t.Fatal(err)
			}
		case 1: // two processes count while a third writes
			var wg sync.WaitGroup
			for _, store := range []*postgres.Store{s, second} {
				wg.Go(func() {
					if _, err := store.RollUpUsage(ctx, from.Add(45*time.Minute)); err != nil {
						t.Error(err)
					}
				})
			}
			for range 5 {
				begin(from)
			}
			wg.Wait()
		case 2:
			_, err := s.RollUpUsage(ctx, from.Add(time.Hour))
			check(t, err)
		}
	}
	for _, c := range open {
		c.finish(r)
		c.save(t, db)
	}
	// The server may still be ending the connection of a killed run. While that run counts, others do not.
	fleettest.Eventually(t, "no run counts", func() (free bool) {
		err := db.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND
			database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&free)
		return err == nil && free
	})
	for _, at := range []time.Duration{73, 75, 99, 103, 130, 160} {
		_, err := s.RollUpUsage(ctx, day.Add(at*time.Hour))
		check(t, err)
	}
	compareUsage(t, s, day, tools, calls)
	var hours int
	if err := db.QueryRow(ctx, `SELECT count(*) FROM tool_usage`).Scan(&hours); err != nil || hours != 0 {
		t.Errorf("%d rows of hours remain (%v)", hours, err)
	}
	// Calls that retention removed stay counted.
	if _, err := db.Exec(ctx, `DELETE FROM calls`); err != nil {
		t.Fatal(err)
	}
	_, err := s.RollUpUsage(ctx, day.Add(200*time.Hour))
	check(t, err)
	compareUsage(t, s, day, tools, calls)
}

// compareUsage compares the rollup with a computation over the calls.
func compareUsage(t *testing.T, s *postgres.Store, since time.Time, tools []string, calls []*madeCall) {
	t.Helper()
	for _, tool := range tools {
		want := map[string]*catalogue.Usage{}
		days := map[string]map[string][2]int64{}
		for _, c := range calls {
			if c.tool != tool {
				continue
			}
			if want[c.version] == nil {
				want[c.version], days[c.version] = &catalogue.Usage{}, map[string][2]int64{}
			}
			u := want[c.version]
			switch c.state {
			case fleet.CallSucceeded:
				u.Succeeded++
			case fleet.CallToolError:
				u.ToolErrors++
			case fleet.CallTimedOut:
				u.TimedOut++
			case fleet.CallUnknown:
				u.Unknown++
			default:
				u.NotSent++
			}
			if c.state == fleet.CallSucceeded || c.state == fleet.CallToolError {
				u.Latency.Observe(c.finished.Sub(*c.sent))
			}
			n := days[c.version][c.at.Format(time.DateOnly)]
			switch c.state {
			case fleet.CallSucceeded:
				n[0]++
			case fleet.CallToolError, fleet.CallTimedOut, fleet.CallUnknown:
				n[0]++
				n[1]++
			}
			days[c.version][c.at.Format(time.DateOnly)] = n
		}
		got, err := s.CatalogueTool(t.Context(), tool, since, since.AddDate(0, 0, 7))
		check(t, err)
		if len(got.Usage) != len(want) {
			t.Errorf("%s has usage on %d versions, want %d", tool, len(got.Usage), len(want))
		}
		for _, v := range got.Usage {
			w := want[v.Version]
			if w == nil {
				t.Errorf("%s has usage on version %q", tool, v.Version)
				continue
			}
			plain := func(u catalogue.Usage) [6]int64 {
				return [6]int64{u.Succeeded, u.ToolErrors, u.TimedOut, u.Unknown, u.NotSent, u.Latency.Count()}
			}
			if plain(v.Usage) != plain(*w) {
				t.Errorf("%s on %s: %v, want %v", tool, v.Version, plain(v.Usage), plain(*w))
			}
			for _, q := range []float64{0.5, 0.99, 1} { // a duration at the edge of a bucket may be in either
				a, b := v.Latency.Quantile(q), w.Latency.Quantile(q)
				if float64(a) > 1.1*float64(b) || float64(b) > 1.1*float64(a) {
					t.Errorf("%s on %s: quantile %v is %v, want %v", tool, v.Version, q, a, b)
				}
			}
			for _, d := range v.Days {
				if n := days[v.Version][d.Day.Format(time.DateOnly)]; n != [2]int64{d.Sent, d.Failed} {
					t.Errorf("%s on %s, %v: %d sent, %d failed, want %v", tool, v.Version, d.Day, d.Sent, d.Failed, n)
				}
			}
		}
	}
}

// The version of a device is on record whenever it changes.
func TestDeviceVersions(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	addDevices(t, s, "d1")
	again := poll("d1", now())
	for _, version := range []string{"2.4.0", "2.5.0", "2.5.0"} {
		again.Poll.Version, again.Poll.At = version, now()
		check(t, s.SavePolls(ctx, []enrolment.PollRecord{again}))
	}
	var versions []string
	if err := db.QueryRow(ctx, `SELECT array_agg(version ORDER BY at) FROM device_versions`).Scan(&versions); err != nil {
		t.Fatal(err)
	}
	same(t, versions, []string{"2.4.0", "2.5.0"})
}
