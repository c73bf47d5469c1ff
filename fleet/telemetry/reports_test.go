package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
)

// reportRows stores the written rows unchanged. The tests of PostgreSQL cover its merging.
type reportRows struct {
	ReportStore
	mu      sync.Mutex
	vitals  map[fleet.DeviceID]Vitals
	points  map[fleet.DeviceID][]VitalsPoint
	jobs    []Job
	configs map[fleet.DeviceID]Config
	away    bool
}

func (s *reportRows) write(f func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return fleet.ErrUnavailable
	}
	f()
	return nil
}

func (s *reportRows) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *reportRows) SaveVitals(_ context.Context, latest map[fleet.DeviceID]Vitals) error {
	return s.write(func() {
		for id, v := range latest {
			s.vitals[id] = v
		}
	})
}

func (s *reportRows) AddVitalsPoints(_ context.Context, points map[fleet.DeviceID][]VitalsPoint) error {
	return s.write(func() {
		for id, list := range points {
			s.points[id] = append(s.points[id], list...)
		}
	})
}

func (s *reportRows) SaveDeviceJobs(_ context.Context, jobs []Job) error {
	return s.write(func() { s.jobs = append(s.jobs, jobs...) })
}

func (s *reportRows) SaveDeviceConfigs(_ context.Context, latest map[fleet.DeviceID]Config) error {
	return s.write(func() {
		for id, c := range latest {
			s.configs[id] = c
		}
	})
}

// after lets time pass, and waits until everything due is done.
func (s *reportRows) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	_ = s.write(func() {}) // orders what was written before what is read next
}

// reporting runs f over running reports, in a bubble with fake time.
func reporting(t *testing.T, o ReportsOptions, f func(r *Reports, s *reportRows)) {
	synctest.Test(t, func(t *testing.T) {
		s := &reportRows{vitals: map[fleet.DeviceID]Vitals{}, points: map[fleet.DeviceID][]VitalsPoint{},
			configs: map[fleet.DeviceID]Config{}}
		o.Store = s
		r := NewReports(o)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		f(r, s)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func beat(format string, args ...any) json.RawMessage { return fmt.Appendf(nil, format, args...) }

const telemetry, jobReport = "notifications/telemetry", "notifications/job"

// A device that floods is limited to its share, and no other device is limited.
func TestReportsOfAFloodingDevice(t *testing.T) {
	reporting(t, ReportsOptions{}, func(r *Reports, s *reportRows) {
		flood := func(method string, n int) (accepted int64) {
			before := r.Count(reportMethods[method]).Accepted
			for range n {
				r.Notified("flood", method, beat(`{"uptime_s":1,"job":"j","state":"accepted","config":{"version":1,"values":{}}}`))
			}
			return r.Count(reportMethods[method]).Accepted - before
		}
		for method, want := range map[string][2]int64{telemetry: {32, 12}, jobReport: {20, 20}, "notifications/config": {5,
			5}, "notifications/log": {10, 10}} {
			if n := flood(method, 5000); n != want[0] {
				t.Errorf("of a flood of %s, %d were accepted, want %d", method, n, want[0])
			}
			s.after(time.Minute)
			if n := flood(method, 5000); n != want[1] {
				t.Errorf("of a flood of %s, %d were accepted a minute later, want %d", method, n, want[1])
			}
			if c := r.Count(reportMethods[method]); c.TooMany != 10_000-want[0]-want[1] {
				t.Errorf("%s: %+v", method, c)
			}
		}
		r.Notified("calm", telemetry, beat(`{"uptime_s":2}`))
		s.after(3 * time.Second)
		if s.vitals["calm"].Uptime != 2*time.Second || len(s.vitals) != 2 {
			t.Errorf("stored: %+v", s.vitals)
		}
	})
}

func TestWhatIsNoReport(t *testing.T) {
	reporting(t, ReportsOptions{}, func(r *Reports, s *reportRows) {
		for _, method := range []string{"notifications/x", "", "notifications/Telemetry", strings.Repeat("n", 1000)} {
			r.Notified("d", method, beat(`{"uptime_s":1}`))
		}
		for _, method := range []string{telemetry, jobReport, "notifications/config"} {
			for _, params := range []string{"", "null", "7", `"x"`, "[]", "{}", `{"config":7}`, `{"config":{}}`,
				`{"job":7,"state":[]}`, "\x00\xff", strings.Repeat(" ", 1<<20)} {
				s.after(10 * time.Second)
				r.Notified("d", method, json.RawMessage(params))
			}
			if c := r.Count(reportMethods[method]); c != (ReportCount{Malformed: 11}) {
				t.Errorf("%s: %+v", method, c)
			}
		}
		if c := r.Count(ReportOther); c != (ReportCount{Malformed: 4}) {
			t.Errorf("others: %+v", c)
		}
		s.after(time.Minute)
		if len(s.vitals)+len(s.points)+len(s.jobs)+len(s.configs) != 0 {
			t.Errorf("stored: %+v", s)
		}
	})
}

// Heartbeats of one step become one point, at the latest when fleetd stops; heartbeats that
// were stored while offline are added to the steps of their own times.
func TestHeartbeatsBecomePoints(t *testing.T) {
	var rows *reportRows
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // as the clock of the test starts
	reporting(t, ReportsOptions{}, func(r *Reports, s *reportRows) {
		rows = s
		s.after(time.Hour)
		r.Notified("d", telemetry, beat(`{"uptime_s":500,"boots":3,"heap":{"free":900},"network":{"rssi_dbm":-70}}`))
		r.Notified("d", telemetry, beat(`{"uptime_s":200,"boots":3,"heap":{"free":100},"at":%d}`,
			start.Add(3301*time.Second).UnixMilli()))
		r.Notified("d", telemetry, beat(`{"uptime_s":505,"boots":3,"heap":{"free":800},"network":{"rssi_dbm":-50}}`))
		r.Notified("other", telemetry, beat(`{"uptime_s":9}`))
		s.after(3 * time.Second)
		if v := s.vitals["d"]; v.Uptime != 505*time.Second || len(s.points) != 0 {
			t.Errorf("after three seconds: %+v", s)
		}
	})
	hour := start.Add(time.Hour)
	slices.SortFunc(rows.points["d"], func(a, b VitalsPoint) int { return a.At.Compare(b.At) })
	want := map[fleet.DeviceID][]VitalsPoint{
		"d": {{At: hour.Add(-5 * time.Minute), Beats: 1, HeapFree: 100, Uptime: 200 * time.Second, Boots: 3},
			{At: hour, Beats: 2, HeapFree: 800, RSSI: ptr(-70), Uptime: 505 * time.Second, Boots: 3}},
		"other": {{At: hour, Beats: 1, Uptime: 9 * time.Second}},
	}
	if diff := cmp.Diff(want, rows.points); diff != "" {
		t.Error(diff)
	}
}

func TestRestartsShow(t *testing.T) {
	reporting(t, ReportsOptions{WriteEvery: time.Second}, func(r *Reports, s *reportRows) {
		for i, params := range []string{`{"uptime_s":500}`, `{"uptime_s":800}`, `{"uptime_s":20}`, `{"uptime_s":320}`,
			`{"uptime_s":900,"boots":4}`, `{"uptime_s":1200,"boots":5}`} {
			r.Notified("d", telemetry, json.RawMessage(params))
			s.after(VitalsStep)
			if p := s.points["d"][i]; p.Restarted != (i == 2 || i == 5) {
				t.Errorf("%s: %+v", params, p)
			}
		}
	})
}

// Reports from an outage of the store are available after it.
func TestReportsOutliveAnOutage(t *testing.T) {
	events := &fleet.Events{}
	sub := events.Subscribe(10, nil)
	reporting(t, ReportsOptions{Events: events}, func(r *Reports, s *reportRows) {
		s.setAway(true)
		for i := range 3 {
			r.Notified("d", telemetry, beat(`{"uptime_s":%d}`, i*10))
			r.Notified("d", jobReport, beat(`{"job":"j","kind":"upgrade","state":%q,"percent":40}`,
				[]fleet.JobState{fleet.JobAccepted, fleet.JobProgress, fleet.JobFailed}[i]))
			s.after(20 * time.Second)
		}
		if len(sub.C) != 0 {
			t.Error("there was an event before there was anything to read")
		}
		s.setAway(false)
		s.after(20 * time.Second)
		if len(s.jobs) != 1 || s.jobs[0].State != fleet.JobFailed || s.jobs[0].Percent != 40 || s.jobs[0].FinishedAt.Sub(
			s.jobs[0].StartedAt) != 40*time.Second {
			t.Errorf("jobs: %+v", s.jobs)
		}
		if len(s.points["d"]) != 1 || s.points["d"][0].Beats != 3 {
			t.Errorf("points: %+v", s.points)
		}
		got := map[fleet.EventKind]string{}
		for len(sub.C) > 0 {
			e := <-sub.C
			got[e.Kind] = string(e.Device) + " " + e.Subject
		}
		if diff := cmp.Diff(map[fleet.EventKind]string{fleet.EventVitals: "d ", fleet.EventJob: "d j"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestReportHooks(t *testing.T) {
	id := uuid.New()
	var jobs, logs []string
	o := ReportsOptions{
		OnUpgradeJob: func(device fleet.DeviceID, deployment uuid.UUID, attempt int, j Job) {
			jobs = append(jobs, fmt.Sprintln(device, deployment == id, attempt, j.State, j.Percent))
		},
		OnLog: func(device fleet.DeviceID, params json.RawMessage) {
			logs = append(logs, string(device)+string(params))
		},
	}
	reporting(t, o, func(r *Reports, _ *reportRows) {
		r.Notified("d", jobReport, beat(`{"job":"poll","kind":"upgrade","state":"progress"}`))
		r.Notified("d", jobReport, beat(`{"job":%q,"kind":"upgrade","state":"progress","percent":15}`,
			fleet.UpgradeJobName(id, 2)))
		r.Notified("d", "notifications/log", beat(`{"lines":[]}`))
	})
	if diff := cmp.Diff([]string{"d true 2 progress 15\n"}, jobs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{`d{"lines":[]}`}, logs); diff != "" {
		t.Error(diff)
	}
}

// A campaign that concludes from a report on a job, and a caller whose answer shows a
// configuration, find the report stored, regardless of how long reports are collected.
func TestReportsAreStoredBeforeWhatFollowsFromThem(t *testing.T) {
	var r *Reports
	var s *reportRows
	var stored []Job
	o := ReportsOptions{WriteEvery: time.Hour, OnUpgradeJob: func(fleet.DeviceID, uuid.UUID, int, Job) {
		if err := r.Stored(context.Background()); err != nil {
			t.Error(err)
		}
		stored = slices.Clone(s.jobs)
	}}
	reporting(t, o, func(reports *Reports, rows *reportRows) {
		r, s = reports, rows
		r.Notified("d", jobReport, beat(`{"job":%q,"kind":"upgrade","state":"failed","code":"checksum"}`,
			fleet.UpgradeJobName(uuid.New(), 1)))
		if len(stored) != 1 || stored[0].State != fleet.JobFailed {
			t.Errorf("a campaign sees a report with %+v stored", stored)
		}
		set := fleet.Call{Device: "d", Tool: fleet.ToolConfigSet, State: fleet.CallSucceeded,
			Result: json.RawMessage(`{"content":[{"type":"text","text":"{\"version\":7,\"values\":{}}"}]}`)}
		r.Called(&set)
		if s.configs["d"].Version != 7 {
			t.Errorf("an answer shows version 7, and stored is %+v", s.configs)
		}
		s.setAway(true)
		began := time.Now()
		r.Called(&set)
		if took := time.Since(began); took > calledTimeout {
			t.Errorf("an answer waits %v for a store that is away", took)
		}
		s.setAway(false)
	})
}

// The memory of a device that no longer reports is released.
func TestReportersAreForgotten(t *testing.T) {
	reporting(t, ReportsOptions{}, func(r *Reports, s *reportRows) {
		count := func() (n int) {
			for i := range r.reporters.shards {
				n += len(r.reporters.shards[i].devices)
			}
			return n
		}
		for i := range 1000 {
			r.Notified(fleet.DeviceID(fmt.Sprint("d", i)), telemetry, beat(`{"uptime_s":1}`))
		}
		for range 5 {
			s.after(20 * time.Minute)
			r.Notified("d7", telemetry, beat(`{"uptime_s":1}`))
		}
		if n := count(); n != 1 {
			t.Errorf("%d devices are remembered", n)
		}
	})
}

func TestMergeJob(t *testing.T) {
	at := reportedAt
	job := func(state fleet.JobState, percent int, after time.Duration) Job {
		j, ok := parseJob("d", beat(`{"job":"j","kind":"upgrade","state":%q,"percent":%d}`, state, percent), at.Add(after))
		if !ok {
			t.Fatal(state)
		}
		return j
	}
	accepted, half, done := job(fleet.JobAccepted, 0, 0), job(fleet.JobProgress, 50, time.Minute),
		job(fleet.JobDone, 0, time.Hour)
	if j := mergeJob(accepted, half); j.State != fleet.JobProgress || !j.StartedAt.Equal(at) || j.Percent != 50 {
		t.Errorf("accepted, half: %+v", j)
	}
	if j := mergeJob(half, job(fleet.JobAccepted, 0, 2*time.Minute)); j.State != fleet.JobProgress {
		t.Errorf("half, accepted: %+v", j)
	}
	if j := mergeJob(done, job(fleet.JobFailed, 0, 2*time.Hour)); j.State != fleet.JobDone {
		t.Errorf("done, failed: %+v", j)
	}
	if j := mergeJob(done, accepted); j.State != fleet.JobDone {
		t.Errorf("done, accepted before that: %+v", j)
	}
	again := mergeJob(mergeJob(done, job(fleet.JobAccepted, 0, 2*time.Hour)), job(fleet.JobProgress, 5, 3*time.Hour))
	if again.State != fleet.JobProgress || !again.StartedAt.Equal(at.Add(2*time.Hour)) {
		t.Errorf("done, accepted again, progress: %+v", again)
	}
}

// askedHistory records the queries to the store.
type askedHistory struct {
	ReportStore
	step time.Duration
}

func (s *askedHistory) VitalsHistory(_ context.Context, _ fleet.DeviceID, _, _ time.Time, step time.Duration) (
	[]VitalsPoint, error) {
	s.step = step
	return nil, nil
}

// The steps of a history are the finest that exist for its whole period.
func TestVitalsHistorySteps(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	store := &askedHistory{}
	r := NewReports(ReportsOptions{Store: store, Now: func() time.Time { return now }})
	for _, tt := range []struct{ ago, span, step, want time.Duration }{
		{24 * time.Hour, 24 * time.Hour, 0, VitalsStep},
		{VitalsStepsKept, VitalsStepsKept, 7 * time.Minute, 10 * time.Minute},
		{VitalsStepsKept + time.Second, time.Hour, 0, time.Hour},
		{7 * 24 * time.Hour, 7 * 24 * time.Hour, 90 * time.Minute, 2 * time.Hour},
		{VitalsKept, VitalsKept, 0, 2 * time.Hour},
		{30 * 24 * time.Hour, 30 * 24 * time.Hour, 6 * time.Hour, 6 * time.Hour},
	} {
		since := now.Add(-tt.ago)
		if _, err := r.VitalsHistory(t.Context(), "a085e3112233", since, since.Add(tt.span), tt.step); err != nil ||
			store.step != tt.want {
			t.Errorf("%v ago, over %v, in steps of %v: %v, %v, want %v", tt.ago, tt.span, tt.step, store.step, err, tt.want)
		}
	}
}
