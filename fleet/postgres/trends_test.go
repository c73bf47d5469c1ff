package postgres_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/trend"
)

// A trendWorld is a database whose history began some hours ago: devices never changed since.
type trendWorld struct {
	t       *testing.T
	db      *pgxpool.Pool
	s       *postgres.Store
	filters *fleet.Filters
	now     time.Time // the hour that has not ended
}

var trendDevices = []fleet.DeviceID{"d1", "d2", "d3"}

// newTrendWorld makes three devices: d1 and d2 with board x, d2 and d3 with the tag lab, d3 with version 2.
func newTrendWorld(t *testing.T, age time.Duration) *trendWorld {
	t.Helper()
	db := testDB(t)
	w := &trendWorld{t: t, db: db, s: postgres.New(db, postgres.Options{}), now: now().Truncate(time.Hour)}
	w.filters = fleet.NewFilters(w.s)
	for i, id := range trendDevices {
		p := poll(id, now())
		p.Poll.Board, p.Poll.Version = "x", "1.0"
		if i == 2 {
			p.Poll.Board, p.Poll.Version = "y", "2.0"
		}
		check(t, w.s.SavePolls(t.Context(), []enrolment.PollRecord{p}))
		listTools(t, w.s, id, p.Poll.Version, fleet.Tool{Name: "self.a"}, fleet.Tool{Name: "self.b"})
		if i > 0 {
			check(t, w.s.UpdateDevice(t.Context(), admin, id, fleet.DevicePatch{Tags: &[]string{"lab"}}))
		}
	}
	check(t, w.s.FrameFleet(t.Context(), now()))
	for table, columns := range map[string]string{"history_start": "at versions_at", "device_names": "begun_at",
		"device_states": "begun_at", "fleet_frames": "at", "profile_counts": "at"} {
		var a, b string
		fmt.Sscan(columns, &a, &b)
		set := fmt.Sprintf("%s = %s - $1::interval", a, a)
		if b != "" {
			set += fmt.Sprintf(", %s = %s - $1::interval", b, b)
		}
		w.exec(`UPDATE `+table+` SET `+set, age)
	}
	// The database may be a copy of one that was created in an earlier hour.
	w.exec(`UPDATE history_start SET at = $1, versions_at = $1`, w.now.Add(30*time.Minute-age))
	w.exec(`DELETE FROM device_states WHERE ended_at < 'infinity'`)
	w.exec(`UPDATE device_states SET begun_at = (SELECT at FROM history_start)`)
	return w
}

func (w *trendWorld) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *trendWorld) service() *trend.Service {
	return trend.New(w.s, w.filters, func() time.Time { return w.now.Add(10 * time.Minute) })
}

// figures returns the values of a metric by key, without NaN.
func (w *trendWorld) figures(ctx context.Context, q trend.Question, m trend.Metric) map[string][]float64 {
	w.t.Helper()
	q.Metrics = []trend.Metric{m}
	f, err := w.service().Figures(ctx, q)
	check(w.t, err)
	got := map[string][]float64{}
	for _, s := range f.Series[m] {
		got[s.Key] = s.Values
	}
	return got
}

func (w *trendWorld) sum(of string, m trend.Metric) map[string]float64 {
	w.t.Helper()
	sums := map[string]float64{}
	for key, values := range w.figures(w.t.Context(), trend.Question{Of: of, From: w.now.Add(-48 * time.Hour),
		To: w.now}, m) {
		for _, v := range values {
			if !math.IsNaN(v) {
				sums[key] += v
			}
		}
	}
	return sums
}

// Each metric is counted for each group of its device, and an hour in which fleetd did not run has no presence.
func TestTrends(t *testing.T) {
	w := newTrendWorld(t, 5*time.Hour)
	at := w.now.Add(-2 * time.Hour)
	w.exec(`INSERT INTO presence_samples (at, online, unresponsive, unknown_edge, offline, pending)
		SELECT h, 0, 0, 0, 0, 3 FROM generate_series($1::timestamptz, $2, interval '1 hour') h`, at.Add(-3*time.Hour), at)
	w.exec(`INSERT INTO report_changes VALUES ('d1', $1, 'restarted', '{"reset_reason": "panic"}'),
		('d3', $1, 'restarted', '{"reset_reason": "watchdog"}'), ('d3', $1::timestamptz + interval '1 minute', 'restarted',
		'{"reset_reason": "software"}')`, at.Add(time.Minute))
	w.exec(`INSERT INTO presence_changes (device_id, at, presence, evidence_code, transport) VALUES
		('d2', $1, 'online', 'connected', 'mqtt'),
		('d2', $1::timestamptz + interval '1 minute', 'offline', 'connection_lost', 'mqtt'),
		('d2', $1::timestamptz + interval '2 minutes', 'online', 'fleetd_was_away', 'mqtt')`, at.Add(-time.Minute))
	w.exec(`INSERT INTO vitals_points SELECT h, 1, 0, 0, 0, 0, 0, 0, 0, rssi, false, id FROM unnest($1::timestamptz[]) h,
		(VALUES ('d1', -50), ('d2', -60), ('d3', -80)) d (id, rssi)`, []time.Time{at, at.Add(5 * time.Minute)})
	for i, state := range []fleet.CallState{fleet.CallSucceeded, fleet.CallSucceeded, fleet.CallTimedOut} {
		c := madeCall{id: uuid.Must(uuid.NewV7()), at: at, device: trendDevices[i], tool: "self.a", state: state,
			sent: &at, finished: &at}
		c.id = newUUID(rand.New(rand.NewPCG(1, uint64(i))), at)
		c.save(t, w.db)
	}
	other := madeCall{id: newUUID(rand.New(rand.NewPCG(2, 2)), at), at: at, device: "d1", tool: "no.such", state: fleet.CallInvalid,
		finished: &at}
	other.save(t, w.db)
	w.exec(`INSERT INTO conversations (id, device_id, upstream, created_at, calls, hello_us, received, lost, refused, dropped,
		sent, moves, jitter_us) VALUES (gen_random_uuid(), 'd1', 'u', $1, 0, 0, 0, 0, 0, 0, 0, 0, 0)`, at)
	if _, err := w.s.CountTrends(t.Context(), w.now.Add(10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		of     string
		metric trend.Metric
		want   map[string]float64
	}{
		{"", trend.Devices, map[string]float64{"pending": 8, "offline": 1}}, // at the end of three hours
		{"", trend.Versions, map[string]float64{"1.0": 10, "2.0": 5}},
		{"tag:lab", trend.Boards, map[string]float64{"x": 5, "y": 5}},
		{"", trend.Crashes, map[string]float64{"panic": 1, "watchdog": 1}},
		{"board:x", trend.Crashes, map[string]float64{"panic": 1}},
		{"", trend.Connections, map[string]float64{"": 1}},
		{"version:2.0", trend.Connections, map[string]float64{}},
		{"", trend.Signal, map[string]float64{"median": -60, "weakest_tenth": -80}},
		{"board:x", trend.Signal, map[string]float64{"median": -60, "weakest_tenth": -60}},
		{"", trend.Outcomes, map[string]float64{"succeeded": 2, "timed_out": 1, "invalid": 1}},
		{"tag:lab", trend.Outcomes, map[string]float64{"succeeded": 1, "timed_out": 1}},
		{"", trend.Tools, map[string]float64{"self.a": 3, trend.KeyOthers: 1}},
		{"", trend.Conversations, map[string]float64{"": 1}},
		{"tag:none", trend.Devices, map[string]float64{}},
	}
	compare := func() {
		t.Helper()
		for _, tt := range tests {
			if diff := cmp.Diff(tt.want, w.sum(tt.of, tt.metric)); diff != "" {
				t.Errorf("%s of %q:\n%s", tt.metric, tt.of, diff)
			}
		}
	}
	compare()
	if hours, err := w.s.CountTrends(t.Context(), w.now.Add(11*time.Minute)); err != nil || hours != 0 {
		t.Errorf("a second run counts %d hours, %v", hours, err)
	}
	compare()
	presence := w.figures(t.Context(), trend.Question{Range: "24h"}, trend.Devices)["pending"]
	if n := len(presence); n != 24 || !math.IsNaN(presence[0]) || presence[20] != 3 || !math.IsNaN(presence[23]) {
		t.Errorf("presence of 24 hours: %v", presence)
	}
	crashes := w.figures(t.Context(), trend.Question{Range: "24h"}, trend.Crashes)["panic"]
	if !math.IsNaN(crashes[0]) || crashes[22] != 1 || crashes[23] != 0 {
		t.Errorf("crashes of 24 hours: %v", crashes)
	}
	days := 0.0
	for _, v := range w.figures(t.Context(), trend.Question{Range: "30d"}, trend.Outcomes)["succeeded"] {
		if !math.IsNaN(v) {
			days += v
		}
	}
	if days != 2 {
		t.Errorf("the days have %v calls that succeeded, want 2", days)
	}
}

// A saved filter, and a scope, have figures from the hour on in which they began to exist. Outside of a scope there are
// none.
func TestTrendsInScope(t *testing.T) {
	w := newTrendWorld(t, 5*time.Hour)
	_, err := w.filters.Create(t.Context(), admin, fleet.Filter{Name: "lab", Query: "tag:lab"})
	check(t, err)
	_, err = w.filters.Create(t.Context(), admin, fleet.Filter{Name: "lab-x", Query: "board:x tag:lab"})
	check(t, err)
	_, err = w.filters.Create(t.Context(), admin, fleet.Filter{Name: "seen", Query: "seen<2d"})
	check(t, err)
	_, err = w.s.CountTrends(t.Context(), w.now.Add(10*time.Minute))
	check(t, err)
	w.exec(`INSERT INTO report_changes SELECT id, $1, 'restarted', '{"reset_reason": "panic"}' FROM devices`, w.now.Add(time.Minute))
	w.now = w.now.Add(time.Hour)
	_, err = w.s.CountTrends(t.Context(), w.now.Add(10*time.Minute))
	check(t, err)
	whole := w.sum("", trend.Crashes)
	if whole["panic"] != 3 || w.sum("filter:lab", trend.Crashes)["panic"] != 2 || w.sum("filter:lab-x", trend.Crashes)["panic"] != 1 {
		t.Errorf("crashes %v, of the filters %v and %v", whole, w.sum("filter:lab", trend.Crashes), w.sum("filter:lab-x", trend.Crashes))
	}
	f, err := w.service().Figures(t.Context(), trend.Question{Of: "filter:lab"})
	check(t, err)
	if want := w.now.Add(-time.Hour); !f.Since.Equal(want) {
		t.Errorf("the filter has figures since %s, want %s", f.Since, want)
	}
	_, err = w.service().Figures(t.Context(), trend.Question{Of: "filter:seen"})
	wantKind(t, err, fleet.ErrInvalid)

	scope, err := fleet.NewScope("tag:lab", "", nil)
	check(t, err)
	ctx := fleet.WithScope(t.Context(), fleet.Principal{Kind: fleet.KindOperator, Role: fleet.RoleOperator, Scope: scope})
	if got := w.figures(ctx, trend.Question{Range: "24h"}, trend.Crashes)["panic"]; got[23] != 2 {
		t.Errorf("crashes in the scope: %v", got)
	}
	if got := w.figures(ctx, trend.Question{Of: "filter:lab-x", Range: "24h"}, trend.Crashes)["panic"]; got[23] != 1 {
		t.Errorf("crashes of a filter in the scope: %v", got)
	}
	for _, of := range []string{"board:x", "board:none", "tag:lab", "version:1.0"} {
		_, err := w.service().Figures(ctx, trend.Question{Of: of})
		wantKind(t, err, fleet.ErrForbidden)
	}
	_, err = w.service().Figures(ctx, trend.Question{Of: "filter:seen"})
	wantKind(t, err, fleet.ErrNotFound)
	choices, err := w.service().Choices(ctx)
	check(t, err)
	if len(choices.Filters) != 2 || choices.Boards != nil || choices.Tags != nil || choices.Versions != nil {
		t.Errorf("choices in the scope: %+v", choices)
	}
	elsewhere, err := fleet.NewScope("tag:hall", "", nil)
	check(t, err)
	ctx = fleet.WithScope(t.Context(), fleet.Principal{Kind: fleet.KindOperator, Role: fleet.RoleViewer,
		Scope: elsewhere})
	f, err = w.service().Figures(ctx, trend.Question{})
	if err != nil || !f.Since.IsZero() || len(f.Series) != 0 {
		t.Errorf("a scope that is not counted yet has %+v, %v", f, err)
	}
	// Once it is counted, it has no devices.
	w.exec(`INSERT INTO tokens (id, name, kind, role, scope, tools, per_minute, hash, hint, created_by, created_at)
		VALUES (gen_random_uuid(), 'hall', 'program', 'viewer', 'tag:hall', '{}', 0, sha256('x'), '', 'x', now())`)
	_, err = w.s.CountTrends(t.Context(), w.now.Add(time.Minute))
	check(t, err)
	w.exec(`INSERT INTO report_changes SELECT id, $1, 'restarted', '{"reset_reason": "panic"}' FROM devices`, w.now.Add(time.Minute))
	w.now = w.now.Add(time.Hour)
	_, err = w.s.CountTrends(t.Context(), w.now.Add(10*time.Minute))
	check(t, err)
	f, err = w.service().Figures(ctx, trend.Question{Range: "24h"})
	check(t, err)
	if f.Since.IsZero() || len(f.Series[trend.Crashes]) != 0 || f.Hours[23] != 1 {
		t.Errorf("an empty scope has %+v", f)
	}
}

// Each event is counted once: whatever runs are killed, at once, or late, and if calls end a day after they began.
func TestTrendsAreExact(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testTrendsAreExact(t, rand.New(rand.NewPCG(seed, 11))) })
	}
}

func testTrendsAreExact(t *testing.T, r *rand.Rand) {
	const hours = 40
	w := newTrendWorld(t, (hours+1)*time.Hour)
	second := postgres.New(w.db, postgres.Options{})
	begin := w.now.Add(-hours * time.Hour)
	var calls, open []*madeCall
	crashes := 0
	for hour := range hours {
		from := begin.Add(time.Duration(hour) * time.Hour)
		for range r.IntN(8) {
			at := from.Add(time.Duration(r.Int64N(int64(time.Hour)))).Truncate(time.Microsecond)
			c := &madeCall{id: newUUID(r, at), at: at, device: trendDevices[r.IntN(3)], tool: "self.a", state: fleet.CallPending}
			if r.IntN(4) == 0 {
				open = append(open, c)
			} else {
				c.finish(r)
			}
			calls = append(calls, c)
			c.save(t, w.db)
			w.exec(`INSERT INTO report_changes VALUES ($1, $2, 'restarted', '{"reset_reason": "panic"}')`, string(c.device), at)
			crashes++
		}
		for len(open) > 0 && r.IntN(2) == 0 {
			open[0].finish(r)
			open[0].save(t, w.db)
			open = open[1:]
		}
		at := from.Add(time.Hour + 6*time.Minute)
		switch r.IntN(4) {
		case 0: // killed
			short, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(40*time.Millisecond))))
			_, err := w.s.CountTrends(short, at)
			cancel()
			if err != nil && short.Err() == nil {
				t.Fatal(err)
			}
		case 1: // two processes
			var wg sync.WaitGroup
			for _, store := range []*postgres.Store{w.s, second} {
				wg.Go(func() {
					if _, err := store.CountTrends(t.Context(), at); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		case 2:
			_, err := w.s.CountTrends(t.Context(), at)
			check(t, err)
		}
	}
	for _, c := range open {
		c.finish(r)
		c.save(t, w.db)
	}
	fleettest.Eventually(t, "no run counts", func() (free bool) {
		err := w.db.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND
			database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&free)
		return err == nil && free
	})
	for _, later := range []time.Duration{10 * time.Minute, 30 * time.Hour, 31 * time.Hour} {
		_, err := w.s.CountTrends(t.Context(), w.now.Add(later))
		check(t, err)
	}
	w.compareExact(calls, crashes)
	w.exec(`DELETE FROM calls`) // by retention
	_, err := w.s.CountTrends(t.Context(), w.now.Add(60*time.Hour))
	check(t, err)
	w.compareExact(calls, crashes)
	var undone int
	if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM trend_marks WHERE state = 'due' AND hour < $1`, w.now).Scan(&undone); err != nil || undone > 0 {
		t.Errorf("%d hours are not counted (%v)", undone, err)
	}
}

func (w *trendWorld) compareExact(calls []*madeCall, crashes int) {
	w.t.Helper()
	for _, of := range []string{"", "board:x", "tag:lab"} {
		want := map[string]float64{}
		for _, c := range calls {
			if of == "board:x" && c.device == "d3" || of == "tag:lab" && c.device == "d1" {
				continue
			}
			want[string(c.state)]++
		}
		if diff := cmp.Diff(want, w.sum(of, trend.Outcomes)); diff != "" {
			w.t.Errorf("calls of %q by hours:\n%s", of, diff)
		}
		days := map[string]float64{}
		for key, values := range w.figures(w.t.Context(), trend.Question{Of: of, From: w.now.Add(-20 * 24 * time.Hour),
			To: w.now.Add(12 * time.Hour)}, trend.Outcomes) {
			for _, v := range values {
				if !math.IsNaN(v) {
					days[key] += v
				}
			}
		}
		if diff := cmp.Diff(want, days); diff != "" {
			w.t.Errorf("calls of %q by days:\n%s", of, diff)
		}
	}
	if got := w.sum("", trend.Crashes)["panic"]; got != float64(crashes) {
		w.t.Errorf("%v crashes, want %d", got, crashes)
	}
}

// A range has its events; with a scope only releases, which belong to no device.
func TestTrendEvents(t *testing.T) {
	w := newTrendWorld(t, 5*time.Hour)
	at := w.now.Add(-2 * time.Hour)
	w.exec(`INSERT INTO releases (id, version, state, created_by, created_at, changed_at) VALUES
		(gen_random_uuid(), '2.0', 'released', '{}', $1, $1), (gen_random_uuid(), 'draft', 'draft', '{}', $1, $1),
		(gen_random_uuid(), 'old', 'released', '{}', $2, $2)`, at, at.Add(-time.Hour*48))
	w.exec(`INSERT INTO lease_terms (term, incarnation, node, host, version, since, reason)
		VALUES (90001, gen_random_uuid(), 'core-1', 'h', 'v', $1, 'first')`, at.Add(time.Minute))
	span := trend.Span{From: at.Add(-time.Hour), To: at.Add(time.Hour), Step: time.Hour}
	for _, tt := range []struct {
		kinds []trend.EventKind
		want  []string
	}{
		{trend.EventKinds, []string{"release 2.0", "start core-1"}},
		{[]trend.EventKind{trend.EventRelease}, []string{"release 2.0"}},
		{nil, nil},
	} {
		found, err := w.s.TrendEvents(t.Context(), span, tt.kinds)
		check(t, err)
		var got []string
		for _, e := range found {
			if e.Kind == trend.EventStart && e.Name != "core-1" {
				continue // of the test's own store
			}
			got = append(got, string(e.Kind)+" "+e.Name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("events of the kinds %q: %q, want %q", tt.kinds, got, tt.want)
		}
	}
}
