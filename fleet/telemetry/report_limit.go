package telemetry

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"fleetd/fleet"
)

// A ReportKind is a kind of unsolicited report, for counting.
type ReportKind int

const (
	ReportTelemetry ReportKind = iota
	ReportJob
	ReportConfig
	ReportLog
	ReportOther // of a kind unknown to fleetd
	reportKinds
)

// ReportKinds lists every kind.
var ReportKinds = []ReportKind{ReportTelemetry, ReportJob, ReportConfig, ReportLog, ReportOther}

func (k ReportKind) String() string {
	return [reportKinds]string{"telemetry", "job", "config", "log", "other"}[k]
}

// reportMethods are the notifications that fleetd supports.
var reportMethods = map[string]ReportKind{
	"notifications/telemetry": ReportTelemetry,
	"notifications/job":       ReportJob,
	"notifications/config":    ReportConfig,
	"notifications/log":       ReportLog,
}

// ReportCount counts the reports of one kind by outcome.
type ReportCount struct {
	Accepted  int64
	TooMany   int64 // dropped: the device exceeds its limit
	Malformed int64 // dropped: the report could not be parsed, or its kind is unknown
	NoRoom    int64 // dropped: the store is away, and memory is full
}

type reportCounter struct{ accepted, tooMany, malformed, noRoom atomic.Int64 }

func (c *reportCounter) read() ReportCount {
	return ReportCount{c.accepted.Load(), c.tooMany.Load(), c.malformed.Load(), c.noRoom.Load()}
}

// reportLimits bound the rate of each kind of report per device: fleetd drops the excess. A
// burst of heartbeats comes from a device that stored them while it was offline.
var reportLimits = [reportKinds]struct {
	every time.Duration // earns one report
	burst int
}{
	ReportTelemetry: {5 * time.Second, 32},
	ReportJob:       {200 * time.Millisecond, 20},
	ReportConfig:    {time.Second, 5},
	ReportLog:       {500 * time.Millisecond, 10},
}

// reporter is the memory per device that reports: some 100 bytes, and 80 for each kind that the
// device reports.
type reporter struct {
	heard  time.Time
	kinds  [reportKinds]*rate.Limiter // nil before the first report of the kind
	beat   int64                      // Unix milliseconds of the latest heartbeat, 0 before the first
	uptime time.Duration
	boots  int64
}

// may reports whether the device may send one more report of the kind.
func (r *reporter) may(kind ReportKind, now time.Time) bool {
	limiter := &r.kinds[kind]
	if *limiter == nil {
		limit := reportLimits[kind]
		*limiter = rate.NewLimiter(rate.Every(limit.every), limit.burst)
	}
	return (*limiter).AllowN(now, 1)
}

// restarted records a heartbeat and reports whether the device has started again since the
// previous one. A heartbeat that was stored while offline proves nothing.
func (r *reporter) restarted(v Vitals) bool {
	at := v.At.UnixMilli()
	if r.beat > at {
		return false
	}
	again := r.beat > 0 && (v.Uptime < r.uptime || v.Boots > r.boots && r.boots > 0)
	r.beat, r.uptime, r.boots = at, v.Uptime, v.Boots
	return again
}

const (
	reporterShards = 64
	reporterIdle   = time.Hour // after that its state is discarded
)

// reporters are the reporting devices, in shards: the reports of a device arrive on the
// goroutine of its connection.
type reporters struct {
	seed   maphash.Seed
	shards [reporterShards]struct {
		mu      sync.Mutex
		devices map[fleet.DeviceID]*reporter
	}
}

func newReporters() *reporters {
	r := &reporters{seed: maphash.MakeSeed()}
	for i := range r.shards {
		r.shards[i].devices = make(map[fleet.DeviceID]*reporter)
	}
	return r
}

// with runs f on the device's state under a lock: f must not block.
func (r *reporters) with(id fleet.DeviceID, now time.Time, f func(*reporter)) {
	s := &r.shards[maphash.String(r.seed, string(id))%reporterShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.devices[id]
	if d == nil {
		d = new(reporter)
		s.devices[id] = d
	}
	d.heard = now
	f(d)
}

// forget discards the state of devices that have been silent for [reporterIdle].
func (r *reporters) forget(now time.Time) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		for id, d := range s.devices {
			if now.Sub(d.heard) > reporterIdle {
				delete(s.devices, id)
			}
		}
		s.mu.Unlock()
	}
}
